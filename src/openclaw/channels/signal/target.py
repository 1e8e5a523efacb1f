"""How a person or group is addressed on Signal."""

from __future__ import annotations

import re
from typing import Any

from openclaw.outbound.part import SendFailed

_NUMBER = re.compile(r"\+[1-9]\d{5,14}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def normalize_number(text: str) -> str | None:
    """``+`` and digits, or None for what is no number in international form."""
    compact = re.sub(r"[\s().-]", "", text)
    if compact.startswith("00"):
        compact = f"+{compact[2:]}"
    return compact if _NUMBER.fullmatch(compact) else None


def recipient_params(to: str) -> dict[str, Any]:
    """The daemon's parameters for ``signal:+1555…``, ``uuid:…``, ``group:…`` or ``username:…``.

    Raises ``SendFailed`` (for good) when it is none of these.
    """
    text = to.strip()
    if text.lower().startswith("signal:"):
        text = text[len("signal:") :].strip()
    kind, _, rest = text.partition(":")
    match kind.lower():
        case "group" if rest.strip():
            # Group ids are base64: their case matters.
            return {"groupId": rest.strip()}
        case "username" | "u" if rest.strip():
            return {"username": [rest.strip()]}
        case "uuid" if _UUID.fullmatch(rest.strip()):
            return {"recipient": [rest.strip().lower()]}
        case _:
            pass
    if _UUID.fullmatch(text):
        return {"recipient": [text.lower()]}
    if (number := normalize_number(text)) is not None:
        return {"recipient": [number]}
    raise SendFailed(
        f"{to!r} is no Signal recipient; use +<country><number>, uuid:<id>, group:<id> or username:<name>",
        permanent=True,
    )
