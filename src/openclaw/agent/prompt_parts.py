"""A system prompt that was sent, taken apart again: its sections, its files, and which of them were cut."""

from __future__ import annotations

import re

import msgspec

from openclaw.agent.prompt_sections import PROJECT_CONTEXT

_AFTER_FILES = ("## Silent Replies", "## Heartbeats")
_CUT = re.compile(r"…\(truncated ([^:\n]{1,200}): kept (\d+)\+(\d+) chars of (\d+)\)…")


class PromptPart(msgspec.Struct, frozen=True):
    title: str
    chars: int


class CutFile(msgspec.Struct, frozen=True):
    name: str
    kept: int
    of: int


def prompt_parts(system: str, suffix: str = "") -> list[PromptPart]:
    """In order. Headings inside a file are the file's own."""
    return [*_parts(system), *_parts(suffix)]


def _parts(text: str) -> list[PromptPart]:
    parts: list[PromptPart] = []
    title, size, files = "Identity", 0, False
    for line in text.splitlines(keepends=True):
        name = line.rstrip("\n")
        begins = name in _AFTER_FILES or name.startswith("## /") if files else name.startswith(("## ", "# "))
        if begins:
            if size:
                parts.append(PromptPart(title, size))
            title, size = name.lstrip("# "), 0
            files = name == PROJECT_CONTEXT or (files and name not in _AFTER_FILES)
        size += len(line)
    return [*parts, PromptPart(title, size)] if size else parts


def cut_files(system: str) -> list[CutFile]:
    """Files of which the model saw only the beginning and the end."""
    return [CutFile(name, int(head) + int(tail), int(of)) for name, head, tail, of in _CUT.findall(system)]
