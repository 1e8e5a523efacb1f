"""Model servers on this machine, asked over real loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from openclaw.models.base import Model, Price
from openclaw.models.catalogue import MAX_MODELS, UNKNOWN_WINDOW, candidates, find_models

PATIENT_S = 60.0


@asynccontextmanager
async def serving(answers: dict[str, Any]) -> AsyncIterator[str]:
    """A server that answers the given paths with JSON (or a handler's response), everything else with 404."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = answers.get(request.path)
        if answer is None:
            return web.Response(status=404)
        if callable(answer):
            return await answer(request)
        return web.json_response(answer)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def ask(provider: str, url: str, timeout_s: float = PATIENT_S) -> list[Model]:
    return await find_models({}, addresses=[(provider, url)], timeout_s=timeout_s)


SHOWN = {
    "qwen3:8b": {
        "capabilities": ["completion", "tools", "thinking"],
        "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40_960},
    },
    "llava:7b": {
        "capabilities": ["completion", "vision"],
        "parameters": 'stop "x"\nnum_ctx    16384\n',
        "model_info": {"llama.context_length": 32_768},
    },
    "nomic-embed-text": {"capabilities": ["embedding"], "model_info": {"nomic-bert.context_length": 2048}},
}


async def show(request: web.Request) -> web.StreamResponse:
    name = (await request.json())["model"]
    return web.json_response(SHOWN[name]) if name in SHOWN else web.Response(status=404)


async def test_ollama_is_found_with_real_windows_and_abilities() -> None:
    names = ["qwen3:8b", "llava:7b", "nomic-embed-text", "loaded:1b", "mystery"]
    answers = {
        "/api/tags": {"models": [{"name": name} for name in names]},
        "/api/ps": {"models": [{"name": "loaded:1b", "context_length": 4096}]},
        "/api/show": show,
    }
    async with serving(answers) as url:
        found = {model.id: model for model in await ask("ollama", url)}
    assert {(model.base_url, model.cost) for model in found.values()} == {(url, Price())}
    assert found["qwen3:8b"].context_window == UNKNOWN_WINDOW, "trained for more than the server is likely to hold"
    assert (found["qwen3:8b"].tools, found["qwen3:8b"].reasoning) == (True, True)
    assert (found["llava:7b"].context_window, found["llava:7b"].tools) == (16_384, False)
    assert (found["llava:7b"].input, found["qwen3:8b"].input) == (("text", "image"), ("text",))
    assert (found["loaded:1b"].context_window, found["loaded:1b"].max_tokens) == (4096, 2048)
    assert "nomic-embed-text" not in found
    assert found["mystery"].context_window == UNKNOWN_WINDOW and found["mystery"].tools


@pytest.mark.parametrize(
    ("provider", "answers", "expected"),
    [
        ("vllm", {"/v1/models": {"object": "list", "data": [{"id": "m", "max_model_len": 16_000}]}}, 16_000),
        ("llamacpp", {"/v1/models": {"data": [{"id": "m", "meta": {"n_ctx_train": 4096}}]}}, 4096),
        ("llamacpp", {"/v1/models": {"data": [{"id": "m", "meta": None}]}}, UNKNOWN_WINDOW),
        (
            "lmstudio",
            {
                "/v1/models": {"data": [{"id": "m"}]},
                "/api/v0/models": {"data": [{"id": "m", "max_context_length": 9000, "loaded_context_length": 5000}]},
            },
            5000,
        ),
    ],
)
async def test_compatible_servers_are_found_with_the_window_they_state(
    provider: str, answers: dict[str, Any], expected: int
) -> None:
    async with serving(answers) as url:
        found = await ask(provider, url)
    assert [(model.id, model.context_window) for model in found] == [("m", expected)]


async def garbage(_request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\xff<html>", content_type="application/json")


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(64):
        await response.write(b" " * 65_536)
    return response


async def elsewhere(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://192.0.2.1/v1/models")


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"data": "x"}, {"data": []}, {"data": [1, {"id": 3}, {"id": ""}]}, garbage, endless, elsewhere],
    ids=["404", "empty", "text", "none", "odd", "garbage", "endless", "redirect"],
)
async def test_a_server_that_is_no_model_server_is_not_found(answer: Any) -> None:
    async with serving({"/v1/models": answer}) as url:
        assert await ask("vllm", url) == []


async def test_a_server_that_hangs_is_given_up() -> None:
    release = asyncio.Event()

    async def hang(_request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    async with serving({"/api/tags": hang, "/api/ps": hang}) as url:
        assert await ask("ollama", url, timeout_s=0.05) == []
        release.set()


async def test_nothing_listening_is_nothing_found() -> None:
    async with serving({}) as url:
        pass
    assert await ask("ollama", url) == []


async def test_an_address_off_this_machine_is_never_asked() -> None:
    assert await ask("ollama", "http://192.0.2.1:11434/v1", timeout_s=PATIENT_S) == []


async def test_a_server_with_very_many_models_is_cut() -> None:
    rows = [{"id": f"m{number}"} for number in range(500)]
    async with serving({"/v1/models": {"data": rows}}) as url:
        assert len(await ask("vllm", url)) == MAX_MODELS


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("127.0.0.1:11500", "http://127.0.0.1:11500/v1"),
        (":11500", "http://127.0.0.1:11500/v1"),
        ("http://localhost:11434", "http://localhost:11434/v1"),
        ("[::1]:11500", "http://[::1]:11500/v1"),
        ("http://gpu.lan:11434", "http://127.0.0.1:11434/v1"),
        ("127.0.0.1:notaport", "http://127.0.0.1:11434/v1"),
    ],
)
def test_ollama_host_is_followed_on_this_machine_only(host: str, expected: str) -> None:
    assert dict(candidates({"OLLAMA_HOST": host}))["ollama"] == expected
