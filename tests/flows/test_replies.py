"""Replies on a channel: sent in blocks while they are written, prefixed, quoted, with notices, each word once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

US, ANN, GROUP = "+15550000001", "+15550000042", "Z3JvdXAtb25l"
Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]
SMALL = {
    "blockStreamingChunk": {"minChars": 10, "maxChars": 60},
    "blockStreamingCoalesce": {"minChars": 1, "idleMs": 1},
}
STREAM: dict[str, Any] = {
    "blockStreaming": True,
    "blockStreamingCoalesce": {"minChars": 1, "maxChars": 60, "idleMs": 1},
}


@pytest.fixture
async def signal() -> AsyncIterator[SignalDaemon]:
    async with SignalDaemon(US, groups=(GROUP,)) as daemon:
        yield daemon


@pytest.fixture
def start(tmp_path: Path, models: ModelServer, signal: SignalDaemon) -> Start:
    @asynccontextmanager
    async def gateway(
        channel: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None, **more: Any
    ) -> AsyncIterator[InProcessGateway]:
        section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
        config = model_config(
            models.base_url, models.api_key, channels={"signal": {**section, **(channel or {})}}, **more
        )
        config["agents"]["defaults"] |= defaults or {}
        async with InProcessGateway(tmp_path / "state", config) as running:
            await signal.connected()
            yield running

    return gateway


def streamed(*pieces: str, **more: Any) -> Reply:
    return Reply(text="".join(pieces), pieces=list(pieces), **more)


async def sent(signal: SignalDaemon, count: int) -> list[str]:
    return [call["message"] for call in await signal.called("send", count)]


async def sent_until(signal: SignalDaemon, end: str) -> list[str]:
    """Everything that was sent, up to the message that ends with these words."""
    async with asyncio.timeout(60):
        while not any(str(call["message"]).endswith(end) for call in signal.of("send")):
            await asyncio.sleep(0.01)
    return [call["message"] for call in signal.of("send")]


async def test_a_finished_paragraph_is_sent_before_the_rest_is_written(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    hold = asyncio.Event()
    models.queue(streamed("First paragraph.\n\n", "Second ", "paragraph.\n\nThird.", hold=hold, hold_after=2))
    async with start(STREAM, SMALL) as gateway:
        await signal.say("go", sender=ANN)
        assert await sent(signal, 1) == ["First paragraph."]
        hold.set()
        assert await sent(signal, 2) == ["First paragraph.", "Second paragraph.\n\nThird."]
        async with gateway.client() as client:
            history = await client.call("chat.history", {"sessionKey": "agent:main:main"})
    assert history["messages"][-1]["content"][0]["text"] == "First paragraph.\n\nSecond paragraph.\n\nThird."


async def test_without_the_switch_of_the_channel_a_reply_comes_whole(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(streamed("First paragraph.\n\n", "Second."))
    async with start({}, {**SMALL, "blockStreamingDefault": "on"}):
        await signal.say("go", sender=ANN)
        assert await sent(signal, 1) == ["First paragraph.\n\nSecond."]


async def test_identical_blocks_are_both_sent_and_a_fence_goes_on_in_the_next_message(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    same = "Same paragraph here."
    text = f"{same}\n\n{same}\n\n```py\n{'x = 1 + 2 + 3' * 3}\n{'y = 4 + 5 + 6' * 3}\n```\nDone."
    models.queue(streamed(*(text[place : place + 7] for place in range(0, len(text), 7))))
    async with start(STREAM, SMALL):
        await signal.say("go", sender=ANN)
        got = await sent_until(signal, "Done.")
    assert "\n".join(got).count(same) == 2
    assert "".join("".join(got).split()) == "".join(
        f"{same}{same}{'x = 1 + 2 + 3' * 3}{'y = 4 + 5 + 6' * 3}Done.".split()
    )


async def test_words_before_a_tool_come_before_it_and_the_rest_keeps_its_footer(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(
        Reply(text="Let me look that up.", calls=[Call("read", {"path": "AGENTS.md"})]), Reply(text="It is done.")
    )
    async with start({**STREAM, "blockStreamingCoalesce": {"minChars": 500, "idleMs": 0}}, SMALL):
        await signal.say("/usage tokens", sender=ANN)
        await signal.called("send")
        await signal.say("/verbose on", sender=ANN)
        await signal.called("send", 2)
        await signal.say("go", sender=ANN)
        got = (await sent(signal, 5))[2:]
    assert got[0] == "Let me look that up."
    assert got[1] == "📖 Read: AGENTS.md"
    assert got[2].startswith("It is done.\n\nUsage: ")


@pytest.mark.parametrize("reply", ["NO_REPLY", "NO_REPLY\n\nNothing to say here, really."])
async def test_silence_does_not_leak_through_blocks(
    start: Start, signal: SignalDaemon, models: ModelServer, reply: str
) -> None:
    models.queue(streamed(*reply), Reply(text="Spoken."))
    async with start(STREAM, SMALL):
        await signal.say("quiet", sender=ANN)
        await models.wait_for_requests(1)
        await signal.say("loud", sender=ANN)
        assert await sent(signal, 1) == ["Spoken."]


async def test_a_block_that_only_mentions_a_token_of_silence_is_sent(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    hold = asyncio.Event()
    models.queue(streamed("`NO_REPLY`\n\n", "is what ", "you look for.", hold=hold, hold_after=2))
    async with start(STREAM, SMALL):
        await signal.say("which word?", sender=ANN)
        assert await sent(signal, 1) == ["NO_REPLY"]  # Signal shows code as a style.
        hold.set()
        assert await sent(signal, 2) == ["NO_REPLY", "is what you look for."]


async def test_a_failed_answer_that_was_sent_in_part_is_not_begun_again(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    pieces = ["First paragraph.\n\n", "Second paragraph.\n\n", "Third one."]
    cut = streamed(*pieces[:2], "Thi", cut=True, delay_ms=5)
    models.queue(cut, streamed(*pieces))
    async with start(STREAM, SMALL):
        await signal.say("go", sender=ANN)
        got = await sent_until(signal, "Third one.")
    text = "\n\n".join(got)
    assert text.count("First paragraph.") == 1
    assert "".join(text.split()) == "Firstparagraph.Secondparagraph.Thirdone."


async def test_a_prefix_names_the_model_and_the_agent(start: Start, signal: SignalDaemon, models: ModelServer) -> None:
    models.reply("hello")
    template = "[{identity.name}|{model}|{think}|{nope}]"
    async with start({"responsePrefix": template}):
        await signal.say("go", sender=ANN)
        (got,) = await sent(signal, 1)
    assert got.startswith("[{identity.name}|")
    assert got.endswith("|off|{nope}] hello")


async def test_a_message_is_acknowledged_with_a_reaction_that_goes_after_the_reply(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.reply("hello")
    async with start({}, messages={"ackReactionScope": "all", "removeAckAfterReply": True}):
        await signal.say("go", sender=ANN)
        seen, gone = await signal.called("sendReaction", 2)
    assert (seen["emoji"], seen["targetAuthor"], "remove" in seen) == ("👀", ANN, False)
    assert (gone["emoji"], gone["remove"], gone["targetTimestamp"]) == ("👀", True, seen["targetTimestamp"])
    assert [call["message"] for call in signal.of("send")] == ["hello"]


async def test_without_a_reason_there_is_no_reaction(start: Start, signal: SignalDaemon, models: ModelServer) -> None:
    models.reply("hello")
    async with start():
        await signal.say("go", sender=ANN)
        await signal.called("send")
    assert signal.of("sendReaction") == []


async def answered(signal: SignalDaemon, text: str, count: int) -> list[str]:
    """What is sent after a person said this, until there are so many messages."""
    before = len(signal.of("send"))
    await signal.say(text, sender=ANN)
    return (await sent(signal, before + count))[before:]


async def test_with_verbose_full_a_chat_is_told_of_a_tool_and_of_its_result(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(
        Reply(calls=[Call("exec", {"command": "echo one two", "pty": True})]),
        Reply(text="Done."),
        Reply(calls=[Call("exec", {"command": "echo three"})]),
        Reply(text="Done again."),
    )
    async with start(tools={"exec": {"security": "full", "ask": "off"}}):
        await answered(signal, "/verbose full", 1)
        begun, result, done = await answered(signal, "go", 3)
        await answered(signal, "/verbose off", 1)
        quiet = await answered(signal, "again", 1)
    assert (begun, done, quiet) == ("🛠️ Exec: pty · echo one two", "Done.", ["Done again."])
    assert result.startswith("🛠️ Exec: pty · echo one two\n") and "one two" in result.splitlines()[-1]


async def test_groups_are_told_nothing_of_tools(start: Start, signal: SignalDaemon, models: ModelServer) -> None:
    models.queue(Reply(calls=[Call("read", {"path": "AGENTS.md"})]), Reply(text="Read it."))
    group = {"groupPolicy": "open", "groups": {"*": {"requireMention": False}}}
    async with start(group, {"verboseDefault": "full"}):
        await signal.say("go", sender=ANN, group=GROUP)
        assert await sent(signal, 1) == ["Read it."]


@pytest.mark.parametrize("streams", [False, True])
async def test_reasoning_is_a_message_of_its_own_and_usage_a_line_under_the_last(
    start: Start, signal: SignalDaemon, models: ModelServer, streams: bool
) -> None:
    models.queue(streamed("<think>Let me", " see.\nTwo steps.</think>", "The answer."), streamed("Plain."))
    async with start({"blockStreaming": streams, "blockStreamingCoalesce": {"minChars": 1, "idleMs": 1}}, SMALL):
        await answered(signal, "/reasoning on", 1)
        await answered(signal, "/usage tokens", 1)
        before = len(signal.of("send"))
        await signal.say("go", sender=ANN)
        # The answer is a block of its own, or the end of the run is quicker than the pause that ends a block.
        await signal.until(lambda: any("Usage: " in str(call["message"]) for call in signal.of("send")))
        got = [str(call["message"]) for call in signal.of("send")[before:]]
        await answered(signal, "/reasoning off", 1)
        await answered(signal, "/usage off", 1)
        plain = await answered(signal, "again", 1)
    reasoning, footer = "Reasoning:\nLet me see.\nTwo steps.", [one for one in got if "Usage: " in one]
    assert reasoning in got and plain == ["Plain."]
    assert len(footer) == 1 and footer[0] == got[-1] and " in / " in footer[0]
    assert "".join(got).count("The answer.") == 1


async def test_a_pause_like_a_persons_comes_before_each_block_but_the_first(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    hold = asyncio.Event()
    rest = "\n\n".join(f"Paragraph {number} of many, with some more words." for number in range(2, 7))
    models.queue(streamed("First paragraph.\n\n", "Second ", f"one.\n\n{rest}", hold=hold, hold_after=2))
    delay = {"humanDelay": {"mode": "custom", "minMs": 3, "maxMs": 3}}
    async with start(STREAM, {**SMALL, **delay}) as gateway:
        await signal.say("go", sender=ANN)
        assert await sent(signal, 1) == ["First paragraph."]
        hold.set()
        got = await sent_until(signal, rest[-40:])
        parts = await gateway.gateway.runtime.stores.ledger.outbox_of(1)
    assert "".join("".join(got).split()) == "".join(f"First paragraph.Second one.{rest}".split())
    pauses = [part.payload.get("pauseMs", 0) for part in parts]
    assert pauses[0] == 0 and set(pauses[1:]) == {3}


async def test_what_the_end_of_the_run_sends_is_a_block_with_a_pause(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(streamed("A first paragraph of some length.\n\n", "Last ", "words."), Reply("Whole."))
    delay = {"humanDelay": {"mode": "custom", "minMs": 3, "maxMs": 3}}
    # The last block waits for more, and only the end of the run sends it.
    joined = {"minChars": 1, "maxChars": 20, "idleMs": 0}
    async with start({**STREAM, "blockStreamingCoalesce": joined}, {**SMALL, **delay}) as gateway:
        await signal.say("go", sender=ANN)
        assert await sent(signal, 2) == ["A first paragraph of some length.", "Last words."]
        await signal.say("again", sender=ANN)
        await sent(signal, 3)
        parts = [await gateway.gateway.runtime.stores.ledger.outbox_of(message) for message in (1, 2)]
    assert [[part.payload.get("pauseMs", 0) for part in reply] for reply in parts] == [[0, 3], [0]]


async def test_blocks_that_answer_different_messages_are_sent_apart(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(Reply(text="[[reply_to:1700000000001]] To the first. [[reply_to:1700000000002]] To the second."))
    quiet = {"blockStreaming": True, "blockStreamingCoalesce": {"minChars": 500, "idleMs": 0}, "replyToMode": "all"}
    async with start(quiet, SMALL):
        await signal.say("go", sender=ANN)
        await sent(signal, 2)
    calls = signal.of("send")
    assert [(call["message"], call["quoteTimestamp"]) for call in calls] == [
        ("To the first.", 1700000000001),
        ("To the second.", 1700000000002),
    ]
