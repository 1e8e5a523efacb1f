"""A strict stand-in for the model vendors, on loopback.

It speaks Anthropic Messages (``/v1/messages``), OpenAI chat completions (``/v1/chat/completions``) and OpenAI Responses
(``/v1/responses``), streaming or not, and answers 400 in the vendor's shape to whatever that vendor would refuse.

In a test::

    async with ModelServer() as server:
        server.reply("Hello")                                      # next call answers this text
        server.queue(Reply(calls=[Call("read", {"path": "a"})]))   # the one after makes a tool call
        server.queue(Reply(status=529, message="Overloaded", headers={"retry-after": "1"}))
        model = server.model()                                     # a Model that points here; key: server.api_key
        ...
        server.requests[-1].body["messages"]                       # what was asked (also .path, .headers, .error)
        await server.wait_for_requests(3)

Replies are taken from the queue in the order of the requests. With an empty queue the text of the last user message
decides, by directives (this is how an out-of-process server is scripted)::

    [[reply:text]]  [[tokens:N]]  [[think:text]]  [[tool:name {"json": 1}]]  [[stop:length]]
    [[delay:MS]] between tokens   [[sleep:MS]] before the first   [[cut]] break off before the end
    [[error:STATUS message]]      [[next]] what follows answers the next call, after tool results or a retry

No directive: ``ok``. ``Reply`` (see model_script) has more: ``hold`` an asyncio.Event after N tokens, ``cut_after`` N
bytes, ``clean_cut``, ``raw`` bytes instead of a stream, ``usage``, ``headers``. ``server.active`` counts streams being
written, ``server.disconnects`` those the client left.

As a process: ``python -m tests.support.model_server --port 0`` prints its port and serves until it is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from aiohttp import web

from openclaw.models.base import Model, Price
from tests.support.model_rules import (
    Refused,
    check_anthropic,
    check_generation,
    check_images,
    count_unbound,
    is_bound,
    signature_for,
)
from tests.support.model_rules_openai import check_chat, check_responses
from tests.support.model_script import Call, Reply, parse_stages
from tests.support.model_wire import (
    Rendered,
    anthropic_json,
    anthropic_stream,
    chat_json,
    chat_stream,
    responses_json,
    responses_stream,
)
from tests.support.ports import KeptPort

__all__ = ["Call", "ModelServer", "Recorded", "Reply", "last_user_text", "parse_stages"]

_VERSIONS = ("2023-06-01", "2026-10-21")
_BATCH = 64
"""Tokens per write when there is no delay between them."""
_REMEMBERED = 4096
_ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip


@dataclass
class Recorded:
    """One request as it came, and the refusal it got, if any."""

    path: str
    headers: Mapping[str, str]
    body: Any
    error: str | None = None
    raw: bytes = b""


@dataclass(frozen=True)
class _Api:
    name: str
    check: Callable[[Any], None]
    stream: Callable[[Reply, int, str, int], Rendered]
    whole: Callable[[Reply, int, str, int], dict[str, Any]]


_APIS = {
    "/v1/messages": _Api("anthropic-messages", check_anthropic, anthropic_stream, anthropic_json),
    "/v1/chat/completions": _Api("openai-completions", check_chat, chat_stream, chat_json),
    "/v1/responses": _Api("openai-responses", check_responses, responses_stream, responses_json),
}


@dataclass
class ModelServer:
    port: int = 0
    api_key: str = "test-key-123456"
    any_key: bool = False
    """Accept any key, or none: for servers such as Ollama."""
    window: int | None = None
    """Prompts with more tokens are refused in the vendor's words, and so is an output limit beyond the room left."""
    count: Callable[[str], int] = lambda text: len(text) // 4
    """The tokens of a request's text."""
    keep_requests: int = 10_000
    requests: deque[Recorded] = field(default_factory=deque)
    active: int = 0
    disconnects: int = 0
    dropped_thinking: int = 0
    """Thinking blocks that no longer fitted their conversation (newest Claude models)."""

    def __post_init__(self) -> None:
        self._kept_port = KeptPort()
        self.port = self.port or self._kept_port.number
        self.requests = deque(maxlen=self.keep_requests)
        self._queue: deque[Reply] = deque()
        self._answer: Callable[[Recorded], Reply] | None = None
        self._served = 0
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._peers: set[Any] = set()
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    @property
    def connections(self) -> int:
        """Connections that brought a request."""
        return len(self._peers)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def queue(self, *replies: Reply) -> None:
        self._queue.extend(replies)

    def forget(self) -> None:
        """Drops replies that were queued and not used."""
        self._queue.clear()

    def answer_with(self, answer: Callable[[Recorded], Reply] | None) -> None:
        """Answers every request for which no reply is queued with what the function returns for it."""
        self._answer = answer

    def reply(self, text: str, **fields: Any) -> None:
        self.queue(Reply(text=text, **fields))

    def model(self, api: str = "anthropic-messages", **fields: Any) -> Model:
        """A model that is served here."""
        base = self.base_url if api == "anthropic-messages" else f"{self.base_url}/v1"
        price = Price(input=3, output=15, cache_read=0.3, cache_write=3.75)
        defaults: dict[str, Any] = {"provider": "mock", "id": "mock-1", "max_tokens": 64_000, "cost": price}
        return Model(**{**defaults, "api": api, "base_url": base, "input": ("text", "image"), **fields})

    async def wait_for_requests(self, count: int, timeout_s: float = 60) -> None:
        """Until that many requests have come in, refused ones included; TimeoutError when they do not."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)

    async def wait_until_idle(self, timeout_s: float = 60) -> None:
        """Until no stream is being written; TimeoutError when that does not happen."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: self.active == 0)

    async def __aenter__(self) -> ModelServer:
        app = web.Application(client_max_size=256 * 1024 * 1024)
        for path in _APIS:
            app.router.add_post(path, self._handle)
        # A client that goes away cancels the handler, so that tests can see it go.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        api = _APIS[request.path]
        raw = await request.read()
        try:
            body: Any = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeError):
            body = None
        if request.transport is not None:
            self._peers.add(request.transport.get_extra_info("peername"))
        recorded = Recorded(
            request.path, {name.lower(): value for name, value in request.headers.items()}, body, raw=raw
        )
        self.requests.append(recorded)
        await self._notify()
        if (refusal := self._refusal(api, recorded)) is not None:
            recorded.error = refusal.message
            return _error_response(api, refusal)
        self._served += 1
        reply = self._choose(api, recorded)
        reply = replace(reply, calls=[self._with_id(call, index) for index, call in enumerate(reply.calls)])
        if api.name == "anthropic-messages" and is_bound(body["model"]):
            reply = replace(reply, signature=signature_for(body))
        if reply.sleep_ms:
            await asyncio.sleep(reply.sleep_ms / 1000)
        if reply.status >= 400:
            return _error_response(api, reply)
        prompt_tokens = max(1, self.count(raw.decode()))
        if not body.get("stream") and reply.raw is None:
            whole = api.whole(reply, self._served, body["model"], prompt_tokens)
            return web.json_response(
                whole, headers=reply.headers, dumps=lambda data: msgspec.json.encode(data).decode()
            )
        rendered = api.stream(reply, self._served, body["model"], prompt_tokens)
        return await self._stream(request, api, reply, rendered)

    def _refusal(self, api: _Api, request: Recorded) -> Reply | None:
        anthropic = api.name == "anthropic-messages"
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = (request.headers.get("x-api-key") or bearer) if anthropic else bearer
        if not self.any_key and key != self.api_key:
            return Reply(status=401, message="invalid x-api-key" if anthropic else "Incorrect API key provided.")
        version = request.headers.get("anthropic-version", "")
        if anthropic and version not in _VERSIONS:
            return Reply(status=400, message="anthropic-version: header is required")
        try:
            api.check(request.body)
            check_images(request.body)
            if anthropic:
                check_generation(request.body, version=version, betas=request.headers.get("anthropic-beta", ""))
                self.dropped_thinking += count_unbound(request.body)
        except Refused as refused:
            return Reply(status=400, message=str(refused))
        return self._overflow(api, request)

    def _overflow(self, api: _Api, request: Recorded) -> Reply | None:
        body, window = request.body, self.window
        fields = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        output = next((body[name] for name in fields if name in body), 0)
        prompt = self.count(request.raw.decode())
        if window is None or prompt + output <= window:
            return None
        match api.name:
            case "anthropic-messages" if prompt > window:
                message = f"prompt is too long: {prompt} tokens > {window} maximum"
            case "anthropic-messages":
                message = (
                    f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {window}, decrease "
                    "input length or `max_tokens` and try again"
                )
            case "openai-completions":
                message = (
                    f"This model's maximum context length is {window} tokens. However, you requested {prompt + output} "
                    f"tokens ({prompt} in the messages, {output} in the completion). Please reduce the length of the "
                    "messages or completion."
                )
            case _:
                message = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return Reply(status=400, message=message)

    def _choose(self, api: _Api, request: Recorded) -> Reply:
        if self._queue:
            return self._queue.popleft()
        if self._answer is not None:
            return self._answer(request)
        text, answered = last_user_text(api.name, request.body)
        stages = parse_stages(text)
        failures = self._failures.get(text, 0)
        stage = answered + failures
        if stage >= len(stages):
            return Reply(text="ok")
        reply = stages[stage]
        if reply.fails and stage + 1 < len(stages):
            # The retry of a scripted failure gets what follows [[next]].
            self._failures[text] = failures + 1
            while len(self._failures) > _REMEMBERED:
                self._failures.popitem(last=False)
        if not request.body.get("tools"):
            reply = replace(reply, calls=[])
        empty = not (reply.text or reply.calls or reply.fails)
        return replace(reply, text="ok") if empty else reply

    def _with_id(self, call: Call, index: int) -> Call:
        return call if call.id else replace(call, id=f"toolu_{self._served:06d}_{index}")

    async def _stream(self, request: web.Request, api: _Api, reply: Reply, rendered: Rendered) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": reply.content_type, **reply.headers})
        await response.prepare(request)
        self.active += 1
        try:
            writer = _Writer(response, request, reply.cut_after)
            if reply.raw is not None:
                await writer.write(reply.raw)
            else:
                await _write_reply(writer, api, reply, rendered)
            if reply.cut:
                await writer.abort()
            elif not writer.aborted:
                await response.write_eof()
        except (asyncio.CancelledError, ConnectionError):
            self.disconnects += 1
            raise
        finally:
            self.active -= 1
            await self._notify()
        return response

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Writer:
    """Writes until the scripted number of bytes, then breaks the connection."""

    def __init__(self, response: web.StreamResponse, request: web.Request, limit: int | None) -> None:
        self._response = response
        self._request = request
        self._left = limit
        self.aborted = False

    async def write(self, data: bytes) -> None:
        if self.aborted or not data:
            return
        if self._left is None or len(data) < self._left:
            self._left = None if self._left is None else self._left - len(data)
            await self._response.write(data)
            return
        await self._response.write(data[: self._left])
        await self.abort()

    async def abort(self) -> None:
        self.aborted = True
        if (transport := self._request.transport) is not None:
            # Closing (not aborting) lets what was written arrive; the body's end is still missing.
            transport.close()


async def _write_reply(writer: _Writer, api: _Api, reply: Reply, rendered: Rendered) -> None:
    await writer.write(rendered.head)
    step = 1 if reply.delay_ms else _BATCH
    tokens = rendered.tokens
    position = 0
    if reply.hold is not None:
        held = tokens[: reply.hold_after]
        await writer.write(b"".join(held))
        position = len(held)
        await reply.hold.wait()
    while position < len(tokens):
        await writer.write(b"".join(tokens[position : position + step]))
        position += step
        if reply.delay_ms:
            await asyncio.sleep(reply.delay_ms / 1000)
    await writer.write(rendered.tail)
    if reply.message:
        await writer.write(_error_event(api, reply))
    elif not reply.cut and not reply.clean_cut:
        await writer.write(rendered.end)


def _error_body(api: _Api, reply: Reply) -> dict[str, Any]:
    kind = reply.error_type or _ERROR_TYPES.get(reply.status, "api_error")
    if api.name == "anthropic-messages":
        return {"type": "error", "error": {"type": kind, "message": reply.message}, "request_id": "req_test"}
    return {"error": {"message": reply.message, "type": kind, "param": None, "code": None}}


def _error_response(api: _Api, reply: Reply) -> web.Response:
    return web.json_response(_error_body(api, reply), status=reply.status, headers=reply.headers)


def _error_event(api: _Api, reply: Reply) -> bytes:
    kind = reply.error_type or "overloaded_error"
    match api.name:
        case "anthropic-messages":
            data = {"type": "error", "error": {"type": kind, "message": reply.message}}
            return b"event: error\ndata: " + msgspec.json.encode(data) + b"\n\n"
        case "openai-completions":
            return b"data: " + msgspec.json.encode({"error": {"message": reply.message, "type": kind}}) + b"\n\n"
        case _:
            error = {"code": reply.error_type or "server_error", "message": reply.message}
            data = {"type": "response.failed", "response": {"status": "failed", "error": error, "output": []}}
            return b"event: response.failed\ndata: " + msgspec.json.encode(data) + b"\n\n"


def last_user_text(api: str, body: dict[str, Any]) -> tuple[str, int]:
    """The text of the last user message that is not a tool result, and how many replies came after it."""
    items = body.get("input") if api == "openai-responses" else body["messages"]
    if isinstance(items, str):
        return items, 0
    answered = 0
    in_reply = False
    for item in reversed(items or []):
        if item.get("role") == "user" and (text := _text_of(item["content"])):
            return text, answered
        # Responses has several items per reply (reasoning, text, calls): they count as one.
        is_reply = item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")
        answered += is_reply and not (in_reply and api == "openai-responses")
        in_reply = is_reply
    return "", answered


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") in ("text", "input_text"))


async def _serve(port: int, any_key: bool) -> None:
    async with ModelServer(port=port, any_key=any_key, keep_requests=100) as server:
        print(server.port, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted model server on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--strict-key", action="store_true", help="accept only the key test-key-123456")
    options = parser.parse_args()
    try:
        import uvloop

        uvloop.run(_serve(options.port, not options.strict_key))
    except ImportError:
        asyncio.run(_serve(options.port, not options.strict_key))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
