"""Where a transcript is: the current place, the places older versions used, and what an entry may point at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from openclaw.paths import normalize_agent_id, sessions_dir
from openclaw.sessions.keys import session_file_name
from openclaw.storage.base import TranscriptRef
from openclaw.storage.files.compressed import packed_name

log = logging.getLogger(__name__)


class Locations:
    """Paths of one state directory. ``store_path`` tells where an agent's ``sessions.json`` is, if not at home."""

    def __init__(self, state_dir: str, store_path: Callable[[str], str] | None = None) -> None:
        self._state = Path(state_dir)
        self._store_path = store_path
        self._warned: set[str] = set()

    def default(self, ref: TranscriptRef) -> Path:
        """Where a new transcript is written: where the entry says, if it may say so, else in the agent's folder."""
        return self._pointed_at(ref) or self._home(ref) / session_file_name(ref.session_id, ref.thread_id)

    def find(self, ref: TranscriptRef) -> Path | None:
        return next((path for path in self._candidates(ref) if self._is_ours(path, ref)), None)

    def find_packed(self, ref: TranscriptRef) -> Path | None:
        """The compressed file, where there is no plain one."""
        return next(iter(self.all_packed(ref)), None)

    def all_packed(self, ref: TranscriptRef) -> list[Path]:
        pairs = ((path, packed_name(path)) for path in self._candidates(ref))
        found = [packed for path, packed in pairs if packed.is_file() and self._is_inside(path, ref)]
        return list({packed.resolve(): packed for packed in found if not packed.is_symlink()}.values())

    def folders(self, agent_id: str) -> list[Path]:
        """Where this agent's transcripts are, older places included."""
        ref = TranscriptRef(agent_id=agent_id, session_id="")
        older = self._state / "sessions"
        places = (self._beside_store(ref), self._home(ref), older / normalize_agent_id(agent_id))
        return list({folder.resolve(): folder for folder in places if folder is not None}.values())

    def all_found(self, ref: TranscriptRef) -> list[Path]:
        found = {path.resolve(): path for path in self._candidates(ref) if self._is_ours(path, ref)}
        return list(found.values())

    def _candidates(self, ref: TranscriptRef) -> Iterator[Path]:
        pointed = self._pointed_at(ref)
        if pointed is not None:
            yield pointed
        names = [session_file_name(ref.session_id, ref.thread_id)]
        if ref.thread_id is not None:
            names.append(session_file_name(ref.session_id))
        if ref.file:
            # A state directory that was moved: the entry's absolute path is stale, the file's name is not.
            names.insert(0, Path(ref.file.strip()).name)
        agent = normalize_agent_id(ref.agent_id)
        older = self._state / "sessions"
        for folder in (self._beside_store(ref), self._home(ref), older / agent, older):
            for name in names:
                if folder is not None and name not in ("", ".", ".."):
                    yield folder / name

    def _home(self, ref: TranscriptRef) -> Path:
        return Path(sessions_dir(str(self._state), ref.agent_id))

    def _beside_store(self, ref: TranscriptRef) -> Path | None:
        return Path(self._store_path(ref.agent_id)).parent if self._store_path else None

    def _pointed_at(self, ref: TranscriptRef) -> Path | None:
        """``sessionFile``, as long as it stays inside the state directory (or beside the store)."""
        text = (ref.file or "").strip()
        if not text:
            return None
        path = Path(text).expanduser()
        path = path if path.is_absolute() else self._home(ref) / path
        free = path.suffix == ".jsonl" and self._is_inside(path, ref) and not path.exists()
        if not free and not self._is_ours(path, ref):
            self._warn_once(text)
            return None
        return path

    def _is_ours(self, path: Path, ref: TranscriptRef) -> bool:
        return path.is_file() and self._is_inside(path, ref)

    def _is_inside(self, path: Path, ref: TranscriptRef) -> bool:
        """Links followed: a name inside may lead outside."""
        roots = [root.resolve() for root in (self._state, self._beside_store(ref)) if root is not None]
        resolved = path.resolve()
        return resolved.suffix == ".jsonl" and any(resolved.is_relative_to(root) for root in roots)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < 1000:
            self._warned.add(text)
            log.warning("sessionFile %s is not a transcript inside %s; the default place is used", text, self._state)
