"""Commands on the Gateway: ``/config`` and ``/restart``. Both are off until the configuration allows them."""

from __future__ import annotations

import json
from typing import Any

import pyjson5

from openclaw.agent.spend.budget import OVERRIDE, Limit, end_of_day_ms, overridden, user_zone
from openclaw.config.schema import Config
from openclaw.inbound.commands.context import CommandContext, Decision, Facts

CONFIG_USAGE = "⚙️ Usage: /config show|get [path] · set path=value · unset path"
LONGEST_ANSWER = 3500


async def restart(context: CommandContext) -> str:
    if not context.command.enabled(context.services.config):
        return switched_off("restart")
    await context.services.restart(f"/restart from {context.facts.channel}")
    return "⚙️ Restarting. Messages sent meanwhile are kept and answered afterwards."


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
                return CONFIG_USAGE
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
        return CONFIG_USAGE
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


APPROVE_USAGE = "⚙️ Usage: /approve <id> allow-once|allow-always|deny"
_DECISIONS: dict[str, Decision] = {
    "allow-once": "allow-once",
    "allowonce": "allow-once",
    "allow": "allow-once",
    "once": "allow-once",
    "allow-always": "allow-always",
    "allowalways": "allow-always",
    "always": "allow-always",
    "deny": "deny",
    "reject": "deny",
    "block": "deny",
}


async def approve(context: CommandContext) -> str:
    facts = context.facts
    if not facts.approver:
        return "❌ /approve needs the scope operator.approvals, which this client does not have."
    read = read_answer(context.args)
    if read is None:
        return APPROVE_USAGE
    ref, decision = read
    try:
        command = context.services.decide(ref, decision, facts.sender_name or f"{facts.channel}:{_who(context)}")
    except LookupError as unknown:
        return f'❌ "{ref}": {unknown.args[0]}'
    outcome = {"allow-once": "allowed once", "allow-always": "allowed from now on", "deny": "denied"}[decision]
    return f"✅ Exec approval {ref}: {outcome}. Command: {command}"


def read_answer(args: str) -> tuple[str, Decision] | None:
    """The id and the decision, in either order."""
    words = args.split()
    if len(words) != 2:
        return None
    for ref, word in (words, reversed(words)):
        if (decision := _DECISIONS.get(word.lower())) and ref.lower() not in _DECISIONS:
            return ref, decision
    return None


def _who(context: CommandContext) -> str:
    return context.facts.sender_ids[0] if context.facts.sender_ids else "owner"


async def budget(context: CommandContext) -> str:
    services, session = context.services, context.session
    now = services.clock.now_ms()
    match context.args.strip().lower():
        case "":
            return budget_text(await services.limits(session), overridden=overridden(context.entry, now))
        case "override":
            until = end_of_day_ms(now, user_zone(services.config))
            await services.patch_session(session, {OVERRIDE: until})
            return "⚙️ The limits do not hold in this session until the day ends. /budget enforce puts them back."
        case "enforce":
            await services.patch_session(session, {OVERRIDE: None})
            return "⚙️ The limits hold again."
        case _:
            return "⚙️ Usage: /budget [override|enforce]"


def budget_text(limits: list[Limit], *, overridden: bool) -> str:
    if not limits:
        return "💰 No limits are set (agents.defaults.budget)."
    lines = [f"{limit.key}: {limit.text}{' — used up' if limit.reached else ''}" for limit in limits]
    note = ["This session may go on past them today."] if overridden else []
    return "\n".join(["💰 Budget", *lines, *note])
