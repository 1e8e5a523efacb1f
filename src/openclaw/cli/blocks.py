"""Cuts arriving Markdown into blocks that can be shown for good.

Nothing is lost or changed: the blocks, joined, are the text. A fence, a list or a table is never cut in two.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"(`{3,}|~{3,})(.*)", re.DOTALL)
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")


class BlockSplitter:
    """``feed`` returns the blocks that are finished by now; ``finish`` the rest."""

    def __init__(self) -> None:
        self._line = ""
        self._block: list[str] = []
        self._fence: str | None = None
        self._list = False
        self._blank = False
        """The last complete line of the block is blank."""

    def feed(self, delta: str) -> list[str]:
        finished: list[str] = []
        self._line += delta
        while (end := self._line.find("\n")) >= 0:
            line, self._line = self._line[: end + 1], self._line[end + 1 :]
            self._take(line, finished)
        return finished

    def finish(self) -> str:
        """What has not been handed out yet; the splitter is then as new."""
        rest = "".join(self._block) + self._line
        self._line, self._fence = "", None
        self._cut([])
        return rest

    @property
    def pending(self) -> str:
        """The end of what has arrived but is not finished, for a preview."""
        return self._line or (self._block[-1] if self._block else "")

    def _take(self, line: str, finished: list[str]) -> None:
        if self._fence is not None:
            self._block.append(line)
            if _closes(line, self._fence):
                self._fence = None
                if not self._list:
                    self._cut(finished)
            return
        if not line.strip():
            self._take_blank(line, finished)
            return
        if self._list and self._blank and not _continues_list(line):
            self._cut(finished)
        starts_list = _ITEM.match(line) is not None
        fence = _opens(line, in_list=self._list or starts_list)
        if not self._list and (_HEADING.match(line) or starts_list or fence) and self._has_text():
            self._cut(finished)
        self._block.append(line)
        self._blank = False
        self._list = self._list or starts_list
        self._fence = fence
        if not self._list and fence is None and _HEADING.match(line):
            self._cut(finished)

    def _take_blank(self, line: str, finished: list[str]) -> None:
        self._block.append(line)
        self._blank = True
        # A list may go on after a blank line; anything else with text in it is over.
        if not self._list and self._has_text():
            self._cut(finished)

    def _has_text(self) -> bool:
        return any(line.strip() for line in self._block)

    def _cut(self, finished: list[str]) -> None:
        if self._block:
            finished.append("".join(self._block))
        self._block, self._list, self._blank = [], False, False


def starts_list(text: str) -> bool:
    return _ITEM.match(text.lstrip("\r\n")) is not None


def _opens(line: str, *, in_list: bool) -> str | None:
    """The fence this line opens. Inside a list it may be indented, or stand behind the item's mark."""
    text = line
    if in_list:
        while (item := _ITEM.match(text)) and item.end() > 0:
            text = text[item.end() :]
        text = text.lstrip(" \t")
    else:
        text = text.lstrip(" ")
        if len(line) - len(text) > 3:
            return None
    match = _FENCE.match(text)
    if match is None or (match[1][0] == "`" and "`" in match[2]):
        return None
    return match[1]


def _closes(line: str, fence: str) -> bool:
    text = line.strip()
    return len(text) >= len(fence) and set(text) == {fence[0]}


def _continues_list(line: str) -> bool:
    return line[0] in " \t" or _ITEM.match(line) is not None
