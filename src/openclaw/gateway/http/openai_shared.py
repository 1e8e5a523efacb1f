"""What the OpenAI-style endpoints share: admission, errors, sessions, tools, files and event streams."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import uuid
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from openclaw.config.agents import default_agent_id
from openclaw.config.schema.gateway import ResponseFiles, ResponseImages
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.http.common import BodyTooLarge, HttpRefusal, bearer_refusal, page_refusal, read_body
from openclaw.gateway.http.remote_file import FetchLimits, FetchRefused, fetch
from openclaw.gateway.server import params
from openclaw.gateway.server.registry import MethodError, require_agent, target_of
from openclaw.inbound.attachments import Image
from openclaw.messages import ToolSpec
from openclaw.models.thinking import parse_level
from openclaw.paths import normalize_agent_id
from openclaw.sessions.keys import SessionRef
from openclaw.tools.images import ImageProblem, fit_image, sniff_image

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

T = TypeVar("T")
MAX_USER_CHARS = 256
MAX_TOOLS = 128
NO_RETRY = {"x-should-retry": "false"}
"""The header of a failed answer to an accepted message. Without it OpenAI's clients send the message again."""
_MODEL_AGENT = re.compile(r"(?:openclaw[:/]|agent:)([a-z0-9][a-z0-9_-]{0,63})", re.IGNORECASE)
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Refused(Exception):
    """Says that a request is not served, and holds the answer that it gets."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers or {}

    def response(self) -> web.Response:
        return json_response({"error": error_shape(str(self), self.kind)}, status=self.status, headers=self.headers)


def error_shape(message: str, kind: str = "api_error") -> dict[str, Any]:
    return {"message": message, "type": kind}


def json_response(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=params.encode(body), content_type="application/json", headers=headers or {})


def admit(gateway: Gateway, request: web.BaseRequest, peer: PeerAddress) -> None:
    """Raises ``Refused`` for pages of other sites and for callers without the secret."""
    if refused := page_refusal(gateway, peer):
        raise Refused(refused.message, status=refused.status, kind="forbidden")
    if refused := bearer_refusal(gateway, request, peer):
        raise _unauthorised(refused)


def _unauthorised(refused: HttpRefusal) -> Refused:
    if refused.status == 429:
        headers = {"Retry-After": str((refused.retry_after_ms or 0) // 1000 + 1)}
        return Refused(refused.message, status=429, kind="rate_limit_error", headers=headers)
    # Clients of this interface compare the body, so the header says why.
    why = refused.message.encode("ascii", "ignore").decode().replace('"', "'")
    challenge = f'Bearer error_description="{why}"'
    return Refused("Unauthorized", status=401, kind="unauthorized", headers={"WWW-Authenticate": challenge})


async def read_json(request: web.BaseRequest, limit: int, shape: type[T]) -> T:
    """Reads the body as a record. Raises ``Refused`` with the path of the first mistake."""
    try:
        raw = await read_body(request, limit)
    except BodyTooLarge:
        raise Refused(f"the body is larger than {limit} bytes", headers={"Connection": "close"}) from None
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        raise Refused(_located(str(error))) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # JavaScript may send half surrogate pairs. The second decoder repairs them.
        return msgspec.convert(params.decode_any(raw), type=shape)
    except msgspec.ValidationError as error:
        raise Refused(_located(str(error))) from None
    except (params.NotJson, RecursionError):
        raise Refused("the body must be valid JSON") from None


def _located(problem: str) -> str:
    """``path: message``, as clients of this interface expect it."""
    match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", problem)
    if match is not None:
        return f"{match[2]}: {match[1]}"
    missing = re.fullmatch(r"Object missing required field `(\w+)`", problem)
    return f"{missing[1]}: required" if missing else problem


# Agents and sessions


def named_agent(gateway: Gateway, request: web.BaseRequest, model: str) -> str:
    """Returns the agent that the header names, else the one that the model names, else the default agent."""
    headers = request.headers
    named = headers.get("x-openclaw-agent-id", "").strip() or headers.get("x-openclaw-agent", "").strip()
    if named:
        return normalize_agent_id(named)
    match = _MODEL_AGENT.fullmatch(model.strip())
    return normalize_agent_id(match[1]) if match else default_agent_id(gateway.runtime.config.current)


async def explicit_target(
    gateway: Gateway, request: web.BaseRequest, *, agent_id: str, prefix: str, user: str | None
) -> SessionRef | None:
    """Returns the session that the header or ``user`` names, or None. Raises ``Refused`` for unknown agents."""
    try:
        require_agent(gateway, agent_id)
        key = request.headers.get("x-openclaw-session-key", "").strip()
        if not key and (user or "").strip():
            key = user_key(agent_id, prefix, user or "")
        if not key:
            return None
        try:
            target = target_of(gateway, key, agent_id)
        except MethodError as error:
            raise Refused(str(error)) from None
        if target.agent_id != agent_id:
            require_agent(gateway, target.agent_id)
    except MethodError as error:
        raise Refused(str(error), status=404) from None
    return target


def user_key(agent_id: str, prefix: str, user: str) -> str:
    name = user.strip().lower()
    if len(name) > MAX_USER_CHARS or not name.isprintable():
        raise Refused(f"user: must be printable text of at most {MAX_USER_CHARS} characters")
    return f"agent:{agent_id}:{prefix}-user:{name}"


def stateless_target(gateway: Gateway, *, agent_id: str, prefix: str, run_id: str) -> SessionRef:
    return target_of(gateway, f"agent:{agent_id}:{prefix}:{run_id}", agent_id)


def run_id_for(request: web.BaseRequest, prefix: str) -> str:
    """Returns a new id. The same ``Idempotency-Key`` always gives the same id."""
    key = request.headers.get("idempotency-key", "").strip()
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"openclaw {prefix} {key}") if key else uuid.uuid4())


# Options


def thinking_of(effort: str | None) -> str | None:
    return parse_level(effort) if effort else None


def tool_spec(path: str, kind: str, name: str | None, description: str | None, parameters: Any) -> ToolSpec:
    if kind != "function":
        raise Refused(f'{path}.type: only "function" tools can be passed to the agent, not {kind!r}')
    if not name or not _TOOL_NAME.fullmatch(name):
        raise Refused(f"{path}.name: must be 1 to 64 letters, digits, underscores or hyphens")
    if parameters is not None and not isinstance(parameters, dict):
        raise Refused(f"{path}.parameters: must be a JSON Schema object")
    schema: dict[str, Any] = parameters or {"type": "object", "properties": {}}
    return ToolSpec(name=name, description=description or "", parameters=schema)


def checked_tools(tools: list[ToolSpec]) -> list[ToolSpec]:
    names = [tool.name for tool in tools]
    if len(names) > MAX_TOOLS:
        raise Refused(f"tools: at most {MAX_TOOLS} may be passed")
    if len(set(names)) < len(names):
        raise Refused(f"tools: the name {next(name for name in names if names.count(name) > 1)!r} is used twice")
    return tools


def chosen_tools(choice: Any, tools: list[ToolSpec]) -> tuple[list[ToolSpec], Any]:
    """Returns the tools to offer and the neutral form of ``tool_choice``."""
    match choice:
        case None | "auto":
            return tools, None
        case "none":
            return [], None
        case "required":
            if not tools:
                raise Refused("Error: tool_choice=required but no tools were provided")
            return tools, "required"
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            if all(tool.name != name for tool in tools):
                raise Refused(f"Error: tool_choice names {name!r}, which is not among the tools")
            return tools, {"name": name}
        case _:
            raise Refused('tool_choice: must be "auto", "none", "required" or name one function')


MAX_IMAGES = 20
MAX_URL_PARTS = 8
_DATA_URL = re.compile(r"data:(?P<mime>[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*(?P<base64>;base64)?,", re.IGNORECASE)


async def read_pictures(urls: list[str], limits: ResponseImages, max_url_parts: int = MAX_URL_PARTS) -> list[Image]:
    """Reads the pictures at these addresses, in order. Raises ``Refused`` for the first that cannot be used."""
    if len(urls) > MAX_IMAGES:
        raise Refused(f"at most {MAX_IMAGES} images can be passed in one request")
    check_url_parts(sum(not url.startswith("data:") for url in urls), max_url_parts)
    return [await _picture(url, number, limits) for number, url in enumerate(urls, 1)]


def check_url_parts(count: int, most: int) -> None:
    if count > most:
        raise Refused(f"at most {most} parts can be fetched by URL in one request")


async def _picture(url: str, number: int, limits: ResponseImages) -> Image:
    what = f"image {number}"
    if url[:5].lower() == "data:":
        data, _ = data_url_bytes(url, limits.max_bytes, what)
    else:
        data = await fetched(url, limits, what)
    mime = sniff_image(data[:16])
    if mime is None or mime not in limits.allowed_mimes:
        kinds = ", ".join(limits.allowed_mimes)
        raise Refused(f"{what}: the content is not one of {kinds}")
    try:
        fitted = await asyncio.to_thread(fit_image, data, mime)
    except ImageProblem as problem:
        raise Refused(f"{what}: {problem}") from None
    return Image(base64.b64decode(fitted.block.data), fitted.block.mime_type)


def data_url_bytes(url: str, max_bytes: int, what: str) -> tuple[bytes, str]:
    """Returns the content of a ``data:`` address and the type that it claims."""
    match = _DATA_URL.match(url)
    if match is None:
        raise Refused(f"{what}: the data URL is malformed; it begins with data:<type>;base64,")
    mime = (match["mime"] or "text/plain").lower()
    content = url[match.end() :]
    if match["base64"]:
        return base64_bytes(content, max_bytes, what), mime
    if len(content) > 3 * max_bytes:
        raise Refused(f"{what}: larger than {max_bytes} bytes")
    return _within(unquote_to_bytes(content), max_bytes, what), mime


def base64_bytes(text: str, max_bytes: int, what: str) -> bytes:
    if len(text) * 3 // 4 > max_bytes + 3:
        raise Refused(f"{what}: larger than {max_bytes} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(f"{what}: invalid base64 content") from None
    return _within(data, max_bytes, what)


def _within(data: bytes, max_bytes: int, what: str) -> bytes:
    if len(data) > max_bytes:
        raise Refused(f"{what}: larger than {max_bytes} bytes")
    return data


async def fetched(url: str, limits: ResponseImages | ResponseFiles, what: str) -> bytes:
    if not limits.allow_url:
        raise Refused(f"{what}: fetching by URL is switched off here; send the content as a data URL")
    allowed = None if limits.url_allowlist is None else tuple(limits.url_allowlist)
    bounds = FetchLimits(
        max_bytes=limits.max_bytes,
        max_redirects=limits.max_redirects,
        timeout_s=limits.timeout_ms / 1000,
        hosts=allowed,
    )
    try:
        return await fetch(url, bounds)
    except FetchRefused as refused:
        raise Refused(f"{what}: {refused}") from None


KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0
"""A comment line is sent this often, so that proxies do not cut a stream while a tool runs."""
DONE = b"data: [DONE]\n\n"


def sse_event(data: Any, name: str | None = None) -> bytes:
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + params.encode(data) + b"\n\n"


class SseResponse:
    """An event stream. A write waits until the caller reads. A caller that hangs up does not end the run."""

    def __init__(self) -> None:
        self._response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )

    async def open(self, request: web.BaseRequest) -> None:
        self._response.enable_chunked_encoding()
        writer = await self._response.prepare(request)
        assert writer is not None
        writer.send_headers()

    async def write(self, *events: bytes) -> None:
        await self._response.write(b"".join(events))

    async def close(self) -> web.StreamResponse:
        await self._response.write(DONE)
        await self._response.write_eof()
        return self._response

    def cut(self, request: web.BaseRequest) -> web.StreamResponse:
        """Breaks the connection, so that the caller does not take the part it has for the whole."""
        if request.transport is not None:
            request.transport.abort()
        return self._response
