"""The workspace files that go into every prompt, and the snapshot of a workspace that runs share."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec

from openclaw.agent.prompt.workspace_files import (
    BOOTSTRAP_FILES,
    MEMORY_FILES,
    prepare_workspace,
    repo_markers,
    repo_root,
)
from openclaw.agent.skills import (
    BUNDLED,
    SkillsPrompt,
    folders_in,
    judged_skills,
    skill_environment,
    skill_files,
    skill_folders,
    skills_prompt,
)
from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.path_opener import FileMissing, PathOpener, PathRefused
from openclaw.storage.documents import DocumentStore, SharedDocument

SUBAGENT_FILES = ("AGENTS.md", "TOOLS.md")
HEAD_PERCENT = 70
TAIL_PERCENT = 20
WINDOW_SHARE = 6
"""One file takes at most a sixth of the window, so that small models keep room for the conversation."""
MIN_CHARS = 1000
"""A small window does not reduce the limit of one file below this."""
MAX_READ_BYTES = 4_000_000
"""Of a larger file only this much of the beginning and of the end is read."""
_CHARS_PER_TOKEN = 4
FIRST_SESSIONS = "first-sessions.json"
MOST_KEPT = 64
MOST_WARNINGS = 256
LOOK_AGAIN_S = 5.0
"""How often the paths in ``_Cached.rarely`` are checked."""
_FILES = (*BOOTSTRAP_FILES, *MEMORY_FILES)
_NO_INODE = (0, 0)
_FileState: TypeAlias = tuple[int, int, int] | None
"""The time, size and inode of a file or folder. None if it does not exist.

The time is that of the last change to the inode, because a file becomes readable by a change of its rights.
"""

log = logging.getLogger("openclaw.agent.workspace")


class BootstrapFile(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace file as it goes into the prompt."""

    name: str
    path: str
    missing: bool
    unread: str = ""
    """Why a file that exists could not be read. Empty if it could."""
    raw_chars: int
    text: str
    """The text in the prompt. It is cut in the middle if the file is over the limit, and empty for a blank file.

    ``BOOTSTRAP.md`` is shown only in the first session of its workspace. See ``FirstSessions``.
    """
    truncated: bool
    version: int = 0
    """The file's time of change on disk."""
    inode: tuple[int, int] = _NO_INODE
    warning: str = ""
    """Tells the person what the model does not see of the file."""


def load_bootstrap(
    workspace: Path, max_chars: int, *, private: bool = True, subagent: bool = False
) -> list[BootstrapFile]:
    """Read the files in their fixed order. Blocking.

    Long-term memory is for private chats: in a group it would tell everyone what one person confided. Sub-agents get
    only the instructions and the notes about tools.
    """
    opener = PathOpener(workspace, confine=True)
    if subagent:
        return [_load(opener, name, max_chars) for name in SUBAGENT_FILES]
    files = [_load(opener, name, max_chars) for name in BOOTSTRAP_FILES]
    if files[-1].missing:
        # The agent removes it when it is done, so that its absence is not worth a word to the model or the person.
        files[-1] = msgspec.structs.replace(files[-1], missing=False, text="")
    if not private:
        return files
    memory = [file for name in MEMORY_FILES if not (file := _load(opener, name, max_chars)).missing]
    if len(memory) == 2 and memory[0].inode == memory[1].inode != _NO_INODE:
        # Both names are one file where the disk ignores case.
        memory.pop()
    return [*files, *memory]


def effective_max_chars(max_chars: int, context_window: int) -> int:
    """The limit of one file: the configured one, or less if the model's window is small."""
    return max(min(max_chars, context_window * _CHARS_PER_TOKEN // WINDOW_SHARE), min(max_chars, MIN_CHARS))


def _load(opener: PathOpener, name: str, max_chars: int) -> BootstrapFile:
    path = opener.workspace / name
    try:
        with opener.open_read(name) as file:
            status = os.fstat(file.fileno())
            data = _read(file, status.st_size)
    except FileMissing:
        return BootstrapFile(
            name=name,
            path=str(path),
            missing=True,
            raw_chars=0,
            text="",
            truncated=False,
        )
    except (OSError, PathRefused) as problem:
        # A link that leads out of the workspace could bring any file of this machine into the prompt.
        return BootstrapFile(
            name=name,
            path=str(path),
            missing=False,
            unread=" ".join(str(problem).split()) or type(problem).__name__,
            raw_chars=0,
            text=f"[NOT READ] {name}",
            truncated=False,
            warning=f"{name} is not in the prompt: {problem}",
        )
    raw = data.decode("utf-8-sig", "replace").rstrip()
    truncated = len(raw) > max_chars
    return BootstrapFile(
        name=name,
        path=str(path),
        missing=False,
        raw_chars=len(raw),
        text=truncate_middle(raw, name, max_chars) if truncated else raw,
        truncated=truncated,
        version=status.st_mtime_ns,
        inode=(status.st_dev, status.st_ino),
        warning=_warning(raw, name, max_chars) if truncated else "",
    )


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(MAX_READ_BYTES)
    if size > MAX_READ_BYTES:
        file.seek(-min(MAX_READ_BYTES, size - MAX_READ_BYTES), os.SEEK_END)
        data += file.read(MAX_READ_BYTES)
    return data


def _kept(max_chars: int) -> tuple[int, int]:
    """How many characters of the beginning and of the end a file keeps that is cut."""
    return max_chars * HEAD_PERCENT // 100, max_chars * TAIL_PERCENT // 100


def truncate_middle(text: str, name: str, max_chars: int) -> str:
    """Keeps the beginning and the end. The text between them says what is missing and how to see it."""
    head, tail = _kept(max_chars)
    marker = (
        f"\n\n[...truncated, read {name} for full content...]\n"
        f"…(truncated {name}: kept {head}+{tail} chars of {len(text)})…\n\n"
    )
    return text[:head] + marker + text[len(text) - tail :]


def _warning(text: str, name: str, max_chars: int) -> str:
    head, tail = _kept(max_chars)
    first = text.count("\n", 0, head) + 1
    last = text.count("\n", 0, len(text) - tail) + 1
    lines = f"line {first}" if first == last else f"lines {first} to {last}"
    return (
        f"{name} is too long for the prompt: {len(text):,} characters, of which the model sees the first {head:,} and "
        f"the last {tail:,}. Cut out: {lines}. Shorten the file, or raise agents.defaults.bootstrapMaxChars "
        f"(now {max_chars:,} for this model)."
    )


class Audience(msgspec.Struct, frozen=True):
    """Who reads the prompt. This decides how much of the workspace is shown."""

    window: int
    """Tokens of the model's window."""
    private: bool
    subagent: bool


class WorkspaceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt gets from the disk."""

    files: list[BootstrapFile]
    skills: SkillsPrompt
    skill_env: dict[str, str]
    repo_root: str | None


class _Cached(msgspec.Struct):
    """A snapshot and the state of the files at the time it was made."""

    snapshot: WorkspaceSnapshot
    config: Config
    often: list[str]
    """Paths that are checked in every turn."""
    often_states: list[_FileState]
    rarely: list[str]
    """Paths that are checked every ``LOOK_AGAIN_S`` seconds."""
    rarely_states: list[_FileState]
    rarely_checked_at: float
    """On the Gateway's monotonic clock."""

    def is_current(self, config: Config, now: float) -> bool:
        """Whether nothing has changed since the snapshot was made."""
        if config is not self.config or _states(self.often) != self.often_states:
            return False
        if now - self.rarely_checked_at < LOOK_AGAIN_S:
            return True
        self.rarely_checked_at = now
        return _states(self.rarely) == self.rarely_states


class FirstSessions:
    """The first session of each workspace, by the workspace's path. ``BOOTSTRAP.md`` is for that session alone."""

    def __init__(self, documents: DocumentStore) -> None:
        self._shared = documents.shared
        self._document: SharedDocument[dict[str, str]] = SharedDocument(
            documents,
            FIRST_SESSIONS,
            dict,
            lambda data: msgspec.json.decode(data, type=dict[str, str]),
            msgspec.json.encode,
            damaged="drop",
            consequence="a later session may be shown BOOTSTRAP.md",
        )

    async def is_first(self, workspace: Path, session_id: str, *, starts: bool) -> bool:
        """Return whether the session is the first of the workspace, or would be if it started now.

        With ``starts`` the session becomes the first if the workspace has none yet.
        """
        name = str(workspace)
        try:
            # The first session of a workspace stays the first, so a known one is not read again.
            first = self._document.value.get(name)
            if first is None and starts:
                first = await self._document.change(lambda first_sessions: first_sessions.setdefault(name, session_id))
            elif first is None:
                first = (await self._document.current()).get(name)
        except OSError as problem:
            log.warning("the first session of %s cannot be stored: %s", workspace, problem)
            return True
        return first is None or first == session_id

    async def begin_again(self, workspace: Path) -> None:
        """Forget the first session of a workspace that was deleted and made again.

        Gateways that share a database each make a folder of their own, which does not make the workspace new.
        """
        if self._shared:
            return
        try:
            await self._document.change(lambda first_sessions: first_sessions.pop(str(workspace), None))
        except OSError as problem:
            log.warning("the first session of %s cannot be forgotten: %s", workspace, problem)


class WorkspaceSnapshots:
    """Keeps a snapshot for each agent and audience, and knows which warnings about files were given."""

    def __init__(self, state_dir: str, clock: Clock, documents: DocumentStore) -> None:
        self.first_sessions = FirstSessions(documents)
        self._state_dir = state_dir
        self._clock = clock
        self._known: OrderedDict[tuple[str, Audience], _Cached] = OrderedDict()
        self._ready: set[Path] = set()
        """Workspaces that were made ready. They do not get their first files again, even if all are deleted."""
        self._readying = asyncio.Lock()
        self._warned: set[tuple[str, int, int]] = set()
        self._logged: dict[str, str] = {}
        """The paths of files that could not be read, and why, as far as the log has it."""

    async def of(self, agent_id: str, config: Config, workspace: Path, audience: Audience) -> WorkspaceSnapshot:
        """A current snapshot."""
        cached, now = self._known.get((agent_id, audience)), self._clock.monotonic()
        if cached is not None and cached.is_current(config, now):
            return cached.snapshot
        async with self._readying:
            if await asyncio.to_thread(self._prepare_workspace, config, workspace):
                await self.first_sessions.begin_again(workspace)
        made = await asyncio.to_thread(self._make, agent_id, config, workspace, audience, now)
        self._known[agent_id, audience] = made
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return made.snapshot

    def _prepare_workspace(self, config: Config, workspace: Path) -> bool:
        """Make the folder if it is missing. Return whether it is new and got its first files."""
        if workspace in self._ready and workspace.is_dir():
            return False
        seeded = prepare_workspace(workspace, seed=not config.agents.defaults.skip_bootstrap)
        self._ready.add(workspace)
        return seeded

    def _make(self, agent_id: str, config: Config, workspace: Path, audience: Audience, now: float) -> _Cached:
        defaults = config.agents.defaults
        # A new file changes the time of its folder, so a file that does not exist is not watched.
        often = [workspace, *(path for name in _FILES if (path := workspace / name).exists())]
        rarely = [*repo_markers(workspace)[1:], *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
        for source in skill_folders(config, self._state_dir, agent_id):
            # Skills can be kept in groups, so the folders one level down are watched too.
            inside = [source.folder, *folders_in(source), *skill_files(source)]
            (rarely if source.source == BUNDLED else often).extend(inside)
        often_paths, rarely_paths = [str(path) for path in often], [str(path) for path in rarely]
        # These are taken before anything is read. A change during the reading is noticed by the next check.
        often_states, rarely_states = _states(often_paths), _states(rarely_paths)
        verdicts, _ = judged_skills(config, self._state_dir, agent_id)
        max_chars = effective_max_chars(defaults.bootstrap_max_chars, audience.window)
        snapshot = WorkspaceSnapshot(
            files=load_bootstrap(workspace, max_chars, private=audience.private, subagent=audience.subagent),
            skills=SkillsPrompt() if audience.subagent else skills_prompt(verdicts, audience.window),
            skill_env=skill_environment(verdicts, config, os.environ) if config.skills.entries else {},
            repo_root=repo_root(workspace, defaults.repo_root),
        )
        self._log_unread(snapshot.files)
        return _Cached(snapshot, config, often_paths, often_states, rarely_paths, rarely_states, now)

    def _log_unread(self, files: list[BootstrapFile]) -> None:
        for file in files:
            if not file.unread:
                self._logged.pop(file.path, None)
            elif self._logged.get(file.path) != file.unread:
                self._logged[file.path] = file.unread
                log.warning("%s is not in the prompt: it could not be read: %s", file.path, file.unread)

    def new_warnings(self, files: list[BootstrapFile]) -> list[str]:
        """Warnings about cut files that were not given before. Each version of a file is warned about once."""
        warnings: list[str] = []
        for file in files:
            if file.warning and (key := (file.path, file.version, len(file.text))) not in self._warned:
                if len(self._warned) >= MOST_WARNINGS:
                    self._warned.clear()
                self._warned.add(key)
                warnings.append(file.warning)
        return warnings


def _states(paths: list[str]) -> list[_FileState]:
    return [_state(path) for path in paths]


def _state(path: str) -> _FileState:
    try:
        status = os.stat(path)  # noqa: PTH116 - making a Path costs more than the call
    except OSError:
        return None
    return status.st_ctime_ns, status.st_size, status.st_ino
