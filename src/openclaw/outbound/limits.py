"""How long a message may be on each channel, and how longer texts are cut."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from openclaw.config.channels import account_settings, foreign_section
from openclaw.config.schema import Config

DEFAULT_LIMIT = 4000
# fmt: off
CHANNEL_LIMITS = {
    "telegram": 4000, "discord": 2000, "slack": 4000, "whatsapp": 4000, "signal": 4000, "imessage": 4000,
    "matrix": 4000, "mattermost": 4000, "irc": 400, "line": 5000, "zalo": 2000, "twitch": 500, "tlon": 10_000,
}
# fmt: on
HARD_LIMITS = {"discord": 2000, "slack": 4000, "matrix": 4000}
"""The platform refuses longer messages, whatever the configuration says."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Limits(msgspec.Struct, frozen=True):
    text: int = DEFAULT_LIMIT
    mode: Literal["length", "newline"] = "length"

    def cut(self, text: str) -> list[str]:
        return chunk_paragraphs(text, self.text) if self.mode == "newline" else chunk_text(text, self.text)


def limits_for(config: Config, channel: str, account_id: str | None = None) -> Limits:
    """The limits of the account, or else of the channel, or else the built-in ones."""
    account = account_settings(config, channel, account_id)
    if account is None:
        return Limits(CHANNEL_LIMITS.get(channel, DEFAULT_LIMIT))
    text = account.text_chunk_limit
    if (section := foreign_section(config, channel)) is not None and "textChunkLimit" not in section:
        text = CHANNEL_LIMITS.get(channel, text)
    return Limits(min(text, HARD_LIMITS.get(channel, text)), account.chunk_mode)


def utf16_length(text: str) -> int:
    return len(text) + sum(char > "\uffff" for char in text) if not text.isascii() else len(text)


def chunk_text(text: str, limit: int) -> list[str]:
    """Cuts a text into pieces of at most ``limit`` UTF-16 units: at line ends, or else between words.

    It avoids cuts inside parentheses and loses only white space at the cuts. A ``limit`` of 0 or less means none.
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
    """Makes one piece of each paragraph and cuts long ones. Blank lines inside a code fence do not end a paragraph."""
    pieces = [chunk for paragraph in _paragraphs(text.replace("\r\n", "\n")) for chunk in chunk_text(paragraph, limit)]
    return [piece for piece in pieces if piece.strip()]


def _window_end(text: str, start: int, limit: int) -> int:
    """The index after the last character that fits. At least one character always fits."""
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
