"""``POST /v1/responses``: the agent behind OpenAI's Responses API."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from openclaw.config.schema.gateway import ResponseFiles, ResponsesEndpoint
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.http import openai_run
from openclaw.gateway.http.openai_run import NOTHING_SAID, Ask, ClientCall, Ending, Following, Said, SlowReader
from openclaw.gateway.http.openai_shared import (
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    NO_RETRY,
    Refused,
    SseResponse,
    admit,
    base64_bytes,
    check_url_parts,
    checked_tools,
    chosen_tools,
    data_url_bytes,
    explicit_target,
    fetched,
    json_response,
    named_agent,
    read_json,
    read_pictures,
    run_id_for,
    sse_event,
    thinking_of,
    tool_spec,
)
from openclaw.messages import Usage

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

SOURCE = "openresponses"
NO_MESSAGE = "Missing user message in `input`."
_ID = "resp_"


class Reasoning(msgspec.Struct):
    effort: str | None = None


class ResponsesBody(msgspec.Struct):
    """The fields of the request that count here. Other fields (store, truncation …) are accepted and ignored."""

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


async def create(request: web.BaseRequest, gateway: Gateway, peer: PeerAddress) -> web.StreamResponse:
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
    """Reads one tool. Clients put the function's fields beside ``type`` or one level down."""
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


MAX_FILES = 20
_SUFFIXES = {
    "txt": "text/plain",
    "md": "text/markdown",
    "html": "text/html",
    "htm": "text/html",
    "csv": "text/csv",
    "json": "application/json",
    "pdf": "application/pdf",
}
_closing = re.compile(r"<(?=/file\b)", re.IGNORECASE)


class InputFile(msgspec.Struct, kw_only=True):
    name: str
    data: str | None = None
    """The content as Base64 or as a ``data:`` address."""
    mime: str | None = None
    url: str | None = None


class Spoken(msgspec.Struct, kw_only=True):
    """The input of a request, sorted by what it is."""

    system: list[str] = []
    said: list[Said] = []
    files: list[InputFile] = []


def conversation(given: str | list[dict[str, Any]]) -> Spoken:
    """Reads the input. Raises ``Refused`` with the place of the first item that cannot be used."""
    if isinstance(given, str):
        return Spoken(said=[Said(role="user", text=given)])
    spoken = Spoken(system=[], said=[], files=[])
    names: dict[str, str] = {}
    for index, item in enumerate(given):
        _add_item(item, f"input.{index}", spoken, names)
    return spoken


def _add_item(item: dict[str, Any], path: str, spoken: Spoken, names: dict[str, str]) -> None:
    match item:
        case {"type": "function_call_output", "call_id": str(call_id)}:
            text, _ = _parts(item.get("output"), f"{path}.output", spoken)
            spoken.said.append(Said(role="tool", text=text, name=names.get(call_id, ""), call_id=call_id))
        case {"type": "function_call", "call_id": str(call_id), "name": str(name)}:
            names[call_id] = name
            text = f"[called {name}({item.get('arguments', '')})]"
            spoken.said.append(Said(role="assistant", text=text, calls=[call_id]))
        case {"type": "reasoning" | "item_reference"}:
            pass
        case {"role": str(role)} if item.get("type", "message") == "message":
            _add_message(role, item.get("content"), path, spoken)
        case _:
            raise Refused(f"{path}: items of type {str(item.get('type'))[:40]!r} are not supported")


def _add_message(role: str, content: Any, path: str, spoken: Spoken) -> None:
    text, images = _parts(content, f"{path}.content", spoken)
    match role:
        case "system" | "developer":
            spoken.system += [text] if text.strip() else []
        case "user":
            spoken.said.append(Said(role="user", text=text, images=images))
        case "assistant":
            spoken.said.append(Said(role="assistant", text=text))
        case _:
            raise Refused(f"{path}.role: unknown role {role[:40]!r}")


def _parts(content: Any, path: str, spoken: Spoken) -> tuple[str, list[str]]:
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise Refused(f"{path}: must be text or a list of parts")
    texts: list[str] = []
    images: list[str] = []
    for index, part in enumerate(content):
        match part:
            case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": "input_image"}:
                images.append(_image(part, f"{path}.{index}"))
            case {"type": "input_file"}:
                spoken.files.append(_file(part, f"{path}.{index}"))
            case _:
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise Refused(f"{path}.{index}: parts of type {str(kind)[:40]!r} are not supported")
    return "\n".join(texts), images


def _image(part: dict[str, Any], path: str) -> str:
    match part:
        case {"image_url": str(url)} | {"image_url": {"url": str(url)}} | {"source": {"type": "url", "url": str(url)}}:
            return url
        case {"source": {"type": "base64", "media_type": str(mime), "data": str(data)}}:
            return f"data:{mime};base64,{data}"
        case _:
            raise Refused(f"{path}: give the image as image_url (a data URL or an address)")


def _file(part: dict[str, Any], path: str) -> InputFile:
    source: Any = part.get("source")
    name: Any = part.get("filename") or (source.get("filename") if isinstance(source, dict) else None) or "file"
    match part:
        case {"file_data": str(data)}:
            return InputFile(name=str(name), data=data)
        case {"file_url": str(url)} | {"source": {"type": "url", "url": str(url)}}:
            return InputFile(name=str(name), url=url)
        case {"source": {"type": "base64", "data": str(data)}}:
            mime = source.get("media_type")
            return InputFile(name=str(name), data=data, mime=mime if isinstance(mime, str) else None)
        case _:
            raise Refused(f"{path}: give the file as file_data (base64) or file_url")


async def file_blocks(files: list[InputFile], limits: ResponseFiles) -> list[str]:
    """Returns each file as a marked block of text. Raises ``Refused`` for the first that cannot be read."""
    if len(files) > MAX_FILES:
        raise Refused(f"at most {MAX_FILES} files can be passed in one request")
    return [await _block(file, number, limits) for number, file in enumerate(files, 1)]


async def _block(file: InputFile, number: int, limits: ResponseFiles) -> str:
    what = f"file {number}"
    mime = file.mime
    if file.url is not None and file.url[:5].lower() != "data:":
        data = await fetched(file.url, limits, what)
        name = file.name if file.name != "file" else file.url.partition("?")[0].rsplit("/", 1)[-1]
    else:
        source, name = file.url or file.data or "", file.name
        if source[:5].lower() == "data:":
            data, mime = data_url_bytes(source, limits.max_bytes, what)
        else:
            data = base64_bytes(source, limits.max_bytes, what)
    mime = (mime or _SUFFIXES.get(name.rpartition(".")[2].lower(), "text/plain")).lower()
    if data.startswith(b"%PDF-") or mime == "application/pdf":
        raise Refused(f"{what}: PDF files cannot be read yet; send their text instead")
    if mime not in limits.allowed_mimes:
        raise Refused(f"{what}: the type {mime} is not one of {', '.join(limits.allowed_mimes)}")
    text = data.decode("utf-8", "replace")
    if "\x00" in text:
        raise Refused(f"{what}: the content is not text")
    return _marked(name, text[: limits.max_chars], len(text) > limits.max_chars)


def _marked(name: str, text: str, cut: bool) -> str:
    """Wraps the text of a file in a ``<file>`` block. The text cannot close the block itself."""
    shown = "".join(char for char in name if char.isprintable() and char not in '"<>&')[:200] or "file"
    note = "\n[cut here: the file is longer]" if cut else ""
    return f'<file name="{shown}">\n{_closing.sub("&lt;", text)}{note}\n</file>'


class Reply(msgspec.Struct, kw_only=True):
    """The fields of the request that every form of the answer repeats, and the forms."""

    id: str
    created_at: int
    model: str
    tools: list[dict[str, Any]]
    tool_choice: Any
    metadata: dict[str, Any]
    instructions: str | None
    max_output_tokens: int | None
    previous_response_id: str | None

    @property
    def message_id(self) -> str:
        return f"msg_{self.id.removeprefix('resp_')}"

    def shape(self, status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "model": self.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata,
            "parallel_tool_calls": True,
            "previous_response_id": self.previous_response_id,
            "tool_choice": self.tool_choice,
            "tools": self.tools,
            **more,
        }

    def completed(self, ending: Ending, streamed: str = "") -> dict[str, Any]:
        """Returns the whole response. It repeats ``streamed``, the text that the caller has seen."""
        text = streamed or ending.text or ("" if ending.calls else NOTHING_SAID)
        output = [self.message(text)] if text else []
        output += [call_item(call) for call in ending.calls]
        details = {"incomplete_details": {"reason": "max_output_tokens"}} if ending.cut and not ending.calls else {}
        status = "incomplete" if ending.calls or ending.cut else "completed"
        return self.shape(status, output, **details, **_usage_field(ending.usage))

    def failed(self, ending: Ending) -> dict[str, Any]:
        error = {"code": "api_error", "message": ending.error}
        return self.shape("failed", [], error=error, **_usage_field(ending.usage))

    def message(self, text: str | None, status: str = "completed") -> dict[str, Any]:
        content = [] if text is None else [text_part(text)]
        return {"type": "message", "id": self.message_id, "role": "assistant", "content": content, "status": status}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def call_item(call: ClientCall, *, begun: bool = False) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": call.id,
        "call_id": call.id,
        "name": call.name,
        "arguments": "" if begun else call.arguments,
        "status": "in_progress" if begun else "completed",
    }


def _usage_field(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {"usage": None}
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": usage.cache_read},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + usage.output,
        }
    }


class ReplyStream:
    """Makes the events of a stream in the order that clients rely on. The text's item begins with its first piece."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._number = 0
        self._pieces: list[str] = []
        self._item = 0
        """The next free place of the output."""

    def begin(self) -> list[bytes]:
        response = self._reply.shape("in_progress", [], usage=None)
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def text(self, piece: str) -> list[bytes]:
        events: list[bytes] = []
        if not self._pieces:
            item = self._reply.message(None, "in_progress")
            events.append(self._event("response.output_item.added", output_index=0, item=item))
            events.append(self._text_event("response.content_part.added", part=text_part("")))
        self._pieces.append(piece)
        events.append(self._text_event("response.output_text.delta", delta=piece, logprobs=[]))
        return events

    def end(self, ending: Ending) -> list[bytes]:
        events: list[bytes] = []
        if not self._pieces and (text := ending.text or ("" if ending.calls else NOTHING_SAID)):
            events += self.text(text)
        events += self._end_text()
        for call in ending.calls:
            events += self._call(call)
        response = self._reply.completed(ending, "".join(self._pieces))
        name = "response.incomplete" if ending.cut and not ending.calls else "response.completed"
        return [*events, self._event(name, response=response)]

    def fail(self, ending: Ending) -> list[bytes]:
        return [*self._end_text(), self._event("response.failed", response=self._reply.failed(ending))]

    def _end_text(self) -> list[bytes]:
        if not self._pieces:
            return []
        text = "".join(self._pieces)
        self._item = 1
        return [
            self._text_event("response.output_text.done", text=text, logprobs=[]),
            self._text_event("response.content_part.done", part=text_part(text)),
            self._event("response.output_item.done", output_index=0, item=self._reply.message(text)),
        ]

    def _call(self, call: ClientCall) -> list[bytes]:
        place: dict[str, Any] = {"output_index": self._item, "item_id": call.id}
        index, self._item = self._item, self._item + 1
        return [
            self._event("response.output_item.added", output_index=index, item=call_item(call, begun=True)),
            self._event("response.function_call_arguments.delta", **place, delta=call.arguments),
            self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
            self._event("response.output_item.done", output_index=index, item=call_item(call)),
        ]

    def _text_event(self, name: str, **fields: Any) -> bytes:
        place = {"item_id": self._reply.message_id, "output_index": 0, "content_index": 0}
        return self._event(name, **place, **fields)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        event = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return sse_event(event, name)
