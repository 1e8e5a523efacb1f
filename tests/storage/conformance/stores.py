"""The stores of one Gateway, opened by the kind that a test asks for, and opened again as after a restart."""

from __future__ import annotations

import abc
from pathlib import Path

from openclaw.storage.base import BlobStore, Ledger, SessionStore, TranscriptStore
from openclaw.storage.files.disk import FileBlobStore
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript import FileTranscriptStore
from tests.storage.still_clock import StillClock


class Stores(abc.ABC):
    """Open stores. ``reopen`` closes them and opens them again, with nothing left in memory."""

    sessions: SessionStore
    transcripts: TranscriptStore
    ledger: Ledger
    blobs: BlobStore

    def __init__(self, clock: StillClock) -> None:
        self.clock = clock

    @abc.abstractmethod
    async def open(self) -> None: ...

    @abc.abstractmethod
    def another_reader(self) -> TranscriptStore:
        """Transcripts as somebody finds them who has nothing of them in memory."""
        ...

    async def close(self) -> None:
        await self.transcripts.close()
        await self.sessions.close()
        await self.ledger.close()

    async def reopen(self) -> None:
        await self.close()
        await self.open()


class FileStores(Stores):
    def __init__(self, clock: StillClock, state_dir: Path) -> None:
        super().__init__(clock)
        self._state = str(state_dir)

    async def open(self) -> None:
        self.sessions = sessions = await FileSessionStore.open(self._state, clock=self.clock, agent_ids=["main"])
        self.transcripts = FileTranscriptStore(self._state, clock=self.clock, store_path=sessions.path)
        self.ledger = await FileLedger.open(self._state, clock=self.clock)
        self.blobs = FileBlobStore(self._state)

    def another_reader(self) -> TranscriptStore:
        return FileTranscriptStore(self._state, clock=self.clock)
