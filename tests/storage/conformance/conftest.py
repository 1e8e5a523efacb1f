"""Every test of this folder runs on every kind of store. A store that passes them works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.storage.blobs import BlobStore
from openclaw.storage.documents import DocumentStore
from openclaw.storage.message_ledger import Ledger
from openclaw.storage.sessions import SessionStore
from openclaw.storage.transcripts import TranscriptStore
from tests.storage.conformance.stores import FileStores, PostgresStores, Stores
from tests.storage.still_clock import StillClock
from tests.support.postgres import postgres_server, shared_schema


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture(params=["files", "postgres"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: StillClock) -> AsyncIterator[Stores]:
    opened: Stores = FileStores(clock, tmp_path)
    if request.param == "postgres":
        opened = PostgresStores(clock, tmp_path, postgres_server().url, shared_schema(), begin_empty=True)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def sessions(stores: Stores) -> SessionStore:
    return stores.sessions


@pytest.fixture
def transcripts(stores: Stores) -> TranscriptStore:
    return stores.transcripts


@pytest.fixture
def ledger(stores: Stores) -> Ledger:
    return stores.ledger


@pytest.fixture
def blobs(stores: Stores) -> BlobStore:
    return stores.blobs


@pytest.fixture
def documents(stores: Stores) -> DocumentStore:
    return stores.documents
