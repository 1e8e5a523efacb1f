"""``POST /v1/responses``: the agent behind OpenAI's Responses API."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from openclaw.config.schema.gateway import ResponsesEndpoint
from openclaw.gateway.auth.origin import Peer
from openclaw.gateway.http import openai_run
from openclaw.gateway.http.openai_common import (
    NO_RETRY,
    Refused,
    admit,
    checked_tools,
    chosen_tools,
    explicit_target,
    json_response,
    named_agent,
    read_json,
    run_id_for,
    thinking_of,
    tool_spec,
)
from openclaw.gateway.http.openai_images import check_url_parts, read_pictures
from openclaw.gateway.http.openai_input import conversation, file_blocks
from openclaw.gateway.http.openai_reply import Reply, ReplyStream
from openclaw.gateway.http.openai_run import Ask, Following, SlowReader
from openclaw.gateway.http.sse import KEEP_ALIVE, KEEP_ALIVE_S, SseResponse

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

SOURCE = "openresponses"
NO_MESSAGE = "Missing user message in `input`."
_ID = "resp_"


class Reasoning(msgspec.Struct):
    effort: str | None = None


class ResponsesBody(msgspec.Struct):
    """What of the request means something here; other fields (metadata, store, truncation …) are accepted."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    user: str | None = None
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, Any] | None = None


async def create(request: web.BaseRequest, gateway: Gateway, peer: Peer) -> web.StreamResponse:
    endpoint = gateway.runtime.config.current.gateway.http.endpoints.responses
    try:
        if not endpoint.enabled:
            hint = "enable it with gateway.http.endpoints.responses.enabled"
            raise Refused(f"no such endpoint: {request.path} ({hint})", status=404)
        admit(gateway, request, peer)
        body = await read_json(request, endpoint.max_body_bytes, ResponsesBody)
        ask = await _ask(gateway, request, body, endpoint)
        target = await explicit_target(gateway, request, agent_id=ask.agent_id, prefix=SOURCE, user=body.user)
        seat = await openai_run.find_seat(gateway, ask, target)
        images = await read_pictures(seat.prompt.images, endpoint.images, endpoint.max_url_parts)
        following = await openai_run.start(gateway, ask, seat, images)
    except Refused as refused:
        return refused.response()
    reply = Reply(
        id=_ID + ask.run_id,
        created_at=gateway.runtime.clock.now_ms() // 1000,
        model=body.model,
        tools=body.tools or [],
        tool_choice=body.tool_choice or "auto",
        metadata=body.metadata or {},
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        previous_response_id=body.previous_response_id,
    )
    try:
        if body.stream:
            return await _stream(request, following, reply)
        ending = await following.ending()
        if ending.error is not None:
            return json_response(reply.failed(ending), status=ending.status, headers=NO_RETRY)
        return json_response(reply.completed(ending))
    finally:
        following.leave()


async def _ask(gateway: Gateway, request: web.BaseRequest, body: ResponsesBody, endpoint: ResponsesEndpoint) -> Ask:
    tools = [_tool(f"tools.{index}", tool) for index, tool in enumerate(body.tools or [])]
    offered, choice = chosen_tools(body.tool_choice, checked_tools(tools))
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise Refused("max_output_tokens: must be at least 1")
    spoken = conversation(body.input)
    addresses = [file.url for file in spoken.files if file.url] + [url for one in spoken.said for url in one.images]
    check_url_parts(sum(not url.startswith("data:") for url in addresses), endpoint.max_url_parts)
    files = await file_blocks(spoken.files, endpoint.files)
    previous = body.previous_response_id or ""
    return Ask(
        source=SOURCE,
        run_id=run_id_for(request, SOURCE),
        agent_id=named_agent(gateway, request, body.model),
        said=spoken.said,
        no_message=NO_MESSAGE,
        system="\n\n".join(part for part in (body.instructions or "", *spoken.system, *files) if part.strip()),
        tools=offered,
        tool_choice=choice,
        max_tokens=body.max_output_tokens,
        thinking=thinking_of(body.reasoning.effort if body.reasoning else None),
        previous_run=previous.removeprefix(_ID) if previous.startswith(_ID) else None,
    )


def _tool(path: str, tool: dict[str, Any]) -> Any:
    """Both spellings are in use: the function's fields beside ``type``, or one level down."""
    nested = tool.get("function")
    function: dict[str, Any] = nested if isinstance(nested, dict) else tool
    name, description = function.get("name"), function.get("description")
    return tool_spec(
        path,
        str(tool.get("type")),
        name if isinstance(name, str) else None,
        description if isinstance(description, str) else None,
        function.get("parameters"),
    )


async def _stream(request: web.BaseRequest, following: Following, reply: Reply) -> web.StreamResponse:
    response = SseResponse()
    events = ReplyStream(reply)
    try:
        await response.open(request)
        await response.write(*events.begin())
        async with aclosing(following.text(KEEP_ALIVE_S)) as pieces:
            async for piece in pieces:
                await response.write(*(events.text(piece) if piece else [KEEP_ALIVE]))
        ending = await following.ending()
        await response.write(*(events.fail(ending) if ending.error is not None else events.end(ending)))
        return await response.close()
    except (SlowReader, ConnectionError):
        return response.cut(request)


ROUTES = [("POST", "/v1/responses", create)]
