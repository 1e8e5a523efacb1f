"""Makes the announcement of a sub-agent: ``Status``, ``Result`` and ``Notes``, whatever labels its reply has.

The status is how the run really ended, so a status that the sub-agent claims is dropped. Its other labels are read, so
that they are not nested in ours.
"""

from __future__ import annotations

import re

import msgspec

from openclaw.outbound.answer_filter import after_line

NOT_AVAILABLE = "(not available)"
_MARK = r"[*_]{0,3}"
_LABEL = re.compile(
    # ``Result: 7``, ``- **Result:** 7``, ``__Result__: 7``
    rf"[ \t]{{0,3}}(?:[-*+>][ \t]+|\#{{1,6}}[ \t]+)?{_MARK}(status|result|notes){_MARK}[ \t]*[:：]{_MARK}(.*)"
    # ``## Result`` or ``**Result**`` in a line of its own
    rf"|[ \t]{{0,3}}(?:\#{{1,6}}[ \t]+{_MARK}|[*_]{{2,3}})(status|result|notes){_MARK}[ \t]*\Z",
    re.IGNORECASE,
)


class Announcement(msgspec.Struct, frozen=True):
    """A sub-agent's reply without its labels. Either part may be empty."""

    result: str
    notes: str = ""


def read_announcement(reply: str) -> Announcement:
    """Split a reply at its own labels and drop its status.

    Labels count at the beginning of a line outside code. A ``Status:`` counts once, and only at the beginning of the
    reply or besides another label. Otherwise it is part of the text, such as the status of a server.
    """
    labels = _labels(reply)
    lines = reply.strip().split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if not any(name != "status" for name, _ in labels.values()) and first not in labels:
        return Announcement(reply.strip())
    sections: dict[str, list[str]] = {"result": [], "notes": []}
    current, has_status, awaits_status = "result", False, False
    for number, line in enumerate(lines):
        name, rest = labels.get(number, ("", line))
        if name == "status" and not has_status:
            has_status, awaits_status = True, not rest.strip()
            continue
        if awaits_status and line.strip():
            awaits_status = False
            if not name:
                continue  # The status is in the line after its label.
        if name in sections:
            current = name
            sections[current].append(rest.strip())
        else:
            sections[current].append(line)
    return Announcement("\n".join(sections["result"]).strip(), "\n".join(sections["notes"]).strip())


def _labels(reply: str) -> dict[int, tuple[str, str]]:
    """Return the labels by the number of their line, each with the text behind it."""
    labels: dict[int, tuple[str, str]] = {}
    fence = ""
    for number, line in enumerate(reply.strip().split("\n")):
        if not fence and (label := _LABEL.match(line)) is not None:
            labels[number] = ((label[1] or label[3]).lower(), label[2] or "")
        fence = after_line(fence, line)
    return labels


def announcement_text(status: str, reply: str, error: str, stats: str) -> str:
    """Make the message that is posted. ``error`` is what went wrong, or empty."""
    announcement = read_announcement(reply)
    notes = "\n".join(note for note in (error, announcement.notes) if note)
    lines = [
        f"Status: {status}",
        f"Result: {announcement.result or NOT_AVAILABLE}",
        *([f"Notes: {notes}"] if notes else []),
    ]
    return "\n".join([*lines, "", stats])
