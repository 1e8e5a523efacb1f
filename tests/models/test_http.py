"""A server that hangs, cuts, sends garbage or refuses gets a clear error, and nothing that came is lost."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from openclaw.models import http
from openclaw.models.base import Counted, Done, Model, ModelError, ModelRequest, StreamEvent, Text
from openclaw.models.calls import ModelCalls
from openclaw.models.http import ModelHttp, ReplyReader, WireRequest
from tests.models.streams import READ, ask, done_of, model_calls
from tests.support.model_server import ModelServer, Reply

APIS = ["anthropic-messages", "openai-completions", "openai-responses"]


async def failure(request: ModelRequest, key: str) -> tuple[ModelError, list[StreamEvent]]:
    """The error of a call, and the events that came before it."""
    events: list[StreamEvent] = []
    calls = model_calls()
    with pytest.raises(ModelError) as caught:
        async for event in calls.provider_for(request.model).stream(request, key):
            events.append(event)
    await calls.close()
    return caught.value, events


def said(events: list[StreamEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, Text))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("how", [{"cut": True}, {"clean_cut": True}, {"cut_after": 700}])
async def test_a_cut_stream_is_retryable_and_keeps_its_text(server: ModelServer, api: str, how: dict[str, Any]) -> None:
    server.reply("one two three four five", **how)
    error, events = await failure(ask(server.model(api)), server.api_key)
    assert (error.kind, error.retryable) == ("network", True)
    assert error.partial is not None
    assert error.partial.text == said(events)
    assert "one two three four five".startswith(error.partial.text)
    assert error.partial.stop_reason == "error"
    assert error.partial.error_message == str(error)


@pytest.mark.parametrize("api", APIS)
async def test_a_silent_server_times_out_and_its_text_is_kept(server: ModelServer, api: str) -> None:
    server.reply("one two three", hold=asyncio.Event(), hold_after=2)
    model = server.model(api, compat={"idleTimeoutMs": 50})
    error, _ = await failure(ask(model), server.api_key)
    assert (error.kind, error.retryable) == ("timeout", True)
    assert "0.05 s" in str(error)
    assert error.partial is not None
    assert error.partial.text == "one two "


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("garbage", [b"data: {nope\n\n", b"data: \xff\xfe\n\n", b"data: 17\n\n"])
async def test_garbage_is_named(server: ModelServer, api: str, garbage: bytes) -> None:
    server.queue(Reply(raw=garbage))
    error, _ = await failure(ask(server.model(api)), server.api_key)
    assert error.kind == "other"
    assert "unreadable" in str(error)


@pytest.mark.parametrize("api", APIS)
async def test_a_web_page_instead_of_a_stream_points_to_the_base_url(server: ModelServer, api: str) -> None:
    server.queue(Reply(raw=b"<html>Please log in</html>", content_type="text/html"))
    error, _ = await failure(ask(server.model(api)), server.api_key)
    assert "baseUrl" in str(error)
    assert "Please log in" in str(error)


@pytest.mark.parametrize("api", APIS)
async def test_json_that_is_no_message_is_named(server: ModelServer, api: str) -> None:
    server.queue(Reply(raw=b'{"hello": "world"}', content_type="application/json"))
    error, _ = await failure(ask(server.model(api)), server.api_key)
    assert "check baseUrl" in str(error)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("status", "message", "kind", "retryable"),
    [
        (400, "prompt is too long: 300000 tokens > 200000 maximum", "overflow", False),
        (400, "something else", "format", False),
        (401, "who are you", "auth", False),
        (402, "pay", "billing", False),
        (429, "slow down", "rate_limit", True),
        (500, "oops", "other", True),
        (529, "Overloaded", "overloaded", True),
    ],
)
async def test_a_refusal_carries_kind_status_and_the_vendors_words(
    server: ModelServer, api: str, status: int, message: str, kind: str, retryable: bool
) -> None:
    server.queue(Reply(status=status, message=message, headers={"retry-after": "7"}))
    error, events = await failure(ask(server.model(api)), server.api_key)
    assert (error.kind, error.status, error.retryable, error.retry_after_s) == (kind, status, retryable, 7)
    assert message in str(error)
    assert str(error).startswith(str(status))
    assert (events, error.partial) == ([], None)


@pytest.mark.parametrize("api", APIS)
async def test_an_error_event_inside_the_stream_keeps_the_text(server: ModelServer, api: str) -> None:
    server.reply("half an answer", message="the server is overloaded")
    error, events = await failure(ask(server.model(api)), server.api_key)
    assert error.retryable
    assert error.partial is not None
    assert error.partial.text == said(events) == "half an answer"


@pytest.mark.parametrize("api", APIS)
async def test_the_key_is_never_part_of_an_error(server: ModelServer, api: str) -> None:
    key = server.api_key
    model = server.model(api, headers={"x-auth-token": "other-secret"})
    server.queue(
        Reply(status=400, message=f"bad key {key} and other-secret"), Reply(text="x", message=f"lost {key} on the way")
    )
    for _ in range(2):
        error, _events = await failure(ask(model), key)
        told = f"{error} {error.args} {error.partial}"
        assert key not in told
        assert "other-secret" not in told


async def test_a_server_that_is_not_there_is_named(server: ModelServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error, _ = await failure(ask(server.model(base_url=f"http://127.0.0.1:{port}")), "k")
    assert (error.kind, error.retryable) == ("network", True)
    assert f"127.0.0.1:{port}" in str(error)


async def test_a_wrong_address_is_named(server: ModelServer) -> None:
    error, _ = await failure(ask(server.model(base_url="not a url")), "k")
    assert not error.retryable
    assert "not a url" in str(error)


@pytest.mark.parametrize("api", APIS)
async def test_leaving_the_stream_closes_the_connection_at_once(
    server: ModelServer, calls: ModelCalls, api: str
) -> None:
    server.reply("one two", hold=asyncio.Event(), hold_after=1)
    model = server.model(api)
    told = asyncio.Event()

    async def consume() -> None:
        async for event in calls.provider_for(model).stream(ask(model), server.api_key):
            if isinstance(event, Text):
                told.set()

    task = asyncio.create_task(consume())
    await told.wait()
    assert server.active == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.wait_until_idle()
    assert server.disconnects == 1


@pytest.mark.parametrize("api", APIS)
async def test_closing_the_stream_closes_the_connection_at_once(
    server: ModelServer, calls: ModelCalls, api: str
) -> None:
    server.reply("one two", hold=asyncio.Event(), hold_after=1)
    model = server.model(api)
    async with aclosing(calls.provider_for(model).stream(ask(model), server.api_key)) as stream:
        async for event in stream:
            if isinstance(event, Text):
                break
    await server.wait_until_idle()
    assert server.disconnects == 1


@pytest.mark.parametrize("api", APIS)
async def test_text_arrives_while_the_model_is_still_writing(server: ModelServer, calls: ModelCalls, api: str) -> None:
    gate = asyncio.Event()
    server.reply("one two", hold=gate, hold_after=1)
    model = server.model(api)
    stream = calls.provider_for(model).stream(ask(model), server.api_key)
    first = await anext(stream)
    if isinstance(first, Counted):  # This vendor counts the prompt before it speaks.
        first = await anext(stream)
    assert first == Text("one ")
    gate.set()
    assert done_of([event async for event in stream]).text == "one two"


@pytest.mark.parametrize("api", APIS)
async def test_connections_are_kept_for_the_next_turn(server: ModelServer, calls: ModelCalls, api: str) -> None:
    model = server.model(api)
    for _ in range(3):
        async for event in calls.provider_for(model).stream(ask(model), server.api_key):
            if isinstance(event, Done):
                break
        await server.wait_until_idle()
        await asyncio.gather(*calls.http._drains)
    assert server.connections == 1


@pytest.mark.parametrize("api", APIS)
async def test_many_streams_run_at_once(server: ModelServer, calls: ModelCalls, api: str) -> None:
    model = server.model(api)
    gate = asyncio.Event()
    server.queue(*(Reply(text=f"reply {n}", hold=gate) for n in range(50)))
    provider = calls.provider_for(model)

    async def collect() -> list[StreamEvent]:
        return [event async for event in provider.stream(ask(model, tools=[READ]), server.api_key)]

    tasks = [asyncio.create_task(collect()) for _ in range(50)]
    await server.wait_for_requests(50)
    gate.set()
    texts = {done_of(events).text for events in await asyncio.gather(*tasks)}
    assert texts == {f"reply {n}" for n in range(50)}


async def redirecting(request: web.Request) -> web.Response:
    raise web.HTTPFound("https://elsewhere.example.com/v1/messages")


@pytest.fixture
async def redirect_url() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/messages", redirecting)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_redirect_is_reported_and_the_key_not_carried_along(server: ModelServer, redirect_url: str) -> None:
    error, _ = await failure(ask(server.model(base_url=redirect_url)), "k")
    assert error.status == 302
    assert "elsewhere.example.com" in str(error)


@pytest.mark.parametrize(("configured", "expected"), [(None, 120), (5000, 5), (0, 120), ("x", 120)])
def test_the_idle_timeout_can_be_set(configured: Any, expected: float) -> None:
    model = ModelServer().model(compat={} if configured is None else {"idleTimeoutMs": configured})
    assert http.idle_timeout_s(model) == expected


def test_this_machine_is_never_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example.com:3128")
    monkeypatch.setenv("https_proxy", "http://proxy.example.com:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert http.proxy_for("http://127.0.0.1:1/v1") is None
    assert http.proxy_for("http://localhost:1/v1") is None
    assert http.proxy_for("https://api.anthropic.com/v1") == "http://proxy.example.com:3128"


# The wire itself: bytes sent and received, byte by byte


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncontent-length: 10\r\n\r\ndata: ok\n\n"


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


CHUNKED = HEAD + chunked(b"data: o\n", b"\ndata: k\n\n")


class RawServer:
    """Answers every request with the same pieces of bytes and keeps what it was sent, connection by connection."""

    def __init__(self, *pieces: bytes, hangs_up: bool = False, pause_s: float = 0.001) -> None:
        self.pieces = pieces
        self.hangs_up = hangs_up
        self.pause_s = pause_s
        self.received: list[list[bytes]] = []
        self.port = 0

    @asynccontextmanager
    async def running(self, context: ssl.SSLContext | None = None) -> AsyncGenerator[RawServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context, limit=1 << 22)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def requests(self) -> list[bytes]:
        return [request for requests in self.received for request in requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: list[bytes] = []
        self.received.append(requests)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                requests.append(head + await reader.readexactly(int(size)))
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    if len(self.pieces) > 1:
                        await asyncio.sleep(self.pause_s)
                if self.hangs_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


class DataOnly(ReplyReader):
    """A reply whose text is the data of its events; it ends with the body."""

    def __init__(self) -> None:
        super().__init__(Model(provider="p", id="m", base_url="the base url"))
        self.builder.started = True
        self.stop = "the end of the body"

    def _read_event(self, data: bytes) -> None:
        self.builder.extend_last("text", data.decode())

    def _read_whole(self, body: bytes) -> bool:
        self._read_event(body)
        return True

    def _end(self) -> None:
        self.builder.done("stop")


@pytest.fixture
async def model_http() -> AsyncIterator[ModelHttp]:
    made = ModelHttp()
    yield made
    await made.close()


async def post(model_http: ModelHttp, url: str, idle_s: float = 5.0, **headers: str) -> str:
    """The text that came. Raises the call's ModelError."""
    wire = WireRequest(url=url, headers=headers, body={"a": 1}, idle_s=idle_s)
    return done_of([event async for event in model_http.stream_reply(lambda: wire, DataOnly())]).text


async def test_a_request_is_json_to_the_address_with_the_headers_given(model_http: ModelHttp) -> None:
    async with RawServer(OK).running() as server:
        headers = {"authorization": "Bearer k", "x-name": "w\u00e9rt"}
        assert await post(model_http, f"{server.url}with space/\u00fc?q=1&r=\u00fc#part", **headers) == "ok"
        assert await post(model_http, server.url, **{"user-agent": "mine", "accept": "application/json"}) == "ok"
    first, second = server.requests
    assert first.startswith(b"POST /with%20space/%C3%BC?q=1&r=%C3%BC HTTP/1.1\r\n")
    assert first.endswith(b'\r\n\r\n{"a":1}')
    for line in (
        f"host: 127.0.0.1:{server.port}",
        "user-agent: openclaw-python",
        "content-type: application/json",
        "accept: text/event-stream",
        "authorization: bearer k",
        "x-name: w\u00e9rt",
    ):
        assert f"\r\n{line}\r\n" in first.decode().lower()
    assert b"\r\nuser-agent: mine\r\n" in second.lower() and b"\r\naccept: application/json\r\n" in second.lower()


@pytest.mark.parametrize("answer", [OK, CHUNKED])
async def test_calls_share_a_connection(model_http: ModelHttp, answer: bytes) -> None:
    async with RawServer(answer).running() as server:
        for _ in range(3):
            assert await post(model_http, server.url) == "ok"
    assert [len(requests) for requests in server.received] == [3]


async def test_a_connection_the_server_will_close_is_not_used_again(model_http: ModelHttp) -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with RawServer(closing).running() as server:
        for _ in range(2):
            assert await post(model_http, server.url) == "ok"
    assert [len(requests) for requests in server.received] == [1, 1]


async def test_a_connection_the_server_wrote_to_unasked_is_not_used_again(model_http: ModelHttp) -> None:
    unasked = CHUNKED + b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"
    async with RawServer(unasked).running() as server:
        for _ in range(2):
            assert await post(model_http, server.url) == "ok"
    assert [len(requests) for requests in server.received] == [1, 1]


async def test_a_connection_the_server_closed_meanwhile_is_not_used_again(model_http: ModelHttp) -> None:
    async with RawServer(CHUNKED, hangs_up=True).running() as server:
        for _ in range(2):
            assert await post(model_http, server.url) == "ok"
            await asyncio.sleep(0.02)
    assert len(server.received) == 2


async def test_hints_before_the_answer_are_passed_over(model_http: ModelHttp) -> None:
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with RawServer(hints + OK).running() as server:
        assert await post(model_http, server.url) == "ok"


async def test_a_compressed_answer_is_read_as_what_it_says(model_http: ModelHttp) -> None:
    packed = gzip.compress(b"data: hello\n\n")
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    async with RawServer(head + packed).running() as server:
        assert await post(model_http, server.url) == "hello"


async def test_a_large_body_arrives_whole(model_http: ModelHttp) -> None:
    text = "x" * 400_000
    async with RawServer(OK).running() as server:
        wire = WireRequest(url=server.url, headers={}, body={"text": text})
        assert done_of([event async for event in model_http.stream_reply(lambda: wire, DataOnly())]).text == "ok"
    assert server.requests[0].endswith(f'{{"text":"{text}"}}'.encode())


async def test_a_password_in_the_address_is_sent_as_one(model_http: ModelHttp) -> None:
    async with RawServer(OK).running() as server:
        await post(model_http, f"http://me:secret@127.0.0.1:{server.port}/")
    assert b"Authorization: Basic bWU6c2VjcmV0" in server.requests[0]
    assert b"me:secret" not in server.requests[0]


async def test_a_proxy_of_the_environment_is_asked(model_http: ModelHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with RawServer(OK).running() as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        await post(model_http, "http://model.example.com/v1")
    assert server.requests[0].startswith(b"POST http://model.example.com/v1 HTTP/1.1\r\n")


async def test_a_header_cannot_smuggle_in_another(model_http: ModelHttp) -> None:
    async with RawServer(OK).running() as server:
        with pytest.raises(ModelError, match="header"):
            await post(model_http, server.url, **{"x-name": "a\r\nx-evil: b"})
    assert server.requests == []


@pytest.mark.parametrize("url", ["not a url", "ftp://host/", "http://", "http://host:port/"])
async def test_an_address_that_is_none_is_named(model_http: ModelHttp, url: str) -> None:
    with pytest.raises(ModelError, match="'the base url' is not a valid address") as caught:
        await post(model_http, url)
    assert not caught.value.retryable


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 twohundred OK\r\n\r\n"])
async def test_an_answer_in_another_language_is_a_failed_connection(model_http: ModelHttp, answer: bytes) -> None:
    async with RawServer(answer).running() as server:
        with pytest.raises(ModelError) as caught:
            await post(model_http, server.url)
    assert (caught.value.kind, caught.value.retryable) == ("network", True)


async def test_silence_ends_the_call_after_its_time(model_http: ModelHttp) -> None:
    async with RawServer(b"").running() as server:
        with pytest.raises(ModelError) as caught:
            await post(model_http, server.url, idle_s=0.02)
    assert caught.value.kind == "timeout"


async def test_silence_in_the_middle_ends_the_call_and_words_put_it_off(model_http: ModelHttp) -> None:
    words = [chunked(b"data: x\n\n", end=b"")] * 20
    async with RawServer(HEAD, *words, pause_s=0.06).running() as server:
        with pytest.raises(ModelError) as caught:
            await post(model_http, server.url, idle_s=1)
    assert caught.value.kind == "timeout"
    assert caught.value.partial is not None and caught.value.partial.text == "x" * 20


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 45])
async def test_it_does_not_matter_where_the_network_cuts(model_http: ModelHttp, size: int) -> None:
    answer = HEAD + chunked(
        b"data: one\n\n",
        b"data: ",
        b"x" * 30,
        b"0\n",
        b"\n",
        b"data: \xf0\x9f\xa6\x9e\n\n",
        end=b"0;last\r\nx: 1\r\n\r\n",
    )
    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    async with RawServer(*pieces).running() as server:
        for _ in range(2):
            assert await post(model_http, server.url) == "one" + "x" * 30 + "0\U0001f99e"
    assert len(server.received) == 1


@pytest.mark.parametrize(
    "body",
    [b"zz\r\ndata", b"5\r\nhello5\r\nhello\r\n", b"-5\r\nhello", b"\n\n", b"0\r\n" + b"a: b\r\n" * 20_000],
)
async def test_chunks_that_are_none_fail_the_call(model_http: ModelHttp, body: bytes) -> None:
    async with RawServer(HEAD + body).running() as server:
        with pytest.raises(ModelError) as caught:
            await post(model_http, server.url, idle_s=2)
    assert (caught.value.kind, caught.value.retryable) == ("network", True)


async def test_an_answer_that_breaks_off_keeps_what_came(model_http: ModelHttp) -> None:
    async with RawServer(HEAD, chunked(b"data: hel\n\n", end=b"5\r\nda"), hangs_up=True).running() as server:
        with pytest.raises(ModelError) as caught:
            await post(model_http, server.url)
    assert caught.value.kind == "network"
    assert caught.value.partial is not None and caught.value.partial.text == "hel"


async def test_a_server_that_hangs_up_without_a_word_is_a_failed_connection(model_http: ModelHttp) -> None:
    async with RawServer(hangs_up=True).running() as server:
        with pytest.raises(ModelError) as caught:
            await post(model_http, server.url)
    assert (caught.value.kind, caught.value.retryable) == ("network", True)


async def test_a_reader_that_takes_its_time_loses_nothing(model_http: ModelHttp) -> None:
    parts = [b"%04d" % number * 2_000 for number in range(200)]
    body = chunked(*(b"data: %b\n\n" % part for part in parts))
    async with RawServer(HEAD + body).running() as server:
        wire = WireRequest(url=server.url, headers={}, body={}, idle_s=5)
        for _ in range(2):
            text = ""
            async for event in model_http.stream_reply(lambda: wire, DataOnly()):
                if isinstance(event, Text):
                    text += event.delta
                    await asyncio.sleep(0.001)
            assert text == b"".join(parts).decode()
    assert len(server.received) == 1


@pytest.mark.parametrize("answer", [OK, CHUNKED])
async def test_a_certificate_nobody_vouches_for_is_refused(
    model_http: ModelHttp, tmp_path: Path, answer: bytes
) -> None:
    served, trusting = certificate(tmp_path)
    async with RawServer(answer).running(served) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(ModelError, match=r"TLS certificate of 127\.0\.0\.1") as caught:
            await post(model_http, url, **{"x-api-key": "k"})
        assert not caught.value.retryable
        assert server.requests == []
        trusted = ModelHttp(aiohttp.TCPConnector(ssl=trusting))
        assert await post(trusted, url, **{"x-api-key": "k"}) == "ok"
        await trusted.close()


def certificate(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate of its own making, and that of a client who trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    file = directory / "server.pem"
    file.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(file)
    return served, ssl.create_default_context(cadata=made.public_bytes(serialization.Encoding.PEM).decode())
