"""The methods over plain HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from openclaw.gateway.server.registry import MethodCall
from tests.gateway.support import TOKEN, Running, allow_test_methods, running_gateway, with_token
from tests.support.clock import HeldClock


@pytest.fixture
def running(running: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    """A Gateway with methods that behave as ``agent`` and ``chat.send`` do, without a model."""
    methods = running.gateway.methods
    allow_test_methods(monkeypatch, "test.agent", "test.chat")

    @methods.add("test.agent")
    async def agent(call: MethodCall) -> Any:
        run_id = call.params["idempotencyKey"]
        call.respond({"runId": run_id, "status": "accepted"})
        publish = call.gateway.broadcaster.publish_variants
        publish("agent", {"runId": run_id, "data": {"text": "hi"}}, {"runId": run_id, "data": {"delta": "hi"}})
        publish("agent", {"runId": "someone else's"}, {"runId": "someone else's"})
        call.gateway.broadcaster.send_to([call.client.conn_id], "agent", {"runId": run_id, "stream": "tool"})
        return {"runId": run_id, "status": "ok"}

    @methods.add("test.chat")
    async def chat(call: MethodCall) -> Any:
        run_id = call.params["idempotencyKey"]
        call.client.finish_after(run_id)

        async def later() -> None:
            call.gateway.broadcaster.publish("chat", {"runId": run_id, "sessionKey": "main", "state": "delta"})
            await asyncio.sleep(0)
            call.gateway.broadcaster.publish("chat", {"runId": run_id, "sessionKey": "main", "state": "final"})

        call.gateway.spawn(later())
        return {"runId": run_id, "status": "started"}

    return running


async def stream(running: Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with running.http.post(
        f"{running.url}/__openclaw__/rpc", json={**body, "stream": True}, headers=with_token(TOKEN)
    ) as response:
        assert response.content_type == "application/x-ndjson"
        return [json.loads(line) async for line in response.content]


async def test_a_call_is_answered_with_its_payload(running: Running) -> None:
    status, answer = await running.rpc("health")
    assert status == 200
    assert answer["ok"] is True
    assert answer["payload"]["defaultAgentId"] == "main"


async def test_half_a_character_of_a_script_is_mended(running: Running) -> None:
    body = rb'{"method": "sessions.patch", "params": {"key": "main", "label": "cut \ud83d here"}}'
    async with running.http.post(f"{running.url}/__openclaw__/rpc", data=body, headers=with_token(TOKEN)) as response:
        answer = await response.json()
    assert answer["ok"], answer
    assert answer["payload"]["entry"]["label"] == "cut \ufffd here"


async def test_an_error_of_the_method_is_an_answer_too(running: Running) -> None:
    status, answer = await running.rpc("nope")
    assert (status, answer) == (
        200,
        {"ok": False, "error": {"code": "INVALID_REQUEST", "message": "unknown method: nope"}},
    )
    _, answer = await running.rpc("logs.tail", {"limit": 0})
    assert answer["error"]["message"] == "invalid logs.tail params: at /limit: must be >= 1"


async def test_a_method_that_answers_twice_gives_its_last_answer(running: Running) -> None:
    _, answer = await running.rpc("test.agent", {"idempotencyKey": "r1"})
    assert answer["payload"] == {"runId": "r1", "status": "ok"}


@pytest.mark.parametrize("token", [None, "wrong", ""])
async def test_without_the_secret_nothing_is_answered(running: Running, token: str | None) -> None:
    status, answer = await running.rpc("health", token=token)
    assert status == 401
    assert answer["error"]["code"] == "UNAUTHORIZED"
    assert TOKEN not in json.dumps(answer)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"nonsense", 400),
        (b"[]", 400),
        (b'{"method":""}', 400),
        (b'{"method":"health","extra":1}', 400),
        (b'{"method":"health","params":' + b"[" * 100_000, 400),
        (b'{"method":"health","params":"' + b"x" * (17 * 1024 * 1024) + b'"}', 413),
    ],
)
async def test_malformed_and_giant_bodies_are_refused(running: Running, body: bytes, status: int) -> None:
    async with running.http.post(f"{running.url}/__openclaw__/rpc", data=body, headers=with_token(TOKEN)) as response:
        assert response.status == status
        assert (await response.json())["ok"] is False
    assert (await running.rpc("health"))[0] == 200


async def test_a_body_without_length_is_bounded_too(running: Running) -> None:
    async def endless() -> Any:
        for _ in range(20):
            yield b"x" * 1024 * 1024

    async with running.http.post(
        f"{running.url}/__openclaw__/rpc", data=endless(), headers=with_token(TOKEN)
    ) as response:
        assert response.status == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "192.168.1.7:18789"}, 200),
        ({"Host": "box.tail1234.ts.net"}, 200),
    ],
)
async def test_pages_of_other_sites_and_foreign_names_are_kept_out(
    running: Running, headers: dict[str, str], status: int
) -> None:
    assert (await running.rpc("health", **headers))[0] == status


async def test_a_stream_shows_the_answers_and_the_events_of_its_own_run(running: Running) -> None:
    frames = await stream(running, {"method": "test.agent", "params": {"idempotencyKey": "r2"}})
    assert [frame.get("payload") for frame in frames] == [
        {"runId": "r2", "status": "accepted"},
        {"runId": "r2", "data": {"delta": "hi"}},
        {"runId": "r2", "stream": "tool"},
        {"runId": "r2", "status": "ok"},
    ]
    assert {frame["id"] for frame in frames if frame["type"] == "res"} == {"1"}
    assert running.gateway.broadcaster.clients == {}


async def test_a_stream_without_caps_gets_the_cumulative_events(running: Running) -> None:
    frames = await stream(running, {"method": "test.agent", "params": {"idempotencyKey": "r3"}, "caps": []})
    assert frames[1]["payload"] == {"runId": "r3", "data": {"text": "hi"}}


async def test_a_chat_stream_ends_with_the_terminal_event_of_its_run(running: Running) -> None:
    frames = await stream(running, {"method": "test.chat", "params": {"idempotencyKey": "c1"}})
    assert [frame["payload"].get("state") for frame in frames if frame["type"] == "event"] == ["delta", "final"]


async def test_a_failed_call_ends_its_stream(running: Running) -> None:
    frames = await stream(running, {"method": "nope", "params": {"idempotencyKey": "x"}})
    assert [frame["error"]["message"] for frame in frames] == ["unknown method: nope"]


async def test_the_event_stream_shows_one_session_whatever_its_key_is_called(running: Running) -> None:
    url = f"{running.url}/__openclaw__/events?sessionKey=main"
    async with running.http.get(url, headers=with_token(TOKEN)) as response:
        publish = running.gateway.broadcaster.publish
        publish("chat", {"sessionKey": "agent:main:other", "n": 0})
        publish("chat", {"sessionKey": "agent:main:main", "n": 1})
        publish("chat", {"sessionKey": "main", "n": 2})
        lines = [json.loads(await response.content.readline()) for _ in range(2)]
        assert [line["payload"]["n"] for line in lines] == [1, 2]


async def test_the_event_stream_serves_callers_of_http_1_0(running: Running) -> None:
    port = int(running.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = ("GET /__openclaw__/events HTTP/1.0", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {TOKEN}", "", "")
    writer.write("\r\n".join(lines).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head and b"chunked" not in head
    running.gateway.broadcaster.publish("chat", {"sessionKey": "main", "n": 1})
    assert json.loads(await reader.readline())["payload"]["n"] == 1
    writer.close()


async def test_a_listener_that_hangs_up_is_forgotten(running: Running) -> None:
    async with running.http.get(f"{running.url}/__openclaw__/events", headers=with_token(TOKEN)) as response:
        assert response.status == 200
        assert len(running.gateway.broadcaster.clients) == 1
        response.close()
    async with asyncio.timeout(60):
        while running.gateway.broadcaster.clients:
            await running.rpc("health")


async def test_stopping_ends_event_streams(running: Running) -> None:
    async with running.http.get(f"{running.url}/__openclaw__/events", headers=with_token(TOKEN)) as response:
        await running.server.stop()
        lines = [json.loads(line)["event"] async for line in response.content]
        assert lines[-1] == "shutdown"


async def test_guessing_from_afar_is_stopped_and_allowed_again_a_minute_later(tmp_path: Path) -> None:
    clock = HeldClock()
    proxied = {"gateway": {"trustedProxies": ["127.0.0.1"]}}
    async with running_gateway(tmp_path, config=proxied, clock=clock) as running:
        afar = {"X-Forwarded-For": "203.0.113.9"}
        statuses = [(await running.rpc("health", token=f"guess-{n}", **afar))[0] for n in range(11)]
        assert statuses == [401] * 10 + [429]
        assert (await running.rpc("health", **afar))[0] == 200, "the right secret never waits"
        other = {"X-Forwarded-For": "203.0.113.10"}
        assert (await running.rpc("health", token="guess", **other))[0] == 401
        async with running.socket(**afar) as socket:
            refused = await socket.call("connect", {**CONNECT, "auth": {"token": "guess"}})
            assert refused["error"]["message"].startswith("unauthorized: too many failed attempts")
            assert refused["error"]["retryAfterMs"] > 0
            assert (await socket.closed())[0] == 1008
        clock.advance(61)
        assert (await running.rpc("health", **afar))[0] == 200


CONNECT: dict[str, Any] = {
    "minProtocol": 3,
    "maxProtocol": 3,
    "client": {"id": "test", "version": "1", "platform": "linux", "mode": "test"},
}


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/__openclaw__/rpc", 405),
        ("POST", "/healthz", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/ui/nothing", 404),
        ("GET", "/nothing.js", 404),
        ("POST", "/nothing", 405),
    ],
)
async def test_routes(running: Running, verb: str, path: str, status: int) -> None:
    async with running.http.request(verb, running.url + path) as response:
        assert response.status == status
        if status == 405:
            assert response.headers["Allow"]
        if path == "/healthz" and status == 200:
            assert await response.json() == {"ok": True}
        if path.startswith("/v1/"):
            assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_not_ready_before_the_services_run(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, services=False) as running:
        async with running.http.get(f"{running.url}/readyz") as response:
            assert response.status == 503
        async with running.http.get(f"{running.url}/healthz") as response:
            assert response.status == 200


async def test_any_path_upgrades_to_the_gateway_socket(running: Running) -> None:
    async with running.http.ws_connect(f"{running.url}/some/path") as ws:
        assert (await ws.receive_json())["event"] == "connect.challenge"
