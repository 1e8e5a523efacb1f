"""``/queue``: the list of waiting messages, and what changes in it.

Its settings, such as ``/queue collect``, can also stand within a message: ``inbound/directives.py`` reads them, and
``inbound/commands/settings.py`` stores them.
"""

from __future__ import annotations

from typing import Any

from openclaw.inbound.directives import Called, QueueDirective, parse_directives
from openclaw.inbound.incoming import CommandContext, Facts
from openclaw.runs.queue import RunRecord, queue_settings
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.prompt_prefix import typed_words
from openclaw.storage.base import AbortReason
from openclaw.text import shortened

OPTIONS = (
    "Options: modes steer, followup, collect, steer-backlog, interrupt; "
    "debounce:<ms|s|m|h>, cap:<n>, drop:old|new|summarize; reset."
)
LIST_HINT = "/queue drop N lets one go, /queue now N puts it first."
SHOWN = 20


async def queue(context: CommandContext, facts: Facts, args: str) -> str | None:
    """Shows what waits, drops one of it or puts one first. None: the words are a setting, which is a directive."""
    key = facts.session.key
    words = args.lower().split()
    match words:
        case ["list"]:
            return _listing(context, facts)
        case ["drop" | "now" as verb]:
            return f"Which one? Write /queue {verb} 1 for the first. /queue list shows them."
        case ["drop" | "now" as verb, number]:
            _, waiting = running_and_waiting(context, facts)
            if not waiting:
                return "Nothing is waiting."
            if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= len(waiting):
                return f'There is no item "{number}"; write a number from 1 to {len(waiting)}.'
            record = waiting[int(number) - 1]
            if verb == "now":
                done = context.dispatcher.promote(key, record.run_id)
            else:
                # A message that is about to run is neither running nor waiting, and is not dropped.
                waits = record in context.dispatcher.waiting(key)
                done = waits and bool(await context.dispatcher.abort(key, record.run_id, AbortReason.REMOVED))
            if not done:
                return f"“{_typed(record)}” is no longer waiting."
            return f"⚙️ “{_typed(record)}” runs next." if verb == "now" else f"⚙️ Dropped “{_typed(record)}”."
        case [word] if parse_directives(f"/queue {word}").rest:
            return f'Unrecognized queue option "{args}".\n{OPTIONS}\nAlso: /queue list, drop N, now N.'
        case _:
            return None


def edits_queue(called: Called) -> bool:
    """Whether the words ask for the list or a change to it, and not for a setting."""
    words = called.args.lower().split()
    return called.command.name == "queue" and len(words) in (1, 2) and words[0] in ("list", "drop", "now")


def running_and_waiting(context: CommandContext, facts: Facts) -> tuple[RunRecord | None, list[RunRecord]]:
    records = context.dispatcher.active(facts.session.key)
    running = next((record for record in records if record.state == "running"), None)
    return running, [record for record in records if record is not running]


def _typed(record: RunRecord) -> str:
    """The beginning of what the person wrote."""
    return shortened(record.row.body.written or typed_words(record.row.body.prompt or ""))


def _listing(context: CommandContext, facts: Facts) -> str:
    running, waiting = running_and_waiting(context, facts)
    now = context.runtime.clock.now_ms()

    def line(record: RunRecord) -> str:
        seconds = max(0, now - record.row.accepted_at) // 1000
        minutes = f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"
        return f"{_typed(record)} ({minutes if seconds >= 60 else f'{seconds} s'})"

    lines = [f"Running: {line(running)}"] if running else []
    if not waiting:
        return "\n".join([*lines, "Nothing is waiting."])
    lines.append(f"Waiting ({len(waiting)}):")
    lines += [f"{number}. {line(record)}" for number, record in enumerate(waiting[:SHOWN], 1)]
    if len(waiting) > SHOWN:
        lines.append(f"… and {len(waiting) - SHOWN} more")
    return "\n".join([*lines, LIST_HINT])


# The directive


def queue_overview(facts: Facts, context: CommandContext, entry: SessionEntry | None) -> str:
    settings = queue_settings(context.config.messages.queue, entry, facts.channel)
    current = (
        f"Current queue settings: mode={settings.mode}, debounce={settings.debounce_ms}ms, "
        f"cap={settings.cap}, drop={settings.drop}."
    )
    return f"{current}\n{OPTIONS}\n{_listing(context, facts)}"


def invalid_options(queue: QueueDirective) -> str:
    advice = {
        "debounce": "Write a time such as 1500ms, 2s or 1m.",
        "cap": "Write a whole number of at least 1.",
        "drop": "Write old, new or summarize.",
    }
    names = {"debounce": "debounce", "cap": "cap", "drop": "drop policy"}
    return " ".join(f'Invalid {names[name]} "{value}". {advice[name]}' for name, value in queue.invalid.items())


def queue_changes(queue: QueueDirective) -> dict[str, Any]:
    """The fields to set in the session's entry. A reset removes those that are not set anew."""
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
