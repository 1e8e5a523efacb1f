"""``openclaw channels add|remove|login|logout``: connect and disconnect accounts of chat platforms."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.command import UserError, answer
from openclaw.cli.terminal import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

DEFAULT_ACCOUNT = "default"
WAIT_S = 20.0
"""How long a person waits to see whether a new account connects."""


class Field:
    """One key that an account needs. Secrets are typed without being shown."""

    def __init__(self, key: str, question: str, *, secret: bool = False, env: str = "", optional: bool = False) -> None:
        self.key = key
        self.question = question
        self.secret = secret
        self.env = env
        self.optional = optional


class Setup:
    """What a person needs to know and to enter to connect a platform."""

    def __init__(self, label: str, hint: str, *fields: Field, module: str = "", extra: str = "") -> None:
        self.label = label
        self.hint = hint
        self.fields = fields
        self.module = module
        self.extra = extra


SETUPS = {
    "telegram": Setup(
        "Telegram",
        "Write /newbot to @BotFather on Telegram; it answers with the token of your bot.",
        Field("botToken", "Token of the bot", secret=True, env="TELEGRAM_BOT_TOKEN"),
        module="telegram",
        extra="telegram",
    ),
    "discord": Setup(
        "Discord",
        "Make an application at discord.com/developers, add a bot, switch Message Content on, copy its token.",
        Field("token", "Token of the bot", secret=True, env="DISCORD_BOT_TOKEN"),
        module="discord",
        extra="discord",
    ),
    "slack": Setup(
        "Slack",
        "Make an app at api.slack.com/apps, switch Socket Mode on and install it; it has a bot token and an app token.",
        Field("botToken", "Bot token (xoxb-…)", secret=True, env="SLACK_BOT_TOKEN"),
        Field("appToken", "App token (xapp-…)", secret=True, env="SLACK_APP_TOKEN"),
        module="slack_sdk",
        extra="slack",
    ),
    "whatsapp": Setup(
        "WhatsApp",
        "Make a WhatsApp app at developers.facebook.com; point its webhook to channels.whatsapp.webhookPath.",
        Field("phoneNumberId", "Id of the phone number"),
        Field("accessToken", "Access token", secret=True, env="WHATSAPP_ACCESS_TOKEN"),
        Field("appSecret", "Secret of the app", secret=True),
        Field("verifyToken", "A word of your own for the verification of the webhook", secret=True),
    ),
    "signal": Setup(
        "Signal",
        "Link signal-cli to your number first (docs/channels.md).",
        Field("account", "Phone number, such as +4915112345678"),
        Field("httpUrl", "Address of a running daemon (empty: signal-cli is started)", optional=True),
    ),
    "bluebubbles": Setup(
        "iMessage (BlueBubbles)",
        "Install the BlueBubbles server on a Mac; it shows its address and password.",
        Field("serverUrl", "Address of the server"),
        Field("password", "Password of the server", secret=True),
    ),
    "matrix": Setup(
        "Matrix",
        "Make an account for the agent on your homeserver.",
        Field("homeserver", "Address of the homeserver, such as https://matrix.org"),
        Field("userId", "The account, such as @agent:matrix.org"),
        Field("password", "Its password (it is used once, to log in)", secret=True),
        module="nio",
        extra="matrix",
    ),
    "irc": Setup(
        "IRC",
        "Choose a nickname; a password is needed only where the network asks for one.",
        Field("host", "Server, such as irc.libera.chat"),
        Field("nick", "Nickname of the agent"),
    ),
}
SETUPS["imessage"] = SETUPS["bluebubbles"]


def add(args: argparse.Namespace) -> int:
    """Writes the account into the configuration and shows whether it connects."""
    channel = _channel(args.channel)
    setup = SETUPS[channel]
    _need_library(setup, install=args.install)
    given = dict(_pair(text) for text in args.set or [])
    where = _where(channel, args.account)
    if any(field.key not in given for field in setup.fields):
        note(setup.hint)
    for field in setup.fields:
        if field.key not in given and (value := _asked(field, where, args.account)):
            given[field.key] = value
    _write(where, {**given, "enabled": True})
    note(f"{setup.label} is configured ({where}).")
    return _show_whether_it_connects(args, channel, setup)


def login(args: argparse.Namespace) -> int:
    """Asks for the secrets of an account anew."""
    channel = _channel(args.channel)
    where, setup = _where(channel, args.account), SETUPS[channel]
    secrets = [field for field in setup.fields if field.secret]
    if not secrets:
        raise UserError(f"{setup.label} needs no log-in here. {setup.hint}")
    _write(where, {**{field.key: _asked(field, where, args.account) for field in secrets}, "enabled": True})
    return _show_whether_it_connects(args, channel, setup)


def logout(args: argparse.Namespace) -> int:
    """Switches the account off and removes its secrets from the configuration."""
    channel = _channel(args.channel)
    where = _where(channel, args.account)
    _need_section(where)
    for field in SETUPS[channel].fields:
        if field.secret:
            _unset(f"{where}.{field.key}")
    _write(where, {"enabled": False})
    note(f"{SETUPS[channel].label} is off, and its secrets are gone from the configuration.")
    return 0


def remove(args: argparse.Namespace) -> int:
    """Switches the account off. With ``--delete`` its whole section goes."""
    channel = args.channel.strip().lower()
    where = _where(channel, args.account)
    _need_section(where)
    if args.delete:
        _unset(where)
        note(f"Removed {where} from {paths.config_path()}. Conversations are kept.")
    else:
        _write(where, {"enabled": False})
        note(f"Switched {where} off; `--delete` removes its settings too.")
    return 0


def _channel(name: str | None) -> str:
    names = [known for known in SETUPS if known != "imessage"]
    if name is None and sys.stdin.isatty():
        for number, known in enumerate(names, start=1):
            note(f"{number}. {SETUPS[known].label}")
        answer = input("Which channel? ").strip().lower()
        name = names[int(answer) - 1] if answer.isdigit() and 0 < int(answer) <= len(names) else answer
    if name is None or name.strip().lower() not in SETUPS:
        raise UserError(f"Name a channel: {', '.join(names)}.")
    return name.strip().lower()


def _where(channel: str, account: str | None) -> str:
    named = (account or "").strip() not in ("", DEFAULT_ACCOUNT)
    return f"channels.{channel}.accounts.{account}" if named else f"channels.{channel}"


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key.strip():
        raise UserError(f"--set takes KEY=VALUE, such as --set botToken=…; {text!r} has no value")
    return key.strip(), value


def _asked(field: Field, where: str, account: str | None) -> str:
    """The value that a person enters. Empty: it is optional, or comes from the environment."""
    if field.env and os.environ.get(field.env) and account in (None, DEFAULT_ACCOUNT):
        note(f"{field.question}: taken from {field.env} whenever the Gateway has that variable.")
        return ""
    if not sys.stdin.isatty():
        if field.optional:
            return ""
        raise UserError(f"{where}.{field.key} is missing: add --set {field.key}=… or run this in a terminal.")
    if field.secret:
        import getpass

        value = getpass.getpass(f"{field.question}: ").strip()
    else:
        value = input(f"{field.question}: ").strip()
    if not value and not field.optional:
        raise UserError(f"{field.question}: nothing was entered, so nothing was changed.")
    return value


def _need_library(setup: Setup, *, install: bool) -> None:
    """Installs what the channel needs, if the person wants that. Raises ``UserError`` if it stays missing."""
    from importlib.util import find_spec

    if not setup.module or find_spec(setup.module) is not None:
        return
    wanted = requirements_of(setup.extra)
    command = [sys.executable, "-m", "pip", "install", *wanted]
    if not install and sys.stdin.isatty():
        install = input(f"{setup.label} needs {', '.join(wanted)}. Install it now? [Y/n] ").strip().lower() in ("", "y")
    if not install:
        raise UserError(f"{setup.label} needs a library: {' '.join(command)}")
    import subprocess

    note(f"Installing {', '.join(wanted)} …")
    if subprocess.run([*command, "--quiet"], check=False).returncode != 0:
        raise UserError(f"The installation failed. Try it yourself: {' '.join(command)}")


def requirements_of(extra: str) -> list[str]:
    """What an extra of this package consists of."""
    from importlib.metadata import requires

    marked = [line.partition(";") for line in requires("openclaw") or []]
    return [name.strip() for name, _, mark in marked if f'extra == "{extra}"' in mark.replace("'", '"')]


def _need_section(where: str) -> None:
    from openclaw.cli.config import configured

    configured(where)


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


def _show_whether_it_connects(args: argparse.Namespace, channel: str, setup: Setup) -> int:
    """Waits a little for a running Gateway to connect the account, and says how that went."""
    import time

    from openclaw.cli.client import from_args

    ends, error = time.monotonic() + WAIT_S, ""
    report: dict[str, Any] = {"ok": True, "channel": channel, "connected": False}
    while time.monotonic() < ends:
        try:
            status = from_args(args, live=True).call("channels.status", {})
        except UserError:
            text = "No Gateway is running; it connects when you start one (`openclaw gateway start`)."
            return answer(args, report, text, sys.stderr)
        accounts = status.get("channelAccounts", {}).get(channel, [])
        wanted = args.account or DEFAULT_ACCOUNT
        found = next((one for one in accounts if one.get("accountId") == wanted), accounts[0] if accounts else {})
        if found.get("connected"):
            text = f"{setup.label} is connected. Write to it; strangers get a code: `openclaw pairing approve CODE`."
            return answer(args, {**report, "connected": True}, text, sys.stderr)
        error = str(found.get("lastError") or "")
        if found and (not found.get("configured", True) or not found.get("running", True)) and error:
            break
        time.sleep(0.5)
    raise UserError(
        f"{setup.label} is not connected yet: {error or 'no answer so far'}. `openclaw channels status` tells more."
    )
