"""Makes text from outside safe for a terminal, and JSON that holds such text.

A terminal obeys control characters: they move the cursor, rewrite lines above, set the title, fill the clipboard and
open links. Bidirectional and invisible characters make a text look like another one.
"""

from __future__ import annotations

import re

_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufdd0-\ufdef\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f"
)
"""Everything but tab, line feed, and the two joiners that emoji and some scripts need."""
_CONTROL = re.compile(f"[{_UNSAFE}]")


def printable(text: str) -> str:
    """The text without characters that a terminal would obey or that nobody sees. Tabs and line feeds stay."""
    return _CONTROL.sub("", text)


def printable_json(text: str) -> str:
    """JSON with such characters as ``\\u001b``. It means the same. Between the strings of JSON there are none."""
    return _CONTROL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    if found[0] == "\r":
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place] << 8 | units[place + 1]:04x}" for place in range(0, len(units), 2))
