"""``web_search``: asks a search service for the agent. The owner chooses the service and pays for it.

What a service finds was written by strangers. It is disarmed and stands between marks that it cannot know, like a page
that ``web_fetch`` reads.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import aiohttp
import msgspec

from openclaw.clock import Clock
from openclaw.config.schema.base import SecretRef
from openclaw.config.schema.tools import WebSearch
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.foreign_text import disarmed, disarmed_name
from openclaw.messages import ToolSpec
from openclaw.tools.arguments import required_text
from openclaw.tools.base import ToolContext, ToolResult, text_result
from openclaw.tools.web import wrapped_as_foreign

MOST_RESULTS = 10
MOST_CACHED = 100
LONGEST_QUERY = 400
"""Brave takes no longer one."""
MOST_ANSWER_BYTES = 2_000_000
MOST_ANSWER_CHARS = 20_000
_LONGEST_FIELD = 2000
BRAVE_URL = "https://api.search.brave.com/res/v1/web/search"
PERPLEXITY_URL = "https://api.perplexity.ai"
OPENROUTER_URL = "https://openrouter.ai/api/v1"
_RECENCY = {"pd": "day", "pw": "week", "pm": "month", "py": "year"}
"""How long ago a page may have been written: Brave's word → the word of the other services."""
_RANGE = re.compile(r"\d{4}-\d\d-\d\dto\d{4}-\d\d-\d\d")
_TAG = re.compile(r"</?(?:strong|b|em|i)>", re.IGNORECASE)

Found: TypeAlias = dict[str, Any]
"""What a service found: ``results``, or ``content`` with ``citations``."""


class SearchFailed(Exception):
    """There is no answer. ``code`` is for programs, the text for the model and the owner."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Wish(NamedTuple):
    """What the model asks for."""

    query: str
    most: int
    country: str = ""
    search_lang: str = ""
    ui_lang: str = ""
    freshness: str = ""


class _Known(NamedTuple):
    until: float
    found: Found


class WebSearchTool:
    summary = "Search the web"
    spec = ToolSpec(
        name="web_search",
        description=(
            "Search the web. Returns titles, addresses and short texts, or an answer with its sources, depending on "
            "the configured service. Read a page with web_fetch."
        ),
        parameters={
            "type": "object",
            "required": ["query"],
            "properties": {
                "query": {"type": "string"},
                "count": {"type": "number", "minimum": 1, "maximum": MOST_RESULTS, "description": "Results"},
                "country": {"type": "string", "description": "Two letters, such as DE"},
                "search_lang": {"type": "string", "description": "Language of the results, such as de"},
                "ui_lang": {"type": "string"},
                "freshness": {
                    "type": "string",
                    "description": "pd, pw, pm, py (past day, week, month, year) or YYYY-MM-DDtoYYYY-MM-DD",
                },
            },
        },
    )

    def __init__(
        self,
        settings: Callable[[], WebSearch],
        environ: Mapping[str, str],
        clock: Clock,
        brave_url: str = BRAVE_URL,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._clock = clock
        self._brave_url = brave_url
        self._cache: OrderedDict[tuple[Any, ...], _Known] = OrderedDict()

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        settings = self._settings()
        try:
            wish = _wish(arguments, settings)
            key = (settings.provider, _model(settings), *wish)
            known, began = self._cache.get(key), self._clock.monotonic()
            cached = known is not None and known.until > began
            found = known.found if known is not None and cached else await self._ask(wish, settings)
        except SearchFailed as failed:
            told = {"status": "error", "error": failed.code, "message": str(failed)}
            return text_result(msgspec.json.format(msgspec.json.encode(told), indent=2).decode(), told)
        if not cached:
            self._keep(key, found, began + settings.cache_ttl_minutes * 60.0)
        facts: dict[str, Any] = {"query": disarmed_name(wish.query), "provider": settings.provider}
        if model := _model(settings):
            facts["model"] = model
        if "results" in found:
            facts["count"] = len(found["results"])
        facts["tookMs"] = int((self._clock.monotonic() - began) * 1000)
        if cached:
            facts["cached"] = True
        source = {"untrusted": True, "source": "web_search", "provider": settings.provider, "wrapped": True}
        facts["externalContent"] = source
        text = msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()
        return text_result(f"{text}\n\n{wrapped_as_foreign(_shown(found), 'Web Search')}", {**facts, **found})

    async def _ask(self, wish: Wish, settings: WebSearch) -> Found:
        try:
            async with asyncio.timeout(settings.timeout_seconds):
                match settings.provider:
                    case "brave":
                        return await self._ask_brave(wish, settings)
                    case "perplexity":
                        return await self._ask_perplexity(wish, settings)
                    case "searxng":
                        return await _ask_searxng(wish, settings)
                    case other:
                        text = f"tools.web.search.provider {other} is not supported; use brave, perplexity or searxng"
                        raise SearchFailed("unsupported_provider", text)
        except TimeoutError:
            text = f"{settings.provider} did not answer within {settings.timeout_seconds} s"
            raise SearchFailed("timeout", text) from None
        except aiohttp.ClientError as error:
            text = f"{settings.provider} could not be reached ({type(error).__name__})"
            raise SearchFailed("unreachable", text) from None

    async def _ask_brave(self, wish: Wish, settings: WebSearch) -> Found:
        key = await self._key(settings.api_key, "tools.web.search.apiKey", "BRAVE_API_KEY")
        if not key:
            raise SearchFailed(
                "missing_brave_api_key",
                "web_search needs a key of the Brave Search API: set tools.web.search.apiKey, or BRAVE_API_KEY in the "
                "Gateway's environment.",
            )
        params = {"q": wish.query, "count": str(wish.most), "country": wish.country, "search_lang": wish.search_lang}
        params |= {"ui_lang": wish.ui_lang, "freshness": wish.freshness}
        headers = {"X-Subscription-Token": key}
        answer = await _json(self._brave_url, "brave", headers, params={k: v for k, v in params.items() if v})
        rows = _rows(_record(answer.get("web")).get("results"))
        return {"results": [_result(row, row.get("description"), row.get("age")) for row in rows[: wish.most]]}

    async def _ask_perplexity(self, wish: Wish, settings: WebSearch) -> Found:
        own = settings.perplexity
        path = "tools.web.search.perplexity.apiKey"
        key = await self._key(own.api_key, path, "PERPLEXITY_API_KEY", "OPENROUTER_API_KEY")
        if not key:
            raise SearchFailed(
                "missing_perplexity_api_key",
                f"web_search needs a key of Perplexity: set {path}, or PERPLEXITY_API_KEY (or OPENROUTER_API_KEY) in "
                "the Gateway's environment.",
            )
        base, model = own.base_url or (OPENROUTER_URL if key.startswith("sk-or-") else PERPLEXITY_URL), own.model
        if urlsplit(base).hostname == "api.perplexity.ai":
            model = model.removeprefix("perplexity/")
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": wish.query}]}
        if wish.freshness in _RECENCY:
            body["search_recency_filter"] = _RECENCY[wish.freshness]
        headers = {"Authorization": f"Bearer {key}"}
        answer = await _json(f"{base.rstrip('/')}/chat/completions", "perplexity", headers, body=body)
        choice = next(iter(_rows(answer.get("choices"))), {})
        content = _record(choice.get("message")).get("content")
        if not isinstance(content, str):
            raise SearchFailed("bad_answer", "perplexity answered without a text")
        given: list[Any] = answer["citations"] if isinstance(answer.get("citations"), list) else []
        citations = [_field(one) for one in given[:50] if isinstance(one, str)]
        return {"content": disarmed(content[:MOST_ANSWER_CHARS]), "citations": citations}

    async def _key(self, configured: str | SecretRef | None, path: str, *variables: str) -> str:
        try:
            found = await asyncio.to_thread(resolve_secret, configured, self._environ, path)
        except SecretUnavailable as problem:
            raise SearchFailed("secret_unavailable", str(problem)) from None
        return found or next((value for name in variables if (value := self._environ.get(name, "").strip())), "")

    def _keep(self, key: tuple[Any, ...], found: Found, until: float) -> None:
        if until <= self._clock.monotonic():
            return
        self._cache.pop(key, None)
        self._cache[key] = _Known(until, found)
        while len(self._cache) > MOST_CACHED:
            self._cache.popitem(last=False)


async def _ask_searxng(wish: Wish, settings: WebSearch) -> Found:
    base = settings.searxng.base_url
    if not base:
        text = "web_search needs the address of your SearXNG: set tools.web.search.searxng.baseUrl."
        raise SearchFailed("missing_searxng_url", text)
    params = {"q": wish.query, "format": "json"}
    if wish.search_lang:
        params["language"] = wish.search_lang
    if wish.freshness in _RECENCY:
        params["time_range"] = _RECENCY[wish.freshness]
    answer = await _json(f"{base.rstrip('/')}/search", "searxng", {}, params=params)
    rows = _rows(answer.get("results"))
    return {"results": [_result(row, row.get("content"), row.get("publishedDate")) for row in rows[: wish.most]]}


def _wish(arguments: dict[str, Any], settings: WebSearch) -> Wish:
    query = " ".join(required_text(arguments, "query").split())
    if len(query) > LONGEST_QUERY:
        raise SearchFailed("query_too_long", f"query is longer than {LONGEST_QUERY} characters")
    given = arguments.get("count")
    count = int(given) if isinstance(given, int | float) else settings.max_results
    texts = {name: str(arguments.get(name) or "").strip() for name in ("country", "search_lang", "ui_lang")}
    freshness = str(arguments.get("freshness") or "").strip()
    if freshness and freshness.lower() not in _RECENCY and not _RANGE.fullmatch(freshness):
        text = "freshness must be pd, pw, pm, py or YYYY-MM-DDtoYYYY-MM-DD"
        raise SearchFailed("invalid_freshness", text)
    if settings.provider != "brave" and _RANGE.fullmatch(freshness):
        raise SearchFailed("unsupported_freshness", f"{settings.provider} takes pd, pw, pm or py only")
    if freshness.lower() in _RECENCY:
        freshness = freshness.lower()
    return Wish(query, max(1, min(count, MOST_RESULTS)), **texts, freshness=freshness)


def _model(settings: WebSearch) -> str:
    return settings.perplexity.model if settings.provider == "perplexity" else ""


async def _json(
    url: str,
    provider: str,
    headers: Mapping[str, str],
    *,
    params: Mapping[str, str] | None = None,
    body: Any = None,
) -> dict[str, Any]:
    """The answer of a service as an object. A redirect is no answer: it would take the key elsewhere."""
    wanted = {"Accept": "application/json", **headers}
    options: dict[str, Any] = {"headers": wanted, "params": params, "allow_redirects": False}
    if body is not None:
        options["json"] = body
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.request("GET" if body is None else "POST", url, **options) as response,
    ):
        raw = bytearray()
        async for chunk in response.content.iter_chunked(64 * 1024):
            raw += chunk
            if len(raw) > MOST_ANSWER_BYTES:
                raise SearchFailed("answer_too_large", f"{provider} answered with more than {MOST_ANSWER_BYTES} bytes")
        if response.status != 200:
            told = disarmed_name(bytes(raw[:500]).decode("utf-8", "replace"))[:300]
            raise SearchFailed(f"http_{response.status}", f"{provider} answered {response.status}: {told}")
    try:
        return _record(msgspec.json.decode(bytes(raw)))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise SearchFailed("bad_answer", f"{provider} answered with something that is no JSON") from None


def _record(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _rows(value: Any) -> list[dict[str, Any]]:
    rows: list[Any] = value if isinstance(value, list) else []
    return [_record(row) for row in rows]


def _result(row: dict[str, Any], text: Any, published: Any) -> dict[str, str]:
    url = _field(row.get("url"))
    found = {"title": _field(row.get("title")), "url": url, "description": _field(text), "published": _field(published)}
    try:
        found["siteName"] = _field(urlsplit(url).hostname)
    except ValueError:
        pass
    return {name: value for name, value in found.items() if value or name in ("title", "url", "description")}


def _field(value: Any) -> str:
    """A text of the service in one line. Brave puts the words that were searched for in bold."""
    return disarmed_name(_TAG.sub("", value[:_LONGEST_FIELD])) if isinstance(value, str) else ""


def _shown(found: Found) -> str:
    if "content" in found:
        sources = "\n".join(f"{place}. {url}" for place, url in enumerate(found["citations"], 1))
        return f"{found['content']}\n\nSources:\n{sources}" if sources else str(found["content"])
    return (
        "\n\n".join(
            "\n".join(
                [
                    f"{place}. {row['title']}",
                    *(row[name] for name in ("url", "published", "description") if row.get(name)),
                ]
            )
            for place, row in enumerate(found["results"], 1)
        )
        or "(no results)"
    )
