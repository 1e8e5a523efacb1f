"""A run whose model fails goes on: with another key of the same provider, then with another model."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from openclaw.agent import run
from tests.models.histories import picture
from tests.support.clock import MovableClock, until
from tests.support.gateway import TOKEN, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

APIS = {"one": "anthropic-messages", "two": "openai-completions", "three": "openai-responses"}
FAILURES = {
    "billing": Reply(status=402, message="Your credit balance is too low"),
    "auth": Reply(status=401, message="invalid x-api-key"),
    "rate_limit": Reply(status=429, message="slow down", headers={"retry-after": "600"}),
    "overloaded": Reply(status=529, message="Overloaded"),
    "gone": Reply(status=404, message="model: m not found"),
    "refused": Reply(status=400, message="something is wrong with this"),
    "broken": Reply(status=500, message="internal error"),
}


class Vendors:
    """Three vendors with one model each, on loopback."""

    def __init__(self, **servers: ModelServer) -> None:
        self.servers = servers
        self.one, self.two, self.three = (servers[name] for name in APIS)

    def config(self, *fallbacks: str, **defaults: Any) -> dict[str, Any]:
        config = model_config(self.one.base_url, retry={"baseDelayMs": 1, "maxRetries": 1})
        model = {
            "id": "m",
            "contextWindow": 200_000,
            "maxTokens": 8192,
            "input": ["text"],
            "reasoning": True,
            "cost": {"input": 1_000_000, "output": 0},
        }
        config["models"]["providers"] = {
            name: {
                "baseUrl": self.servers[name].base_url if name == "one" else f"{self.servers[name].base_url}/v1",
                "apiKey": self.servers[name].api_key,
                "api": api,
                "models": [model],
            }
            for name, api in APIS.items()
        }
        choice = {"primary": "one/m", "fallbacks": list(fallbacks)}
        config["agents"]["defaults"] |= {"model": choice, **defaults}
        return config

    def asked(self) -> list[int]:
        return [len(server.requests) for server in self.servers.values()]


@pytest.fixture
async def vendors() -> AsyncIterator[Vendors]:
    async with ModelServer() as one, ModelServer() as two, ModelServer() as three:
        yield Vendors(one=one, two=two, three=three)


@asynccontextmanager
async def chatting(tmp_path: Path, config: dict[str, Any], **more: Any) -> AsyncIterator[tuple[WireClient, Any]]:
    async with InProcessGateway(tmp_path / "state", config, **more) as gateway, gateway.client() as client:
        yield client, gateway


def notices(client: WireClient) -> list[str]:
    """What the Gateway itself said in the chat."""
    said = [frame["payload"] for frame in client.events if frame["event"] == "chat"]
    return [text_of(payload) for payload in said if payload["runId"].startswith("notice-")]


async def told(client: WireClient, count: int) -> list[str]:
    await until(lambda: len(notices(client)) >= count)
    return notices(client)


def store_profiles(state: Path, profiles: dict[str, str], provider: str = "one", **more: Any) -> Path:
    path = state / "agents" / "main" / "agent" / "auth-profiles.json"
    path.parent.mkdir(parents=True)
    stored = {name: {"type": "api_key", "provider": provider, "key": key} for name, key in profiles.items()}
    path.write_text(json.dumps({"version": 1, "profiles": stored, **more}))
    return path


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_model_that_fails_gives_way_to_the_next(tmp_path: Path, vendors: Vendors, kind: str) -> None:
    tries = {"overloaded": 2, "refused": 2, "broken": 2}.get(kind, 1)
    vendors.one.queue(*[FAILURES[kind]] * tries)
    async with chatting(tmp_path, vendors.config("two/m")) as (client, _):
        answer = await client.chat("hello [[reply:from two]]", run_id="r")
        assert (answer["state"], text_of(answer)) == ("final", "from two")
        assert vendors.asked() == [tries, 1, 0]
        assert vendors.two.requests[0].error is None
        (notice,) = await told(client, 1)
        assert notice.startswith("↪️ one/m cannot answer now: ") and "two/m answers" in notice
        row = (await client.call("sessions.list"))["sessions"][0]
        assert (row["modelProvider"], row["model"]) == ("two", "m")
        story = "\n".join((await client.call("messages.why", {"ref": "r"}))["story"])
        assert "one/m failed" in story and "It ran on two/m" in story


async def test_while_the_model_rests_the_fallback_is_asked_at_once_and_nobody_is_told_again(
    tmp_path: Path, vendors: Vendors
) -> None:
    clock = MovableClock()
    vendors.one.queue(FAILURES["overloaded"], FAILURES["overloaded"])
    async with chatting(tmp_path, vendors.config("two/m"), clock=clock) as (client, _):
        for number in range(3):
            assert text_of(await client.chat(f"{number} [[reply:two]]", run_id=f"r{number}")) == "two"
        assert vendors.asked() == [2, 3, 0]
        assert len(await told(client, 1)) == 1
        story = "\n".join((await client.call("messages.why", {"ref": "r2"}))["story"])
        assert "one/m was not asked: its provider has too much to do, so it rests" in story
        status = text_of(await client.chat("/status"))
        assert "🧠 Model: one/m" in status and "two/m" in status and "too much to do" in status
        clock.advance(61)
        assert text_of(await client.chat("back? [[reply:one]]")) == "one"
        assert vendors.asked() == [3, 3, 0]
        assert (await told(client, 2))[1] == "↩️ one/m answers again."
        await client.chat("and on [[reply:one]]")
        assert len(notices(client)) == 2


async def test_another_session_is_told_too(tmp_path: Path, vendors: Vendors) -> None:
    vendors.one.queue(FAILURES["billing"])
    async with chatting(tmp_path, vendors.config("two/m")) as (client, _):
        await client.chat("hello")
        await client.chat("hello", "agent:main:other")
        assert vendors.asked() == [1, 2, 0]
        assert len(await told(client, 2)) == 2


async def test_the_keys_of_a_provider_come_before_the_fallbacks(tmp_path: Path, vendors: Vendors) -> None:
    config = vendors.config("two/m")
    del config["models"]["providers"]["one"]["apiKey"]
    config["models"]["providers"]["one"]["baseUrl"] = vendors.one.base_url
    config["auth"] = {"order": {"one": ["one:a", "one:b"]}}
    path = store_profiles(tmp_path / "state", {"one:a": "revoked", "one:b": vendors.one.api_key}, custom={"kept": True})
    async with chatting(tmp_path, config) as (client, _):
        assert text_of(await client.chat("hello [[reply:from one]]", run_id="r")) == "from one"
        assert vendors.asked() == [2, 0, 0]
        assert not notices(client), "the model is the same"
        story = "\n".join((await client.call("messages.why", {"ref": "r"}))["story"])
        assert "one/m failed with the key one:a: its key is not accepted" in story
        await client.chat("again [[reply:from one]]")
        assert vendors.asked() == [3, 0, 0], "the key that failed rests"
        await until(lambda: "cooldownUntil" in path.read_text())
    stored = json.loads(path.read_text())
    assert stored["custom"] == {"kept": True} and set(stored["profiles"]) == {"one:a", "one:b"}
    failed = stored["usageStats"]["one:a"]
    assert failed["errorCount"] == 1 and failed["failureCounts"] == {"auth": 1}
    assert stored["usageStats"]["one:b"]["lastUsed"] > 0 and stored["lastGood"] == {"one": "one:b"}
    assert path.stat().st_mode & 0o777 == 0o600


async def test_what_rests_is_remembered_across_a_restart_without_the_key(tmp_path: Path, vendors: Vendors) -> None:
    clock = MovableClock()
    vendors.one.queue(FAILURES["billing"])
    async with chatting(tmp_path, vendors.config("two/m"), clock=clock) as (client, _):
        await client.chat("hello")
    path = tmp_path / "state" / "agents" / "main" / "agent" / "auth-profiles.json"
    assert vendors.one.api_key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    async with chatting(tmp_path, vendors.config("two/m"), clock=clock) as (client, gateway):
        await client.chat("hello")
        assert vendors.asked() == [1, 2, 0]
        status = await gateway.command("models", "status", "--json")
        (resting,) = json.loads(status.stdout)["auth"]["unusableProfiles"]
        assert (resting["provider"], resting["kind"], resting["reason"]) == ("one", "disabled", "billing")
        assert 4.9 < resting["remainingMs"] / 3_600_000 <= 5
        clock.advance(5 * 3600 + 1)
        await client.chat("hello [[reply:back]]")
        assert vendors.asked() == [2, 2, 0]
    assert json.loads(path.read_text())["usageStats"] == {}


async def test_words_that_were_seen_are_taken_back_before_another_model_speaks(
    tmp_path: Path, vendors: Vendors
) -> None:
    # Only the first words of an answer are shown at once, so the two that the test looks for come in one piece.
    text, pieces = "The answer is forty", ["The answer is", " forty"]
    vendors.one.queue(*[Reply(text=text, pieces=pieces, cut=True, delay_ms=20)] * 2)
    async with chatting(tmp_path, vendors.config("two/m")) as (client, _):
        answer = await client.chat("what is it? [[reply:It is 42.]]", run_id="r")
        assert text_of(answer) == "It is 42."
        shown = [
            (payload["runId"], text_of(payload) if "message" in payload else payload.get("data", {}).get("phase", ""))
            for payload in (frame["payload"] for frame in client.events if frame["event"] in ("chat", "agent"))
        ]
        seen = [place for place, (run, text) in enumerate(shown) if run == "r" and text.startswith("The answer")]
        new = next(place for place, (run, text) in enumerate(shown) if run == "r" and text.startswith("It is"))
        assert seen and max(seen) < shown.index(("r", "fallback")) < new
        await client.event(lambda event, payload: event == "chat" and payload["runId"].startswith("notice-"))
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert "is forty" not in json.dumps(vendors.two.requests[-1].body)
        assert json.dumps(history).count("It is 42.") <= 2


async def test_an_http_stream_says_that_it_begins_anew(tmp_path: Path, vendors: Vendors) -> None:
    vendors.one.queue(*[Reply(text="The answer is certainly forty", cut=True)] * 2)
    config = vendors.config("two/m")
    config["gateway"]["http"] = {"endpoints": {"chatCompletions": {"enabled": True}}}
    async with InProcessGateway(tmp_path / "state", config) as gateway, aiohttp.ClientSession() as http:
        body = {"model": "openclaw", "stream": True, "messages": [{"role": "user", "content": "q [[reply:It is 42.]]"}]}
        async with http.post(
            f"{gateway.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {TOKEN}"}
        ) as response:
            raw = (await response.read()).decode()
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text.count("The answer broke off here and begins again.") == 2
    assert text.endswith("]\n\nIt is 42.") and "two/m answers" in text


async def test_a_tool_loop_goes_on_in_its_middle_with_another_vendor(tmp_path: Path, vendors: Vendors) -> None:
    vendors.one.queue(
        Reply(thinking="hm", text="Looking.", calls=[Call("read", {"path": "AGENTS.md"})], usage={"input": 5}),
        FAILURES["rate_limit"],
    )
    vendors.two.queue(
        Reply(calls=[Call("read", {"path": "SOUL.md"})], usage={"input": 7}), Reply(text="Done.", usage={"input": 11})
    )
    async with chatting(tmp_path, vendors.config("two/m")) as (client, _):
        run_id = str(uuid.uuid4())
        answer = await client.chat("look", run_id=run_id)
        assert text_of(answer) == "Done."
        assert vendors.asked() == [2, 2, 0]
        assert [request.error for request in vendors.two.requests] == [None, None]
        sent = vendors.two.requests[0].body["messages"]
        assert [message["role"] for message in sent][-3:] == ["user", "assistant", "tool"]
        usage = await client.call("sessions.usage", {"key": "main"})
        assert usage["totals"]["totalCost"] == pytest.approx(23)
        by_model = {
            (row["provider"], row["model"]): row["totals"]["totalCost"] for row in usage["aggregates"]["byModel"]
        }
        assert by_model == pytest.approx({("one", "m"): 5, ("two", "m"): 18})


async def test_a_chosen_model_falls_back_to_the_configured_one(tmp_path: Path, vendors: Vendors) -> None:
    vendors.three.queue(FAILURES["gone"])
    vendors.two.queue(FAILURES["billing"])
    async with chatting(tmp_path, vendors.config("two/m")) as (client, _):
        await client.chat("/model three/m")
        assert text_of(await client.chat("hello [[reply:from one]]")) == "from one"
        assert vendors.asked() == [1, 1, 1]
        (notice,) = await told(client, 1)
        assert notice.startswith("↪️ three/m cannot answer now") and "one/m answers" in notice


@pytest.mark.parametrize("primary", ["nowhere/m", "no-such-model"])
async def test_a_configured_model_that_nobody_knows_gives_way_to_the_next(
    tmp_path: Path, vendors: Vendors, primary: str
) -> None:
    config = vendors.config("two/m")
    config["agents"]["defaults"]["model"]["primary"] = primary
    async with chatting(tmp_path, config) as (client, _):
        assert text_of(await client.chat("hello [[reply:from two]]", run_id="r")) == "from two"
        (notice,) = await told(client, 1)
        assert "no model of this name is configured" in notice and primary in notice and "two/m answers" in notice
        story = "\n".join((await client.call("messages.why", {"ref": "r"}))["story"])
        assert "It ran on two/m" in story


async def test_a_model_that_nobody_knows_is_an_error_if_there_is_no_other(tmp_path: Path, vendors: Vendors) -> None:
    config = vendors.config()
    config["agents"]["defaults"]["model"]["primary"] = "no-such-model"
    async with chatting(tmp_path, config) as (client, _):
        failed = await client.chat("hello")
        assert failed["state"] == "error" and "Unknown model 'no-such-model'" in failed["errorMessage"]


@pytest.mark.parametrize(("own", "asked"), [([], [1, 0, 0]), (["three/m"], [1, 0, 1])])
async def test_an_agents_own_list_counts_also_when_it_is_empty(
    tmp_path: Path, vendors: Vendors, own: list[str], asked: list[int]
) -> None:
    config = vendors.config("two/m")
    config["agents"]["list"] = [{"id": "main", "model": {"primary": "one/m", "fallbacks": own}}]
    vendors.one.queue(FAILURES["auth"])
    async with chatting(tmp_path, config) as (client, _):
        answer = await client.chat("hello")
        assert answer["state"] == ("final" if own else "error")
        assert vendors.asked() == asked


async def test_when_every_model_fails_there_is_one_error_and_the_first_is_tried_again(
    tmp_path: Path, vendors: Vendors
) -> None:
    for server in (vendors.one, vendors.two):
        server.queue(FAILURES["billing"])
    async with chatting(tmp_path, vendors.config("two/m")) as (client, _):
        failed = await client.chat("hello", run_id="r")
        assert failed["state"] == "error"
        assert failed["errorMessage"].startswith("None of the models could answer (one/m, two/m).")
        assert "nothing left to pay with" in failed["errorMessage"]
        assert not notices(client)
        assert text_of(await client.chat("hello [[reply:here]]")) == "here"
        assert vendors.asked() == [2, 1, 0]


async def test_stopping_a_run_asks_nobody_else(tmp_path: Path, vendors: Vendors) -> None:
    hold = asyncio.Event()
    vendors.one.queue(Reply(text="a long answer", hold=hold, hold_after=1))
    async with chatting(tmp_path, vendors.config("two/m")) as (client, _):
        await client.call("chat.send", {"sessionKey": "main", "message": "hello", "idempotencyKey": "r"})
        await vendors.one.wait_for_requests(1)
        await client.call("chat.abort", {"sessionKey": "main", "runId": "r"})
        assert (await client.ending("r"))["state"] == "aborted"
        hold.set()
        assert vendors.asked() == [1, 0, 0]


async def test_a_budget_that_is_used_up_asks_nobody_else(tmp_path: Path, vendors: Vendors) -> None:
    async with chatting(tmp_path, vendors.config("two/m", budget={"sessionTokens": 1})) as (client, _):
        refused = await client.chat("hello")
        assert "budget" in refused["errorMessage"]
        assert vendors.asked() == [0, 0, 0]


async def test_pictures_go_to_the_image_model_and_its_fallbacks(tmp_path: Path, vendors: Vendors) -> None:
    config = vendors.config(imageModel={"primary": "two/m", "fallbacks": ["three/m"]})
    for name in ("two", "three"):
        config["models"]["providers"][name]["models"] = [
            {**config["models"]["providers"][name]["models"][0], "input": ["text", "image"]}
        ]
    image = {"type": "image", "mimeType": "image/png", "content": picture(8, 8, "PNG")}
    async with chatting(tmp_path, config) as (client, _):
        assert text_of(await client.chat("look [[reply:seen]]", attachments=[image])) == "seen"
        assert vendors.asked() == [0, 1, 0]
        vendors.two.queue(FAILURES["billing"])
        assert text_of(await client.chat("look again [[reply:seen]]", attachments=[image])) == "seen"
        assert vendors.asked() == [0, 2, 1]
        await client.chat("without a picture")
        assert vendors.asked() == [1, 2, 1]


async def test_a_summary_is_written_by_another_model_if_the_first_fails(tmp_path: Path, vendors: Vendors) -> None:
    config = vendors.config("two/m", compaction={"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}})
    config["compaction"] = {"reserveTokens": 20_000, "keepRecentTokens": 100}
    async with chatting(tmp_path, config) as (client, _):
        for _ in range(3):
            await client.chat("word " * 400 + "[[reply:Yes.]]")
        vendors.one.queue(FAILURES["overloaded"])
        vendors.two.queue(
            Reply(text="## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood")
        )
        assert "Compacted" in text_of(await client.chat("/compact"))
        assert vendors.asked() == [4, 1, 0]
        await client.chat("and now? [[reply:one]]")
        assert vendors.asked() == [5, 1, 0], "a passing failure of a summary lets nobody rest"


async def test_notes_are_written_by_another_model_if_the_first_fails(tmp_path: Path, vendors: Vendors) -> None:
    settings = {"reserveTokensFloor": 0, "memoryFlush": {"softThresholdTokens": 190_000}}
    config = vendors.config("two/m", compaction=settings)
    async with chatting(tmp_path, config) as (client, gateway):
        vendors.one.queue(Reply(text="Yes.", usage={"input": 20_000}), FAILURES["overloaded"], Reply(text="Hi."))
        vendors.two.queue(
            Reply(calls=[Call("write", {"path": "memory/note.md", "content": "the plan"})]), Reply(text="NO_REPLY")
        )
        await client.chat("hello")
        assert text_of(await client.chat("and now?")) == "Hi."
        assert (gateway.state_dir / "workspace" / "memory" / "note.md").read_text().strip() == "the plan"
        assert [request.error for request in vendors.two.requests] == [None, None]
        assert not notices(client)


async def test_a_model_with_a_small_window_gets_what_fits_it(tmp_path: Path, vendors: Vendors) -> None:
    config = vendors.config("two/m")
    config["models"]["providers"]["two"]["models"] = [
        {**config["models"]["providers"]["one"]["models"][0], "contextWindow": 20_000, "reasoning": False}
    ]
    config["agents"]["defaults"]["compaction"] = {"memoryFlush": {"enabled": False}}
    async with chatting(tmp_path, config) as (client, _):
        await client.call("sessions.patch", {"key": "main", "thinkingLevel": "high"})
        for number in range(4):
            await client.chat(f"{number} " + "word " * 6_000 + "[[reply:Yes.]]")
        vendors.one.queue(*[FAILURES["billing"]] * 2)
        vendors.two.queue(*[Reply(text="## Goal\nTo read words.\n## Progress\nSome.")] * 3, Reply(text="Short."))
        answer = await client.chat("and now, in short?")
        assert answer["state"] == "final"
        body = vendors.two.requests[-1].body
        assert len(json.dumps(body)) < 20_000 * 5
        assert "and now, in short?" in json.dumps(body) and "reasoning_effort" not in body
        assert all(request.error is None for request in vendors.two.requests)


async def test_an_answer_that_was_cut_is_continued_by_another_model_and_joined_once(
    tmp_path: Path, vendors: Vendors
) -> None:
    vendors.one.queue(Reply(text="The first half of a long", stop="length"), FAILURES["billing"])
    vendors.two.queue(Reply(text=" answer is here."))
    async with chatting(tmp_path, vendors.config("two/m")) as (client, _):
        assert text_of(await client.chat("tell me")) == "The first half of a long answer is here."


async def test_a_credential_that_the_session_chose_is_not_exchanged_but_its_model_is(
    tmp_path: Path, vendors: Vendors
) -> None:
    config = vendors.config("two/m")
    del config["models"]["providers"]["one"]["apiKey"]
    store_profiles(tmp_path / "state", {"one:a": vendors.one.api_key, "one:b": "revoked"})
    async with chatting(tmp_path, config) as (client, _):
        await client.chat("/model one/m@one:b")
        assert text_of(await client.chat("hello [[reply:from two]]")) == "from two"
        assert vendors.asked() == [1, 1, 0]


@pytest.mark.parametrize(("kind", "asked"), [("overloaded", [3, 0, 0]), ("billing", [1, 1, 0])])
async def test_another_model_of_the_provider_is_asked_only_if_the_account_is_not_the_cause(
    tmp_path: Path, vendors: Vendors, kind: str, asked: list[int]
) -> None:
    config = vendors.config("one/other", "two/m")
    models = config["models"]["providers"]["one"]["models"]
    models.append({**models[0], "id": "other"})
    vendors.one.queue(*[FAILURES[kind]] * (2 if kind == "overloaded" else 1))
    async with chatting(tmp_path, config) as (client, _):
        assert (await client.chat("hello"))["state"] == "final"
        assert vendors.asked() == asked


async def test_on_a_channel_the_notice_comes_before_the_answer_and_once(tmp_path: Path, vendors: Vendors) -> None:
    us, ann = "+15550000001", "+15550000042"
    vendors.one.queue(FAILURES["billing"])
    async with SignalDaemon(us) as signal:
        config = vendors.config("two/m")
        config["channels"] = {
            "signal": {"enabled": True, "account": us, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ann]}
        }
        async with InProcessGateway(tmp_path / "state", config):
            await signal.connected()
            await signal.say("hello [[reply:Hi Ann]]", sender=ann)
            await signal.called("send", 2)
            await signal.say("again [[reply:Hi again]]", sender=ann)
            sent = [call["message"] for call in await signal.called("send", 3)]
    assert sent[0].startswith("↪️ one/m cannot answer now: its account has nothing left to pay with.")
    assert sent[1:] == ["Hi Ann", "Hi again"]


async def test_a_model_for_one_message_does_not_make_the_notice_come_again(tmp_path: Path, vendors: Vendors) -> None:
    vendors.one.queue(FAILURES["billing"])
    async with chatting(tmp_path, vendors.config("two/m")) as (client, _):
        await client.chat("hello")
        await client.chat("/model three/m and you? [[reply:three]]")
        await client.chat("hello again")
        assert vendors.asked() == [1, 2, 1]
        assert len(await told(client, 1)) == 1


async def test_the_command_line_says_it_beside_the_answer(tmp_path: Path, vendors: Vendors) -> None:
    vendors.one.queue(FAILURES["billing"])
    async with InProcessGateway(tmp_path / "state", vendors.config("two/m")) as gateway:
        done = await gateway.command("message", "send", "hello [[reply:from two]]")
    assert (done.returncode, done.stdout.strip()) == (0, "from two")
    assert "one/m cannot answer now: its account has nothing left to pay with. two/m answers" in done.stderr


async def test_a_model_that_stays_silent_gives_way_before_the_time_is_up(
    tmp_path: Path, vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LONGEST_SILENCE", 0.005)
    hold = asyncio.Event()
    vendors.one.queue(Reply(text="never", hold=hold))
    async with chatting(tmp_path, vendors.config("two/m", timeoutSeconds=100)) as (client, _):
        answer = await client.chat("hello [[reply:from two]]", run_id="r")
        assert text_of(answer) == "from two"
        story = "\n".join((await client.call("messages.why", {"ref": "r"}))["story"])
        assert "it took too long to answer (one/m gave no answer within " in story
        hold.set()
