"""The stores of one Gateway, opened by the kind that a test asks for, and opened again as after a restart."""

from __future__ import annotations

import abc
from pathlib import Path

from openclaw.storage.blobs import BlobStore
from openclaw.storage.documents import DocumentStore
from openclaw.storage.files.disk import FileBlobStore, FileDocuments
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.message_ledger import Ledger
from openclaw.storage.postgres.database import PostgresDatabase
from openclaw.storage.postgres.documents import PostgresBlobStore, PostgresDocuments
from openclaw.storage.postgres.ledger import PostgresLedger
from openclaw.storage.postgres.session_store import PostgresSessionStore
from openclaw.storage.postgres.transcript import PostgresTranscriptStore
from openclaw.storage.sessions import SessionStore
from openclaw.storage.transcripts import TranscriptStore
from tests.storage.still_clock import StillClock
from tests.support.postgres import empty


class Stores(abc.ABC):
    """Open stores. ``reopen`` closes them and opens them again, with nothing left in memory."""

    sessions: SessionStore
    transcripts: TranscriptStore
    ledger: Ledger
    blobs: BlobStore
    documents: DocumentStore

    def __init__(self, clock: StillClock) -> None:
        self.clock = clock

    @abc.abstractmethod
    async def open(self) -> None: ...

    @abc.abstractmethod
    def another_reader(self) -> TranscriptStore:
        """Transcripts as somebody finds them who has nothing of them in memory."""
        ...

    @abc.abstractmethod
    def other_documents(self) -> DocumentStore:
        """The documents as another Gateway has them."""
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
        self.documents = FileDocuments(self._state)

    def other_documents(self) -> DocumentStore:
        return FileDocuments(self._state)

    def another_reader(self) -> TranscriptStore:
        return FileTranscriptStore(self._state, clock=self.clock)


class PostgresStores(Stores):
    database: PostgresDatabase

    def __init__(self, clock: StillClock, state_dir: Path, url: str, schema: str, *, begin_empty: bool = False) -> None:
        super().__init__(clock)
        self._begin_empty = begin_empty
        self._state = str(state_dir)
        self._url = url
        self._schema = schema

    async def open(self) -> None:
        self.database = database = await PostgresDatabase.open(self._url, schema=self._schema)
        if self._begin_empty:
            self._begin_empty = False
            await empty(database)
        self.sessions = await PostgresSessionStore.open(database)
        self.transcripts = PostgresTranscriptStore(database, self._state, clock=self.clock)
        self.ledger = await PostgresLedger.open(database, clock=self.clock)
        self.blobs = PostgresBlobStore(database, self._state)
        self._documents = [PostgresDocuments(database)]
        self.documents = self._documents[0]

    async def close(self) -> None:
        for documents in self._documents:
            await documents.close()
        await super().close()
        await self.database.close()

    def other_documents(self) -> DocumentStore:
        self._documents.append(PostgresDocuments(self.database))
        return self._documents[-1]

    def another_reader(self) -> TranscriptStore:
        return PostgresTranscriptStore(self.database, self._state, clock=self.clock)
