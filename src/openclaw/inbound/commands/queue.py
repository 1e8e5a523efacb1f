"""``/queue``: what waits behind the run, letting one go or putting it first, and the settings of the queue."""

from __future__ import annotations

from typing import Any

from openclaw.inbound.command_text import Called
from openclaw.inbound.commands.context import CommandContext, CommandServices, Facts, QueueView, Waiting
from openclaw.inbound.directives import QueueDirective, parse_directives
from openclaw.outbound.usage_text import duration, shortened
from openclaw.runs.queue import queue_settings
from openclaw.sessions.entry import SessionEntry

OPTIONS = (
    "Options: modes steer, followup, collect, steer-backlog, interrupt; "
    "debounce:<ms|s|m|h>, cap:<n>, drop:old|new|summarize; reset."
)
LIST_HINT = "/queue drop N lets one go, /queue now N puts it first."
SHOWN = 20


async def queue(context: CommandContext) -> str | None:
    """The list and its two verbs. Settings are a directive, which None leaves to be read as one."""
    words = context.args.lower().split()
    match words:
        case ["list"]:
            return _listing(context.services.queue(context.session), context.services.clock.now_ms())
        case ["drop" | "now"]:
            return f"Which one? Write /queue {words[0]} 1 for the first. /queue list shows them."
        case ["drop", number]:
            return await _drop(context, number)
        case ["now", number]:
            return await _now(context, number)
        case [word] if not _is_setting(word):
            return f'Unrecognized queue option "{context.args}".\n{OPTIONS}\nAlso: /queue list, drop N, now N.'
        case _:
            return None


def edits_queue(called: Called) -> bool:
    """Whether the words ask for the list or a change to it, rather than for a setting."""
    words = called.args.lower().split()
    return called.command.name == "queue" and len(words) in (1, 2) and words[0] in ("list", "drop", "now")


def _is_setting(word: str) -> bool:
    return not parse_directives(f"/queue {word}").rest


async def _drop(context: CommandContext, number: str) -> str:
    item = _numbered(context, number)
    if isinstance(item, str):
        return item
    if not await context.services.drop_waiting(context.session, item.run_id):
        return f"“{shortened(item.text)}” is no longer waiting."
    return f"⚙️ Dropped “{shortened(item.text)}”."


async def _now(context: CommandContext, number: str) -> str:
    item = _numbered(context, number)
    if isinstance(item, str):
        return item
    if not await context.services.run_next(context.session, item.run_id):
        return f"“{shortened(item.text)}” is no longer waiting."
    return f"⚙️ “{shortened(item.text)}” runs next."


def _numbered(context: CommandContext, number: str) -> Waiting | str:
    waiting = context.services.queue(context.session).waiting
    if not waiting:
        return "Nothing is waiting."
    if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= len(waiting):
        return f'There is no item "{number}"; write a number from 1 to {len(waiting)}.'
    return waiting[int(number) - 1]


def _listing(view: QueueView, now_ms: int) -> str:
    lines = (
        [f"Running: {shortened(view.running.text)} ({duration(now_ms - view.running.since_ms)})"]
        if view.running
        else []
    )
    if not view.waiting:
        return "\n".join([*lines, "Nothing is waiting."])
    lines.append(f"Waiting ({len(view.waiting)}):")
    lines += [
        f"{number}. {shortened(item.text)} ({duration(now_ms - item.since_ms)})"
        for number, item in enumerate(view.waiting[:SHOWN], 1)
    ]
    if len(view.waiting) > SHOWN:
        lines.append(f"… and {len(view.waiting) - SHOWN} more")
    return "\n".join([*lines, LIST_HINT])


# The directive


def queue_overview(facts: Facts, services: CommandServices, entry: SessionEntry | None) -> str:
    settings = queue_settings(services.config.messages.queue, entry, facts.channel)
    current = (
        f"Current queue settings: mode={settings.mode}, debounce={settings.debounce_ms}ms, "
        f"cap={settings.cap}, drop={settings.drop}."
    )
    return f"{current}\n{OPTIONS}\n{_listing(services.queue(facts.session), services.clock.now_ms())}"


def invalid_options(queue: QueueDirective) -> str:
    advice = {
        "debounce": "Write a time such as 1500ms, 2s or 1m.",
        "cap": "Write a whole number of at least 1.",
        "drop": "Write old, new or summarize.",
    }
    names = {"debounce": "debounce", "cap": "cap", "drop": "drop policy"}
    return " ".join(f'Invalid {names[name]} "{value}". {advice[name]}' for name, value in queue.invalid.items())


def queue_changes(queue: QueueDirective) -> dict[str, Any]:
    """Fields of the entry; a reset removes all four before anything else is set."""
    wish = queue.wish
    values = {
        "queueMode": wish.mode,
        "queueDebounceMs": wish.debounce_ms,
        "queueCap": wish.cap,
        "queueDrop": wish.drop,
    }
    return {name: value for name, value in values.items() if queue.reset or value is not None}


def queue_acks(queue: QueueDirective) -> list[str]:
    wish = queue.wish
    acks = ["⚙️ Queue mode reset to default."] if queue.reset else []
    if wish.mode:
        acks.append(f"⚙️ Queue mode set to {wish.mode}.")
    if wish.debounce_ms is not None:
        acks.append(f"⚙️ Queue debounce set to {wish.debounce_ms}ms.")
    if wish.cap is not None:
        acks.append(f"⚙️ Queue cap set to {wish.cap}.")
    if wish.drop:
        acks.append(f"⚙️ Queue drop set to {wish.drop}.")
    return acks
