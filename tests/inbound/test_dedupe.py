"""A redelivered message is taken once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.inbound.dedupe import Dedupe, dedupe_key
from openclaw.storage.files.ledger import FileLedger
from tests.inbound.support import message
from tests.storage.still_clock import StillClock


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ({"channel": "telegram", "to": "telegram:123", "message_id": "42"}, "telegram|default|telegram:123|42"),
        (
            {"channel": "Slack ", "account_id": " a", "to": "C1", "thread_id": 0, "message_id": " 9 "},
            "slack|a|C1|0|9",
        ),
        ({"channel": "slack", "account_id": "", "to": "", "peer": "C2", "message_id": "9"}, "slack|C2|9"),
        ({"channel": "slack", "to": "C1", "message_id": ""}, None),
        ({"channel": "slack", "to": "", "peer": " ", "message_id": "9"}, None),
        ({"channel": "", "to": "C1", "message_id": "9"}, None),
    ],
)
def test_the_key_names_everything_that_tells_messages_apart(parts: dict[str, Any], key: str | None) -> None:
    assert dedupe_key(message(**parts)) == key


def test_equal_ids_in_different_places_are_different_messages() -> None:
    places: list[dict[str, Any]] = [{}, {"to": "b"}, {"account_id": "biz"}, {"thread_id": 0}]
    assert len({dedupe_key(message(**{"to": "a", **place})) for place in places}) == 4


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[FileLedger]:
    opened = await FileLedger.open(str(tmp_path), clock=StillClock())
    yield opened
    await opened.close()


async def test_a_message_under_way_or_kept_is_not_taken_again(ledger: FileLedger) -> None:
    dedupe = Dedupe(ledger, StillClock())
    assert sum(await asyncio.gather(*(dedupe.claim_if_new(message()) for _ in range(5)))) == 1
    await dedupe.remember(dedupe_key(message()) or "")
    assert not await dedupe.claim_if_new(message())
    assert not await Dedupe(ledger, StillClock()).claim_if_new(message())


async def test_a_released_message_may_come_again(ledger: FileLedger) -> None:
    dedupe = Dedupe(ledger, StillClock())
    assert await dedupe.claim_if_new(message())
    dedupe.release(dedupe_key(message()) or "")
    assert await dedupe.claim_if_new(message())


async def test_a_message_without_a_key_is_always_taken(ledger: FileLedger) -> None:
    dedupe = Dedupe(ledger, StillClock())
    assert await dedupe.claim_if_new(message(message_id=""))
    assert await dedupe.claim_if_new(message(message_id=""))
