"""Quick texts become one turn; nothing is lost, nothing overtakes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw.config.schema.messages import InboundDebounce
from openclaw.inbound import debounce
from openclaw.inbound.debounce import Debouncer, debounce_ms, merged
from openclaw.inbound.message import Inbound, Media, Quoted
from tests.inbound.support import message
from tests.support.clock import HeldClock

PICTURE = (Media(mime_type="image/png"),)


class Bench:
    """A debouncer with a held clock; what it delivers, as lists of texts."""

    def __init__(self, window: int = 50) -> None:
        self.clock = HeldClock()
        self.delivered: list[list[Inbound]] = []
        self.failing = False
        self.debouncer = Debouncer(
            self._deliver,
            self._deliver,
            clock=self.clock,
            window_ms=lambda _: window,
            is_control=lambda text: text.startswith("/") or text == "stop",
        )

    async def _deliver(self, items: list[Inbound]) -> None:
        await asyncio.sleep(0)
        if self.failing:
            raise RuntimeError("no")
        self.delivered.append(items)

    async def say(self, text: str, sender: str = "a", **more: Any) -> asyncio.Task[None] | None:
        fields: dict[str, Any] = {"message_id": "", **more}
        task = self.debouncer.add(message(text, sender=sender, **fields))
        await self.settle()
        return task

    async def after(self, ms: int) -> None:
        self.clock.advance(ms / 1000)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    @property
    def texts(self) -> list[list[str]]:
        return [[item.text for item in items] for items in self.delivered]


async def test_two_quick_texts_are_one_turn() -> None:
    bench = Bench()
    await bench.say("1")
    await bench.say("2")
    assert bench.texts == []
    await bench.after(50)
    assert bench.texts == [["1", "2"]]


async def test_each_text_starts_the_window_again() -> None:
    bench = Bench()
    for text in ("1", "2", "3"):
        await bench.say(text)
        await bench.after(40)
    await bench.after(9)
    assert bench.texts == []
    await bench.after(1)
    assert bench.texts == [["1", "2", "3"]]


@pytest.mark.parametrize("control", ["/status", "stop"])
async def test_a_command_or_stop_word_never_waits_and_does_not_overtake(control: str) -> None:
    bench = Bench()
    await bench.say("1")
    await bench.say(control)
    assert bench.texts == [["1"], [control]]
    await bench.say("2")
    await bench.say(control, media=PICTURE)
    assert bench.texts[2:] == [["2"], [control]]


@pytest.mark.parametrize("more", [{"native_command": True}, {"forwarded_from": "Bo"}])
async def test_native_commands_and_forwards_stay_alone(more: dict[str, Any]) -> None:
    bench = Bench()
    await bench.say("1")
    await bench.say("2", **more)
    assert bench.texts == [["1"], ["2"]]


@pytest.mark.parametrize(
    "other",
    [
        {"sender": "b"},
        {"peer": "elsewhere"},
        {"channel": "telegram"},
        {"account_id": "biz"},
        {"thread_id": 7},
        {"kind": "group"},
    ],
)
async def test_other_people_and_conversations_are_not_mixed(other: dict[str, Any]) -> None:
    bench = Bench()
    await bench.say("1")
    await bench.say("2", **other)
    await bench.after(50)
    assert sorted(bench.texts) == [["1"], ["2"]]


@pytest.mark.parametrize(
    ("text", "more"), [("", {"media": PICTURE}), ("caption", {"media": PICTURE}), ("", {}), (" ", {})]
)
async def test_a_file_or_a_message_without_words_is_a_turn_at_once_behind_the_text_before_it(
    text: str, more: dict[str, Any]
) -> None:
    bench = Bench()
    await bench.say("1")
    await bench.say("2")
    await bench.say(text, **more)
    assert bench.texts == [["1", "2"], [text]]
    await bench.say("3")
    await bench.after(50)
    assert bench.texts[2:] == [["3"]]


async def test_without_a_window_or_a_sender_every_message_is_alone() -> None:
    off, unknown = Bench(0), Bench()
    for text in ("1", "2"):
        await off.say(text)
        await unknown.say(text, sender="")
    assert off.texts == unknown.texts == [["1"], ["2"]]


async def test_who_never_stops_typing_is_answered_all_the_same() -> None:
    bench = Bench()
    for number in range(8):
        await bench.say(str(number))
        await bench.after(40)
    assert bench.texts == [["0", "1", "2", "3", "4", "5", "6"]]


async def test_a_buffer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(debounce.MOST_MESSAGES):
        await bench.say(str(number))
    assert [len(items) for items in bench.delivered] == [debounce.MOST_MESSAGES]
    await bench.say("x" * 15_000)
    await bench.say("y" * 15_000)
    assert len(bench.delivered) == 2
    monkeypatch.setattr(debounce, "MOST_WAITING", 3)
    many = Bench()
    for sender in ("a", "b", "c", "d"):
        await many.say(sender, sender)
    assert many.texts == [["a"]]


async def test_a_redelivery_within_the_window_is_not_said_twice() -> None:
    bench = Bench()
    for text, id in (("1", "x"), ("1", "x"), ("2", "y")):
        await bench.say(text, message_id=id)
    await bench.after(50)
    assert bench.texts == [["1", "2"]]


async def test_answers_to_different_messages_are_not_joined() -> None:
    bench = Bench()
    await bench.say("1", quoted=Quoted(id="q1"))
    await bench.say("2")
    await bench.say("3", quoted=Quoted(id="q2"))
    await bench.after(50)
    assert bench.texts == [["1", "2"], ["3"]]


async def test_the_error_of_a_message_that_waited_is_logged_once_and_the_next_messages_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.failing = True
    assert await bench.say("1", message_id="m1") is None
    await bench.after(50)
    bench.failing = False
    await bench.say("/2")
    assert [record.getMessage() for record in caplog.records] == ["signal message m1 could not be accepted: no"]
    assert bench.texts == [["/2"]]


async def test_the_error_of_a_message_that_does_not_wait_is_its_giver_s(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(0)
    bench.failing = True
    task = await bench.say("1")
    assert task is not None
    with pytest.raises(RuntimeError, match="no"):
        await task
    assert not caplog.records


async def test_closing_hands_on_what_waits_and_waits_for_it() -> None:
    bench = Bench()
    await bench.say("1")
    await bench.say("2", "b")
    await bench.debouncer.close()
    assert sorted(bench.texts) == [["1"], ["2"]]
    await bench.say("3")
    assert bench.texts[-1] == ["3"]


def test_merging_keeps_everything_and_lets_the_newest_decide_where_to_answer() -> None:
    joined = merged(
        [
            message("a", message_id="1", mentioned=True, to="old", untrusted=("u",), thread_starter="s"),
            message("b", message_id="2", quoted=Quoted(id="q"), mentions_others=True),
            message("c", message_id="3", to="new", thread_id=9, timestamp_ms=5, untrusted=("u", "v")),
        ]
    )
    assert (joined.text, joined.message_id, joined.message_ids) == ("a\nb\nc", "3", ("1", "2", "3"))
    assert (joined.mentioned, joined.mentions_others) == (True, True)
    assert (joined.to, joined.thread_id, joined.timestamp_ms) == ("new", 9, 5)
    assert (joined.quoted, joined.untrusted, joined.thread_starter) == (Quoted(id="q"), ("u", "v"), "s")


@pytest.mark.parametrize(
    ("values", "channel", "expected"),
    [
        ({}, "slack", 0),
        ({"debounce_ms": 2000, "by_channel": {"whatsapp": 5000}}, "whatsapp", 5000),
        ({"debounce_ms": 2000, "by_channel": {"whatsapp": 5000}}, "slack", 2000),
        ({"debounce_ms": 2000, "by_channel": {"slack": 0}}, "Slack", 0),
        ({"debounce_ms": -5}, "slack", 0),
    ],
)
def test_the_window_of_a_channel(values: dict[str, Any], channel: str, expected: int) -> None:
    assert debounce_ms(InboundDebounce(**values), channel) == expected


STEP = st.one_of(
    st.tuples(
        st.just("say"), st.sampled_from("ab"), st.sampled_from(["text", "/cmd", "", "media", "quote", "forward"])
    ),
    st.tuples(st.just("wait"), st.integers(1, 120), st.just("")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=30))
def test_nothing_is_lost_repeated_or_reordered(steps: list[tuple[str, Any, str]]) -> None:
    async def play() -> None:
        bench = Bench()
        said: dict[str, list[str]] = {"a": [], "b": []}
        for number, (what, who, kind) in enumerate(steps):
            if what == "wait":
                await bench.after(who)
                continue
            more: dict[str, Any] = {"message_id": str(number)}
            if kind == "media":
                more["media"] = PICTURE
            if kind == "quote":
                more["quoted"] = Quoted(id=str(number))
            if kind == "forward":
                more["forwarded_from"] = "x"
            said[who].append(str(number))
            await bench.say(kind if kind.startswith("/") else kind and f"{kind} {number}", who, **more)
        await bench.debouncer.close()
        heard: dict[str, list[str]] = {"a": [], "b": []}
        for items in bench.delivered:
            assert len({item.sender.id for item in items}) == 1
            alone = [item for item in items if item.text in ("", "/cmd") or item.forwarded_from or item.media]
            assert len(items) == 1 or not alone
            heard[items[0].sender.id] += merged(items).message_ids or (items[0].message_id,)
        assert heard == said

    asyncio.run(play())
