"""``openclaw channels``: the chat platforms the Gateway is configured for, and whether they are connected."""

from __future__ import annotations

import time

from openclaw.cli.client import from_args
from openclaw.cli.command import CLIENT, JSON, Action, Flag, Group, answer, query
from openclaw.text import age

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import Any

NO_CHANNEL = "No channel is configured. `openclaw channels add` connects one."


def list_channels(args: argparse.Namespace) -> int:
    status = from_args(args).call("channels.status", {})
    lines = [f"{label}: {_name(account)}" for label, account in _accounts(status)]
    return answer(args, {"channels": status.get("channelAccounts") or {}}, "\n".join(lines or [NO_CHANNEL]))


def _accounts(status: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each account with the label of its channel."""
    labels = status.get("channelLabels") or {}
    for channel, accounts in (status.get("channelAccounts") or {}).items():
        yield from ((str(labels.get(channel, channel)), account) for account in accounts)


def _name(account: dict[str, Any]) -> str:
    name, account_id = account.get("name"), account.get("accountId", "default")
    return f"{account_id} ({name})" if name else str(account_id)


def _show_status(status: dict[str, Any], args: argparse.Namespace) -> list[str]:
    now = status.get("ts") or time.time() * 1000
    lines = [f"{label} {_name(account)}: {_state(account, now)}" for label, account in _accounts(status)]
    return lines or [NO_CHANNEL]


def _show_capabilities(status: dict[str, Any], args: argparse.Namespace) -> list[str]:
    labels: dict[str, Any] = status.get("channelLabels") or {}
    found: dict[str, dict[str, Any]] = status.get("channelCapabilities") or {}
    lines: list[str] = []
    for channel, capabilities in found.items():
        able = [name for name, value in capabilities.items() if value is True]
        lines.append(f"{labels.get(channel, channel)}: {', '.join([*capabilities.get('chatTypes', []), *able])}")
    return lines or [NO_CHANNEL]


def _is_down(status: dict[str, Any], args: argparse.Namespace) -> bool:
    """Whether an account that should be connected is not."""
    return any(
        account.get("enabled") and not (account.get("connected") and (account.get("probe") or {"ok": True}).get("ok"))
        for _, account in _accounts(status)
    )


def _state(account: dict[str, Any], now: float) -> str:
    if not account.get("enabled"):
        return "disabled"
    if not account.get("configured"):
        state = "not configured"
    elif account.get("connected"):
        state = "connected"
    else:
        state = "connecting" if account.get("running") else "not running"
    details = [
        f"{word} {age(now - account[field])}"
        for word, field in (("last heard", "lastInboundAt"), ("last sent", "lastOutboundAt"))
        if isinstance(account.get(field), int | float)
    ]
    if account.get("node"):
        details.append(f"at node {str(account['node'])[:8]}")
    if account.get("lastError"):
        details.append(str(account["lastError"]))
    if probe := account.get("probe"):
        if not probe.get("ok"):
            details.append(f"does not answer ({probe.get('error', 'unknown reason')})")
        else:
            details.append(f"answers (version {probe['version']})" if probe.get("version") else "answers")
    return ", ".join([state, *details])


def _setup(name: str) -> Callable[[argparse.Namespace], int]:
    """An action of ``cli/channel_setup.py``, which is imported when it is used."""

    def run(args: argparse.Namespace) -> int:
        from openclaw.cli import channel_setup

        return getattr(channel_setup, name)(args)

    return run


_ACCOUNT = Flag("--account ID", "for this account; otherwise for the only one")
_SET = Flag("--set KEY=VALUE", "a setting of the account, so that it is not asked for", action="append")
_ACTIONS = {
    "add": Action(
        "Connect a platform",
        _setup("add"),
        (
            Flag("channel", "telegram, discord, slack, whatsapp, signal, bluebubbles, matrix or irc", nargs="?"),
            _ACCOUNT,
            _SET,
            Flag("--install", "install the library that the channel needs without a question"),
            *CLIENT,
        ),
        example="openclaw channels add telegram --set botToken=123:abc",
    ),
    "remove": Action(
        "Switch an account off, or remove its settings",
        _setup("remove"),
        (Flag("channel", "such as telegram"), _ACCOUNT, Flag("--delete", "remove the settings too"), JSON),
        example="openclaw channels remove telegram --delete",
    ),
    "login": Action(
        "Enter the secrets of an account anew",
        _setup("login"),
        (Flag("channel", "such as matrix"), _ACCOUNT, _SET, *CLIENT),
        example="openclaw channels login matrix",
    ),
    "logout": Action(
        "Switch an account off and forget its secrets",
        _setup("logout"),
        (Flag("channel", "such as matrix"), _ACCOUNT, JSON),
        example="openclaw channels logout matrix",
    ),
    "list": Action("List the configured accounts", list_channels, CLIENT, example="openclaw channels list"),
    "status": query(
        "Show which accounts are connected",
        "channels.status",
        (Flag("--probe", "ask each platform now whether it answers", param="probe"),),
        show=_show_status,
        failed=_is_down,
        example="openclaw channels status --probe",
    ),
    "capabilities": query(
        "Show what each platform can do: threads, reactions, edits, buttons …",
        "channels.status",
        show=_show_capabilities,
        example="openclaw channels capabilities",
    ),
}
COMMANDS = {"channels": Group(_ACTIONS, default="status")}
