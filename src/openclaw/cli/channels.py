"""``openclaw channels``: which chat platforms the Gateway listens on, and how they are doing."""

from __future__ import annotations

import sys
import time

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.terminal import age, print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def _build_list(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_gateway_options(parser)


def _build_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--probe", action="store_true", help="ask each platform now whether it answers")
    _build_list(parser)


def list_channels(args: argparse.Namespace) -> int:
    status = clients.from_args(args).call("channels.status", {})
    if args.json:
        print_json({"channels": status.get("channelAccounts") or {}})
        return 0
    lines = [
        f"{_label(status, channel)}: {_name(account)}"
        for channel, accounts in (status.get("channelAccounts") or {}).items()
        for account in accounts
    ]
    sys.stdout.write("\n".join(printable(line) for line in lines or [_none()]) + "\n")
    return 0


def show_status(args: argparse.Namespace) -> int:
    """Exit 1 when an account that should be connected is not."""
    status = clients.from_args(args).call("channels.status", {"probe": True} if args.probe else {})
    accounts = status.get("channelAccounts") or {}
    well = all(_is_well(account) for listed in accounts.values() for account in listed)
    if args.json:
        print_json(status)
        return 0 if well else 1
    now = status.get("ts") or time.time() * 1000
    lines = [
        f"{_label(status, channel)} {_name(account)}: {_state(account, now)}"
        for channel, listed in accounts.items()
        for account in listed
    ]
    sys.stdout.write("\n".join(printable(line) for line in lines or [_none()]) + "\n")
    return 0 if well else 1


def _none() -> str:
    return "No channel is configured. Signal, for example: openclaw config set channels.signal.account +4915112345678"


def _label(status: dict[str, Any], channel: str) -> str:
    return str((status.get("channelLabels") or {}).get(channel, channel))


def _name(account: dict[str, Any]) -> str:
    name, account_id = account.get("name"), account.get("accountId", "default")
    return f"{account_id} ({name})" if name else str(account_id)


def _is_well(account: dict[str, Any]) -> bool:
    probe = account.get("probe")
    return not account.get("enabled") or (bool(account.get("connected")) and (not probe or bool(probe.get("ok"))))


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
    if account.get("lastError"):
        details.append(str(account["lastError"]))
    if probe := account.get("probe"):
        details.append(_probed(probe))
    return ", ".join([state, *details])


def _probed(probe: dict[str, Any]) -> str:
    if not probe.get("ok"):
        return f"does not answer ({probe.get('error', 'unknown reason')})"
    return f"answers (version {probe['version']})" if probe.get("version") else "answers"


ACTIONS = {
    "list": Action("List the configured accounts", list_channels, _build_list, example="openclaw channels list"),
    "status": Action(
        "Show which accounts are connected", show_status, _build_status, example="openclaw channels status --probe"
    ),
}
DEFAULT = "status"
