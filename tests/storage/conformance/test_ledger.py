"""The life of a message: its acceptance, its steps, its end and the delivery of its parts."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from openclaw.messages import Route
from openclaw.storage.message_ledger import END_STATES, NO_REASON, MessageBody, OutboxPart, Reason, ReasonCode
from tests.storage.conformance.messages import because, message


async def test_accepted_message_has_everything_needed_to_run_it(ledger, clock):
    row, new = await ledger.accept(message())
    assert new
    assert (row.state, row.attempts, row.accepted_at, row.ended_at) == ("accepted", 0, clock.now, None)
    assert row.body == MessageBody(text="hello 1") and row.route == Route(channel="telegram", to="1")
    assert await ledger.by_run("run-1") == row == await ledger.get(row.id)
    assert await ledger.unfinished() == [row]


@pytest.mark.parametrize("again", [{"dedupe_key": "another"}, {"run_id": "another"}, {}])
async def test_known_run_id_or_dedupe_key_is_a_redelivery(ledger, again):
    row, _ = await ledger.accept(message())
    same, new = await ledger.accept(message(**again, body=MessageBody(text="changed")))
    assert not new and same == row


async def test_messages_without_a_dedupe_key_are_told_apart_by_run_id_alone(ledger):
    _, first = await ledger.accept(message(1, dedupe_key=""))
    _, second = await ledger.accept(message(2, dedupe_key=""))
    assert first and second


async def test_redeliveries_arriving_together_are_accepted_once(ledger):
    answers = await asyncio.gather(*(ledger.accept(message(run_id=f"r{n}")) for n in range(20)))
    assert sum(new for _, new in answers) == 1
    assert len({row.id for row, _ in answers}) == 1


async def test_life_of_a_message_is_told_in_order(ledger, clock):
    row, _ = await ledger.accept(message())
    for state in ("queued", "running"):
        clock.now += 10
        await ledger.advance(row.id, state, because(state))
    clock.now += 10
    assert await ledger.finish(row.id, "answered", result={"text": "hi"})
    story = await ledger.history(row.id)
    assert [(step.state, step.reason) for step in story] == [
        ("accepted", NO_REASON),
        ("queued", because("queued")),
        ("running", because("running")),
        ("answered", NO_REASON),
    ]
    ended = await ledger.get(row.id)
    assert (ended.started_at, ended.ended_at, ended.attempts) == (story[2].at, story[3].at, 1)
    assert ended.result == {"text": "hi"}
    assert await ledger.unfinished() == []


@pytest.mark.parametrize("end", sorted(END_STATES))
async def test_message_has_exactly_one_end(ledger, end):
    row, _ = await ledger.accept(message())
    with pytest.raises(ValueError, match="finish"):
        await ledger.advance(row.id, end)
    assert await ledger.finish(row.id, end, reason=because("first"))
    assert not await ledger.finish(
        row.id, "failed", reason=because("second"), outbox=[OutboxPart(part=0, channel="x", payload={})]
    )
    with pytest.raises(ValueError, match="ended"):
        await ledger.advance(row.id, "running")
    assert (await ledger.get(row.id)).reason == because("first")
    assert await ledger.outbox_of(row.id) == []
    with pytest.raises(ValueError, match="advance"):
        await ledger.finish(row.id, "running")


async def test_unknown_messages_are_refused(ledger):
    with pytest.raises(KeyError):
        await ledger.advance(99, "running")
    with pytest.raises(KeyError):
        await ledger.finish(99, "failed")
    with pytest.raises(KeyError):
        await ledger.outbox_mark(99, "sent")
    assert await ledger.get(99) is None and await ledger.by_run("x") is None


async def test_messages_that_come_and_end_together_keep_their_own_rows(ledger, clock):
    first = [row for row, _ in await asyncio.gather(*(ledger.accept(message(number)) for number in range(6)))]
    assert [row.run_id for row in first] == [f"run-{number}" for number in range(6)]
    assert [(await ledger.by_run(row.run_id)).id for row in first] == [row.id for row in first]
    clock.now += 5
    parts = [OutboxPart(part=0, channel="telegram", payload={"text": "hi"})]
    told = await asyncio.gather(
        ledger.finish(first[0].id, "answered", result={"n": 0}, outbox=parts),
        ledger.accept(message("new"), step="queued", reason=Reason(ReasonCode.SESSION_BUSY)),
        ledger.finish(first[1].id, "failed", reason=because("no")),
        ledger.accept(message("newer", dedupe_keys=("k",)), step="running"),
        ledger.finish(first[2].id, "answered"),
    )
    assert [told[0], told[2], told[4]] == [True] * 3 and told[1][1] and told[3][1]
    ends = [(row.state, row.reason.detail, row.result) for row in [await ledger.get(row.id) for row in first[:4]]]
    assert ends == [("answered", "", {"n": 0}), ("failed", "no", None), ("answered", "", None), ("accepted", "", None)]
    assert [part.payload for part in await ledger.outbox_of(first[0].id)] == [{"text": "hi"}]
    assert [(step.state, step.reason) for step in await ledger.history(first[1].id)] == [
        ("accepted", NO_REASON),
        ("failed", because("no")),
    ]
    assert [step.state for step in await ledger.history(told[1][0].id)] == ["accepted", "queued"]
    assert (await ledger.by_run("run-newer")).attempts == 1 and await ledger.seen("k", 1000, 10, remember=False)


async def test_one_of_many_that_has_ended_before_changes_nothing_for_the_others(ledger):
    rows = [row for row, _ in await asyncio.gather(*(ledger.accept(message(number)) for number in range(4)))]
    await ledger.finish(rows[1].id, "failed", reason=because("first"))
    same = OutboxPart(part=0, channel="telegram", payload={})
    told = await asyncio.gather(
        *(ledger.finish(row.id, "answered") for row in rows[:3]),
        ledger.finish(rows[2].id, "failed"),
        ledger.finish(rows[3].id, "answered", outbox=[same, same]),
        ledger.finish(999, "answered"),
        ledger.accept(message(0)),
        ledger.accept(message("new")),
        return_exceptions=True,
    )
    assert told[:2] == [True, False] and sorted(told[2:4]) == [False, True], "one of two ends comes first"
    assert isinstance(told[4], ValueError) and isinstance(told[5], KeyError)
    assert told[6][1] is False and told[6][0].id == rows[0].id and told[7][1]
    states = [(await ledger.get(row.id)).state for row in rows]
    assert states == ["answered", "failed", "answered" if told[2] else "failed", "accepted"]


async def test_refusal_does_not_touch_operations_committed_with_it(ledger):
    row, _ = await ledger.accept(message())
    results = await asyncio.gather(
        ledger.advance(row.id, "running"),
        ledger.advance(99, "running"),
        ledger.accept(message(2)),
        ledger.finish(row.id, "silent"),
        return_exceptions=True,
    )
    assert isinstance(results[1], KeyError)
    assert results[3] is True
    assert [r.run_id for r in await ledger.unfinished()] == ["run-2"]


async def test_parts_to_deliver_are_stored_with_the_end_and_retried_until_sent(ledger, clock):
    row, _ = await ledger.accept(message())
    parts = [OutboxPart(part=n, channel="telegram", payload={"text": f"p{n}"}) for n in range(3)]
    await ledger.finish(row.id, "answered", outbox=parts)
    (first,) = await ledger.outbox_due(clock.now)
    waiting = await ledger.outbox_waiting(first.id)
    assert waiting[0] == first
    assert [(part.part, part.payload["text"], part.route) for part in waiting] == [
        (n, f"p{n}", row.route) for n in range(3)
    ]
    await ledger.outbox_mark(first.id, "sending")
    await ledger.outbox_mark(first.id, "sent")
    second = waiting[1].id
    await ledger.outbox_mark(second, "sending")
    await ledger.outbox_mark(second, "pending", next_at=clock.now + 500, error="flood wait", answered_errors=1)
    assert await ledger.outbox_due(clock.now) == []
    assert [part.part for part in await ledger.outbox_due(clock.now + 500)] == [1]
    assert [part.part for part in await ledger.outbox_waiting(first.id)] == [1, 2]
    states = [(part.state, part.attempts, part.answered_errors, part.error) for part in await ledger.outbox_of(row.id)]
    assert states == [("sent", 1, 0, ""), ("pending", 1, 1, "flood wait"), ("pending", 0, 0, "")]


async def test_only_the_oldest_pending_part_of_a_destination_is_due(ledger, clock):
    """An account, a chat and a thread make up a destination. What else a route holds does not count."""
    ann = Route(channel="telegram", account_id="work", to="ann", reply_to_id="7")
    routes = [
        ann,
        replace(ann, reply_to_id="8"),
        replace(ann, thread_id=5),
        replace(ann, thread_id="5"),
        replace(ann, account_id="home"),
        Route(channel="telegram", to="ann"),
        Route(channel="telegram", to="ann", session_key="agent:main:main"),
        Route(channel="telegram", to="a\nnn\u0000"),
        replace(ann, to="bob"),
    ]
    runs: list[str] = []
    for number, route in enumerate(routes):
        row, _ = await ledger.accept(message(number, route=route))
        await ledger.finish(row.id, "answered", outbox=[OutboxPart(part=0, channel="telegram", payload={})])
        runs.append(row.run_id)
    due = await ledger.outbox_due(clock.now)
    assert [part.run_id for part in due] == [runs[place] for place in (0, 2, 4, 5, 7, 8)]
    await ledger.outbox_mark(due[0].id, "pending", next_at=clock.now + 500)
    assert [part.run_id for part in await ledger.outbox_due(clock.now)] == [runs[place] for place in (2, 4, 5, 7, 8)]
    assert [part.run_id for part in await ledger.outbox_due(clock.now + 500, 6)][-1] == runs[0]


async def test_part_being_sent_at_a_crash_waits_again_and_says_so(stores, ledger, clock):
    row, _ = await ledger.accept(message())
    await ledger.finish(row.id, "answered", outbox=[OutboxPart(part=0, channel="c", payload={})])
    (part,) = await ledger.outbox_due(clock.now)
    await ledger.outbox_mark(part.id, "sending")
    await stores.reopen()
    again = stores.ledger
    (due,) = await again.outbox_due(clock.now)
    assert (due.state, due.attempts, due.doubts, due.error) == ("pending", 1, 1, "")


async def test_two_parts_with_one_number_are_refused_as_a_whole(ledger):
    row, _ = await ledger.accept(message())
    same = [OutboxPart(part=0, channel="c", payload={}), OutboxPart(part=0, channel="c", payload={})]
    with pytest.raises(ValueError, match="same number"):
        await ledger.finish(row.id, "answered", outbox=same)
    assert (await ledger.get(row.id)).state == "accepted"


async def test_tool_call_without_a_result_is_seen_after_a_restart(stores, ledger):
    row, _ = await ledger.accept(message())
    await ledger.tool_started(row.id, "c2", "exec", '{"command":"ls"}')
    await ledger.tool_started(row.id, "c1", "read", "{}")
    await ledger.tool_started(row.id, "c1", "read", "{}")
    await ledger.tool_finished(row.id, "c2", ok=False)
    await stores.reopen()
    again = stores.ledger
    calls = await again.tool_calls(row.id)
    assert [(call.call_id, call.ok, call.finished_at is None) for call in calls] == [
        ("c2", False, False),
        ("c1", None, True),
    ]


async def test_recent_messages_come_newest_first_and_per_session(ledger):
    for number in range(4):
        await ledger.accept(message(number, session_key=f"agent:main:{number % 2}"))
    assert [row.run_id for row in await ledger.recent(limit=3)] == ["run-3", "run-2", "run-1"]
    assert [row.run_id for row in await ledger.recent(session_key="agent:main:0")] == ["run-2", "run-0"]


async def test_pruning_keeps_what_is_unfinished_or_undelivered(ledger, clock):
    rows = [(await ledger.accept(message(n)))[0] for n in range(4)]
    await ledger.finish(rows[0].id, "answered")
    await ledger.finish(rows[1].id, "answered", outbox=[OutboxPart(part=0, channel="c", payload={})])
    await ledger.finish(rows[2].id, "answered", outbox=[OutboxPart(part=0, channel="c", payload={})])
    (part,) = await ledger.outbox_of(rows[2].id)
    await ledger.outbox_mark(part.id, "dead")
    assert await ledger.prune(clock.now) == 0
    assert await ledger.prune(clock.now + 1) == 2
    assert [row.run_id for row in await ledger.recent()] == ["run-3", "run-1"]
    assert await ledger.history(rows[0].id) == []
    assert (await ledger.accept(message(9)))[0].id > rows[3].id


async def test_a_message_that_starts_at_once_is_accepted_and_begun_in_one_step(ledger):
    row, new = await ledger.accept(message(), step="running")
    assert new and (row.state, row.attempts) == ("accepted", 0), "what was before this attempt"
    stored = await ledger.get(row.id)
    assert stored is not None and (stored.state, stored.attempts) == ("running", 1) and stored.started_at is not None
    assert [step.state for step in await ledger.history(row.id)] == ["accepted", "running"]
    assert [one.id for one in await ledger.unfinished()] == [row.id]
    await ledger.finish(row.id, "answered")
    assert [step.state for step in await ledger.history(row.id)] == ["accepted", "running", "answered"]


async def test_a_message_that_waits_is_accepted_with_the_reason_in_one_step(ledger):
    row, new = await ledger.accept(message(), step="queued", reason=Reason(ReasonCode.SESSION_BUSY))
    assert new and (row.state, row.attempts) == ("accepted", 0)
    stored = await ledger.get(row.id)
    assert stored is not None and (stored.state, stored.attempts) == ("queued", 0)
    assert [(step.state, step.reason) for step in await ledger.history(row.id)] == [
        ("accepted", NO_REASON),
        ("queued", Reason(ReasonCode.SESSION_BUSY)),
    ]
    await ledger.advance(row.id, "running")
    stored = await ledger.get(row.id)
    assert stored is not None and (stored.state, stored.attempts) == ("running", 1)


async def test_a_message_is_found_by_its_channels_id_and_not_by_a_part_of_it(ledger):
    body = MessageBody(prompt="the words 1794766940494", message_ids=["17947", '"odd"'])
    row, _ = await ledger.accept(message(body=body))
    for name in ("17947", '"odd"'):
        assert [found.id for found in await ledger.by_message_id(name)] == [row.id]
    assert await ledger.by_message_id("1794766940494") == []
    assert await ledger.by_message_id("1794") == []
    other, _ = await ledger.accept(message(2, body=body))
    assert [found.id for found in await ledger.by_message_id("17947")] == [other.id, row.id]


async def test_an_accepted_message_is_not_held_any_more(ledger):
    for key in ("c|1", "c|2", "c|3", "c|4"):
        await ledger.hold(key, b"{}")
    await ledger.accept(message(1, dedupe_keys=("c|1", "c|2")))
    await ledger.post(message(2, dedupe_keys=("c|3",)), [])
    assert [held.key for held in await ledger.held()] == ["c|4"]


async def test_a_part_that_has_ended_changes_only_when_it_has_arrived_all_the_same(ledger):
    row, _ = await ledger.accept(message())
    await ledger.finish(row.id, "answered", outbox=[OutboxPart(part=0, channel="c", payload={})])
    (part,) = await ledger.outbox_of(row.id)
    assert await ledger.outbox_mark(part.id, "sending") and await ledger.outbox_mark(part.id, "dead", error="dropped")
    for state in ("pending", "sending", "dead"):
        assert not await ledger.outbox_mark(part.id, state)
    assert [(one.state, one.error) for one in await ledger.outbox_of(row.id)] == [("dead", "dropped")]
    assert await ledger.outbox_mark(part.id, "sent")
    assert not await ledger.outbox_mark(part.id, "pending")


async def test_messages_taken_together_end_with_the_one_that_answers_them(ledger):
    rows = [(await ledger.accept(message(number)))[0] for number in range(3)]
    others = {rows[0].id: Reason(ReasonCode.COLLECTED, "run-2"), rows[1].id: Reason(ReasonCode.WITHDRAWN)}
    await ledger.absorb(rows[2].id, others, body=MessageBody(prompt="both"))
    assert [row.run_id for row in await ledger.unfinished()] == ["run-2"]
    assert (await ledger.get(rows[2].id)).body.prompt == "both"
    ended = [await ledger.get(row.id) for row in rows[:2]]
    assert [(row.state, row.result) for row in ended] == [("superseded", {"answeredBy": "run-2"}), ("superseded", None)]
    await ledger.finish(rows[2].id, "answered")
    with pytest.raises(ValueError, match="ended"):
        await ledger.absorb(rows[2].id, {}, body=MessageBody())


async def test_parts_are_added_until_the_message_ends_and_dead_ones_are_tried_anew(ledger, clock):
    row, _ = await ledger.accept(message(), step="running")
    parts = [OutboxPart(part=0, channel="signal", payload={"text": text}) for text in "ab"]
    assert await ledger.outbox_add(row.id, parts) and await ledger.outbox_add(row.id, parts[:1])
    assert [(part.part, part.payload["text"]) for part in await ledger.outbox_of(row.id)] == [
        (0, "a"),
        (1, "b"),
        (2, "a"),
    ]
    assert await ledger.outbox_depth() == 3
    await ledger.finish(row.id, "answered")
    assert not await ledger.outbox_add(row.id, parts) and await ledger.outbox_depth() == 3
    first, second, _ = await ledger.outbox_of(row.id)
    await ledger.outbox_mark(first.id, "dead", error="gone", doubts=3)
    await ledger.outbox_mark(second.id, "sent", message_id="77")
    clock.now += 5
    assert [part.id for part in await ledger.outbox_parts(["dead"], channel="signal")] == [first.id]
    assert await ledger.outbox_parts(["dead"], channel="irc") == []
    assert await ledger.outbox_retry([first.id, second.id]) == 1
    (again, sent, _) = await ledger.outbox_of(row.id)
    assert (again.state, again.attempts, again.error, again.doubts, again.created_at) == (
        "pending",
        0,
        "",
        1,
        clock.now,
    )
    assert (sent.state, sent.message_id) == ("sent", "77")


async def test_text_that_a_database_refuses_is_kept(ledger):
    odd = "a\x00b\ud800c"
    row, _ = await ledger.accept(message(body=MessageBody(prompt=odd), session_key="k\x00"))
    stored = await ledger.get(row.id)
    assert stored is not None and stored.body.prompt.startswith("a\x00b") and stored.body.prompt.endswith("c")
    await ledger.finish(row.id, "failed", reason=because("no\x00 words"), result={"error": "x\x00"})
    ended = await ledger.get(row.id)
    assert ended.state == "failed" and ended.result == {"error": "x\x00"} and "words" in ended.reason.detail
