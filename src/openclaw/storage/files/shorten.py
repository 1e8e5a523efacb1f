"""Keeping only the end of a transcript, at a person's explicit wish, without losing anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from openclaw.storage.base import Shortened
from openclaw.storage.files.disk import atomic_replace


def shorten_file(path: Path, max_lines: int, archive: Path) -> Shortened:
    """The whole file goes to ``archive``; in its place come the header and the last lines, first one re-rooted.

    The archive is made first and the new file replaces the old in one step: a crash leaves either the old one or both.
    """
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    header = lines[:1] if lines and _decoded(lines[0]).get("type") == "session" else []
    entries = lines[len(header) :]
    if len(entries) <= max_lines:
        return Shortened(archived=None, kept=len(entries))
    os.link(path, archive)
    kept = _rerooted(entries[-max_lines:])
    atomic_replace(path, b"\n".join([*header, *kept]) + b"\n")
    return Shortened(archived=str(archive), kept=max_lines)


def _rerooted(lines: list[bytes]) -> list[bytes]:
    """An entry whose parent was left behind hangs on the kept entry before it; the first one on nothing."""
    known: set[str] = set()
    last: str | None = None
    rooted: list[bytes] = []
    for line in lines:
        entry = _decoded(line)
        if isinstance(entry.get("id"), str):
            if entry.get("parentId") not in known:
                entry["parentId"] = last
                line = msgspec.json.encode(entry)
            last = entry["id"]
            known.add(entry["id"])
        rooted.append(line)
    return rooted


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        entry = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return {}
    return entry if isinstance(entry, dict) else {}
