"""What Anthropic would refuse, refused with its words. The other vendors' rules are in ``model_rules_openai``."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import io
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from PIL import Image

from openclaw.models.base import Model

NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ID = re.compile(r"[a-zA-Z0-9_-]+")
MEDIA_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_TOP = {
    "model", "messages", "max_tokens", "system", "tools", "tool_choice", "thinking", "output_config", "temperature",
    "top_p", "top_k", "stop_sequences", "stream", "metadata", "service_tier",
}  # fmt: skip
_BLOCK_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    # type: (required, optional)
    "text": ({"text"}, {"cache_control", "citations"}),
    "image": ({"source"}, {"cache_control"}),
    "tool_use": ({"id", "name", "input"}, {"cache_control"}),
    "tool_result": ({"tool_use_id"}, {"content", "is_error", "cache_control"}),
    "thinking": ({"thinking", "signature"}, set()),
    "redacted_thinking": ({"data"}, set()),
}
_ROLE_BLOCKS = {
    "user": {"text", "image", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}


class Refused(Exception):
    """The vendor would answer 400 with this message."""


def check(condition: Any, message: str) -> None:
    if not condition:
        raise Refused(message)


def check_anthropic(body: Any) -> None:
    check(isinstance(body, dict), "Input should be an object")
    for name in body:
        check(name in _TOP, f"{name}: Extra inputs are not permitted")
    check(isinstance(body.get("model"), str) and body["model"], "model: Field required")
    limit = body.get("max_tokens")
    check(type(limit) is int, "max_tokens: Field required")
    check(limit >= 1, "max_tokens: Input should be greater than or equal to 1")
    messages = body.get("messages")
    check(isinstance(messages, list), "messages: Field required")
    check(messages, "messages: at least one message is required")
    _check_system(body.get("system"))
    tools = _check_tools(body)
    for index, message in enumerate(messages):
        _check_message(message, f"messages.{index}")
    check(messages[0]["role"] == "user", 'messages: first message must use the "user" role')
    turns = _merged(messages)
    _check_pairs(turns)
    _check_end(turns, body)
    _check_thinking(body, turns)
    check(_count_markers(body) <= 4, "A maximum of 4 blocks with cache_control may be provided.")
    uses_tools = any(block["type"] in ("tool_use", "tool_result") for _, blocks in turns for block in blocks)
    check(tools or not uses_tools, "Requests which include `tool_use` or `tool_result` blocks must define `tools`.")


def _check_system(system: Any) -> None:
    if system is None or isinstance(system, str):
        return
    check(isinstance(system, list), "system: Input should be a valid string or list")
    for index, block in enumerate(system):
        check(isinstance(block, dict) and block.get("type") == "text", f"system.{index}: Input should be a text block")
        check(set(block) <= {"type", "text", "cache_control"}, f"system.{index}: Extra inputs are not permitted")
        check(block.get("text"), "system: text content blocks must be non-empty")
        _check_marker(block, f"system.{index}")


def _check_tools(body: dict[str, Any]) -> list[str]:
    tools = body.get("tools", [])
    check(isinstance(tools, list), "tools: Input should be a valid list")
    names: list[str] = []
    for index, tool in enumerate(tools):
        where = f"tools.{index}.custom"
        check(set(tool) <= {"name", "description", "input_schema", "cache_control", "type"}, f"{where}: Extra inputs")
        check(NAME.fullmatch(str(tool.get("name"))), f"{where}.name: String should match pattern '{NAME.pattern}'")
        schema = tool.get("input_schema")
        check(isinstance(schema, dict), f"{where}.input_schema: Field required")
        check(schema.get("type") == "object", f"{where}.input_schema.type: Input should be 'object'")
        check(
            isinstance(schema.get("properties", {}), dict),
            f"{where}.input_schema.properties: Input should be an object",
        )
        names.append(tool["name"])
        _check_marker(tool, where)
    check(len(set(names)) == len(names), "tools: Tool names must be unique.")
    choice = body.get("tool_choice")
    if choice is not None:
        check(
            isinstance(choice, dict) and choice.get("type") in ("auto", "any", "tool", "none"), "tool_choice: invalid"
        )
        check(names, "tool_choice: may only be specified while providing tools.")
        check(choice["type"] != "tool" or choice.get("name") in names, "tool_choice: Tool not found in provided tools")
    return names


def _check_message(message: Any, where: str) -> None:
    check(isinstance(message, dict), f"{where}: Input should be an object")
    check(set(message) == {"role", "content"}, f"{where}: Extra inputs are not permitted or fields missing")
    role, content = message["role"], message["content"]
    check(role in _ROLE_BLOCKS, f'messages: Unexpected role "{role}". Allowed roles are "user" or "assistant"')
    if isinstance(content, str):
        check(content.strip(), "messages: text content blocks must contain non-whitespace text")
        return
    check(isinstance(content, list), f"{where}.content: Input should be a valid string or list")
    check(content, f"{where}: all messages must have non-empty content")
    for index, block in enumerate(content):
        _check_block(block, f"{where}.content.{index}", _ROLE_BLOCKS[role], role)
    last = content[-1]["type"]
    check(
        last not in ("thinking", "redacted_thinking"),
        f"{where}: The final block in an assistant message cannot be `{last}`.",
    )


def _check_block(block: Any, where: str, allowed: set[str], role: str) -> None:
    check(isinstance(block, dict), f"{where}: Input should be an object")
    kind = block.get("type")
    check(kind in allowed, f"{where}: `{kind}` blocks are not permitted in {role} messages")
    required, optional = _BLOCK_FIELDS[kind]
    for name in required:
        check(name in block, f"{where}.{kind}.{name}: Field required")
    extra = set(block) - required - optional - {"type"}
    check(not extra, f"{where}.{kind}.{'/'.join(sorted(extra))}: Extra inputs are not permitted")
    _check_marker(block, where)
    match kind:
        case "text":
            check(isinstance(block["text"], str), f"{where}.text: Input should be a valid string")
            check(block["text"], "messages: text content blocks must be non-empty")
            check(block["text"].strip(), "messages: text content blocks must contain non-whitespace text")
        case "image":
            _check_image(block["source"], where)
        case "tool_use":
            check(ID.fullmatch(str(block["id"])), f"{where}.tool_use.id: String should match pattern '^{ID.pattern}$'")
            check(len(block["id"]) <= 64, f"{where}.tool_use.id: String should have at most 64 characters")
            check(NAME.fullmatch(str(block["name"])), f"{where}.tool_use.name: String should match pattern")
            check(isinstance(block["input"], dict), f"{where}.tool_use.input: Input should be a valid dictionary")
        case "tool_result":
            _check_result(block, where)
        case "thinking":
            check(isinstance(block["signature"], str) and block["signature"], f"{where}: Invalid `signature`")
        case _:
            check(isinstance(block["data"], str) and block["data"], f"{where}.data: Field required")


def _check_result(block: dict[str, Any], where: str) -> None:
    check(ID.fullmatch(str(block["tool_use_id"])), f"{where}.tool_result.tool_use_id: String should match pattern")
    check(isinstance(block.get("is_error", False), bool), f"{where}.tool_result.is_error: Input should be a boolean")
    content = block.get("content", "")
    if isinstance(content, str):
        return
    check(isinstance(content, list), f"{where}.tool_result.content: Input should be a valid list")
    for index, part in enumerate(content):
        _check_block(part, f"{where}.tool_result.content.{index}", {"text", "image"}, "tool_result")
    texts_only = all(part["type"] == "text" for part in content)
    check(
        texts_only or not block.get("is_error"),
        f"{where}.tool_result: all content must be type `text` if `is_error` is true",
    )


def _check_image(source: Any, where: str) -> None:
    check(isinstance(source, dict) and source.get("type") == "base64", f"{where}.image.source: Input should be base64")
    check(source.get("media_type") in MEDIA_TYPES, f"{where}.image.source.base64.media_type: Input should be an image")
    try:
        data = base64.b64decode(source.get("data", ""), validate=True)
    except (binascii.Error, TypeError, ValueError):
        data = b""
    check(data, f"{where}.image.source.base64: image cannot be empty")


def _check_marker(block: dict[str, Any], where: str) -> None:
    marker = block.get("cache_control")
    if marker is not None:
        check(marker.get("type") == "ephemeral", f"{where}.cache_control.type: Input should be 'ephemeral'")
        check(marker.get("ttl", "5m") in ("5m", "1h"), f"{where}.cache_control.ttl: Input should be '5m' or '1h'")


def _merged(messages: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Neighbours of one role count as one turn."""
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message["role"], list(blocks)))
    return turns


def _check_pairs(turns: list[tuple[str, list[dict[str, Any]]]]) -> None:
    seen: set[str] = set()
    expected: list[str] = []
    for role, blocks in turns:
        if role == "assistant":
            expected = [block["id"] for block in blocks if block["type"] == "tool_use"]
            check(
                len(set(expected)) == len(expected) and not seen & set(expected),
                "messages: `tool_use` ids must be unique",
            )
            seen.update(expected)
            continue
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        for result in results:
            check(
                result in expected,
                f"messages: unexpected `tool_use_id` found in `tool_result` blocks: {result}. Each `tool_result` block"
                " must have a corresponding `tool_use` block in the previous message.",
            )
        missing = [call for call in expected if call not in results]
        check(
            not missing,
            f"messages: `tool_use` ids were found without `tool_result` blocks immediately after: {missing}.",
        )
        check(len(set(results)) == len(results), "messages: each tool_use must have a single result. Found multiple.")
        kinds = [block["type"] == "tool_result" for block in blocks]
        check(kinds == sorted(kinds, reverse=True), "messages: `tool_result` blocks must come first in the message")
        expected = []
    check(not expected, f"messages: `tool_use` ids were found without `tool_result` blocks: {', '.join(expected)}.")


def _check_end(turns: list[tuple[str, list[dict[str, Any]]]], body: dict[str, Any]) -> None:
    role, blocks = turns[-1]
    if role != "assistant":
        return
    check("thinking" not in body, "This model does not support assistant message prefill with thinking enabled.")
    last = blocks[-1]
    if last["type"] == "text":
        check(
            last["text"] == last["text"].rstrip(),
            "messages: final assistant content cannot end with trailing whitespace",
        )


def _check_thinking(body: dict[str, Any], turns: list[tuple[str, list[dict[str, Any]]]]) -> None:
    temperature = body.get("temperature")
    check(temperature is None or 0 <= temperature <= 1, "temperature: range: 0..1")
    effort = body.get("output_config", {}).get("effort")
    check(
        effort in (None, "low", "medium", "high", "xhigh", "max"),
        "output_config.effort: Input should be a known effort",
    )
    thinking = body.get("thinking")
    if thinking is None or thinking.get("type") == "disabled":
        return
    kinds = ("enabled", "adaptive", "between_tools")
    check(thinking.get("type") in kinds, "thinking.type: Input should be 'enabled', 'adaptive' or 'disabled'")
    manual = thinking["type"] == "enabled"
    if manual:
        budget = thinking.get("budget_tokens")
        check(type(budget) is int and budget >= 1024, "thinking.enabled.budget_tokens: Input should be at least 1024")
        check(budget < body["max_tokens"], "`max_tokens` must be greater than `thinking.budget_tokens`.")
    else:
        check("budget_tokens" not in thinking, "thinking.adaptive.budget_tokens: Extra inputs are not permitted")
    check(temperature in (None, 1), "`temperature` may only be set to 1 when thinking is enabled.")
    forced = body.get("tool_choice", {}).get("type") in ("any", "tool")
    check(not forced, "Thinking may not be enabled when tool_choice forces tool use.")
    in_loop = turns[-1][0] == "user" and any(block["type"] == "tool_result" for block in turns[-1][1])
    if in_loop and manual:
        first = turns[-2][1][0]["type"]
        check(
            first in ("thinking", "redacted_thinking"),
            f"messages: Expected `thinking` or `redacted_thinking`, but found `{first}`. When `thinking` is enabled, a"
            " final `assistant` message must start with a thinking block.",
        )


def _count_markers(value: dict[str, Any] | list[Any]) -> int:
    inner = [item for key, item in value.items() if key != "input"] if isinstance(value, dict) else value
    deeper = sum(_count_markers(item) for item in inner if isinstance(item, (dict, list)))
    return ("cache_control" in value) + deeper if isinstance(value, dict) else deeper


BINDING_BETA = "thinking-binding-controls-2026-08-01"
BOUND = "bound."
"""Begins the signatures of thinking that is tied to its conversation."""
_FORTY_SIX = ("claude-opus-4-6", "claude-sonnet-4-6")
_FORTY_SEVEN_ON = ("claude-opus-4-7", "claude-opus-4-8")
_FIVE = ("claude-opus-5", "claude-sonnet-5", "claude-fable-5", "claude-mythos-5")
_LATEST = (
    "claude-fable-5-1", "claude-fable-5-2", "claude-mythos-5-1", "claude-mythos-5-2", "claude-opus-5-5",
    "claude-sonnet-5-5", "claude-haiku-5-5",
)  # fmt: skip
_ADAPTIVE_ONLY = {*_FORTY_SEVEN_ON, *_FIVE, *_LATEST}
_CANNOT_DISABLE = {"claude-fable-5", "claude-mythos-5", *_LATEST} - {"claude-haiku-5-5"}
_CANNOT_FORCE = {*_LATEST} - {"claude-haiku-5-5"}


def is_bound(model: str) -> bool:
    return model in _LATEST


def check_generation(body: dict[str, Any], *, version: str, betas: str) -> None:
    model = body["model"]
    sampling = [name for name in ("temperature", "top_p", "top_k") if name in body]
    removed = version == "2026-10-21" or model in _ADAPTIVE_ONLY
    check(not (removed and sampling), f"{'/'.join(sampling)}: Extra inputs are not permitted")
    thinking = body.get("thinking") or {}
    kind = thinking.get("type")
    if model in _ADAPTIVE_ONLY:
        check(kind != "enabled", '"thinking.type.enabled" is not supported for this model.')
    if model in _CANNOT_DISABLE:
        check(kind != "disabled", '"thinking.type.disabled" is not supported for this model.')
    check(kind != "between_tools" or model == "claude-sonnet-5-5", '"thinking.type.between_tools" is not supported')
    effort = body.get("output_config", {}).get("effort")
    check(not (kind == "disabled" and effort in ("xhigh", "max")), "thinking cannot be disabled at this effort")
    forced = body.get("tool_choice", {}).get("type") in ("any", "tool")
    check(not (forced and model in _CANNOT_FORCE), "tool_choice: forced tool use is not supported for this model")
    modern = model in _FORTY_SIX or model in _ADAPTIVE_ONLY
    prefilled = body["messages"][-1]["role"] == "assistant"
    check(not (modern and prefilled), "This model does not support assistant message prefill.")
    if "block_binding" in thinking:
        check(BINDING_BETA in betas, "thinking.block_binding: Extra inputs are not permitted")
        check(kind in ("enabled", "adaptive"), "thinking.block_binding: Extra inputs are not permitted")


def signature_for(body: dict[str, Any]) -> str:
    """The signature of thinking produced by this request."""
    return BOUND + _digest(body, len(body["messages"]))


def count_unbound(body: dict[str, Any]) -> int:
    """Thinking blocks sent back behind another conversation than their own: refused, or dropped where allowed."""
    unbound = 0
    for index, message in enumerate(body["messages"]):
        if message["role"] != "assistant" or isinstance(message["content"], str):
            continue
        for block in message["content"]:
            signature = str(block.get("signature", ""))
            if signature.startswith(BOUND) and signature != BOUND + _digest(body, index):
                unbound += 1
    binding = (body.get("thinking") or {}).get("block_binding", {})
    if unbound and binding.get("prefix_mismatch_behavior") != "drop_block":
        raise Refused("Invalid `signature` in `thinking` block. The block is bound to a different conversation.")
    return unbound


def _digest(body: dict[str, Any], count: int) -> str:
    prefix = [body.get("system"), body.get("tools"), body["messages"][:count]]
    return hashlib.sha256(msgspec.json.encode(_unmarked(prefix))).hexdigest()[:32]


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


_OF_REASONING = re.compile(r"_of_(rs_\d+)$")


def mark_of(model: Model, number: int) -> str:
    """The signature of a thought, or the thought itself where the API has no signatures."""
    return f"<{model.provider} {model.api} {model.id}> {number}"


def encrypted(model: Model, number: int) -> str:
    item = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": mark_of(model, number)}
    return msgspec.json.encode(item).decode()


UNSIGNED = "skip_thought_signature_validator"
"""What Google takes in place of a signature, for a call that another model made."""


def _google_signatures(body: dict[str, Any]) -> list[str]:
    parts = [part for content in body["contents"] for part in content["parts"]]
    given = [part["thoughtSignature"] for part in parts if part.get("thoughtSignature", UNSIGNED) != UNSIGNED]
    return [base64.b64decode(one).decode() for one in given]


def check_binding(body: dict[str, Any], model: Model) -> None:
    own = mark_of(model, 0).removesuffix("0")
    if model.api == "openai-responses":
        _check_items(body["input"], own)
        return
    if model.api == "google-generative-ai":
        check(all(one.startswith(own) for one in _google_signatures(body)), "Thought signature is not valid")
        return
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        for block in blocks:
            if block["type"] in ("thinking", "redacted_thinking"):
                signature = block.get("signature") or block.get("data")
                check(str(signature).startswith(own), "Invalid `signature` in `thinking` block")
        thought = message.get("reasoning_content")
        check(thought is None or own in thought, "reasoning_content of another model")


def _check_items(items: list[dict[str, Any]], own: str) -> None:
    reasoning: set[str] = set()
    for item in items:
        if item.get("type") == "reasoning":
            check(
                item["encrypted_content"].startswith(own),
                f"The encrypted content of {item['id']} could not be verified.",
            )
            reasoning.add(item["id"])
        elif match := _OF_REASONING.search(item.get("id", "")):
            check(
                match.group(1) in reasoning,
                f"Item '{item['id']}' was provided without its required 'reasoning' item: '{match.group(1)}'.",
            )


_DATA_URL = re.compile(r"data:(image/\w+);base64,(.*)", re.DOTALL)
MOST = 100
MOST_BYTES = 5 * 1024 * 1024
LONGEST_SIDE = 8000
LONGEST_SIDE_OF_MANY = 2000
MANY = 20


def check_images(body: Any) -> None:
    images = list(_images(body))
    check(len(images) <= MOST, f"too many images: {len(images)}")
    longest = LONGEST_SIDE_OF_MANY if len(images) > MANY else LONGEST_SIDE
    for mime_type, data in images:
        check(len(data) <= MOST_BYTES, f"image exceeds 5 MB maximum: {len(data)} bytes > {MOST_BYTES} bytes")
        kind, side = _opened(data)
        check(kind is not None, "Could not process image")
        check(kind == mime_type, f"Image does not match the provided media type {mime_type}")
        check(side <= longest, f"At least one of the image dimensions exceed max allowed size: {longest} pixels")


def _images(value: dict[str, Any] | list[Any]) -> Iterator[tuple[str, str]]:
    match value:
        case {"inlineData": {"mimeType": str(mime_type), "data": str(data)}}:
            yield mime_type, data
        case {"type": "image", "source": {"media_type": str(mime_type), "data": str(data)}}:
            yield mime_type, data
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)}:
            match = _DATA_URL.fullmatch(url)
            check(match, "Invalid image URL")
            assert match is not None
            yield match.group(1), match.group(2)
        case _:
            for item in value.values() if isinstance(value, dict) else value:
                if isinstance(item, (dict, list)):
                    yield from _images(item)


@functools.lru_cache(maxsize=256)
def _opened(data: str) -> tuple[str | None, int]:
    try:
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
            image.load()
            return f"image/{str(image.format).lower()}", max(image.size)
    except (binascii.Error, ValueError, OSError, SyntaxError):
        return None, 0
