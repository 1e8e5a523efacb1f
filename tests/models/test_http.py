"""A server that hangs, cuts, sends garbage or refuses gets a clear error, and nothing that came is lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from openclaw.models import endpoint, http
from openclaw.models.base import Done, ModelError, ModelRequest, Provider, StreamEvent, Text
from openclaw.models.providers import provider_for
from tests.models.streams import READ, ask, collect, done_of
from tests.support.model_server import ModelServer, Reply

APIS = ["anthropic-messages", "openai-completions", "openai-responses"]


async def failure(request: ModelRequest, key: str) -> tuple[ModelError, list[StreamEvent]]:
    """The error of a call, and the events that came before it."""
    events: list[StreamEvent] = []
    with pytest.raises(ModelError) as caught:
        async for event in provider_for(request.model).stream(request, key):
            events.append(event)
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
async def test_leaving_the_stream_closes_the_connection_at_once(server: ModelServer, api: str) -> None:
    server.reply("one two", hold=asyncio.Event(), hold_after=1)
    model = server.model(api)
    told = asyncio.Event()

    async def consume() -> None:
        async for event in provider_for(model).stream(ask(model), server.api_key):
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
async def test_closing_the_stream_closes_the_connection_at_once(server: ModelServer, api: str) -> None:
    server.reply("one two", hold=asyncio.Event(), hold_after=1)
    model = server.model(api)
    async with aclosing(provider_for(model).stream(ask(model), server.api_key)) as stream:  # type: ignore[type-var]
        async for event in stream:
            if isinstance(event, Text):
                break
    await server.wait_until_idle()
    assert server.disconnects == 1


@pytest.mark.parametrize("api", APIS)
async def test_text_arrives_while_the_model_is_still_writing(server: ModelServer, api: str) -> None:
    gate = asyncio.Event()
    server.reply("one two", hold=gate, hold_after=1)
    model = server.model(api)
    stream = provider_for(model).stream(ask(model), server.api_key)
    assert await anext(stream) == Text("one ")
    gate.set()
    assert done_of([event async for event in stream]).text == "one two"


@pytest.mark.parametrize("api", APIS)
async def test_connections_are_kept_for_the_next_turn(server: ModelServer, api: str) -> None:
    model = server.model(api)
    for _ in range(3):
        async for event in provider_for(model).stream(ask(model), server.api_key):
            if isinstance(event, Done):
                break
        await server.wait_until_idle()
        await asyncio.gather(*http._drains)
    connector = http.shared_session().connector
    assert connector is not None
    assert len(connector._conns) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("api", APIS)
async def test_many_streams_run_at_once(server: ModelServer, api: str) -> None:
    model = server.model(api)
    gate = asyncio.Event()
    server.queue(*(Reply(text=f"reply {n}", hold=gate) for n in range(50)))
    provider: Provider = provider_for(model)
    tasks = [asyncio.create_task(collect(provider, ask(model, tools=[READ]), server.api_key)) for _ in range(50)]
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
    assert endpoint.proxy_for("http://127.0.0.1:1/v1") is None
    assert endpoint.proxy_for("http://localhost:1/v1") is None
    assert endpoint.proxy_for("https://api.anthropic.com/v1") == "http://proxy.example.com:3128"
