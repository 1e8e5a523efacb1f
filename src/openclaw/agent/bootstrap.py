"""The workspace files that go into every prompt: instructions, persona, notes about tools and people."""

from __future__ import annotations

from pathlib import Path

import msgspec

BOOTSTRAP_FILES = (
    "AGENTS.md",
    "SOUL.md",
    "TOOLS.md",
    "IDENTITY.md",
    "USER.md",
    "HEARTBEAT.md",
    "BOOTSTRAP.md",
)
HEAD_SHARE = 0.7
TAIL_SHARE = 0.2
_CACHE_LIMIT = 256


class BootstrapFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: str
    missing: bool
    raw_chars: int
    text: str
    """What goes into the prompt; cut in the middle when the file is over the limit."""
    truncated: bool


_cache: dict[tuple[str, int, int, int], BootstrapFile] = {}


def load_bootstrap(workspace: Path, max_chars: int) -> list[BootstrapFile]:
    """All files in their fixed order; BOOTSTRAP.md only while it exists. Unchanged files come from memory."""
    files = [_load(workspace / name, max_chars) for name in BOOTSTRAP_FILES]
    return [file for file in files if not (file.missing and file.name == "BOOTSTRAP.md")]


def _load(path: Path, max_chars: int) -> BootstrapFile:
    try:
        status = path.stat()
        key = (str(path), status.st_mtime_ns, status.st_size, max_chars)
        if key not in _cache:
            if len(_cache) >= _CACHE_LIMIT:
                _cache.clear()
            _cache[key] = _read(path, max_chars)
        return _cache[key]
    except OSError:
        return BootstrapFile(name=path.name, path=str(path), missing=True, raw_chars=0, text="", truncated=False)


def _read(path: Path, max_chars: int) -> BootstrapFile:
    raw = path.read_text(encoding="utf-8", errors="replace").rstrip()
    truncated = len(raw) > max_chars
    text = truncate_middle(raw, path.name, max_chars) if truncated else raw
    return BootstrapFile(
        name=path.name, path=str(path), missing=False, raw_chars=len(raw), text=text, truncated=truncated
    )


def truncate_middle(text: str, name: str, max_chars: int) -> str:
    """Keeps the beginning and the end, and says in the gap what is missing and how to see it."""
    head, tail = int(max_chars * HEAD_SHARE), int(max_chars * TAIL_SHARE)
    left_out = len(text) - head - tail
    marker = f"\n[… {left_out} characters of {name} left out; read the file for the whole …]\n"
    return text[:head] + marker + text[len(text) - tail :]
