"""``exec-pending.json``: questions about commands that are open, so that a restart can say what became of them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Literal

import msgspec

from openclaw.paths import make_private_dir
from openclaw.storage.files.disk import atomic_replace

FILE_NAME = "exec-pending.json"
MAX_LOST = 64
"""So many questions of earlier lives are remembered, to answer those who decide too late."""

log = logging.getLogger("openclaw.tools.approvals")


class Pending(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    id: str
    command: str
    run_id: str = ""
    """The run that asked; empty when it was another program."""
    state: Literal["asked", "running", "lost"] = "asked"
    """``running``: somebody said yes and the command was started. ``lost``: the Gateway stopped meanwhile."""


class ApprovalJournal:
    """Each change is a file replaced as a whole: there are few questions, and people take seconds to answer them."""

    def __init__(self, state_dir: str) -> None:
        self._path = Path(state_dir) / FILE_NAME
        self._pending: dict[str, Pending] = {}
        self.left_over: list[Pending] = []
        """What an earlier life left open and nobody was told of yet."""
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Before anything is asked. A damaged file holds nothing."""
        found = await asyncio.to_thread(self._read)
        self._pending = {one.id: one for one in found}
        self.left_over = [one for one in found if one.state != "lost"]

    async def note(self, pending: Pending) -> None:
        self._pending[pending.id] = pending
        lost = [id for id, one in self._pending.items() if one.state == "lost"]
        for id in lost[:-MAX_LOST]:
            del self._pending[id]
        await self._write()

    async def forget(self, id: str) -> None:
        if self._pending.pop(id, None) is not None:
            await self._write()

    def is_lost(self, ref: str) -> bool:
        """Whether an id, or its beginning, names a question that a restart closed."""
        named = (one for id, one in self._pending.items() if id == ref or (len(ref) >= 4 and id.startswith(ref)))
        return any(one.state == "lost" or one in self.left_over for one in named)

    async def _write(self) -> None:
        async with self._writing:
            data = msgspec.json.encode(list(self._pending.values()))
            await asyncio.to_thread(self._replace, data)

    def _replace(self, data: bytes) -> None:
        make_private_dir(str(self._path.parent))
        atomic_replace(self._path, data)

    def _read(self) -> list[Pending]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[Pending])
        except FileNotFoundError:
            return []
        except (msgspec.DecodeError, OSError) as error:
            log.warning("%s cannot be read (%s): questions that were open are not told as closed", self._path, error)
            return []
