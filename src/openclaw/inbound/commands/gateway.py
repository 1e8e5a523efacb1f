"""Commands on the Gateway: ``/config`` and ``/restart``. Both are off until the configuration allows them."""

from __future__ import annotations

import json
from typing import Any

import pyjson5

from openclaw.config.schema import Config
from openclaw.inbound.commands.context import CommandContext, Facts, handles

USAGE = "⚙️ Usage: /config show|get [path] · set path=value · unset path"
LONGEST_ANSWER = 3500


@handles("restart")
async def restart(context: CommandContext) -> str:
    if not context.command.enabled(context.services.config):
        return switched_off("restart")
    await context.services.restart(f"/restart from {context.facts.channel}")
    return "⚙️ Restarting. Messages sent meanwhile are kept and answered afterwards."


@handles("config")
async def config(context: CommandContext) -> str:
    if not context.command.enabled(context.services.config):
        return switched_off("config")
    verb, _, rest = context.args.strip().partition(" ")
    rest = rest.strip()
    try:
        match verb.lower():
            case "" | "show" | "get":
                return _shown(rest, await context.services.read_config(rest or None))
            case "set" | "unset" if not _may_write(context.services.config, context.facts):
                return f"⚠️ Changes from {context.facts.channel} are switched off (configWrites)."
            case "set":
                return await _set(context, rest)
            case "unset" if rest:
                await context.services.remove_config(rest)
                return f"⚙️ Removed {rest} from the configuration."
            case _:
                return USAGE
    except ValueError as wrong:
        return f"⚠️ {wrong}"


def switched_off(name: str) -> str:
    return f"⚠️ /{name} is disabled. Set commands.{name} to true in the configuration to allow it."


def _may_write(config: Config, facts: Facts) -> bool:
    """A channel may be kept from changing the configuration."""
    if facts.channel == "signal":
        return config.channels.signal is None or config.channels.signal.config_writes
    return (config.channels.others.get(facts.channel) or {}).get("configWrites") is not False


async def _set(context: CommandContext, assignment: str) -> str:
    path, equals, text = assignment.partition("=")
    path = path.strip()
    if not equals or not path or not text.strip():
        return USAGE
    await context.services.write_config(path, read_value(text.strip()))
    return f"⚙️ Set {path} in the configuration."


def read_value(text: str) -> Any:
    """JSON where it is JSON, otherwise the text itself."""
    try:
        return pyjson5.decode(text)
    except pyjson5.Json5Exception:
        return text


def _shown(path: str, value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(text) > LONGEST_ANSWER:
        text = text[:LONGEST_ANSWER] + "\n… (ask for a path to see the rest)"
    return f"⚙️ {path or 'Configuration'}:\n{text}"
