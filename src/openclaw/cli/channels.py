"""``openclaw channels``: the accounts of chat platforms. Connect and disconnect them, and see how they are."""

from __future__ import annotations

import os
import sys
import time

from openclaw import paths
from openclaw.cli.client import from_args
from openclaw.cli.command import (
    CLIENT,
    JSON,
    Action,
    Flag,
    Group,
    UserError,
    answer,
    choose,
    entered,
    query,
    secret,
    yes,
)
from openclaw.cli.config import NotSet, change_config, changed, configured
from openclaw.cli.terminal import note
from openclaw.text import age

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from openclaw.channels.base import AccountKey, ConfiguredKind
    from openclaw.cli.answers import ChannelAccountAnswer, ChannelsStatusAnswer

NO_CHANNEL = "No channel is configured. `openclaw channels add` connects one."
DEFAULT_ACCOUNT = "default"
WAIT_S = 20.0
"""How long a person waits to see whether a new account connects."""


def _show_list(status: ChannelsStatusAnswer, args: argparse.Namespace) -> list[str]:
    return [f"{label}: {_name(account)}" for label, account in _accounts(status)] or [NO_CHANNEL]


def _accounts(status: ChannelsStatusAnswer) -> Iterator[tuple[str, ChannelAccountAnswer]]:
    """Each account with the label of its channel."""
    labels = status.get("channelLabels") or {}
    for channel, accounts in (status.get("channelAccounts") or {}).items():
        yield from ((str(labels.get(channel, channel)), account) for account in accounts)


def _name(account: ChannelAccountAnswer) -> str:
    name, account_id = account.get("name"), account.get("accountId", "default")
    return f"{account_id} ({name})" if name else str(account_id)


def _show_status(status: ChannelsStatusAnswer, args: argparse.Namespace) -> list[str]:
    now = status.get("ts") or time.time() * 1000
    lines = [f"{label} {_name(account)}: {_state(account, now)}" for label, account in _accounts(status)]
    return lines or [NO_CHANNEL]


def _show_capabilities(status: ChannelsStatusAnswer, args: argparse.Namespace) -> list[str]:
    labels = status.get("channelLabels") or {}
    lines: list[str] = []
    for channel, capabilities in (status.get("channelCapabilities") or {}).items():
        able = [name for name, value in capabilities.items() if value is True]
        chat_types = capabilities.get("chatTypes")
        words = [*(chat_types if isinstance(chat_types, list) else []), *able]
        lines.append(f"{labels.get(channel, channel)}: {', '.join(words)}")
    return lines or [NO_CHANNEL]


def _is_down(status: ChannelsStatusAnswer, args: argparse.Namespace) -> bool:
    """Whether an account that should be connected is not."""
    return any(
        account.get("enabled") and not (account.get("connected") and (account.get("probe") or {"ok": True}).get("ok"))
        for _, account in _accounts(status)
    )


def _state(account: ChannelAccountAnswer, now: float) -> str:
    if not account.get("enabled"):
        return "disabled"
    if not account.get("configured"):
        state = "not configured"
    elif account.get("connected"):
        state = "connected"
    else:
        state = "connecting" if account.get("running") else "not running"
    details = [
        f"{word} {age(now - moment)}"
        for word, moment in (("last heard", account.get("lastInboundAt")), ("last sent", account.get("lastOutboundAt")))
        if moment is not None
    ]
    if node := account.get("node"):
        details.append(f"at node {node[:8]}")
    if error := account.get("lastError"):
        details.append(error)
    if names := account.get("resolvedNames"):
        details.append(f"resolved names: {', '.join(f'{name} = {id}' for name, id in names.items())}")
    if probe := account.get("probe"):
        if not probe.get("ok"):
            details.append(f"does not answer ({probe.get('error', 'unknown reason')})")
        else:
            details.append(f"answers (version {version})" if (version := probe.get("version")) else "answers")
    return ", ".join([state, *details])


# Connecting and disconnecting


def add(args: argparse.Namespace) -> int:
    """Writes the account into the configuration and shows whether it connects."""
    kind = _kind(args.channel)
    _need_library(kind, install=args.install)
    given, where = _given(args), _where(kind.id, args.account)
    fields = [field for field in kind.credentials if field.prompted and not _needless(field, given)]
    if fields:
        note(kind.hint)
    for field in fields:
        if value := _asked(field, where, args.account):
            given[field.key] = value
    _write(where, {**given, "enabled": True})
    note(f"{kind.label} is configured ({where}).")
    return _show_whether_it_connects(args, kind)


def login(args: argparse.Namespace) -> int:
    """Ask for the secrets of an account again."""
    kind = _kind(args.channel)
    given, where = _given(args), _where(kind.id, args.account)
    secrets = [field for field in kind.credentials if field.secret and field.prompted and not _needless(field, given)]
    if not secrets and not given:
        raise UserError(f"{kind.label} needs no log-in here. {kind.hint}")
    given |= {field.key: _asked(field, where, args.account) for field in secrets}
    _write(where, {**given, "enabled": True})
    return _show_whether_it_connects(args, kind)


def logout(args: argparse.Namespace) -> int:
    """Switches the account off and removes its secrets from the configuration."""
    kind = _kind(args.channel)
    where = _where(kind.id, args.account)
    _need_section(where)
    for field in kind.credentials:
        if field.secret:
            _unset(f"{where}.{field.key}")
    _write(where, {"enabled": False})
    return changed(args, f"{kind.label} is off, and its secrets are gone from the configuration.", path=where)


def remove(args: argparse.Namespace) -> int:
    """Switches the account off. With ``--delete`` its whole section goes."""
    channel = args.channel.strip().lower()
    where = _where(channel, args.account)
    _need_section(where)
    if args.delete:
        _unset(where)
        told = f"Removed {where} from {paths.config_path()}. Conversations are kept."
    else:
        _write(where, {"enabled": False})
        told = f"Switched {where} off; `--delete` removes its settings too."
    return changed(args, told, path=where, deleted=args.delete)


def _kind(name: str | None) -> type[ConfiguredKind]:
    from openclaw.channels.base import BUILT_IN, built_in_kind

    names = [known for known in BUILT_IN if known != "imessage"]
    if name is None and sys.stdin.isatty():
        name = names[choose("Which channel?", [built_in_kind(known).label for known in names], 0)]
    if name is None or name.strip().lower() not in BUILT_IN:
        raise UserError(f"Name a channel: {', '.join(names)}.")
    return built_in_kind(name.strip().lower())


def _where(channel: str, account: str | None) -> str:
    named = (account or "").strip() not in ("", DEFAULT_ACCOUNT)
    return f"channels.{channel}.accounts.{account}" if named else f"channels.{channel}"


def _needless(field: AccountKey, given: dict[str, str]) -> bool:
    """Whether a credential is given already, or another one in its place."""
    return any(key in given for key in (field.key, *field.alternatives))


def _given(args: argparse.Namespace) -> dict[str, str]:
    """What ``--set`` says."""
    given: dict[str, str] = {}
    for text in args.set or []:
        key, found, value = text.partition("=")
        if not found or not key.strip():
            raise UserError(f"--set takes KEY=VALUE, such as --set botToken=…; {text!r} has no value")
        given[key.strip()] = value
    return given


def _asked(field: AccountKey, where: str, account: str | None) -> str:
    """The value that a person enters. Empty: it is optional, or comes from the environment."""
    if field.variable and os.environ.get(field.variable) and account in (None, DEFAULT_ACCOUNT):
        note(f"{field.prompt}: taken from {field.variable} whenever the Gateway has that variable.")
        return ""
    if not sys.stdin.isatty():
        if field.optional:
            return ""
        raise UserError(f"{where}.{field.key} is missing: add --set {field.key}=… or run this in a terminal.")
    value = secret(field.prompt) if field.secret else entered(f"{field.prompt}:")
    if not value and not field.optional:
        raise UserError(f"{field.prompt}: nothing was entered, so nothing was changed.")
    return value


def _need_library(kind: type[ConfiguredKind], *, install: bool) -> None:
    """Installs what the channel needs, if the person wants that. Raises ``UserError`` if it stays missing."""
    from importlib.util import find_spec

    if not kind.library or find_spec(kind.library) is not None:
        return
    from openclaw.cli.installation import install_extra
    from openclaw.python_packages import requirements_of

    wanted = requirements_of(kind.id)
    if not install and sys.stdin.isatty():
        install = yes(f"{kind.label} needs {', '.join(wanted)}. Install it now?", usual=True)
    if not install:
        raise UserError(f"{kind.label} needs {', '.join(wanted)}: say --install to have it installed.")
    install_extra(kind.id)


def _need_section(where: str) -> None:
    try:
        configured(where)
    except NotSet:
        raise UserError(f"{where} is not configured. `openclaw channels list` shows the accounts.") from None


def _write(where: str, values: dict[str, object]) -> None:
    for key, value in values.items():
        if value != "":
            path = f"{where}.{key}"
            change_config(lambda store, path=path, value=value: store.set_path(path, value, even_if_refused=True), path)


def _unset(path: str) -> None:
    try:
        configured(path)
    except UserError:
        return
    change_config(lambda store: store.unset_path(path))


def _show_whether_it_connects(args: argparse.Namespace, kind: type[ConfiguredKind]) -> int:
    """Waits a little for a running Gateway to connect the account, and says how that went."""
    ends, error = time.monotonic() + WAIT_S, ""
    report: dict[str, object] = {"ok": True, "channel": kind.id, "connected": False}
    while time.monotonic() < ends:
        try:
            status = from_args(args, live=True).call("channels.status", {})
        except UserError:
            text = "No Gateway is running; it connects when you start one (`openclaw gateway start`)."
            return answer(args, report, text, sys.stderr)
        accounts = status.get("channelAccounts", {}).get(kind.id, [])
        wanted = args.account or DEFAULT_ACCOUNT
        found = next((one for one in accounts if one.get("accountId") == wanted), accounts[0] if accounts else {})
        if found.get("connected"):
            text = f"{kind.label} is connected. Write to it; strangers get a code: `openclaw pairing approve CODE`."
            return answer(args, {**report, "connected": True}, text, sys.stderr)
        error = str(found.get("lastError") or "")
        if found and (not found.get("configured", True) or not found.get("running", True)) and error:
            break
        time.sleep(0.5)
    raise UserError(
        f"{kind.label} is not connected yet: {error or 'no answer so far'}. `openclaw channels status` tells more."
    )


_ACCOUNT = Flag("--account ID", "for this account; otherwise for the only one")
_SET = Flag("--set KEY=VALUE", "a setting of the account, so that it is not asked for", action="append")
_ACTIONS = {
    "add": Action(
        "Connect a platform",
        add,
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
        remove,
        (Flag("channel", "such as telegram"), _ACCOUNT, Flag("--delete", "remove the settings too"), JSON),
        example="openclaw channels remove telegram --delete",
    ),
    "login": Action(
        "Enter the secrets of an account again",
        login,
        (Flag("channel", "such as matrix"), _ACCOUNT, _SET, *CLIENT),
        example="openclaw channels login matrix",
    ),
    "logout": Action(
        "Switch an account off and forget its secrets",
        logout,
        (Flag("channel", "such as matrix"), _ACCOUNT, JSON),
        example="openclaw channels logout matrix",
    ),
    "list": query(
        "List the configured accounts",
        "channels.status",
        shape=lambda status, args: {"channels": status.get("channelAccounts") or {}} if args.json else status,
        show=_show_list,
        example="openclaw channels list",
    ),
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
