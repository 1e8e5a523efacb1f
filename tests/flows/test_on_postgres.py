"""A part of the flows again, with sessions, transcripts and the ledger in PostgreSQL.

``make test-postgres`` runs all of them so. This part is in every run: chats, queues, and what outlives a kill.
"""

from __future__ import annotations

import pytest

from tests.flows.test_chat import *  # noqa: F403
from tests.flows.test_length import *  # noqa: F403
from tests.flows.test_queue import *  # noqa: F403
from tests.flows.test_refused import *  # noqa: F403
from tests.support.postgres import needs_postgres


@pytest.fixture(autouse=True)
def in_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_postgres()
    monkeypatch.setenv("OPENCLAW_TEST_STORAGE", "postgres")
