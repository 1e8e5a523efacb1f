"""What the ledger remembers and finds again: messages by state and id, keys seen before, held messages and jobs."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw.storage.message_ledger import JobRow, OutboxPart, ReasonCode, RejectedMessage
from tests.storage.conformance.messages import message
from tests.storage.conformance.stores import FileStores
from tests.storage.still_clock import StillClock


async def test_recent_messages_can_be_asked_for_by_state(ledger):
    rows = [await ledger.accept(message(number, session_key=f"agent:main:{number % 2}")) for number in range(4)]
    ids = [row.id for row, _ in rows]
    for ledger_id in ids[:3]:
        await ledger.finish(ledger_id, "failed")
    assert [row.run_id for row in await ledger.recent(state="failed")] == ["run-2", "run-1", "run-0"]
    assert [row.run_id for row in await ledger.recent(state="failed", session_key="agent:main:1")] == ["run-1"]
    assert [row.run_id for row in await ledger.recent(state="accepted")] == ["run-3"]
    assert await ledger.recent(state="expired") == []


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("abc", ["abc", "abc-1", "abcé", "abc\U0001f600"]),
        ("abc-", ["abc-1"]),
        ("ABC", ["ABC-2"]),
        ("%", []),
        ("abd", []),
    ],
)
async def test_the_beginning_of_a_run_id_finds_it(ledger, prefix, found):
    for run_id in ("abc", "abc-1", "abcé", "abc\U0001f600", "ABC-2", "ab", "b%"):
        await ledger.accept(message(run_id=run_id, dedupe_key=""))
    assert [row.run_id for row in await ledger.runs_beginning(prefix)] == found
    assert len(await ledger.runs_beginning(prefix, 1)) <= 1


async def test_a_hit_counts_from_the_last_time_it_was_seen(ledger, clock):
    answers: list[bool] = []
    for clock.now in (0, 999, 1998, 2999):
        answers.append(await ledger.seen("a", 1000, 10))
    assert answers == [False, True, True, False]


async def test_the_oldest_gives_way_when_there_are_too_many(ledger):
    answers = [await ledger.seen(key, 1000, 2) for key in ("a", "b", "c", "c", "b", "a")]
    assert answers == [False, False, False, True, True, False]


async def test_keys_of_accepted_messages_give_way_though_they_are_only_asked_for(ledger, clock):
    for number in range(300):
        await ledger.accept(message(number, dedupe_keys=(f"signal|ann|{number}",)))
    for number in range(300):
        await ledger.seen(f"signal|bob|{number}", 60_000, 10, remember=False)
    known = [await ledger.seen(f"signal|ann|{number}", 60_000, 10, remember=False) for number in range(300)]
    assert known == [False] * 290 + [True] * 10


async def test_an_empty_key_is_never_seen(ledger):
    assert [await ledger.seen("", 1000, 10) for _ in range(2)] == [False, False]


async def test_asking_only_does_not_remember_but_a_hit_still_slides(ledger, clock):
    assert [await ledger.seen("a", 1000, 10, remember=False) for _ in range(2)] == [False, False]
    await ledger.seen("a", 1000, 10)
    clock.now = 900
    assert await ledger.seen("a", 1000, 10, remember=False)
    clock.now = 1800
    assert await ledger.seen("a", 1000, 10, remember=False)


async def test_of_redeliveries_arriving_together_one_is_new(ledger):
    answers = await asyncio.gather(*(ledger.seen("a", 1000, 10) for _ in range(20)))
    assert answers.count(False) == 1


async def test_what_was_seen_is_still_known_after_a_restart(stores):
    assert not await stores.ledger.seen("a", 1000, 10)
    await stores.reopen()
    assert await stores.ledger.seen("a", 1000, 10)


async def test_a_message_and_the_keys_of_its_parts_are_written_together(ledger):
    parts = ("signal|1", "signal|2")
    await ledger.accept(message(dedupe_key="signal|2", dedupe_keys=parts))
    assert [await ledger.seen(key, 1000, 10) for key in (*parts, "signal|3")] == [True, True, False]


async def test_a_posted_message_has_ended_and_waits_to_be_delivered(ledger):
    parts = [OutboxPart(part=number, channel="signal", payload={"text": text}) for number, text in enumerate("ab")]
    row, new = await ledger.post(message(), parts)
    again, second = await ledger.post(message(), parts)
    assert (new, row.state, second, again.id) == (True, "answered", False, row.id)
    assert [part.payload["text"] for part in await ledger.outbox_of(row.id)] == ["a", "b"]
    assert await ledger.unfinished() == []
    with pytest.raises(ValueError, match="same number"):
        await ledger.post(message(2), [parts[0], parts[0]])
    assert await ledger.by_run("run-2") is None


async def test_held_messages_come_back_in_their_order(stores, ledger):
    for key in ("b", "a", "b"):
        await ledger.hold(key, key.encode() * 2)
    await ledger.count_held_attempt("a")
    await stores.reopen()
    held = await stores.ledger.held()
    assert [(one.key, one.message, one.attempts) for one in held] == [("b", b"bb", 0), ("a", b"aa", 1)]
    await stores.ledger.release_held(["b", "unknown"])
    assert [one.key for one in await stores.ledger.held()] == ["a"]


async def test_a_held_message_gets_new_words_and_one_that_was_let_go_does_not_come_back(stores, ledger):
    for key in ("a", "b", "c"):
        await ledger.hold(key, b"old")
    await ledger.count_held_attempt("a")
    await ledger.release_held(["c"])
    await ledger.update_held("a", b"\x00new")
    await ledger.update_held("c", b"new")
    await stores.reopen()
    held = await stores.ledger.held()
    assert [(one.key, one.message, one.attempts) for one in held] == [("a", b"\x00new", 1), ("b", b"old", 0)]


async def test_messages_that_were_turned_away_are_counted(ledger, clock):
    denied = RejectedMessage(
        message_id="7", channel="signal", chat="+1", code=ReasonCode.ACCESS_DENIED, detail="a rule"
    )
    for clock.now in (1000, 2000, 3000):
        await ledger.note_rejected(denied)
    await ledger.note_rejected(
        RejectedMessage(message_id="7", channel="signal", chat="+2", code=ReasonCode.REDELIVERED)
    )
    found = await ledger.rejected(["7", "8"])
    assert [(note.chat, note.code, note.count, note.first_at, note.last_at) for note in found] == [
        ("+1", ReasonCode.ACCESS_DENIED, 3, 1000, 3000),
        ("+2", ReasonCode.REDELIVERED, 1, 3000, 3000),
    ]


async def test_jobs_are_found_by_what_they_belong_to_and_pruned_when_they_have_ended(ledger, clock):
    facts = {"kind": "subagent", "owner_key": "agent:main:main", "run_id": "r", "trace": "t"}
    for number in range(3):
        await ledger.job_put(JobRow(id=f"j{number}", state={"n": number}, created_at=clock.now + number, **facts))
    await ledger.job_put(JobRow(id="j1", state={"n": 9}, created_at=clock.now + 1, ended_at=clock.now + 2, **facts))
    assert (await ledger.job("j1")).state == {"n": 9} and await ledger.job("none") is None
    assert [job.id for job in await ledger.jobs(owner_key="agent:main:main", ended=False)] == ["j0", "j2"]
    assert [job.id for job in await ledger.jobs(kind="subagent", trace="t", limit=2)] == ["j1", "j2"]
    assert await ledger.jobs(run_id="other") == []
    await ledger.prune(clock.now + 10)
    assert [job.id for job in await ledger.jobs()] == ["j0", "j2"]


async def pending(ledger, place, limit=10):
    return [row.message for row in await ledger.pending(place, limit)]


async def test_pending_messages_are_told_apart_by_their_place_and_the_oldest_give_way(ledger):
    for number in range(4):
        await ledger.add_pending("a", str(number), b"%d" % number, keep=3)
    await ledger.add_pending("b", "0", b"other", keep=3)
    assert await pending(ledger, "a") == [b"1", b"2", b"3"]
    assert await pending(ledger, "a", 2) == [b"2", b"3"]
    assert await pending(ledger, "a", 0) == [] and await pending(ledger, "b") == [b"other"]
    assert await ledger.held() == []


async def test_a_pending_message_that_comes_again_is_replaced_where_it_stands(ledger):
    for message_id, text in (("1", b"teh"), ("2", b"next"), ("1", b"the"), ("", b"a"), ("", b"a")):
        await ledger.add_pending("a", message_id, text, keep=9)
    assert await pending(ledger, "a") == [b"the", b"next", b"a", b"a"]


async def test_pending_messages_go_with_the_message_that_has_them_and_only_once(ledger):
    await ledger.add_pending("a", "1", b"one", keep=9)
    steps = tuple(row.step for row in await ledger.pending("a", 9))
    await ledger.add_pending("a", "2", b"two", keep=9)
    _, new = await ledger.accept(message(1, pending=steps))
    assert new and await pending(ledger, "a") == [b"two"]
    steps = tuple(row.step for row in await ledger.pending("a", 9))
    row, new = await ledger.accept(message(1, pending=steps))
    assert not new and row.pending == () and await pending(ledger, "a") == [b"two"]


async def test_the_oldest_pending_messages_of_all_places_give_way(ledger, monkeypatch):
    monkeypatch.setattr("openclaw.storage.sql_ledger.MOST_PENDING", 2)
    for place in "abc":
        await ledger.add_pending(place, "1", place.encode(), keep=9)
    assert [await pending(ledger, place) for place in "abc"] == [[], [b"b"], [b"c"]]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab")), max_size=40), st.integers(1, 6))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_gets_exactly_what_was_pending(steps, limit):
    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            stores = FileStores(StillClock(), Path(folder))
            await stores.open()
            expected: dict[str, list[bytes]] = {"a": [], "b": []}
            for number, (starts_run, place) in enumerate(steps):
                if not starts_run:
                    await stores.ledger.add_pending(place, str(number), b"%d" % number, keep=limit)
                    expected[place] = [*expected[place], b"%d" % number][-limit:]
                    continue
                rows = await stores.ledger.pending(place, limit)
                assert [row.message for row in rows] == expected[place]
                await stores.ledger.accept(message(number, pending=tuple(row.step for row in rows)))
                expected[place] = []
            await stores.close()

    asyncio.run(play())
