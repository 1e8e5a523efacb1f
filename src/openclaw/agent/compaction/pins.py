"""Pins: texts that a person wants to keep word for word through every compaction.

A pin is an entry of the transcript that the model sees. A compaction copies the pinned texts into its own entry.
Another entry removes a pin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from openclaw.messages import UserMessage, user_text
from openclaw.sessions.tree import fields_of
from openclaw.storage.base import Entry, Transcript

PIN = "openclaw.pin"
UNPIN = "openclaw.unpin"
_PINNED = "[Pinned by the user, keep in mind]"
_UNPINNED = "[No longer pinned]"
MOST_PINS = 50
LONGEST_PIN = 4000
MOST_PINNED_CHARS = 16_000


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


async def add_pin(transcript: Transcript, text: str) -> Pin:
    """Pins a text, unless it is pinned already. Raises ``PinRefused``. The caller must hold the session's lock."""
    wanted = text.strip()
    if not wanted:
        raise PinRefused("Nothing to pin: write the text after /pin.")
    if len(wanted) > LONGEST_PIN:
        raise PinRefused(f"That is too long to pin: {len(wanted)} characters, {LONGEST_PIN} are possible.")
    pins = await pins_of(transcript)
    if (known := next((pin for pin in pins if pin.text == wanted), None)) is not None:
        return known
    if len(pins) >= MOST_PINS or sum(len(pin.text) for pin in pins) + len(wanted) > MOST_PINNED_CHARS:
        raise PinRefused(f"{len(pins)} texts are pinned already and fill the space; take one off with /unpin N.")
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
    return "" if not pins else "\n\n<pinned>\n" + "\n".join(pin.text for pin in pins) + "\n</pinned>"


def unpinned(summary: str) -> str:
    """The summary without the block of ``pinned_block``. Each compaction makes it again."""
    before, opening, rest = summary.partition("\n\n<pinned>\n")
    if not opening:
        return summary
    _, closing, after = rest.partition("\n</pinned>")
    return before + after if closing else summary


def forgotten(pins: Sequence[Pin], text: str) -> list[Pin]:
    """The pins whose text is not in ``text``."""
    return [pin for pin in pins if pin.text not in text]
