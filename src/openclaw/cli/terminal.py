"""Output to a terminal: colours where they are wanted, and text without control codes."""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

# The characters that could move the cursor, set the title or write the clipboard; not tab and newline.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}


def wants_color(stream: TextIO | None = None) -> bool:
    output = sys.stdout if stream is None else stream
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and output.isatty()


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if wants_color(stream) else text


def printable(text: str) -> str:
    return _CONTROL.sub("", text)


def print_json(value: Any) -> None:
    import json

    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """Writes a remark to stderr, apart from the output that a script reads."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
