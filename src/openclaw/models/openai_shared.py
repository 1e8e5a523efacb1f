"""What OpenAI's two APIs, chat completions and responses, have in common."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from openclaw.messages import ImageBlock, ToolSpec
from openclaw.models.base import ModelError, ModelRequest
from openclaw.models.compat import OPENAI_BASE_URL, Quirks, quirks_of
from openclaw.models.http import WireRequest, idle_timeout_s


def wire_request(request: ModelRequest, api_key: str, path: str, body: dict[str, Any]) -> WireRequest:
    """The request for the API at ``path``. A base URL without a path gets ``/v1``."""
    model = request.model
    base = (model.base_url or OPENAI_BASE_URL).rstrip("/")
    if urlsplit(base).path == "":
        base = f"{base}/v1"
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    if quirks_of(model).is_openrouter:
        headers |= {"http-referer": "https://openclaw.ai", "x-title": "OpenClaw"}
    headers |= {name.lower(): value for name, value in model.headers.items()}
    return WireRequest(url=f"{base}{path}", headers=headers, body=body, api_key=api_key, idle_s=idle_timeout_s(model))


def system_texts(request: ModelRequest, quirks: Quirks) -> tuple[str, list[str]]:
    """The role of the system prompt and its parts."""
    role = "developer" if request.model.reasoning and quirks.supports_developer_role else "system"
    return role, [part for part in (request.system, request.system_suffix) if part.strip()]


def data_url(image: ImageBlock) -> str:
    return f"data:{image.mime_type};base64,{image.data}"


def add_tools(body: dict[str, Any], request: ModelRequest, *, nested: bool) -> None:
    """Adds the tools and the choice among them. Chat nests the description of a function, Responses does not."""
    body["tools"] = [_tool(spec, nested) for spec in request.tools]
    match request.tool_choice:
        case None | "auto":
            pass
        case "none" | "required":
            body["tool_choice"] = request.tool_choice
        case "any":
            body["tool_choice"] = "required"
        case {"name": str(name)}:
            named = {"function": {"name": name}} if nested else {"name": name}
            body["tool_choice"] = {"type": "function", **named}
        case other:
            raise ModelError(
                f'Unknown tool choice {other!r}; use "auto", "none", "required" or {{"name": ...}}.', kind="format"
            )


def _tool(spec: ToolSpec, nested: bool) -> dict[str, Any]:
    parameters = {"properties": {}, **spec.parameters, "type": "object"}
    function = {"name": spec.name, "description": spec.description, "parameters": parameters}
    # Strict mode is the default of the Responses API. It rewrites schemas and refuses many.
    return {"type": "function", "function": function} if nested else {"type": "function", **function, "strict": False}


def add_temperature(body: dict[str, Any], request: ModelRequest, quirks: Quirks) -> None:
    """Adds the temperature. OpenAI's reasoning models refuse one, unless reasoning is off."""
    effort = body.get("reasoning_effort") or body.get("reasoning", {}).get("effort")
    refused = quirks.is_openai and request.model.reasoning and effort != "none"
    if request.temperature is not None and not refused:
        body["temperature"] = request.temperature


def decoded(signature: str | None) -> Any:
    """What a block's signature holds when it is JSON, otherwise None."""
    try:
        return msgspec.json.decode(signature or "")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def number(data: Any, name: str) -> int:
    """A number of tokens. It is 0 when the server did not give it."""
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, int) else 0
