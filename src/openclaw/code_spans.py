"""Find code in text that people write: fenced blocks, indented lines, code spans. Quoted lines count as code.

The rules are those of Markdown, loosened where chats are looser: three backticks open and close a block anywhere in a
line, and an indented line needs no empty line before it.
"""

from __future__ import annotations

import re

_MAYBE_CODE = re.compile(r"`|~~~|^(?: {0,3}(?:\t|>)| {4})", re.MULTILINE)
_FENCE = re.compile(r" {0,3}(~{3,}|`{3,})")
_FENCE_LINE = re.compile(r"^ {0,3}(~{3,}|`{3,})[ \t\r]*$", re.MULTILINE)
_NOT_PARSED = re.compile(r" {0,3}(?:\t|>)| {4}")
_TICKS = re.compile("`+")
_EMPTY_LINE = re.compile(r"\n[ \t\r]*(?:\n|\Z)")


def code_ranges(text: str) -> list[tuple[int, int]]:
    """Return where code begins and ends, in order. The time is linear in the length of any text."""
    if _MAYBE_CODE.search(text) is None:
        return []
    return _Finder(text).ranges()


class _Finder:
    def __init__(self, text: str) -> None:
        self.text = text
        self.paragraph_end = 0
        self.unclosed: dict[str, int] = {}
        """The length of the shortest fence of a sign that no later line closes."""

    def ranges(self) -> list[tuple[int, int]]:
        text, result, at = self.text, list[tuple[int, int]](), 0
        while at < len(text):
            line_end = text.find("\n", at)
            line_end = len(text) if line_end < 0 else line_end
            if at == 0 or text[at - 1] == "\n":
                fence = _FENCE.match(text, at)
                if fence and (fence[1][0] == "~" or text.find("`", fence.end(), line_end) < 0):
                    result.append((at, self._fence_end(fence)))
                    at = result[-1][1]
                    continue
                if _NOT_PARSED.match(text, at):
                    result.append((at, line_end))
                    at = line_end + 1
                    continue
            ticks = _TICKS.search(text, at, line_end)
            if ticks is None:
                at = line_end + 1
            elif (end := self._span_end(ticks)) is not None:
                result.append((ticks.start(), end))
                at = end
            else:
                at = ticks.end()
        return result

    def _fence_end(self, fence: re.Match[str]) -> int:
        sign, length = fence[1][0], len(fence[1])
        if length < self.unclosed.get(sign, length + 1):
            for closing in _FENCE_LINE.finditer(self.text, fence.end()):
                if closing[1][0] == sign and len(closing[1]) >= length:
                    return closing.end()
            self.unclosed[sign] = length
        return self._any_ticks(fence.end(), length) if sign == "`" else len(self.text)

    def _any_ticks(self, at: int, length: int) -> int:
        for closing in _TICKS.finditer(self.text, at):
            if len(closing[0]) >= length:
                return closing.end()
        return len(self.text)

    def _span_end(self, ticks: re.Match[str]) -> int | None:
        """Return where the code span ends that these backticks open. Returns None if nothing closes it."""
        if len(ticks[0]) >= 3:
            return self._any_ticks(ticks.end(), len(ticks[0]))
        if ticks.start() >= self.paragraph_end:
            empty = _EMPTY_LINE.search(self.text, ticks.end())
            self.paragraph_end = empty.start() if empty else len(self.text)
        for closing in _TICKS.finditer(self.text, ticks.end(), self.paragraph_end):
            if closing[0] == ticks[0]:
                return closing.end()
        return None
