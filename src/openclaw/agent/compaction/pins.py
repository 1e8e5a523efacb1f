"""Pins: texts that a person wants to keep word for word through every compaction.

A pin is an entry of the transcript that the model sees. A compaction copies the pinned texts into its own entry.
Another entry removes a pin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from openclaw.agent.window.tokens import PromptBudget, careful_tokens
from openclaw.messages import Message, TextBlock, UserMessage, user_text
from openclaw.sessions.tree import fields_of
from openclaw.storage.base import Entry, Transcript

PIN = "openclaw.pin"
UNPIN = "openclaw.unpin"
_PINNED = "[Pinned by the user, keep in mind]"
_UNPINNED = "[No longer pinned]"
_OPEN, _CLOSE = "\n\n<pinned>\n", "\n</pinned>"
MOST_PINS = 50
PINNED_SHARE = 4
"""Pinned texts take at most this part (a fourth) of the room that the window has for messages."""


class PinRefused(Exception):
    """A pin cannot be added or removed. The text is for the person who asked."""


class Pin(msgspec.Struct, frozen=True):
    """A pinned text. ``id`` is the id of its entry."""

    id: str
    text: str


async def pins_of(transcript: Transcript) -> list[Pin]:
    """The pins of the active branch, oldest first: those of the last compaction's entry, then those added since."""
    context = transcript.context()
    last = await transcript.entry(context.compaction_id) if context.compaction_id is not None else None
    pins = {pin.id: pin for pin in _carried(last)}
    for message, own in zip(context.messages, context.entry_ids, strict=True):
        if not isinstance(message, UserMessage) or not user_text(message).startswith((_PINNED, _UNPINNED)):
            continue
        entry = await transcript.entry(own)
        fields = fields_of(entry.raw) if entry is not None else {}
        details = fields.get("details")
        noted: dict[str, Any] = details if isinstance(details, dict) else {}
        if fields.get("customType") == PIN and isinstance(noted.get("text"), str):
            pins[own] = Pin(own, noted["text"])
        elif fields.get("customType") == UNPIN:
            pins.pop(str(noted.get("pin")), None)
    return list(pins.values())


def _carried(compaction: Entry | None) -> list[Pin]:
    """The pins in a compaction's entry."""
    details = fields_of(compaction.raw).get("details") if compaction is not None else None
    listed = details.get("pins") if isinstance(details, dict) else None
    try:
        return msgspec.convert(listed or [], list[Pin])
    except msgspec.ValidationError:
        return []


def pin_room(budget: PromptBudget) -> int:
    """The tokens that the pinned texts of a session may take together, so that none of them is ever cut."""
    return max(0, budget.window - budget.output - budget.overhead) // PINNED_SHARE


async def add_pin(transcript: Transcript, text: str, room: int) -> Pin:
    """Pins a text, unless it is pinned already. Raises ``PinRefused``. The caller must hold the session's lock.

    ``room`` is the result of ``pin_room`` for the session's model.
    """
    wanted = text.strip()
    if not wanted:
        raise PinRefused("Nothing to pin: write the text after /pin.")
    pins = await pins_of(transcript)
    if (known := next((pin for pin in pins if pin.text == wanted), None)) is not None:
        return known
    if len(pins) >= MOST_PINS:
        raise PinRefused(f"{len(pins)} texts are pinned already, which is the most; take one off with /unpin N.")
    taken, size = sum(careful_tokens(pin.text) for pin in pins), careful_tokens(wanted)
    if taken + size > room:
        left = max(0, room - taken)
        others = f" and {len(pins)} pinned texts take {taken} of it; take one off with /unpin N" if pins else ""
        raise PinRefused(
            f"That is too long to pin: it has about {size} tokens ({len(wanted)} characters). The model's window has "
            f"room for about {left} more (some {left * 3} characters), because pinned texts are sent whole with every "
            f"message: {room} tokens in all{others}."
        )
    fields = {
        "type": "custom_message",
        "customType": PIN,
        "content": f"{_PINNED} {wanted}",
        "display": True,
        "details": {"text": wanted},
    }
    return Pin(await transcript.append(fields, durable=True), wanted)


async def remove_pin(transcript: Transcript, number: int) -> Pin:
    """Removes a pin by its place in the list, counted from 1. Raises ``PinRefused``."""
    pins = await pins_of(transcript)
    if not 1 <= number <= len(pins):
        fault = "Nothing is pinned." if not pins else f"There are {len(pins)} pinned texts; /pins lists them."
        raise PinRefused(fault)
    pin = pins[number - 1]
    fields = {
        "type": "custom_message",
        "customType": UNPIN,
        "content": f"{_UNPINNED} {pin.text}",
        "display": True,
        "details": {"pin": pin.id},
    }
    await transcript.append(fields, durable=True)
    return pin


# In a summary


def pinned_block(pins: Sequence[Pin]) -> str:
    """The block that a compaction appends to its summary; empty without pins."""
    return "" if not pins else _OPEN + "\n".join(pin.text for pin in pins) + _CLOSE


def unpinned(summary: str) -> str:
    """The summary without the block of ``pinned_block``. Each compaction makes it again."""
    before, opening, rest = summary.partition(_OPEN)
    if not opening:
        return summary
    _, closing, after = rest.partition(_CLOSE)
    return before + after if closing else summary


def take_pins(messages: Sequence[Message]) -> tuple[UserMessage | None, list[Message]]:
    """The pinned texts of a conversation as one message, and the conversation without them. None: nothing is pinned."""
    pins: list[str] = []
    rest: list[Message] = []
    for place, message in enumerate(messages):
        text = user_text(message) if isinstance(message, UserMessage) else ""
        if place == 0 and (bare := unpinned(text)) != text:
            pins.append(text[text.index(_OPEN) + len(_OPEN) : text.index(_CLOSE)])
            rest.append(msgspec.structs.replace(message, content=[TextBlock(text=bare)]))
        elif text.startswith(_PINNED):
            pins.append(text[len(_PINNED) :].strip())
        else:
            rest.append(message)
            if text.startswith(_UNPINNED):
                gone = text[len(_UNPINNED) :].strip()
                pins = [kept for pin in pins if (kept := pin.replace(gone, "").strip())]
    if not pins:
        return None, list(messages)
    block = (_OPEN + "\n".join(pins) + _CLOSE).strip()
    return UserMessage(content=[TextBlock(text=block)]), rest


def forgotten(pins: Sequence[Pin], text: str) -> list[Pin]:
    """The pins whose text is not in ``text``."""
    return [pin for pin in pins if pin.text not in text]
