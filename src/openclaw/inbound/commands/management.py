"""Commands for owners: ``/config``, ``/restart``, ``/approve`` and ``/budget``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pyjson5

from openclaw.agent.spend.budget import OVERRIDE, end_of_day_ms, limits_of, overridden, user_zone
from openclaw.config.channels import account_settings
from openclaw.config.keypath import MISSING, get_path, overlaps, parse_path
from openclaw.config.load import Snapshot
from openclaw.config.schema import Config
from openclaw.config.secrets import redacted
from openclaw.config.validate import ConfigError
from openclaw.inbound.incoming import CommandContext, Facts
from openclaw.runs.session_change import set_entry_fields
from openclaw.tools.exec.approvals import Decision, UnknownApproval
from openclaw.tools.exec.binding import fenced

CONFIG_USAGE = "⚙️ Usage: /config show|get [path] · set path=value · unset path"
LONGEST_ANSWER = 3500


async def restart(context: CommandContext, facts: Facts, _: str) -> str:
    if not context.config.commands.restart:
        return switched_off("restart")
    context.restart(f"/restart from {facts.channel}")
    return "⚙️ Restarting. Messages sent meanwhile are kept and answered afterwards."


async def config(context: CommandContext, facts: Facts, args: str) -> str:
    if not context.config.commands.config:
        return switched_off("config")
    store = context.runtime.config
    verb, _, rest = args.strip().partition(" ")
    rest = rest.strip()
    try:
        match verb.lower():
            case "" | "show" | "get":
                return _shown(rest, redacted(store.snapshot.parsed))
            case "set" | "unset" if not _may_write(context.config, facts):
                return f"⚠️ Changes from {facts.channel} are switched off (configWrites)."
            case "set":
                path, _, text = (part.strip() for part in rest.partition("="))
                if not path or not text:
                    return CONFIG_USAGE
                after = await _change(context, lambda: store.set_path(path, read_value(text)))
                doubts = [f"⚠️ {warning}" for warning in after.warnings if overlaps(warning.path, path)]
                return "\n".join([f"⚙️ Set {path} in the configuration.", *doubts])
            case "unset" if rest:
                await _change(context, lambda: store.unset_path(rest))
                return f"⚙️ Removed {rest} from the configuration."
            case _:
                return CONFIG_USAGE
    except (ConfigError, ValueError) as wrong:
        return f"⚠️ {wrong}"
    except KeyError as missing:
        return f"⚠️ Config path not found: {missing.args[0]}"


def switched_off(name: str) -> str:
    return f"⚠️ /{name} is disabled. Set commands.{name} to true in the configuration to allow it."


def _may_write(config: Config, facts: Facts) -> bool:
    """The configuration can forbid a channel to change it."""
    account = account_settings(config, facts.channel)
    return account is None or account.config_writes


async def _change(context: CommandContext, change: Callable[[], Snapshot]) -> Snapshot:
    after = await asyncio.to_thread(change)
    await context.runtime.config.reload()
    return after


def read_value(text: str) -> Any:
    """The value that the text means as JSON, or else the text itself."""
    try:
        return pyjson5.decode(text)
    except pyjson5.Json5Exception:
        return text


def _shown(path: str, whole: Any) -> str:
    value = get_path(whole, parse_path(path), MISSING) if path else whole
    if value is MISSING:
        raise KeyError(path)
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


async def approve(context: CommandContext, facts: Facts, args: str) -> str:
    read = read_answer(args)
    if read is None:
        return APPROVE_USAGE
    ref, decision = read
    by = facts.sender_name or f"{facts.channel}:{facts.sender_ids[0] if facts.sender_ids else 'owner'}"
    try:
        approval = context.runtime.approvals.resolve(ref, decision, by)
    except UnknownApproval as unknown:
        return f'❌ "{ref}": {unknown}.{unknown.perhaps}'
    outcome = {"allow-once": "allowed once", "allow-always": "allowed from now on", "deny": "denied"}[decision]
    if decision == "allow-always" and approval.request.once_only:
        outcome = f"allowed once, and not for good: {approval.request.once_only}"
    return f"✅ Exec approval {approval.slug}: {outcome}. Command:\n{fenced(approval.request.command)}"


def read_answer(args: str) -> tuple[str, Decision] | None:
    """The id and the decision. They may be written in either order."""
    words = args.split()
    if len(words) != 2:
        return None
    for ref, word in (words, reversed(words)):
        if (decision := _DECISIONS.get(word.lower())) and ref.lower() not in _DECISIONS:
            return ref, decision
    return None


async def budget(context: CommandContext, facts: Facts, args: str) -> str:
    runtime, session = context.runtime, facts.session
    now = runtime.clock.now_ms()
    match args.strip().lower():
        case "":
            entry = await context.entry(session)
            limits = await limits_of(runtime, session, entry)
            if not limits:
                return "💰 No limits are set (agents.defaults.budget)."
            lines = [f"{limit.key}: {limit.text}{' — used up' if limit.reached else ''}" for limit in limits]
            note = ["This session may go on past them today."] if overridden(entry, now) else []
            return "\n".join(["💰 Budget", *lines, *note])
        case "override":
            until = end_of_day_ms(now, user_zone(context.config))
            await set_entry_fields(runtime, session, {OVERRIDE: until})
            return "⚙️ The limits do not hold in this session until the day ends. /budget enforce puts them back."
        case "enforce":
            await set_entry_fields(runtime, session, {OVERRIDE: None})
            return "⚙️ The limits hold again."
        case _:
            return "⚙️ Usage: /budget [override|enforce]"
