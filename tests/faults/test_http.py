"""Programs that talk HTTP while the disk takes nothing or the Gateway dies: a clear error, and it works later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.gateway.http.served import BEARER, PNG, Served, served
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import TOKEN
from tests.support.model_server import Reply

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
KINDS = [("ENOSPC", 507, "disk_full", "free some space"), ("EIO", 503, "disk_error", "check the disk")]
KINDS += [("EROFS", 503, "disk_read_only", "make the state directory writable")]


def body(path: str, text: str, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    return {"model": "openclaw", "user": "ann", ("messages" if path == CHAT else "input"): said, **more}


def said(path: str, answer: Any) -> str:
    return answer["choices"][0]["message"]["content"] if path == CHAT else answer["output"][0]["content"][0]["text"]


@pytest.fixture
def full(tmp_path: Path) -> Path:
    return tmp_path / "full"


@pytest.fixture
async def door(tmp_path: Path, full: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    files, error = request.param
    fault = {"at": "write", "path": files, "do": error, "while": str(full)}
    env = {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps([fault])}
    async with served(tmp_path, env=env) as running:
        yield running


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Served]:
    """For tests that end the Gateway."""
    async with served(tmp_path, kind=ForkedGateway) as running:
        yield running


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("door", "status", "code", "advice"), [(("*/ledger.db", kind[0]), *kind[1:]) for kind in KINDS], indirect=["door"]
)
async def test_a_request_that_cannot_be_written_down_is_refused_with_a_sentence(
    door: Served, full: Path, path: str, stream: bool, status: int, code: str, advice: str
) -> None:
    full.touch()
    got, answer = await door.post(path, body(path, "hi [[reply:done]]", stream=stream))
    assert got == status
    assert (answer["error"]["type"], answer["error"]["code"]) == ("api_error", code)
    assert advice in answer["error"]["message"] and "cannot write to its disk" in answer["error"]["message"]
    assert not door.model.requests
    full.unlink()
    assert said(path, (await door.post(path, body(path, "hi [[reply:done]]")))[1]) == "done"


@pytest.mark.parametrize("door", [("*/blobs/*", "ENOSPC")], indirect=True)
async def test_a_picture_that_cannot_be_stored_is_refused_with_its_request(door: Served, full: Path) -> None:
    full.touch()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    asked = {"messages": [{"role": "user", "content": [{"type": "text", "text": "see [[reply:a dot]]"}, image]}]}
    status, answer = await door.post(CHAT, asked)
    assert (status, answer["error"]["code"]) == (507, "disk_full")
    full.unlink()
    assert said(CHAT, (await door.post(CHAT, asked))[1]) == "a dot"


@pytest.mark.parametrize("door", [("*/ledger.db", "ENOSPC")], indirect=True)
async def test_the_official_client_raises_and_succeeds_with_the_same_key_when_space_returns(
    door: Served, full: Path
) -> None:
    import openai

    messages: list[Any] = [{"role": "user", "content": "hi [[reply:done]]"}]
    async with openai.AsyncOpenAI(base_url=f"{door.gateway.url}/v1", api_key=TOKEN, max_retries=0) as client:
        ask = client.chat.completions.create
        full.touch()
        with pytest.raises(openai.InternalServerError, match="No space left on device") as raised:
            await ask(model="openclaw", messages=messages, extra_headers={"Idempotency-Key": "once"})
        assert (raised.value.status_code, raised.value.code) == (507, "disk_full")
        full.unlink()
        for _ in range(2):
            answer = await ask(model="openclaw", messages=messages, extra_headers={"Idempotency-Key": "once"})
            assert answer.choices[0].message.content == "done"
    assert len(door.model.requests) == 1


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("door", [("*.jsonl", "ENOSPC")], indirect=True)
async def test_a_disk_that_fills_up_during_the_run_makes_the_caller_wait_and_loses_nothing(
    door: Served, full: Path, path: str, stream: bool
) -> None:
    full.touch()
    url = door.gateway.url + path
    asked = body(path, "hi [[reply:done]]", stream=stream)
    asking = asyncio.ensure_future(door.http.post(url, json=asked, headers=BEARER))
    async with asyncio.timeout(60):
        while not (running := (await door.rpc("messages.list", {"state": "running"}))["messages"]):
            await asyncio.sleep(0.02)
    waiting = await door.rpc("agent.wait", {"runId": running[0]["runId"], "timeoutMs": 200})
    assert waiting["status"] == "timeout"
    full.unlink()
    async with await asking as response:
        assert "done" in await response.text()
    assert len(door.model.requests) == 1


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_caller_that_lost_the_gateway_gets_the_answer_of_the_same_run_with_its_key(
    process: Served, path: str
) -> None:
    key = {"Idempotency-Key": "once"}
    process.model.queue(Reply("never", hold=asyncio.Event(), hold_after=0), Reply("done"))
    asking = asyncio.ensure_future(process.post(path, body(path, "hi"), **key))
    await process.model.wait_for_requests(1)
    process.gateway.kill()
    with pytest.raises(aiohttp.ClientError):
        await asking
    await process.gateway.start()
    for _ in range(2):
        status, answer = await process.post(path, body(path, "hi"), **key)
        assert (status, said(path, answer)) == (200, "done")
    (row,) = (await process.rpc("messages.list", {}))["messages"]
    assert (row["state"], row["attempts"]) == ("answered", 2)
    assert len(process.model.requests) == 2


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_caller_is_told_that_the_gateway_stops_and_that_its_message_is_kept(process: Served, path: str) -> None:
    key = {"Idempotency-Key": "once"}
    process.model.queue(Reply("never", hold=asyncio.Event(), hold_after=0), Reply("done"))
    asking = asyncio.ensure_future(
        process.http.post(process.gateway.url + path, json=body(path, "hi"), headers={**BEARER, **key})
    )
    await process.model.wait_for_requests(1)
    assert await process.gateway.stop() == 0
    async with await asking as response:
        assert (response.status, response.headers["x-should-retry"]) == (503, "false")
        assert "The message is kept" in (await response.json())["error"]["message"]
    await process.gateway.start()
    assert said(path, (await process.post(path, body(path, "hi"), **key))[1]) == "done"
    assert len((await process.rpc("messages.list", {}))["messages"]) == 1


async def test_a_client_that_only_waits_does_not_keep_the_gateway_from_stopping(process: Served) -> None:
    async with process.gateway.client() as client:
        await client.send("agent.wait", {"runId": "some-day", "timeoutMs": 600_000})
        await client.call("health")
        async with asyncio.timeout(50):
            assert await process.gateway.stop() == 0
    await process.gateway.start()
