"""Where a transcript is: the current place, the places older versions used, and what an entry may point at."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from openclaw.paths import normalize_agent_id, sessions_dir
from openclaw.sessions.keys import session_file_name
from openclaw.storage.base import TranscriptRef
from openclaw.storage.files.compressed import SUFFIX

log = logging.getLogger(__name__)

MOST_AGENTS = 256
"""Whose folders are kept in mind."""


class Locations:
    """Paths of one state directory. ``store_path`` tells where an agent's ``sessions.json`` is, if not at home."""

    def __init__(self, state_dir: str, store_path: Callable[[str], str] | None = None) -> None:
        self._state = state_dir
        self._store_path = store_path
        self._places = lru_cache(maxsize=MOST_AGENTS)(self._places_of)
        self._real = lru_cache(maxsize=MOST_AGENTS)(os.path.realpath)
        self._warned: set[str] = set()

    def default(self, ref: TranscriptRef) -> Path:
        """Where a new transcript is written: where the entry says, if it may say so, else in the agent's folder."""
        pointed = self._pointed_at(ref)
        return pointed or Path(self._home(ref), session_file_name(ref.session_id, ref.thread_id))

    def real_default(self, ref: TranscriptRef) -> tuple[Path, str]:
        """The same, with links followed. Those of the agent's folder once: a file that is new is no link itself."""
        if ref.file:
            path = self.default(ref)
            return path, os.path.realpath(path)
        home, name = self._home(ref), session_file_name(ref.session_id, ref.thread_id)
        return Path(home, name), f"{self._real(home)}{os.sep}{name}"

    def find(self, ref: TranscriptRef) -> Path | None:
        return next(self._plain(ref, self._candidates(ref)), None)

    def find_packed(self, ref: TranscriptRef) -> Path | None:
        """The compressed file, where there is no plain one."""
        return next(self._packed(ref, self._candidates(ref)), None)

    def find_either(self, ref: TranscriptRef) -> tuple[Path | None, Path | None]:
        """The plain file, or else the compressed one."""
        candidates = self._candidates(ref)
        plain = next(self._plain(ref, candidates), None)
        packed = next(self._packed(ref, candidates), None) if plain is None else None
        if plain is None and packed is None:
            # Looked for once more: it may have turned from one form into the other in between.
            plain = next(self._plain(ref, candidates), None)
        return plain, packed

    def all_found(self, ref: TranscriptRef) -> list[Path]:
        return _distinct(self._plain(ref, self._candidates(ref)))

    def all_packed(self, ref: TranscriptRef) -> list[Path]:
        return _distinct(self._packed(ref, self._candidates(ref)))

    def folders(self, agent_id: str) -> list[Path]:
        """Where this agent's transcripts are, older places included."""
        *own, _ = self._places(agent_id)
        return _distinct(Path(folder) for folder in own)

    def _plain(self, ref: TranscriptRef, candidates: list[str]) -> Iterator[Path]:
        return (Path(path) for path in candidates if os.path.isfile(path) and self._is_inside(path, ref))

    def _packed(self, ref: TranscriptRef, candidates: list[str]) -> Iterator[Path]:
        for path in candidates:
            packed = path + SUFFIX
            if os.path.isfile(packed) and not os.path.islink(packed) and self._is_inside(path, ref):
                yield Path(packed)

    def _candidates(self, ref: TranscriptRef) -> list[str]:
        names = [session_file_name(ref.session_id, ref.thread_id)]
        if ref.thread_id is not None:
            names.append(session_file_name(ref.session_id))
        if ref.file:
            # A state directory that was moved: the entry's absolute path is stale, the file's name is not.
            names.insert(0, os.path.basename(ref.file.strip().rstrip("/")))
        named = [name for name in names if name not in ("", ".", "..")]
        pointed = self._pointed_at(ref)
        *places, oldest, older = self._places(ref.agent_id)
        if os.path.isdir(older):
            places += [oldest, older]
        found = [f"{folder}{os.sep}{name}" for folder in places for name in named]
        return found if pointed is None else [str(pointed), *found]

    def _places_of(self, agent_id: str) -> tuple[str, ...]:
        """The folders to look into. The last two are of older versions; of these the second is shared by all agents."""
        beside = [os.path.dirname(self._store_path(agent_id))] if self._store_path else []
        older = os.path.join(self._state, "sessions")
        home, oldest = sessions_dir(self._state, agent_id), os.path.join(older, normalize_agent_id(agent_id))
        return (*dict.fromkeys([*beside, home, oldest]), older)

    def _home(self, ref: TranscriptRef) -> str:
        return sessions_dir(self._state, ref.agent_id)

    def _pointed_at(self, ref: TranscriptRef) -> Path | None:
        """``sessionFile``, as long as it stays inside the state directory (or beside the store)."""
        text = (ref.file or "").strip()
        if not text:
            return None
        path = os.path.join(self._home(ref), os.path.expanduser(text))
        free = _is_named_so(path) and not os.path.exists(path)
        if not (free or os.path.isfile(path)) or not self._is_inside(path, ref):
            self._warn_once(text)
            return None
        return Path(path)

    def _is_inside(self, path: str, ref: TranscriptRef) -> bool:
        """Links followed: a name inside may lead outside."""
        real = os.path.realpath(path)
        beside, *_ = self._places(ref.agent_id)
        roots = [os.path.join(os.path.realpath(root), "") for root in (self._state, beside)]
        return _is_named_so(real) and real.startswith(tuple(roots))

    def _warn_once(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < 1000:
            self._warned.add(text)
            log.warning("sessionFile %s is not a transcript inside %s; the default place is used", text, self._state)


def _is_named_so(path: str) -> bool:
    return os.path.splitext(path)[1] == ".jsonl"


def _distinct(paths: Iterable[Path]) -> list[Path]:
    """Without those that lead to the same place as another."""
    return list({os.path.realpath(path): path for path in paths}.values())
