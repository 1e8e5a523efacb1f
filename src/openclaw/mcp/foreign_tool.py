"""A tool of an MCP server as a model may see it: its name, its description, its parameters and its results.

A server chooses all of these texts. They are bounded and disarmed, the name is one that every provider takes, and the
parameters keep only the keywords of JSON Schema that every provider takes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast

import msgspec

from openclaw.file_types import sniff_image
from openclaw.foreign_text import disarmed, disarmed_name
from openclaw.messages import TextBlock, ToolSpec, UserBlock
from openclaw.pictures import MAX_SOURCE_BYTES, ImageProblem, fit_image, off_loop
from openclaw.text import clipped
from openclaw.tools.base import ToolResult

LONGEST_NAME = 64
LONGEST_SERVER = 24
MOST_TOOLS = 100
"""How many tools one server may offer. Providers refuse a request with too many."""
LONGEST_DESCRIPTION = 1024
LONGEST_SUMMARY = 160
LONGEST_WORDS = 400
"""The longest description of one parameter."""
MAX_SCHEMA_BYTES = 32 * 1024
MAX_DEPTH = 12
MAX_RESULT_CHARS = 50_000
MAX_IMAGES = 4
SEPARATOR = "__"
_UNFIT = re.compile(r"[^a-z0-9_-]")
_PARAMETER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What every provider takes as the name of a parameter."""
_PLAIN_KEYWORDS = {
    **dict.fromkeys(("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"), (int, float)),
    "required": list,
    "enum": list,
}
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")


class ForeignTool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool that a server offers."""

    own_name: str
    """What the server calls it."""
    spec: ToolSpec
    summary: str


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as the server lists it."""

    name: str
    description: str
    schema: Mapping[str, Any]


def server_part(name: str) -> str:
    """The beginning of the names of a server's tools. It holds no ``__`` and begins and ends with a letter or a digit.

    So the first ``__`` of a tool's name always ends the server's part, and two servers never share a name.
    """
    lowered = name.strip().lower()
    part = re.sub("_{2,}", "_", _UNFIT.sub("_", lowered)).strip("_-")
    if part and part == lowered and len(part) <= LONGEST_SERVER:
        return part
    return f"{part[: LONGEST_SERVER - 7].rstrip('_') or 'server'}-{_digest(name)[:6]}"


def tool_name(part: str, own: str, taken: Collection[str] = ()) -> str:
    """``<server>__<tool>`` in lower case, at most ``LONGEST_NAME`` characters, different from those ``taken``."""
    wanted = f"{part}{SEPARATOR}{_UNFIT.sub('_', own.lower())}"
    if own and len(wanted) <= LONGEST_NAME and wanted not in taken:
        return wanted
    return f"{wanted[: LONGEST_NAME - 9]}-{_digest(own)[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def offered(
    part: str, listed: Iterable[ListedTool], allow: Sequence[str], deny: Sequence[str]
) -> tuple[list[ForeignTool], list[str]]:
    """The tools of a server that may be offered, and what had to be left out, in words."""
    tools: dict[str, ForeignTool] = {}
    left_out: list[str] = []
    for tool in listed:
        shown = clipped(disarmed_name(tool.name), 80)
        if not _wanted(tool.name, allow, deny):
            continue
        if len(tools) >= MOST_TOOLS:
            left_out.append(f"it has more than {MOST_TOOLS} tools; choose some with tools.allow")
            break
        name = tool_name(part, tool.name, tools)
        parameters = usable_schema(tool.schema)
        if name in tools or parameters is None:
            why = "its name comes twice" if name in tools else "its parameters have names that no model may use"
            left_out.append(f"{shown}: {why}")
            continue
        description = disarmed(tool.description.strip()[:LONGEST_DESCRIPTION])
        tools[name] = ForeignTool(
            own_name=tool.name,
            spec=ToolSpec(name=name, description=description or shown, parameters=parameters),
            summary=clipped(disarmed_name(tool.description), LONGEST_SUMMARY) or shown,
        )
    return list(tools.values()), left_out


def _wanted(name: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    if any(fnmatchcase(name.lower(), pattern.lower()) for pattern in deny):
        return False
    return not allow or any(fnmatchcase(name.lower(), pattern.lower()) for pattern in allow)


# The parameters


def usable_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema with the keywords that every provider takes. None if it needs a parameter that none would take.

    References are put in. A schema that is too large or too deep becomes an object with any parameters.
    """
    definitions = {
        f"#/{key}/{name}": value
        for key in ("$defs", "definitions")
        if isinstance(found := schema.get(key), dict)
        for name, value in found.items()
    }
    cleaned = _cleaned(schema, definitions, 0)
    cleaned.pop("anyOf", None)  # Providers want a plain object at the top.
    properties = cast("dict[str, Any]", cleaned.get("properties", {}))
    required = [name for name in cleaned.get("required", []) if isinstance(name, str)]
    if any(not _PARAMETER.fullmatch(name) for name in required):
        return None
    kept = {name: value for name, value in properties.items() if _PARAMETER.fullmatch(name)}
    result: dict[str, Any] = {"type": "object", "properties": kept}
    if needed := [name for name in required if name in kept]:
        result["required"] = needed
    if cleaned.get("additionalProperties") is False:
        result["additionalProperties"] = False
    if len(msgspec.json.encode(result)) > MAX_SCHEMA_BYTES:
        return {"type": "object", "properties": {}}
    return result


def _cleaned(schema: Any, definitions: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return {}
    given = cast("dict[str, Any]", schema)
    if isinstance(reference := given.get("$ref"), str):
        aside = {key: value for key, value in given.items() if key == "description"}
        return _cleaned({**definitions.get(reference, {}), **aside}, definitions, depth + 1)
    inner = partial(_cleaned, definitions=definitions, depth=depth + 1)
    result: dict[str, Any] = {}
    for part in given["allOf"] if isinstance(given.get("allOf"), list) else ():
        _merge(result, inner(part))
    if (types := _types(given.get("type"))) is not None:
        result["type"] = types
    if isinstance(words := given.get("description"), str):
        result["description"] = disarmed(words[:LONGEST_WORDS])
    for keyword, kind in _PLAIN_KEYWORDS.items():
        if isinstance(value := given.get(keyword), kind) and not isinstance(value, bool):
            result[keyword] = _plain(value)
    if "const" in given and "enum" not in result:
        result["enum"] = [_plain(given["const"])]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(options := given.get(keyword), list) and options:
            result["anyOf"] = [inner(option) for option in cast("list[Any]", options)]
    if isinstance(properties := given.get("properties"), dict):
        own = {str(name): inner(value) for name, value in cast("dict[Any, Any]", properties).items()}
        result["properties"] = {**result.get("properties", {}), **own}
    if isinstance(extra := given.get("additionalProperties"), bool | dict):
        result["additionalProperties"] = extra if isinstance(extra, bool) else inner(extra)
    if result.get("type") == "array":
        result["items"] = inner(given.get("items"))  # Providers refuse a list whose items are not told.
    return result


def _types(declared: Any) -> str | list[str] | None:
    named = [declared] if isinstance(declared, str) else declared
    known = [name for name in cast("list[Any]", named) if name in _TYPES] if isinstance(named, list) else []
    return known[0] if len(known) == 1 else known or None


def _merge(result: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds what one part of ``allOf`` asks for."""
    properties = {**result.get("properties", {}), **more.get("properties", {})}
    required = [*result.get("required", []), *more.get("required", [])]
    result.update(more)
    if properties:
        result["properties"] = properties
    if required:
        result["required"] = list(dict.fromkeys(required))


def _plain(value: Any) -> Any:
    """A value of the schema. Its texts are somebody else's, and a model reads them."""
    if isinstance(value, str):
        return disarmed(value[:LONGEST_WORDS])
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)[:200]]
    return value if isinstance(value, int | float | bool) or value is None else str(value)[:LONGEST_WORDS]


# The results


class Answered(msgspec.Struct, kw_only=True):
    """What a server answered to a call, in plain values: the blocks of MCP as they stand on the wire."""

    content: list[dict[str, Any]]
    structured: Any = None
    failed: bool = False


async def tool_result(answer: Answered, server: str, own_name: str, *, sees_images: bool) -> ToolResult:
    """The answer as a model may read it: bounded, disarmed, with pictures that providers take."""
    texts: list[str] = []
    blocks: list[UserBlock] = []
    for block in answer.content:
        if block.get("type") == "image":
            shown = await _picture(block, sees_images and len(blocks) < MAX_IMAGES)
            if isinstance(shown, str):
                texts.append(shown)
            else:
                blocks.append(shown)
        elif text := _text_of(block):
            texts.append(text)
    if not texts and not blocks and answer.structured is not None:
        texts.append(msgspec.json.format(msgspec.json.encode(answer.structured), indent=2).decode())
    whole = "\n".join(texts)
    text = disarmed(whole[:MAX_RESULT_CHARS])
    if len(whole) > MAX_RESULT_CHARS:
        text += f"\n[Cut: {MAX_RESULT_CHARS} of {len(whole)} characters]"
    if text or not blocks:
        blocks.insert(0, TextBlock(text=text or "(no output)"))
    status = "error" if answer.failed else "completed"
    details = {"status": status, "server": server, "tool": own_name, "truncated": len(whole) > MAX_RESULT_CHARS}
    return ToolResult(content=blocks, details=details)


def _text_of(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource_link":
            return f"Resource: {block.get('name', '')} {block.get('uri', '')}".strip()
        case "resource":
            resource = cast("dict[str, Any]", block.get("resource") or {})
            text = resource.get("text")
            return str(text) if text is not None else f"(a file that is no text: {resource.get('uri', '')})"
        case "audio":
            return f"(a sound that cannot be heard here: {block.get('mimeType', '')})"
        case _:
            return ""


async def _picture(block: Mapping[str, Any], shown: bool) -> UserBlock | str:
    if not shown:
        return "(a picture that is not shown)"
    encoded = str(block.get("data", ""))
    if len(encoded) > MAX_SOURCE_BYTES:
        return "(a picture that is too large)"
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "(a picture that cannot be decoded)"
    kind = sniff_image(data[:16])
    if kind is None:
        return "(a picture of an unknown kind)"
    try:
        fitted = await off_loop(partial(fit_image, data, kind))
    except ImageProblem as problem:
        return f"(a picture that is not shown: {problem})"
    return fitted.block
