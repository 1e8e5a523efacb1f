"""Pinned text: what a person wants kept word for word, whatever is condensed around it.

A pin is an entry of the transcript that enters the model's context. At a compaction the pinned texts are copied into
the new entry as they are; taking a pin off is again an added entry.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openclaw.sessions.tree import fields_of
from openclaw.storage.base import Entry, Transcript

PIN = "openclaw.pin"
UNPIN = "openclaw.unpin"
MOST_PINS = 50
LONGEST_PIN = 4000
MOST_PINNED_CHARS = 16_000


class PinRefused(Exception):
    """What was wrong, for the person who asked."""


class Pin(msgspec.Struct, frozen=True):
    id: str
    text: str


async def pins_of(transcript: Transcript) -> list[Pin]:
    """The pins of the active branch, oldest first. Reads only entries that may be pins."""
    return _standing([entry for entry in await _notes(transcript) if entry is not None])


async def _notes(transcript: Transcript) -> list[Entry | None]:
    parents = {own: (parent, kind) for own, parent, kind in transcript.tree()}
    ids: list[str] = []
    at = transcript.leaf_id
    while at is not None and at in parents:
        parent, kind = parents[at]
        if kind == "custom_message":
            ids.append(at)
        at = parent
    return [await transcript.entry(own) for own in reversed(ids)]


def _standing(entries: Sequence[Entry]) -> list[Pin]:
    pins: dict[str, Pin] = {}
    for entry in entries:
        fields = fields_of(entry.raw)
        details = fields.get("details")
        text = details.get("text") if isinstance(details, dict) else None
        if fields.get("customType") == PIN and isinstance(text, str):
            pins[entry.id] = Pin(entry.id, text)
        elif fields.get("customType") == UNPIN and isinstance(details, dict):
            pins.pop(str(details.get("pin")), None)
    return list(pins.values())


async def add_pin(transcript: Transcript, text: str) -> Pin:
    """Called by whoever owns the session at the moment."""
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
        "content": f"[Pinned by the user, keep in mind] {wanted}",
        "display": True,
        "details": {"text": wanted},
    }
    return Pin(await transcript.append(fields, durable=True), wanted)


async def remove_pin(transcript: Transcript, number: int) -> Pin:
    """By its place in the list, counted from 1."""
    pins = await pins_of(transcript)
    if not 1 <= number <= len(pins):
        fault = "Nothing is pinned." if not pins else f"There are {len(pins)} pinned texts; /pins lists them."
        raise PinRefused(fault)
    pin = pins[number - 1]
    fields = {
        "type": "custom_message",
        "customType": UNPIN,
        "content": f"[No longer pinned] {pin.text}",
        "display": True,
        "details": {"pin": pin.id},
    }
    await transcript.append(fields, durable=True)
    return pin


# In a summary


def pinned_block(pins: Sequence[Pin]) -> str:
    return "" if not pins else "\n\n<pinned>\n" + "\n".join(pin.text for pin in pins) + "\n</pinned>"


def unpinned(summary: str) -> str:
    """A summary without the block above: it is made anew each time."""
    before, opening, rest = summary.partition("\n\n<pinned>\n")
    if not opening:
        return summary
    _, closing, after = rest.partition("\n</pinned>")
    return before + after if closing else summary


def forgotten(pins: Sequence[Pin], text: str) -> list[Pin]:
    """Pins whose words are not in the text."""
    return [pin for pin in pins if pin.text not in text]
