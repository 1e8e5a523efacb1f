"""What a person reads before they allow a command: the whole of it, with nothing in it invisible."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping

MAX_SHOWN = 6000
"""A longer command is not asked about, because nobody would read it to its end."""
_SAME_BLANKS = re.compile(r"( {16,}|(?:⏎\n){4,})")
_INVISIBLE = frozenset(
    [*"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"]
    + [chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))]
)
"""Letters, marks and selectors without a picture. Their Unicode category does not tell them."""
_SWALLOWED = re.compile(
    r"<(?=\s{0,8}/?\s{0,8}(?:think|thought|antthinking|reasoning|final)\b)|\[\[(?=\s{0,8}(?:reply|audio))", re.I
)
"""Beginnings of marks that chat clients take out of a text together with what follows them."""


def visible(text: str) -> str:
    """The text with escapes, controls, and marks of direction, width and selection written out as ``⟨U+202E⟩``.

    A line end is marked. Long runs of blanks are counted instead of shown, since they could push the rest out of sight.
    """
    if not (text.isascii() and text.isprintable()):
        text = "".join(map(_shown, text))
    text = _SAME_BLANKS.sub(lambda run: f"⟨{_count(run[0])}⟩", text)
    return _SWALLOWED.sub(lambda mark: f"⟨{mark[0]}⟩", text)


def is_visible(text: str) -> bool:
    """Whether a person sees every character of the text."""
    return text.isprintable() and all(_shown(character) == character for character in text)


def _shown(character: str) -> str:
    if character == "\n":
        return "⏎\n"
    category = unicodedata.category(character)
    hidden = category[0] in "CZ" or category == "Me" or character in _INVISIBLE
    return f"⟨U+{ord(character):04X}⟩" if hidden and character != " " else character


def _count(run: str) -> str:
    return f"{len(run)} spaces" if run[0] == " " else f"{run.count(chr(10))} line ends"


def shown_command(command: str, env: Mapping[str, str]) -> str:
    """The command as a person reads it, with the variables that it sets before it."""
    sets = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
    return visible(sets + command)


def fenced(text: str) -> str:
    """The text as a code block, which no mark inside can end, hide or turn into something else."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
