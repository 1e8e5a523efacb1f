"""Cutting a long plain text into messages a channel accepts.

Lengths are UTF-16 code units, which is what chat platforms count; a character is never cut in two.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def utf16_length(text: str) -> int:
    return len(text) + sum(char > "\uffff" for char in text) if not text.isascii() else len(text)


def chunk_text(text: str, limit: int) -> list[str]:
    """Pieces of at most ``limit``, cut at line ends, else between words, not inside parentheses if it can be helped.

    Nothing but white space at the cuts is lost. ``limit`` 0 or less means there is none.
    """
    text = text.replace("\r\n", "\n")
    if not text:
        return []
    if limit <= 0 or utf16_length(text) <= limit:
        return [text]
    chunks: list[str] = []
    start = 0
    while start < len(text):
        end = _window_end(text, start, limit)
        if end >= len(text):
            chunks.append(text[start:])
            break
        cut = _best_cut(text, start, end)
        if piece := text[start:cut].rstrip():
            chunks.append(piece)
        start = cut
        while start < len(text) and text[start].isspace():
            start += 1
    return chunks


def chunk_paragraphs(text: str, limit: int) -> list[str]:
    """One piece per paragraph; blank lines inside a fence do not end one. Long paragraphs are cut as usual."""
    pieces = [chunk for paragraph in _paragraphs(text.replace("\r\n", "\n")) for chunk in chunk_text(paragraph, limit)]
    return [piece for piece in pieces if piece.strip()]


def _window_end(text: str, start: int, limit: int) -> int:
    """Index behind the last character that fits; at least one character always does."""
    if limit >= 2 * (len(text) - start):
        return len(text)
    units = 0
    for index in range(start, min(len(text), start + limit + 1)):
        units += 2 if text[index] > "\uffff" else 1
        if units > limit:
            return max(index, start + 1)
    return min(len(text), start + limit + 1)


def _best_cut(text: str, start: int, end: int) -> int:
    depth, newline, space = 0, -1, -1
    for index in range(start, end):
        char = text[index]
        if char == "(":
            depth += 1
        elif char == ")":
            depth = max(0, depth - 1)
        elif depth == 0:
            if char == "\n":
                newline = index
            elif char.isspace():
                space = index
    if newline > start:
        return newline
    return space if space > start else end


def _paragraphs(text: str) -> list[str]:
    paragraphs: list[list[str]] = [[]]
    fence = ""
    for line in text.split("\n"):
        opening = _FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence) and not line.strip(" `~"):
                fence = ""
        elif opening:
            fence = opening[1]
        elif not line.strip():
            paragraphs.append([])
            continue
        paragraphs[-1].append(line)
    return [joined for lines in paragraphs if (joined := "\n".join(lines).rstrip())]
