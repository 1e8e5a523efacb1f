from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw.cli.client import GatewayClient, GatewayError, Lost, Unreachable, new_id
from openclaw.cli.command import UserError
from openclaw.cli.gateway_target import GatewayTarget
from tests.support.gateway import TOKEN
from tests.support.gateway_in_process import InProcessGateway

from .fake_gateway import SECRET, FakeGateway, Refusal, spoken, write_state


@pytest.fixture
def fake() -> Iterator[FakeGateway]:
    gateway = FakeGateway()
    yield gateway
    gateway.close()


def client_of(port: int, secret: str = SECRET, timeout_ms: int = 5000) -> GatewayClient:
    target = GatewayTarget("127.0.0.1", port, tls=False, local=True, source="test", bind="loopback")
    target.secret, target.secret_source = secret, "gateway.auth.token"
    return GatewayClient(target, timeout_ms)


def raw_server(answer: Callable[[socket.socket], None]) -> int:
    """A server that reads one request and then does what it is told."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                with contextlib.suppress(ConnectionError):  # The client may have had enough.
                    answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def test_a_call_returns_the_payload(fake: FakeGateway) -> None:
    fake.replies["health"] = lambda params: {"ok": True, "echo": params}
    assert client_of(fake.port).call("health", {"probe": True}) == {"ok": True, "echo": {"probe": True}}


def test_a_refusal_carries_code_and_details(fake: FakeGateway) -> None:
    def refuse(_: object) -> None:
        raise Refusal("invalid config", details={"issues": [{"path": "gateway.port", "message": "must be integer"}]})

    fake.replies["health"] = refuse
    with pytest.raises(GatewayError) as caught:
        client_of(fake.port).call("health")
    assert caught.value.error_code == "INVALID_REQUEST"
    assert "gateway.port: must be integer" in str(caught.value)


def test_a_wrong_secret_says_where_it_came_from(
    fake: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path))
    write_state(str(tmp_path), fake.port, os.getpid())
    with pytest.raises(UserError) as caught:
        client_of(fake.port, "wrong").call("health")
    assert "token mismatch" in str(caught.value)
    assert "gateway.auth.token" in str(caught.value)
    assert "Gateway target: ws://127.0.0.1" in str(caught.value)
    client = client_of(fake.port, "stale")
    client.target.secret_source = "OPENCLAW_GATEWAY_TOKEN"
    with pytest.raises(UserError, match="wins over the configuration file"):
        client.call("health")


def test_the_gateway_of_another_folder_is_not_taken_for_our_own(
    fake: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path))
    with pytest.raises(UserError) as caught:
        client_of(fake.port, "ours").call("health")
    assert f"is not the Gateway of {tmp_path}" in str(caught.value)
    assert "openclaw config set gateway.port" in str(caught.value)


async def test_a_refusal_at_the_door_is_told_apart_from_other_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InProcessGateway(tmp_path / "state") as gateway:
        wrong = await gateway.command("health", "--json", "--token", "wrong")
        assert json.loads(wrong.stdout)["error"]["code"] == "UNAUTHORIZED"
        client = client_of(gateway.port, TOKEN)
        with monkeypatch.context() as patched:
            patched.setattr(GatewayTarget, "authority", "gateway.example:18789")
            with pytest.raises(UserError, match="is not one of this Gateway's names") as refused:
                await asyncio.to_thread(client.call, "health")
    assert refused.value.error_code == "FORBIDDEN"
    assert "the Gateway has another one" not in str(refused.value)


def test_nobody_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable, match="openclaw gateway start"):
        client_of(port).call("health")
    assert not client_of(port).alive()


def test_a_silent_gateway_times_out() -> None:
    done = threading.Event()
    port = raw_server(lambda _: done.wait(10) and None)
    with pytest.raises(Unreachable, match="gateway timeout after 50ms"):
        client_of(port, timeout_ms=50).call("health")
    done.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"",
        b"\x00\xff" * 50,
    ],
)
def test_something_that_is_no_gateway_is_a_clear_error(answer: bytes) -> None:
    port = raw_server(lambda connection: connection.sendall(answer))
    with pytest.raises(UserError) as caught:
        client_of(port).call("health")
    assert "Gateway target:" in str(caught.value)


def test_a_stream_yields_frames_as_they_come(fake: FakeGateway) -> None:
    fake.streams["agent"] = spoken("a", "b")
    frames = list(client_of(fake.port).stream("agent", {"message": "x", "idempotencyKey": "r"}))
    assert [frame["type"] for frame in frames] == ["res", "event", "event", "event", "res"]


def test_a_stream_cut_in_the_middle_is_lost_not_finished(fake: FakeGateway) -> None:
    def cut() -> None:
        raise ConnectionAbortedError

    fake.streams["agent"] = lambda params: [*spoken("a")(params)[:2], cut]
    frames = client_of(fake.port).stream("agent", {"message": "x", "idempotencyKey": "r"})
    with pytest.raises(Lost):
        list(frames)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=10),
    st.lists(st.integers(1, 40), min_size=1, max_size=10),
)
def test_lines_are_whole_however_chunks_and_packets_fall(
    values: list[dict[str, str]], chunks: list[int], packets: list[int]
) -> None:
    data = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    body = b""
    for index, part in enumerate(_pieces(data, chunks)):
        body += b"%x%s\r\n%s\r\n" % (len(part), b";x=1" if index % 2 else b"", part)
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"

    def answer(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in _pieces(wire, packets):
            connection.sendall(piece)

    assert list(client_of(raw_server(answer)).stream("agent", {})) == values


def _pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        yield data[at : at + size]
        at, turn = at + size, turn + 1


def test_ids_are_random_uuids() -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", i) for i in ids)


def test_an_environment_proxy_is_not_used(fake: FakeGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    fake.replies["health"] = {"ok": True}
    assert client_of(fake.port).call("health") == {"ok": True}
    assert os.environ["http_proxy"]
