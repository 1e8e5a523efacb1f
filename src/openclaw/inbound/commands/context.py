"""Commands about the model's context: ``/context`` shows it, ``/compact`` makes it shorter, ``/pin`` keeps a text."""

from __future__ import annotations

from typing import Any

from openclaw.agent.compaction.compaction import CompactionOutcome, NothingToDo
from openclaw.agent.prepare import prepare
from openclaw.agent.prompt.report import context_detail, context_help, context_json, context_list, stored_report
from openclaw.agent.runtime import Runtime
from openclaw.agent.window.window import Pin, PinRefused
from openclaw.inbound.incoming import CommandContext, Facts
from openclaw.models.base import ModelError
from openclaw.models.catalogue import UnknownModel
from openclaw.outbound.reply import percent, token_count
from openclaw.runs.session_change import set_entry_fields
from openclaw.sessions.entry import SessionEntry
from openclaw.text import shortened

_VIEWS = {
    "list": context_list,
    "show": context_list,
    "detail": context_detail,
    "deep": context_detail,
    "json": context_json,
}


async def context_sizes(context: CommandContext, facts: Facts, args: str) -> str:
    wish, session = args.strip().removeprefix(":").strip().lower(), facts.session
    if wish in ("", "help"):
        return context_help()
    view = _VIEWS.get(wish)
    if view is None:
        return (
            f"Unknown /context mode. Use: /context, /context list, /context detail, or /context json.\n{context_help()}"
        )
    try:
        report = await _session_report(session.agent_id, session.key, context.runtime)
    except (ModelError, UnknownModel) as problem:
        return f"⚙️ {problem}"
    entry: dict[str, Any] = dict(await context.entry(session) or SessionEntry(sessionId=""))
    if entry.get("contextTokens") is None:
        try:
            entry["contextTokens"] = context.catalogue.default_for(context.config, session.agent_id).context_window
        except UnknownModel:
            entry["contextTokens"] = None
    return view(report, entry)


async def compact(context: CommandContext, facts: Facts, args: str) -> str:
    session, compactions = facts.session, context.runs.compactions
    wish = args.strip().removeprefix(":").strip()
    match wish.lower():
        case "preview":
            return await compactions.preview(session.agent_id, session.key)
        case "undo":
            try:
                await compactions.undo(session.agent_id, session.key)
            except NothingToDo as nothing:
                return f"⚙️ {nothing}"
            fullness = await _fullness(context, facts)
            return f"⏪ Compaction taken back: the messages are there again. • {fullness}"
        case _:
            outcome = await compactions.compact_now(session.agent_id, session.key, wish)
            line = compacted_line(outcome, await _fullness(context, facts))
            context.runtime.notes.add(session.key, line)
            return line


def compacted_line(outcome: CompactionOutcome, fullness: str) -> str:
    match outcome.status:
        case "compacted" if outcome.tokens_after and outcome.tokens_after <= outcome.tokens_before:
            label = f"Compacted ({token_count(outcome.tokens_before)} → {token_count(outcome.tokens_after)})"
        case "compacted" if outcome.tokens_before:
            label = f"Compacted ({token_count(outcome.tokens_before)} before)"
        case "compacted":
            label = "Compacted"
        case "skipped":
            label = "Compaction skipped"
        case "failed":
            label = "Compaction failed"
    reason = f": {outcome.reason}" if outcome.reason else ""
    return f"⚙️ {label}{reason} • {fullness}"


async def _fullness(context: CommandContext, facts: Facts) -> str:
    entry = await context.entry(facts.session) or {}
    used, window = entry.get("totalTokens"), entry.get("contextTokens")
    text = f"Context {token_count(used)}/{token_count(window)}"
    return f"{text} ({percent(used, window)})" if used is not None and window else text


async def pin(context: CommandContext, facts: Facts, args: str) -> str:
    session = facts.session
    if await context.entry(session) is None:
        await set_entry_fields(context.runtime, session, {})
    try:
        pinned = await context.runs.compactions.pin(session.agent_id, session.key, args)
    except (PinRefused, ModelError) as refused:
        return f"⚙️ {refused}"
    return f"📌 Pinned: {shortened(pinned.text, 120)}"


async def unpin(context: CommandContext, facts: Facts, args: str) -> str:
    word, session = args.strip().removeprefix("#"), facts.session
    if not (word.isascii() and word.isdigit()):
        return "⚙️ Usage: /unpin <number>; /pins shows the numbers."
    try:
        taken = await context.runs.compactions.unpin(session.agent_id, session.key, int(word))
    except PinRefused as refused:
        return f"⚙️ {refused}"
    return f"📌 No longer pinned: {shortened(taken.text, 120)}"


async def pins(context: CommandContext, facts: Facts, _: str) -> str:
    return pins_text(await context.runs.compactions.pins(facts.session.agent_id, facts.session.key))


def pins_text(found: list[Pin]) -> str:
    if not found:
        return "📌 Nothing is pinned. /pin <text> keeps a text word for word."
    return "\n".join(["📌 Pinned:", *(f"{number}. {shortened(pin.text, 200)}" for number, pin in enumerate(found, 1))])


async def _session_report(agent_id: str, session_key: str, runtime: Runtime) -> dict[str, Any]:
    """Return the report of the last run, else of a run that would start now. Raise ModelError without a model."""
    entry = await runtime.stores.sessions.get(agent_id, session_key)
    report = await stored_report(entry, runtime.stores.blobs)
    if report is not None:
        return report
    prepared = await prepare(runtime, agent_id, session_key, entry["sessionId"] if entry else "")
    return {**prepared.report.whole(), "source": "estimate"}
