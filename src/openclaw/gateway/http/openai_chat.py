"""``POST /v1/chat/completions`` and ``GET /v1/models``: the agent behind OpenAI's chat API."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from openclaw.clock import Clock
from openclaw.config.agents import agent_ids
from openclaw.config.store import ConfigStore
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.http.common import HttpRoute, RequestRefused, error_shape, json_response, refusal_response
from openclaw.gateway.http.openai_request import Ask, InputMessage, read_request, tool_spec
from openclaw.gateway.http.openai_run import OpenAiRuns, RunEnding, answer, sse_event
from openclaw.messages import Usage


class FunctionCall(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class MadeCall(msgspec.Struct):
    id: str = ""
    function: FunctionCall = msgspec.field(default_factory=FunctionCall)


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[MadeCall] | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class ChatFunction(msgspec.Struct):
    name: str | None = None
    description: str | None = None
    parameters: Any = None


class ChatTool(msgspec.Struct):
    type: str = "function"
    function: ChatFunction = msgspec.field(default_factory=ChatFunction)


class ChatBody(msgspec.Struct):
    """The fields of the request that count here. Other fields (temperature, seed …) are accepted and ignored."""

    messages: list[ChatMessage] = []
    model: str = "openclaw"
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    tools: list[ChatTool] | None = None
    tool_choice: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    n: int | None = None


class ChatCompletions:
    """Serves OpenAI's chat API."""

    def __init__(self, runs: OpenAiRuns, config: ConfigStore, clock: Clock, started_at: int) -> None:
        self._runs = runs
        self._config = config
        self._clock = clock
        self._started_at = started_at

    def routes(self) -> list[HttpRoute]:
        return [
            HttpRoute("POST", "/v1/chat/completions", self.create, refusal_response),
            HttpRoute("GET", "/v1/models", self.models, refusal_response),
            HttpRoute("GET", "/v1/models/*", self.models, refusal_response),
        ]

    async def create(self, request: web.BaseRequest, _peer: PeerAddress) -> web.StreamResponse:
        endpoint = self._config.current.gateway.http.endpoints.chat_completions
        try:
            body = await read_request(request, endpoint, "chatCompletions", ChatBody)
            following = await self._runs.start(request, _ask(body), endpoint.images)
        except RequestRefused as refused:
            return refused.response()
        form = Completion(f"chatcmpl_{following.run_id}", self._clock.now_ms() // 1000, body)
        return await answer(request, following, form, bool(body.stream))

    async def models(self, request: web.BaseRequest, _peer: PeerAddress) -> web.StreamResponse:
        """List the agents under the names that a request may use as ``model``."""
        endpoints = self._config.current.gateway.http.endpoints
        if not endpoints.chat_completions.enabled and not endpoints.responses.enabled:
            hint = "enable it with gateway.http.endpoints.chatCompletions.enabled or responses.enabled"
            return RequestRefused(f"no such endpoint: {request.path} ({hint})", status=404).response()
        agent_names = ["openclaw", *(f"openclaw:{agent_id}" for agent_id in agent_ids(self._config.current))]
        created = self._started_at // 1000
        rows = [{"id": id, "object": "model", "created": created, "owned_by": "openclaw"} for id in agent_names]
        name = request.path.removeprefix("/v1/models").strip("/")
        if not name:
            return json_response({"object": "list", "data": rows})
        for row in rows:
            if row["id"] == name:
                return json_response(row)
        return RequestRefused(
            f"The model {name[:200]!r} does not exist; GET /v1/models lists them.", status=404
        ).response()


def _ask(body: ChatBody) -> Ask:
    if body.n not in (None, 1):
        raise RequestRefused("n: only one answer per request is given")
    limit = body.max_completion_tokens or body.max_tokens
    if limit is not None and limit < 1:
        raise RequestRefused("max_completion_tokens: must be at least 1")
    tools = [
        tool_spec(f"tools.{index}", tool.type, tool.function.name, tool.function.description, tool.function.parameters)
        for index, tool in enumerate(body.tools or [])
    ]
    system, inputs = conversation(body.messages)
    return Ask(
        source="openai",
        model=body.model,
        messages=inputs,
        no_message="Missing user message in `messages`.",
        system=system,
        tools=tools,
        tool_choice=body.tool_choice,
        max_tokens=limit,
        effort=body.reasoning_effort,
        user=body.user,
    )


def conversation(messages: list[ChatMessage]) -> tuple[str, list[InputMessage]]:
    """Returns the joined system texts, and everything else in order."""
    system: list[str] = []
    inputs: list[InputMessage] = []
    names: dict[str, str] = {}
    for message in messages:
        text, images = _content(message.content)
        match message.role:
            case "system" | "developer":
                system += [text] if text.strip() else []
            case "user":
                inputs.append(InputMessage(role="user", text=text, images=images))
            case "assistant":
                calls = message.tool_calls or []
                names |= {call.id: call.function.name for call in calls}
                # A session that did not make these calls itself reads them as words.
                made = [f"[called {call.function.name}({call.function.arguments})]" for call in calls]
                text = "\n".join(part for part in (text, *made) if part)
                inputs.append(InputMessage(role="assistant", text=text, calls=[call.id for call in calls if call.id]))
            case "tool" | "function":
                call_id = message.tool_call_id or ""
                name = message.name or names.get(call_id, "")
                inputs.append(InputMessage(role="tool", text=text, images=images, name=name, call_id=call_id))
            case role:
                raise RequestRefused(f"messages: unknown role {role[:40]!r}")
    return "\n\n".join(system), inputs


def _content(content: str | list[dict[str, Any]] | None) -> tuple[str, list[str]]:
    if not isinstance(content, list):
        return content or "", []
    texts: list[str] = []
    images: list[str] = []
    for part in content:
        match part:
            case {"type": "text" | "input_text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "image_url", "image_url": str(url)}:
                images.append(url)
            case {"type": str(kind)}:
                raise RequestRefused(
                    f"messages: content parts of type {kind[:40]!r} are not supported; use text and image_url"
                )
            case _:
                raise RequestRefused("messages: a content part must be an object with a type")
    return "\n".join(texts), images


class Completion:
    """Makes the JSON of one completion, whole or in chunks."""

    def __init__(self, id: str, created: int, body: ChatBody) -> None:
        self._head = {"id": id, "created": created, "model": body.model}
        self._usage_wanted = body.stream_options is not None and body.stream_options.include_usage
        self._spoke = False

    def whole(self, ending: RunEnding) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": ending.shown or None}
        if ending.calls:
            message["tool_calls"] = _tool_calls(ending, indexed=False)
        choice = {"index": 0, "message": message, "finish_reason": _finish(ending)}
        return {**self._head, "object": "chat.completion", "choices": [choice], **_usage_field(ending.usage)}

    def failed(self, ending: RunEnding) -> dict[str, Any]:
        kind = "rate_limit_error" if ending.status == 429 else "api_error"
        return {"error": error_shape(ending.error or "", kind)}

    def begin(self) -> list[bytes]:
        return [self._chunk({"role": "assistant"})]

    def text(self, piece: str) -> list[bytes]:
        self._spoke = True
        return [self._chunk({"content": piece})]

    def end(self, ending: RunEnding) -> list[bytes]:
        if ending.error is not None:
            return [sse_event(self.failed(ending))]
        chunks: list[bytes] = []
        if not self._spoke and ending.shown:
            chunks += self.text(ending.shown)
        if ending.calls:
            chunks.append(self._chunk({"tool_calls": _tool_calls(ending, indexed=True)}))
        chunks.append(self._chunk({}, _finish(ending)))
        if self._usage_wanted:
            last = {**self._head, "object": "chat.completion.chunk", "choices": [], **_usage_field(ending.usage)}
            chunks.append(sse_event(last))
        return chunks

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse_event({**self._head, "object": "chat.completion.chunk", "choices": [choice]})


def _finish(ending: RunEnding) -> str:
    if ending.calls:
        return "tool_calls"
    return "length" if ending.cut else "stop"


def _tool_calls(ending: RunEnding, *, indexed: bool) -> list[dict[str, Any]]:
    return [
        {
            **({"index": index} if indexed else {}),
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(ending.calls)
    ]


def _usage_field(usage: Usage | None) -> dict[str, Any]:
    """Returns the ``usage`` field. It is left out when the numbers are not known."""
    if usage is None:
        return {}
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": usage.output,
            "total_tokens": prompt + usage.output,
            "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        }
    }
