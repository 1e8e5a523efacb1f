"""The files that are the owner's: what prompts are made of, the notes, and the state folder.

The file tools open them in the runs of the owner only (``rights.py``). Others could otherwise change what the agent
believes in every later conversation, or read what the owner confided to it. Paths are compared without links and
without regard to case, because a disk may ignore case.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from openclaw.agent.prompt.workspace_files import BOOTSTRAP_FILES, MEMORY_FILES
from openclaw.agent.runtime import Runtime
from openclaw.agent.skills import skill_folders
from openclaw.config.agents import agent_config, agent_ids, workspace_dir
from openclaw.config.schema import Config
from openclaw.memory.index import NOTES
from openclaw.path_opener import PathGuard
from openclaw.rights import Caller
from openclaw.text import normalised

_IS_PROMPT = "is part of the agent's prompts; only runs of the owner can write it"
_IS_PRIVATE = "belongs to the owner; only runs of the owner can open it"


class OwnerFiles:
    """Refuses the owner's files."""

    def __init__(self, config: Config, state_dir: Path, agent_id: str) -> None:
        """``agent_id`` is the agent whose files are opened. The files of the other agents are refused as well."""
        agents = agent_ids(config)
        workspaces = [workspace_dir(config, state_dir, agent) for agent in agents]
        skills = [source.folder for agent in agents for source in skill_folders(config, str(state_dir), agent)]
        notes = [folder / name for folder in workspaces for name in (*MEMORY_FILES, NOTES)]
        for agent, workspace in zip(agents, workspaces, strict=True):
            extra = filter(None, map(str.strip, _extra_paths(config, agent)))
            notes += [workspace / Path(path).expanduser() for path in extra]
        self._prompt = [*skills, *(folder / name for folder in workspaces for name in BOOTSTRAP_FILES)]
        self._private = notes
        self._state = state_dir
        self._open = [
            *(workspace_dir(config, state_dir, agent_id), state_dir / "blobs", state_dir / "sandboxes"),
            *skills,
        ]
        """What the state folder holds for everybody."""

    def refusal(self, path: str, *, writing: bool) -> str | None:
        if _is_below(path, self._private):
            return _IS_PRIVATE
        if writing and _is_below(path, self._prompt):
            return _IS_PROMPT
        if _is_below(path, [self._state]) and not _is_below(path, self._open):
            return _IS_PRIVATE
        return None

    def hidden_names(self, folder: str, names: Sequence[str]) -> set[str]:
        private, state, opened = map(_spellings, (self._private, [self._state], self._open))

        def hidden(name: str) -> bool:
            plain = _plain(f"{folder.rstrip('/')}/{name}")
            return _below(plain, private) or (_below(plain, state) and not _below(plain, opened))

        return {name for name in names if hidden(name)}


def _extra_paths(config: Config, agent_id: str) -> list[str]:
    agent = agent_config(config, agent_id)
    search = agent.memory_search if agent and agent.memory_search else config.agents.defaults.memory_search
    return list(search.extra_paths)


def _is_below(path: str, places: Iterable[Path]) -> bool:
    """Whether the path is one of the places or below it. A place may be a link: both of its paths count."""
    return _below(_plain(path), _spellings(places))


def _below(plain: str, spellings: Iterable[str]) -> bool:
    return any(plain == spelling or plain.startswith(f"{spelling}/") for spelling in spellings)


def _spellings(places: Iterable[Path]) -> set[str]:
    return {
        _plain(path) for place in places for path in (os.path.realpath(place.parent / place.name), _beside_link(place))
    }


def _beside_link(place: Path) -> str:
    """The path of the place itself, which may be a link, in a folder that is none."""
    return os.path.join(os.path.realpath(place.parent), place.name)  # noqa: PTH118 - no Path is needed


def _plain(path: str) -> str:
    return normalised("NFC", path).casefold()


def owner_files(runtime: Runtime, agent_id: str, caller: Caller) -> PathGuard | None:
    """Return the guard of the file tools in a run of this caller, or None if the caller may open everything."""
    if caller.may("owner files"):
        return None
    config = runtime.config.current
    return runtime.prompting.derived.of(
        config, ("owner files", agent_id), lambda: OwnerFiles(config, Path(runtime.state_dir), agent_id)
    )
