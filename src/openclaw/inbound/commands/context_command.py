"""``/context``: what the model is shown, by part and size."""

from __future__ import annotations

from openclaw.agent.compaction.compaction import CompactionOutcome, NothingToDo
from openclaw.agent.compaction.pins import Pin, PinRefused
from openclaw.agent.prompt.report import context_detail, context_help, context_json, context_list
from openclaw.inbound.commands.context import CommandContext
from openclaw.models.base import ModelError
from openclaw.models.catalogue import UnknownModel
from openclaw.outbound.usage_text import percent, shortened, token_count
from openclaw.sessions.entry import SessionEntry

_VIEWS = {
    "list": context_list,
    "show": context_list,
    "detail": context_detail,
    "deep": context_detail,
    "json": context_json,
}


async def context(context: CommandContext) -> str:
    wish = context.args.strip().removeprefix(":").strip().lower()
    if wish in ("", "help"):
        return context_help()
    view = _VIEWS.get(wish)
    if view is None:
        return (
            f"Unknown /context mode. Use: /context, /context list, /context detail, or /context json.\n{context_help()}"
        )
    try:
        report = await context.services.prompt_report(context.session)
    except (ModelError, UnknownModel) as problem:
        return f"⚙️ {problem}"
    entry = dict(context.entry or SessionEntry(sessionId=""))
    if entry.get("contextTokens") is None:
        entry["contextTokens"] = await context.services.context_window(context.session)
    return view(report, entry)


async def compact(context: CommandContext) -> str:
    session, compactions = context.session, context.services.compactions
    wish = context.args.strip().removeprefix(":").strip()
    match wish.lower():
        case "preview":
            return await compactions.preview(session.agent_id, session.key)
        case "undo":
            return await _undo(context)
        case _:
            outcome = await compactions.compact_now(session.agent_id, session.key, wish)
    line = compacted_line(outcome, await _fullness(context))
    context.services.note(session, line)
    return line


async def _undo(context: CommandContext) -> str:
    session = context.session
    try:
        await context.services.compactions.undo(session.agent_id, session.key)
    except NothingToDo as nothing:
        return f"⚙️ {nothing}"
    return f"⏪ Compaction taken back: the messages are there again. • {await _fullness(context)}"


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


async def _fullness(context: CommandContext) -> str:
    entry = await context.services.entry(context.session)
    used, window = (entry or {}).get("totalTokens"), (entry or {}).get("contextTokens")
    text = f"Context {token_count(used)}/{token_count(window)}"
    return f"{text} ({percent(used, window)})" if used is not None and window else text


async def pin(context: CommandContext) -> str:
    session = context.session
    if await context.services.entry(session) is None:
        await context.services.patch_session(session, {})
    try:
        pinned = await context.services.compactions.pin(session.agent_id, session.key, context.args)
    except PinRefused as refused:
        return f"⚙️ {refused}"
    return f"📌 Pinned: {shortened(pinned.text, 120)}"


async def unpin(context: CommandContext) -> str:
    word = context.args.strip().removeprefix("#")
    if not (word.isascii() and word.isdigit()):
        return "⚙️ Usage: /unpin <number>; /pins shows the numbers."
    session = context.session
    try:
        taken = await context.services.compactions.unpin(session.agent_id, session.key, int(word))
    except PinRefused as refused:
        return f"⚙️ {refused}"
    return f"📌 No longer pinned: {shortened(taken.text, 120)}"


async def pins(context: CommandContext) -> str:
    session = context.session
    return pins_text(await context.services.compactions.pins(session.agent_id, session.key))


def pins_text(found: list[Pin]) -> str:
    if not found:
        return "📌 Nothing is pinned. /pin <text> keeps a text word for word."
    return "\n".join(["📌 Pinned:", *(f"{number}. {shortened(pin.text, 200)}" for number, pin in enumerate(found, 1))])
