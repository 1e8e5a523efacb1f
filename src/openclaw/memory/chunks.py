"""Notes cut into pieces of a few paragraphs, each with the lines it stands on, and the words they are found by."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

import msgspec

CHUNK_CHARS = 1600
"""About 400 tokens."""
OVERLAP_CHARS = 320
_WORD = re.compile(r"\w+")
_NO_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0eff]")
"""Scripts that do not put spaces between words."""

_IN_EVERY_QUESTION = re.compile(
    r"a|an|the|and|or|of|in|on|at|to|for|from|with|about|by|is|are|was|were|be|been|do|does|did|has|have|had|i|me|my|"
    r"we|our|you|your|he|she|it|its|they|them|this|that|there|what|when|where|who|whom|which|why|how|can|could|would|"
    r"should|not|no"
)


class Chunk(msgspec.Struct, frozen=True):
    first: int
    """1-based."""
    last: int
    text: str


def chunks_of(text: str, most: int = CHUNK_CHARS, overlap: int = OVERLAP_CHARS) -> Iterator[Chunk]:
    """Whole lines, about ``most`` characters at a time; the end of one piece begins the next. A long line is one."""
    lines = text.splitlines()
    start = 0
    while start < len(lines):
        end, size = start, 0
        while end < len(lines) and (end == start or size + len(lines[end]) < most):
            size += len(lines[end]) + 1
            end += 1
        piece = "\n".join(lines[start:end])
        if piece.strip():
            yield Chunk(start + 1, end, piece)
        if end >= len(lines):
            return
        start = _overlap(lines, start, end, overlap)


def _overlap(lines: list[str], start: int, end: int, most: int) -> int:
    """Where the next piece begins: a little before this one ended, but always further on."""
    size, at = 0, end
    while at - 1 > start and size + len(lines[at - 1]) < most:
        at -= 1
        size += len(lines[at]) + 1
    return at


def words(text: str) -> list[str]:
    """In lower case and without accents, as the index has them."""
    return _WORD.findall(folded(text))


def telling_words(query: str) -> list[str]:
    """Each once, without those that every question has, unless there are no others."""
    found = list(dict.fromkeys(words(query)))
    return [word for word in found if not _IN_EVERY_QUESTION.fullmatch(word)] or found


def folded(text: str) -> str:
    spread = unicodedata.normalize("NFD", text.casefold())
    return unicodedata.normalize("NFC", "".join(char for char in spread if not unicodedata.combining(char)))


def without_spaces(word: str) -> bool:
    return _NO_SPACES.search(word) is not None
