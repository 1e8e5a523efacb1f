"""``openclaw channels add|remove|login|logout``: connect and disconnect accounts of chat platforms."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.command import UserError, answer, choose, entered, secret, yes
from openclaw.cli.terminal import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from openclaw.channels.kind import AccountKey, ConfiguredKind

DEFAULT_ACCOUNT = "default"
WAIT_S = 20.0
"""How long a person waits to see whether a new account connects."""


def add(args: argparse.Namespace) -> int:
    """Writes the account into the configuration and shows whether it connects."""
    kind = _kind(args.channel)
    _need_library(kind, install=args.install)
    given = dict(_pair(text) for text in args.set or [])
    where = _where(kind.id, args.account)
    fields = [field for field in kind.credentials if field.asked and not _needless(field, given)]
    if fields:
        note(kind.hint)
    for field in fields:
        if value := _asked(field, where, args.account):
            given[field.key] = value
    _write(where, {**given, "enabled": True})
    note(f"{kind.label} is configured ({where}).")
    return _show_whether_it_connects(args, kind)


def login(args: argparse.Namespace) -> int:
    """Asks for the secrets of an account anew."""
    kind = _kind(args.channel)
    where = _where(kind.id, args.account)
    given = dict(_pair(text) for text in args.set or [])
    secrets = [field for field in kind.credentials if field.secret and field.asked and not _needless(field, given)]
    if not secrets and not given:
        raise UserError(f"{kind.label} needs no log-in here. {kind.hint}")
    given |= {field.key: _asked(field, where, args.account) for field in secrets}
    _write(where, {**given, "enabled": True})
    return _show_whether_it_connects(args, kind)


def logout(args: argparse.Namespace) -> int:
    """Switches the account off and removes its secrets from the configuration."""
    from openclaw.cli.config import changed

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
    from openclaw.cli.config import changed

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
    from openclaw.channels.kind import BUILT_IN, built_in_kind

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
    return any(key in given for key in (field.key, *field.instead))


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key.strip():
        raise UserError(f"--set takes KEY=VALUE, such as --set botToken=…; {text!r} has no value")
    return key.strip(), value


def _asked(field: AccountKey, where: str, account: str | None) -> str:
    """The value that a person enters. Empty: it is optional, or comes from the environment."""
    if field.variable and os.environ.get(field.variable) and account in (None, DEFAULT_ACCOUNT):
        note(f"{field.question}: taken from {field.variable} whenever the Gateway has that variable.")
        return ""
    if not sys.stdin.isatty():
        if field.optional:
            return ""
        raise UserError(f"{where}.{field.key} is missing: add --set {field.key}=… or run this in a terminal.")
    value = secret(field.question) if field.secret else entered(f"{field.question}:")
    if not value and not field.optional:
        raise UserError(f"{field.question}: nothing was entered, so nothing was changed.")
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
    from openclaw.cli.config import NotSet, configured

    try:
        configured(where)
    except NotSet:
        raise UserError(f"{where} is not configured. `openclaw channels list` shows the accounts.") from None


def _write(where: str, values: dict[str, Any]) -> None:
    from openclaw.cli.config import change_config

    for key, value in values.items():
        if value != "":
            path = f"{where}.{key}"
            change_config(lambda store, path=path, value=value: store.set_path(path, value, even_if_refused=True), path)


def _unset(path: str) -> None:
    from openclaw.cli.config import change_config, configured

    try:
        configured(path)
    except UserError:
        return
    change_config(lambda store: store.unset_path(path))


def _show_whether_it_connects(args: argparse.Namespace, kind: type[ConfiguredKind]) -> int:
    """Waits a little for a running Gateway to connect the account, and says how that went."""
    import time

    from openclaw.cli.client import from_args

    ends, error = time.monotonic() + WAIT_S, ""
    report: dict[str, Any] = {"ok": True, "channel": kind.id, "connected": False}
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
