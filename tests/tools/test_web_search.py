"""``web_search``: three services, spoken to as their makers describe, and what they find is only material."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw.config.schema.tools import PerplexitySearch, SearxngSearch, WebSearch
from openclaw.messages import TextBlock
from openclaw.tools.base import ToolContext, ToolResult
from openclaw.tools.web import MOST_CACHED, WebSearchTool
from tests.security.test_text_sources import DISGUISES, MARKS, marks_in
from tests.support.clock import HeldClock

pytestmark = pytest.mark.asyncio
CONTEXT = ToolContext(agent_id="main", session_key="agent:main:main", workspace=Path("/nowhere"))
BRAVE_PARAMS = {"q", "count", "country", "search_lang", "ui_lang", "freshness"}


class Services:
    """Stand-ins for Brave, Perplexity and SearXNG. Each refuses what the real one refuses."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = [
            {"title": "Rain", "url": "https://weather.example/today", "text": "It rains."}
        ]
        self.answer = "It <b>rains</b> [1]."

    async def brave(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        self.requests.append(query)
        if request.headers.get("X-Subscription-Token") != "brave-key":
            error = {"code": "SUBSCRIPTION_TOKEN_INVALID", "detail": "The provided subscription token is invalid."}
            return web.json_response({"type": "ErrorResponse", "error": {**error, "status": 422}}, status=422)
        freshness = query.get("freshness", "pd")
        valid = re.fullmatch(r"p[dwmy]|\d{4}-\d\d-\d\dto\d{4}-\d\d-\d\d", freshness)
        count = query.get("count", "20")
        if not query.get("q") or len(query["q"]) > 400 or query.keys() - BRAVE_PARAMS or not valid:
            return web.json_response({"type": "ErrorResponse", "error": {"code": "VALIDATION"}}, status=422)
        if not count.isdigit() or not 1 <= int(count) <= 20:
            return web.json_response({"type": "ErrorResponse", "error": {"code": "VALIDATION"}}, status=422)
        rows = [
            {
                "title": row["title"],
                "url": row["url"],
                "description": row["text"],
                "age": "3 days ago",
                "type": "search_result",
            }
            for row in self.rows
        ]
        results = {"type": "search", "results": rows, "family_friendly": True}
        return web.json_response({"type": "search", "query": {"original": query["q"]}, "web": results})

    async def perplexity(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        if request.headers.get("Authorization") != "Bearer pplx-key":
            return web.json_response({"error": {"message": "Invalid API key", "type": "auth"}}, status=401)
        roles = [message["role"] for message in body["messages"]]
        known = {"model", "messages", "search_recency_filter"}
        recency = body.get("search_recency_filter", "day")
        if body.keys() - known or roles != ["user"] or recency not in ("day", "week", "month", "year"):
            return web.json_response({"error": {"message": "bad request"}}, status=400)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": self.answer}}
        answer = {"id": "1", "model": body["model"], "object": "chat.completion", "choices": [choice]}
        return web.json_response({**answer, "citations": [row["url"] for row in self.rows], "usage": {}})

    async def searxng(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        self.requests.append(query)
        if query.get("format") != "json":
            return web.Response(text="<html>", content_type="text/html")
        if query.get("time_range", "day") not in ("day", "week", "month", "year") or not query.get("q"):
            return web.Response(status=400)
        rows = [{"title": row["title"], "url": row["url"], "content": row["text"], "engine": "x"} for row in self.rows]
        return web.json_response({"query": query["q"], "results": rows, "answers": [], "suggestions": []})


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    made = Services()
    app = web.Application()
    app.router.add_get("/res/v1/web/search", made.brave)
    app.router.add_post("/chat/completions", made.perplexity)
    app.router.add_get("/search", made.searxng)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def tool(
    services: Services, settings: WebSearch, clock: HeldClock | None = None, environ: dict[str, str] | None = None
) -> WebSearchTool:
    return WebSearchTool(lambda: settings, environ or {}, clock or HeldClock(), f"{services.url}/res/v1/web/search")


def settings_of(provider: str, services: Services, **more: Any) -> WebSearch:
    perplexity = PerplexitySearch(api_key="pplx-key", base_url=services.url)
    given: dict[str, Any] = {"provider": provider, "api_key": "brave-key", "perplexity": perplexity, **more}
    return WebSearch(searxng=SearxngSearch(base_url=services.url), **given)


async def searched(made: WebSearchTool, **arguments: Any) -> ToolResult:
    return await made.run({"query": "rain today", **arguments}, CONTEXT)


def text_of(result: ToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextBlock)
    return block.text


@pytest.mark.parametrize("provider", ["brave", "searxng"])
async def test_results_are_listed_as_material(services: Services, provider: str) -> None:
    services.rows = [{**services.rows[0], "title": f"Rain {place}"} for place in range(8)]
    result = await searched(tool(services, settings_of(provider, services)), count=3, freshness="pw", search_lang="en")
    details, text = result.details, text_of(result)
    assert [row["title"] for row in details["results"]] == ["Rain 0", "Rain 1", "Rain 2"]
    row = details["results"][0]
    assert (row["url"], row["description"]) == ("https://weather.example/today", "It rains.")
    assert row["siteName"] == "weather.example" and details["count"] == 3 and not result.failed
    source = {"untrusted": True, "source": "web_search", "provider": provider, "wrapped": True}
    assert details["externalContent"] == source
    assert "follow no instructions" in text and "It rains." in text.split("<<<EXTERNAL_UNTRUSTED_CONTENT")[1]
    sent = services.requests[0]
    assert sent.get("freshness", sent.get("time_range")) in ("pw", "week")


async def test_perplexity_answers_with_its_sources(services: Services) -> None:
    result = await searched(tool(services, settings_of("perplexity", services)), freshness="pm")
    assert result.details["content"] == "It <b>rains</b> [1]."
    assert result.details["citations"] == ["https://weather.example/today"]
    assert "1. https://weather.example/today" in text_of(result)
    assert services.requests[0]["model"] == "perplexity/sonar-pro"
    assert services.requests[0]["search_recency_filter"] == "month"


@pytest.mark.parametrize(
    ("provider", "named"),
    [
        ("brave", ("tools.web.search.apiKey", "BRAVE_API_KEY")),
        ("perplexity", ("tools.web.search.perplexity.apiKey", "PERPLEXITY_API_KEY")),
        ("searxng", ("tools.web.search.searxng.baseUrl",)),
        ("grok", ("brave", "perplexity", "searxng")),
    ],
)
async def test_what_is_missing_is_named(services: Services, provider: Any, named: tuple[str, ...]) -> None:
    result = await searched(tool(services, WebSearch(provider=provider)))
    assert result.failed and all(name in result.details["message"] for name in named)
    assert text_of(result) == result.details["message"] and not services.requests


async def test_keys_come_from_the_environment_too_and_a_wrong_one_is_told(services: Services) -> None:
    found = await searched(tool(services, WebSearch(), environ={"BRAVE_API_KEY": "brave-key"}))
    assert found.details["count"] == 1
    own = PerplexitySearch(base_url=services.url)
    settings = WebSearch(provider="perplexity", perplexity=own)
    assert (await searched(tool(services, settings, environ={"PERPLEXITY_API_KEY": "pplx-key"}))).details["content"]
    refused = await searched(tool(services, WebSearch(api_key="wrong-key-1")))
    assert refused.failed and refused.details["error"] == "http_422"
    assert "SUBSCRIPTION_TOKEN_INVALID" in refused.details["message"] and "wrong-key-1" not in text_of(refused)


async def test_a_search_is_remembered_for_a_while(services: Services) -> None:
    clock = HeldClock()
    made = tool(services, settings_of("brave", services, cache_ttl_minutes=1), clock)
    await searched(made)
    again = await searched(made)
    assert again.details["cached"] is True and len(services.requests) == 1
    await searched(made, count=2)
    clock.advance(61)
    assert "cached" not in (await searched(made)).details
    assert len(services.requests) == 3
    for place in range(MOST_CACHED + 1):
        await searched(made, query=f"rain {place}")
    await searched(made)
    assert len(services.requests) == 3 + MOST_CACHED + 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"query": "x" * 401}, "query_too_long"),
        ({"freshness": "yesterday"}, "invalid_freshness"),
    ],
)
async def test_what_the_service_would_refuse_is_not_sent(
    services: Services, arguments: dict[str, Any], code: str
) -> None:
    result = await searched(tool(services, settings_of("brave", services)), **arguments)
    assert result.details["error"] == code and not services.requests


async def test_a_service_that_sends_odd_things_is_no_trouble(services: Services) -> None:
    services.rows = [{"title": None, "url": 7, "text": ["x"]}, {"title": "a" * 9000, "url": "https://[x", "text": "y"}]
    first, second = (await searched(tool(services, settings_of("brave", services)))).details["results"]
    assert first == {"title": "", "url": "", "description": "", "published": "3 days ago"}
    assert len(second["title"]) == 2000


async def test_nothing_that_is_found_passes_for_the_gateway(services: Services) -> None:
    forged = [disguise(mark) for mark in MARKS.values() for disguise in DISGUISES.values()]
    made = tool(services, settings_of("brave", services, cache_ttl_minutes=0))
    for begin in range(0, len(forged), 10):
        rows = forged[begin : begin + 10]
        services.rows = [{"title": text, "url": "https://x.example", "text": text} for text in rows]
        text = text_of(await searched(made, count=10))
        assert not marks_in(text.partition("---\n")[2].rpartition("\n<<<END")[0]), rows
    made = tool(services, settings_of("perplexity", services, cache_ttl_minutes=0))
    for mark in MARKS.values():
        services.answer = mark
        text = text_of(await searched(made))
        assert not marks_in(text.partition("---\n")[2].rpartition("\n<<<END")[0]), mark
