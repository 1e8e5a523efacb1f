"""What the OpenAI-style endpoints have in common: who may call, errors in OpenAI's shape, which session is meant."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp import web

from openclaw.config.agents import default_agent_id
from openclaw.gateway.auth.origin import Peer
from openclaw.gateway.http.common import BodyTooLarge, HttpRefusal, bearer_refusal, page_refusal, read_body
from openclaw.gateway.server import frames
from openclaw.gateway.server.registry import MethodError
from openclaw.gateway.targets import Target, require_agent, target_of
from openclaw.messages import ToolSpec
from openclaw.models.thinking import parse_level
from openclaw.paths import normalize_agent_id

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

T = TypeVar("T")
MAX_USER_CHARS = 256
MAX_TOOLS = 128
NO_RETRY = {"x-should-retry": "false"}
"""For answers to a message that was accepted: OpenAI's clients would otherwise send it again by themselves."""
_MODEL_AGENT = re.compile(r"(?:openclaw[:/]|agent:)([a-z0-9][a-z0-9_-]{0,63})", re.IGNORECASE)
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Refused(Exception):
    """A request that is not served, with the answer it gets."""

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
    return web.Response(status=status, body=frames.encode(body), content_type="application/json", headers=headers or {})


def admit(gateway: Gateway, request: web.BaseRequest, peer: Peer) -> None:
    """Raises ``Refused`` for pages of other sites and for callers without the secret."""
    if refused := page_refusal(gateway, peer):
        raise Refused(refused.message, status=refused.status, kind="forbidden")
    if refused := bearer_refusal(gateway, request, peer):
        raise _unauthorised(refused)


def _unauthorised(refused: HttpRefusal) -> Refused:
    if refused.status == 429:
        headers = {"Retry-After": str((refused.retry_after_ms or 0) // 1000 + 1)}
        return Refused(refused.message, status=429, kind="rate_limit_error", headers=headers)
    # The body is what clients of this interface compare; why it was refused stands in the header.
    why = refused.message.encode("ascii", "ignore").decode().replace('"', "'")
    challenge = f'Bearer error_description="{why}"'
    return Refused("Unauthorized", status=401, kind="unauthorized", headers={"WWW-Authenticate": challenge})


async def read_json(request: web.BaseRequest, limit: int, shape: type[T]) -> T:
    """The body as a record; raises ``Refused`` with the path of the first mistake."""
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
        # Half surrogate pairs, as JavaScript may send them, are mended before the body is given up.
        return msgspec.convert(frames.decode_any(raw), type=shape)
    except msgspec.ValidationError as error:
        raise Refused(_located(str(error))) from None
    except (frames.NotJson, RecursionError):
        raise Refused("the body must be valid JSON") from None


def _located(problem: str) -> str:
    """``path: message``, as clients of this interface expect it."""
    match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", problem)
    if match is not None:
        return f"{match[2]}: {match[1]}"
    missing = re.fullmatch(r"Object missing required field `(\w+)`", problem)
    return f"{missing[1]}: required" if missing else problem


# Whose session


def named_agent(gateway: Gateway, request: web.BaseRequest, model: str) -> str:
    """By header, else by the model's name, else the default agent."""
    headers = request.headers
    named = headers.get("x-openclaw-agent-id", "").strip() or headers.get("x-openclaw-agent", "").strip()
    if named:
        return normalize_agent_id(named)
    match = _MODEL_AGENT.fullmatch(model.strip())
    return normalize_agent_id(match[1]) if match else default_agent_id(gateway.runtime.config.current)


async def explicit_target(
    gateway: Gateway, request: web.BaseRequest, *, agent_id: str, prefix: str, user: str | None
) -> Target | None:
    """The session the caller names by header or by ``user``; None when it names none. Unknown agents are refused."""
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


def stateless_target(gateway: Gateway, *, agent_id: str, prefix: str, run_id: str) -> Target:
    return target_of(gateway, f"agent:{agent_id}:{prefix}:{run_id}", agent_id)


def run_id_for(request: web.BaseRequest, prefix: str) -> str:
    """A new id, or the same one again for a repeated ``Idempotency-Key``."""
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
    """The tools to offer and the neutral form of ``tool_choice``."""
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
