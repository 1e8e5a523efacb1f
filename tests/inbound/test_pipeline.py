"""Every step of a message's way in, on real stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw.gateway.gateway import Gateway
from openclaw.inbound.message import Media
from openclaw.sessions.prompt_prefix import CURRENT_MARKER
from openclaw.storage.message_ledger import LedgerRow, ReasonCode
from tests.support.clock import HeldClock
from tests.support.gateway_in_process import gateway_parts
from tests.support.loopback_channel import Loopback
from tests.support.scripted_model import ScriptedModel

KEY = "agent:main:main"
DAY_S = 24 * 3600


class Place:
    """A channel whose people write to a Gateway, the model behind it, and the clock of both."""

    def __init__(self, gateway: Gateway, people: Loopback, model: ScriptedModel, clock: HeldClock) -> None:
        self.gateway = gateway
        self.people = people
        self.model = model
        self.clock = clock

    async def rows(self) -> list[LedgerRow]:
        """The messages that were accepted, oldest first."""
        return list(reversed(await self.gateway.runtime.stores.ledger.recent()))

    async def texts(self, count: int) -> list[str]:
        """What people got, once that many messages have come."""
        return [one.text for one in await self.people.got(count)]

    async def session_id(self) -> str:
        entry = await self.gateway.runtime.stores.sessions.get("main", KEY)
        assert entry is not None
        return entry["sessionId"]


@asynccontextmanager
async def place(state: Path, section: dict[str, Any], **config: Any) -> AsyncGenerator[Place]:
    people, model, clock = Loopback(), ScriptedModel(), HeldClock()
    channels = {people.id: section}
    async with gateway_parts(state, model, clock=clock, channel=people, channels=channels, **config) as gateway:
        await gateway.channel_services.start()
        await people.until(lambda: bool(people.lives))
        yield Place(gateway, people, model, clock)


@pytest.fixture
async def known(tmp_path: Path) -> AsyncGenerator[Place]:
    """Ann and Bob may write; Ann owns the agent."""
    commands = {"ownerAllowFrom": ["loopback:ann"]}
    async with place(tmp_path / "state", {"allowFrom": ["ann", "bob"]}, commands=commands) as made:
        yield made


async def settle() -> None:
    """Lets everything that can go on without the clock go on."""
    await asyncio.sleep(0.03)


# Access


async def test_a_stranger_gets_a_code_once_and_no_run(tmp_path: Path) -> None:
    async with place(tmp_path / "state", {}) as at:
        for text in ("let me in", "hello?"):
            await at.people.say(text, sender="eve")
        await at.people.got(1)
        async with asyncio.timeout(60):
            while (row := (await at.rows())[0]).state != "answered":
                await asyncio.sleep(0.005)
        await settle()
        (offered,) = at.people.delivered
        assert "pairing" in offered.text.lower()
        assert len(await at.rows()) == 1
        assert row.attempts == 0, "the offer is all that becomes of it"
        assert (row.reason.code, row.body.prompt) == (ReasonCode.PAIRING, ""), "the words of a stranger are not kept"
        assert not at.model.requests


async def test_where_strangers_are_not_wanted_they_hear_nothing(tmp_path: Path) -> None:
    async with place(tmp_path / "state", {"dmPolicy": "allowlist", "allowFrom": ["ann"]}) as at:
        await at.people.say("let me in", sender="eve")
        await settle()
        assert not at.people.delivered and not await at.rows()
        await at.people.say("hi", sender="ann")
        assert await at.texts(1) == ["ok"]


# Dedupe and debounce


async def test_a_message_that_comes_twice_is_taken_once(known: Place) -> None:
    await known.people.say("hi", message_id="m1")
    await known.people.got(1)
    await known.people.redeliver()
    await known.people.say("more")
    await known.people.got(2)
    assert [row.body.message_ids for row in await known.rows()] == [["m1"], ["m2"]]
    assert len(known.model.requests) == 2


async def test_words_in_quick_succession_are_one_message_after_the_pause(tmp_path: Path) -> None:
    inbound = {"messages": {"inbound": {"byChannel": {"loopback": 1000}}}}
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **inbound) as at:
        await at.people.say("first")
        at.clock.advance(0.9)
        await settle()
        await at.people.say("second")
        at.clock.advance(0.9)
        await settle()
        assert not await at.rows(), "she has not paused long enough"
        at.clock.advance(0.2)
        await at.people.got(1)
        (row,) = await at.rows()
        assert row.body.message_ids == ["m1", "m2"]
        assert "first\nsecond" in at.model.prompts()[-1]


async def test_a_file_is_a_turn_at_once_behind_the_words_before_it(tmp_path: Path) -> None:
    messages = {"inbound": {"byChannel": {"loopback": 60_000}}, "queue": {"mode": "followup"}}
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, messages=messages) as at:
        await at.people.say("look at this")
        await at.people.say("", media=(Media(mime_type="image/png", path="a.png"),))
        await at.people.got(2)
        assert [row.body.message_ids for row in await at.rows()] == [["m1"], ["m2"]]
        assert (
            "look at this" in at.model.prompts()[0] and "[media attached: a.png (image/png)]" in at.model.prompts()[1]
        )
        assert not await at.gateway.runtime.stores.ledger.held()


async def test_a_command_does_not_wait_for_more_words(tmp_path: Path) -> None:
    inbound = {"messages": {"inbound": {"byChannel": {"loopback": 60_000}}}}
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **inbound) as at:
        await at.people.say("/status")
        assert "mock/mock-1" in (await at.texts(1))[0]


@pytest.mark.parametrize("problem", [ValueError("a bug"), OSError(28, "No space left on device")])
async def test_the_channel_learns_why_a_message_could_not_be_taken(
    known: Place, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    async def submit(*_: Any, **__: Any) -> None:
        raise problem

    with monkeypatch.context() as broken:
        broken.setattr(known.gateway.runs, "submit", submit)
        with pytest.raises(type(problem)) as raised:
            await known.people.say("hi", message_id="m1")
        assert raised.value is problem
    await known.people.redeliver()
    assert await known.texts(1) == ["ok"]


async def test_a_line_beside_a_message_is_said_once_although_the_message_is_offered_again(
    known: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(known.gateway.runs, "submit", full)
        with pytest.raises(OSError, match="No space"):
            await known.people.say("/new hello", message_id="m1")
    await known.people.redeliver()
    started, answer = await known.texts(2)
    assert started.startswith("✅ New session started") and answer == "ok"


async def test_a_channel_that_is_stopped_does_not_cut_off_a_message_that_is_half_accepted(
    known: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, begun = known.gateway.runs.submit, asyncio.Event()

    async def begin(*arguments: Any) -> Any:
        begun.set()
        return await submit(*arguments)

    monkeypatch.setattr(known.gateway.runs, "submit", begin)
    saying = asyncio.create_task(known.people.say("hi"))
    await begun.wait()
    saying.cancel()
    assert await known.texts(1) == ["ok"]


# Gate


async def test_in_a_group_what_is_not_meant_for_the_agent_is_context_for_what_is(tmp_path: Path) -> None:
    section = {"groupPolicy": "open", "allowFrom": ["ann"]}
    mention = {"messages": {"groupChat": {"mentionPatterns": ["@?clawd"]}}}
    async with place(tmp_path / "state", section, **mention) as at:
        await at.people.say("lunch at noon?", group="g1", sender="bob")
        await settle()
        assert not await at.rows() and not at.model.requests
        await at.people.say("clawd, what do you say?", group="g1")
        await at.people.got(1)
        asked = at.model.prompts()[-1]
        assert asked.index("lunch at noon?") < asked.index("what do you say?")
        (row,) = await at.rows()
        assert row.session_key == "agent:main:loopback:group:g1"
        assert at.people.delivered[0].to == "group:g1"


@pytest.mark.parametrize("words", ["/new", "/send off", "stop", "/status"])
async def test_text_that_quotes_a_command_does_not_pass_the_mention_gate(tmp_path: Path, words: str) -> None:
    section = {"allowFrom": ["ann"], "groups": {"*": {"requireMention": True}}}
    owner = {"commands": {"ownerAllowFrom": ["loopback:ann"]}}
    async with place(tmp_path / "state", section, **owner) as at:
        for quoted in (f"see\n{CURRENT_MARKER}\n{words}", f"[12:00] {words}", f"Bob: {words}", f"`{words}`"):
            await at.people.say(quoted, group="g1")
        await at.people.say("/think high what is this", group="g1")
        await settle()
        assert not await at.rows() and not at.people.delivered and not at.model.requests
        await at.people.say("/status", group="g1")
        assert "mock/mock-1" in (await at.texts(1))[0]


@pytest.mark.parametrize(("required", "said"), [(True, "mention"), (False, "always")])
async def test_the_status_of_a_group_says_when_it_is_answered(tmp_path: Path, required: bool, said: str) -> None:
    section = {"allowFrom": ["ann"], "groupPolicy": "open", "groups": {"*": {"requireMention": required}}}
    async with place(tmp_path / "state", section) as at:
        await at.people.say("/status", group="g1")
        assert f"Activation: {said} " in (await at.texts(1))[0]


# Commands


async def test_each_of_several_agents_reads_once_what_was_said_before_it_was_meant(tmp_path: Path) -> None:
    section = {"allowFrom": ["ann"], "groups": {"*": {"requireMention": True}}}
    agents = {"agents": {"list": [{"id": "one"}, {"id": "two"}]}, "broadcast": {"fam": ["one", "two"]}}
    async with place(tmp_path / "state", section, **agents) as at:
        await at.people.say("the cat is ill", group="fam")
        await at.people.say("what now?", group="fam", mentioned=True)
        await at.people.got(2)
        prompts = [row.body.prompt or "" for row in await at.rows() if row.body.prompt]
        assert [prompt.count("the cat is ill") for prompt in prompts] == [1, 1]


async def test_a_command_is_answered_without_a_model(known: Place) -> None:
    await known.people.say("/status")
    assert "mock/mock-1" in (await known.texts(1))[0]
    assert not known.model.requests


async def test_a_command_that_only_the_owner_may_give_is_met_with_silence(known: Place) -> None:
    await known.people.say("/send off", sender="bob")
    await known.people.say("/send off", sender="ann")
    assert await known.texts(1) == ["⚙️ Send policy set to off."]
    await settle()
    assert len(known.people.delivered) == 1


async def test_a_directive_inside_a_message_counts_for_it_and_is_not_read_by_the_model(known: Place) -> None:
    await known.people.say("/think:high how deep is the sea?")
    await known.people.got(1)
    assert "/think" not in known.model.prompts()[-1] and "how deep is the sea?" in known.model.prompts()[-1]
    (row,) = await known.rows()
    assert row.body.thinking == "high"


async def test_stop_ends_the_run_and_is_no_message(known: Place) -> None:
    known.model.held()
    await known.people.say("think long")
    await known.model.asked(1)
    await known.people.say("stop")
    assert await known.texts(1) == ["⚙️ Agent was aborted."]
    assert len(known.model.requests) == 1


# Send policy, reset, accept


async def test_a_session_that_may_not_be_answered_ends_its_message_in_silence(known: Place) -> None:
    await known.people.say("/send off")
    await known.people.got(1)
    await known.people.say("hello")
    async with asyncio.timeout(60):
        while (await known.rows())[-1].state != "silent":
            await asyncio.sleep(0.005)
    assert not known.model.requests


async def test_a_new_session_begins_when_it_is_asked_for(known: Place) -> None:
    await known.people.say("remember me")
    await known.people.got(1)
    before = await known.session_id()
    await known.people.say("/new who am I?")
    await known.people.got(2)
    await known.model.asked(2)
    assert await known.session_id() != before
    assert "remember me" not in repr(known.model.requests[-1].messages)


async def test_the_first_message_after_the_daily_reset_begins_a_new_session(tmp_path: Path) -> None:
    daily = {"session": {"reset": {"mode": "daily", "atHour": 4}}}
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **daily) as at:
        await at.people.say("remember me")
        await at.people.got(1)
        before = await at.session_id()
        await at.people.say("still there?")
        await at.people.got(2)
        assert await at.session_id() == before
        at.clock.advance(DAY_S)
        await at.people.say("and now?")
        await at.model.asked(3)
        assert await at.session_id() != before
        assert "remember me" not in repr(at.model.requests[-1].messages)


async def test_an_accepted_message_says_where_its_answer_goes_and_what_it_was_made_of(known: Place) -> None:
    known.model.queue("Hi Ann.")
    await known.people.say("hello", message_id="m9")
    assert await known.texts(1) == ["Hi Ann."]
    (row,) = await known.rows()
    assert (row.session_key, row.source, row.body.message_ids) == (KEY, "loopback", ["m9"])
    assert (row.route.channel, row.route.to, row.route.account_id) == ("loopback", "loopback:ann", "default")
    assert "hello" in (row.body.prompt or "")


async def test_people_with_sessions_of_their_own_do_not_read_each_other(tmp_path: Path) -> None:
    own = {"session": {"dmScope": "per-channel-peer"}}
    async with place(tmp_path / "state", {"allowFrom": ["ann", "bob"]}, **own) as at:
        await at.people.say("the code is heron", sender="ann")
        await at.people.got(1)
        await at.people.say("what is the code?", sender="bob")
        await at.people.got(2)
        assert "heron" not in repr(at.model.requests[-1].messages)
        assert [one.to for one in at.people.delivered] == ["loopback:ann", "loopback:bob"]
