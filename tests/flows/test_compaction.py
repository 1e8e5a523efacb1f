"""Conversations that outgrow the window, through a real Gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.gateway import WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply

GOOD = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"
WINDOW = 60_000
LONG = "word " * 8000
OVERFLOW = Reply(status=400, message="prompt is too long: 213462 tokens > 200000 maximum")

MakeGateway = Callable[..., InProcessGateway]


@pytest.fixture
def small(tmp_path: Path, models: ModelServer) -> MakeGateway:
    """A Gateway whose model has a small window, 20,000 tokens of it kept free and 1,000 kept word for word."""

    def make(window: int = WINDOW, name: str = "state", **more: Any) -> InProcessGateway:
        config: dict[str, Any] = model_config(models.base_url, models.api_key, **more)
        config["models"]["providers"]["mock"]["models"][0]["contextWindow"] = window
        config["compaction"] = {"reserveTokens": 20_000, "keepRecentTokens": 1000}
        config["agents"]["defaults"]["compaction"] = {"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}}
        return InProcessGateway(tmp_path / name, config)

    return make


def is_compaction(phase: str) -> Callable[[str, Any], bool]:
    def matches(event: str, payload: Any) -> bool:
        return event == "agent" and payload["stream"] == "compaction" and payload["data"]["phase"] == phase

    return matches


async def session_row(client: WireClient) -> dict[str, Any]:
    (row,) = (await client.call("sessions.list", {}))["sessions"]
    return row


async def transcript(gateway: InProcessGateway, client: WireClient) -> list[dict[str, Any]]:
    return gateway.transcript((await session_row(client))["sessionId"])


def shown_to_model(models: ModelServer, number: int = -1) -> str:
    return msgspec.json.encode(models.requests[number].body["messages"]).decode()


async def fill(client: WireClient, models: ModelServer, turns: int = 3) -> None:
    """Turns that together come just below the threshold; the first brings facts."""
    for number in range(turns):
        models.reply(f"reply {number}")
        await client.chat(f"message {number}: {LONG}")


async def test_after_an_answer_that_fills_the_window_older_messages_become_a_summary(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small() as gateway, gateway.client() as client:
        await client.chat("/verbose on")
        await fill(client, models)
        before = (await session_row(client))["totalTokens"]
        models.queue(Reply(text="the last straw"), Reply(text=GOOD))
        answer = await client.chat(f"message 3: {LONG}")
        assert text_of(answer) == "the last straw"
        ended = (await client.event(is_compaction("end")))["payload"]
        assert (ended["data"], ended["runId"]) == ({"phase": "end", "willRetry": False}, answer["runId"])
        notice = "🧹 Auto-compaction complete (count 1)."
        await client.event(lambda event, payload: event == "chat" and notice in str(payload.get("message")))
        row = await session_row(client)
        assert row["compactionCount"] == 1
        assert row["totalTokens"] < before
        (entry,) = [line for line in await transcript(gateway, client) if line["type"] == "compaction"]
        assert entry["summary"].startswith(GOOD)
        models.reply("going on")
        assert text_of(await client.chat("and now?")) == "going on"
        shown = shown_to_model(models)
        assert "Build the shed." in shown
        assert "message 0" not in shown
        assert "message 3" in shown
        history = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
        assert any("message 0" in str(message) for message in history), "people still see everything"


async def test_a_conversation_goes_on_while_its_summary_is_written(small: MakeGateway, models: ModelServer) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        hold = asyncio.Event()
        models.queue(Reply(text="the last straw"), Reply(text=GOOD, hold=hold), Reply(text="at once"))
        await client.chat(f"message 3: {LONG}")
        await client.event(is_compaction("start"))
        await models.wait_for_requests(5)
        assert text_of(await client.chat("are you there?")) == "at once"
        hold.set()
        await client.event(is_compaction("end"))
        models.reply("yes")
        await client.chat("what did I ask?")
        shown = shown_to_model(models)
        assert "Build the shed." in shown
        assert "are you there?" in shown
        assert "at once" in shown


async def test_a_message_that_needs_room_waits_for_the_summary_under_way(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        hold = asyncio.Event()
        models.queue(Reply(text="the last straw"), Reply(text=GOOD, hold=hold), Reply(text="there is room"))
        await client.chat(f"message 3: {LONG}")
        await models.wait_for_requests(5)
        client.events.clear()
        answer = asyncio.create_task(client.chat(f"message 4: {LONG * 2}"))
        await client.event(lambda event, payload: event == "agent" and payload["stream"] == "lifecycle")
        hold.set()
        assert text_of(await answer) == "there is room"
        assert len(models.requests) == 6, "four answers, one summary, one answer"
        shown = shown_to_model(models)
        assert "Build the shed." in shown and "message 4" in shown and "message 0" not in shown
        assert (await session_row(client))["compactionCount"] == 1


async def test_the_turn_after_a_failed_summary_is_compacted_without_a_pause(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        models.queue(Reply(text="the last straw"), Reply(status=400, message="no summaries today"))
        await client.chat(f"message 3: {LONG}")
        await client.event(is_compaction("end"))
        assert not (await session_row(client)).get("compactionCount")
        client.events.clear()
        models.queue(Reply(text="as ever"), Reply(text=GOOD))
        await client.chat("and now?")
        await client.event(is_compaction("end"))
        assert (await session_row(client))["compactionCount"] == 1


async def test_an_overflow_is_condensed_and_the_client_gets_the_recovered_reply(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        models.queue(OVERFLOW, Reply(text=GOOD), Reply(text="recovered"))
        answer = await client.chat("does it fit?")
        assert text_of(answer) == "recovered"
        own = [frame["payload"] for frame in client.of_run(answer["runId"])]
        compaction = [payload["data"] for payload in own if payload.get("stream") == "compaction"]
        assert compaction == [{"phase": "start"}, {"phase": "end", "willRetry": True}]
        assert sum(payload.get("state") in ("final", "error") for payload in own) == 1
        ends = [p["data"]["phase"] for p in own if p.get("stream") == "lifecycle"]
        assert ends == ["start", "end"]
        last = [line for line in await transcript(gateway, client) if line["type"] in ("message", "compaction")][-4:]
        kinds = [
            line.get("message", {}).get("stopReason") or line.get("message", line).get("role", "-") for line in last
        ]
        assert kinds == ["user", "error", "-", "stop"]
        assert (await session_row(client))["compactionCount"] == 1


async def test_an_overflow_is_retried_once_and_then_explained(small: MakeGateway, models: ModelServer) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        already = len(models.requests)
        models.queue(OVERFLOW, Reply(text=GOOD), OVERFLOW)
        answer = await client.chat("does it fit?")
        assert answer["state"] == "error"
        assert "/new" in answer["errorMessage"]
        assert len(models.requests) == already + 3
        models.forget()
        models.reply("fine again")
        assert text_of(await client.chat("and now?")) == "fine again", "the session is not broken"


async def test_an_answer_to_a_prompt_that_was_cut_silently_is_replaced(small: MakeGateway, models: ModelServer) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        models.queue(Reply(text="half of it", usage={"input": 90_000}), Reply(text=GOOD), Reply(text="all of it"))
        answer = await client.chat("what do you think?")
        assert text_of(answer) == "all of it"
        models.reply("ok then")
        await client.chat("go on")
        assert "half of it" not in shown_to_model(models)
        assert "all of it" in shown_to_model(models)


async def test_a_message_larger_than_the_window_is_shortened_and_answered(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small() as gateway, gateway.client() as client:
        models.reply("that was long")
        assert text_of(await client.chat("BEGIN " + "word " * 100_000 + " END")) == "that was long"
        shown = shown_to_model(models)
        assert "BEGIN" in shown
        assert "END" in shown
        assert len(shown) // 4 < WINDOW
        models.queue(Reply(text=GOOD), Reply(text="still here"))
        assert text_of(await client.chat("hello?")) == "still here"
        assert "Build the shed." in shown_to_model(models)
        assert len(models.requests) == 3, "the long message is condensed once, before the next one"


async def test_a_history_of_many_windows_and_a_summariser_that_fails_still_get_an_answer(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small(window=2_000_000) as gateway, gateway.client() as client:
        await client.chat("The deploy token is AK-4471.")
        for number in range(6):
            models.reply(f"reply {number}")
            await client.chat(f"message {number}: {LONG * 10}")
    async with small() as gateway, gateway.client() as client:
        already = len(models.requests)
        models.queue(Reply(status=529, message="overloaded"), Reply(text="an answer after all"))
        assert text_of(await client.chat("what was the token?")) == "an answer after all"
        assert len(models.requests) - already == 2
        shown = shown_to_model(models)
        assert len(shown) // 4 < WINDOW
        assert "AK-4471" in shown


@pytest.mark.parametrize(
    ("bad", "calls"),
    [
        (Reply(status=500, message="boom"), 1),
        (Reply(text=""), 3),
        # Next to nothing is taken, with the beginnings of what was said beside it: asking again would not help.
        (Reply(text="ok"), 1),
        (Reply(text="blah " * 60_000), 3),
    ],
    ids=["error", "nothing", "next to nothing", "more"],
)
async def test_after_ten_windows_and_a_bad_summariser_one_pass_is_enough(
    small: MakeGateway, models: ModelServer, bad: Reply, calls: int
) -> None:
    async with small(window=2_000_000) as gateway, gateway.client() as client:
        await client.chat("The deploy token is AK-4471.")
        for number in range(6):
            models.reply(f"reply {number}")
            await client.chat(f"message {number}: {LONG * 10}")
    async with small() as gateway, gateway.client() as client:
        already = len(models.requests)
        models.queue(*[bad] * calls, Reply(text="an answer after all"))
        assert text_of(await client.chat("what was the token?")) == "an answer after all"
        assert len(models.requests) - already == calls + 1
        shown = shown_to_model(models)
        assert len(shown) // 4 < WINDOW and "AK-4471" in shown
        models.reply("and on")
        assert text_of(await client.chat("and now?")) == "and on"
        assert len(models.requests) - already == calls + 2, "nothing had to be condensed again"
        assert "AK-4471" in shown_to_model(models)


async def test_a_fixed_part_larger_than_the_window_is_one_clear_notice_and_no_call(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small(window=300) as gateway, gateway.client() as client:
        answer = await client.chat("hello")
        assert answer["state"] == "error"
        assert "window of 300" in answer["errorMessage"]
        assert not models.requests


async def test_compact_preview_pin_and_undo_from_the_chat(small: MakeGateway, models: ModelServer) -> None:
    async with small() as gateway, gateway.client() as client:
        assert "skipped" in text_of(await client.chat("/compact"))
        assert "Pinned" in text_of(await client.chat("/pin Never deploy on Fridays."))
        await fill(client, models)
        preview = text_of(await client.chat("/compact preview"))
        assert "would condense" in preview
        assert "Never deploy on Fridays." in preview
        models.reply(GOOD)
        line = text_of(await client.chat("/compact keep the prices"))
        assert line.startswith("⚙️ Compacted (")
        assert "• Context " in line
        assert "Additional focus: keep the prices" in shown_to_model(models)
        assert text_of(await client.chat("/compact")).startswith("⚙️ Compaction skipped: Already compacted • Context ")
        models.reply("short")
        await client.chat("and now?")
        shown = shown_to_model(models)
        assert "message 0" not in shown
        assert "<pinned>\\nNever deploy on Fridays.\\n</pinned>" in shown
        assert "taken back" in text_of(await client.chat("/compact undo"))
        models.reply("whole again")
        await client.chat("and now?")
        shown = shown_to_model(models)
        assert "message 0" in shown
        assert "message 2" in shown
        assert "1. Never deploy" in text_of(await client.chat("/pins"))
        await client.chat("/unpin 1")
        assert "Nothing is pinned" in text_of(await client.chat("/pins"))


FACTS = [
    "My sister is called Rosalind.",
    "The alarm code is 44719-B.",
    "We decided to paint the shed green.",
    "The staging server is at 10.20.30.41:8443.",
    "Ticket OPS-1182 blocks the release.",
    "I am allergic to hazelnuts.",
    "The dentist is on Thursday at 14:30.",
    "The code word is Aurora.",
    "The contract lies in docs/contracts/acme-2026.md.",
    "- [ ] send the invoice to billing@acme.example",
]


async def test_planted_facts_reach_the_model_however_often_the_chat_is_condensed(
    small: MakeGateway, models: ModelServer
) -> None:
    """The summariser keeps nothing by itself: it always writes the same few words."""
    kept: dict[int, list[str]] = {}
    async with small() as gateway, gateway.client() as client:
        for number, fact in enumerate(FACTS):
            models.reply(f"Noted {number}.")
            await client.chat(fact)
        for passes in range(1, 11):
            for number in range(3):
                models.reply(f"reply {number}")
                await client.chat(f"round {passes}.{number} " + "word " * 500)
            models.queue(Reply(text=GOOD), Reply(text=GOOD), Reply(text=GOOD))
            assert "Compacted (" in text_of(await client.chat("/compact"))
            models.forget()
            models.reply("yes")
            await client.chat("still there?")
            kept[passes] = [fact for fact in FACTS if fact.removeprefix("- [ ] ") in shown_to_model(models)]
    assert [kept[passes] for passes in (1, 3, 10)] == [FACTS] * 3


async def test_a_compaction_outlives_the_gateway(small: MakeGateway, models: ModelServer) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        models.reply(GOOD)
        await client.chat("/compact")
    async with small() as gateway, gateway.client() as client:
        models.reply("back")
        await client.chat("hello again")
        shown = shown_to_model(models)
        assert "Build the shed." in shown
        assert "message 0" not in shown


EXTENSION = """
def register(hooks):
    async def before(about):
        if "hands off" in about.instructions:
            return {"cancel": True, "reason": "the diary is kept whole"}
        if "nonsense" in about.instructions:
            return 42
        if "yourself" in about.instructions:
            return {"compaction": {"summary": f"Written by hand for {len(about.messages)} messages."}}

    hooks.on("session_before_compact", before)
"""


async def test_an_extension_cancels_a_compaction_or_writes_the_summary(
    tmp_path: Path, small: MakeGateway, models: ModelServer
) -> None:
    folder = tmp_path / "extensions"
    folder.mkdir()
    (folder / "diary.py").write_text(EXTENSION)
    (folder / "broken.py").write_text("import nothing_of_that_name\n")
    plugins = {"load": {"paths": [str(folder), str(tmp_path / "missing.py")]}}
    async with small(plugins=plugins) as gateway, gateway.client() as client:
        await client.chat("/pin Never deploy on Fridays.")
        await fill(client, models)
        already = len(models.requests)
        refused = text_of(await client.chat("/compact hands off"))
        assert refused.startswith("⚙️ Compaction skipped: the diary is kept whole"), refused
        assert "Compacted (" in text_of(await client.chat("/compact do it yourself"))
        assert len(models.requests) == already, "no model was asked"
        (entry,) = [line for line in await transcript(gateway, client) if line["type"] == "compaction"]
        assert entry["fromHook"] is True and entry["summary"].startswith("Written by hand for ")
        models.reply("well")
        await client.chat("and now?")
        assert "Never deploy on Fridays." in shown_to_model(models)
        await fill(client, models, turns=1)
        models.reply(GOOD)
        assert "Compacted (" in text_of(await client.chat("/compact nonsense"))
