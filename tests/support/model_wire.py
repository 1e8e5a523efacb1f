"""A reply in each vendor's wire form: as a stream of events and as one JSON document."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.support.model_script import Call, Reply

_encode = msgspec.json.encode


@dataclass
class Rendered:
    """The stream in parts, so that the server can wait between tokens and break off before the end."""

    head: bytes = b""
    tokens: list[bytes] = field(default_factory=list)
    tail: bytes = b""
    end: bytes = b""


def arguments_text(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)


def stop_of(reply: Reply) -> str:
    return reply.stop or ("toolUse" if reply.calls else "stop")


def usage_of(reply: Reply, prompt_tokens: int) -> dict[str, int]:
    counted = len(reply.tokens) + len(reply.calls) + len(reply.thinking.split())
    return {"input": prompt_tokens, "output": counted, "cacheRead": 0, "cacheWrite": 0, "reasoning": 0, **reply.usage}


def _halves(text: str) -> list[str]:
    """Two pieces, so that accumulation is exercised."""
    middle = len(text) // 2
    return [part for part in (text[:middle], text[middle:]) if part]


def _event(data: dict[str, Any]) -> bytes:
    return b"event: " + data["type"].encode() + b"\ndata: " + _encode(data) + b"\n\n"


# Anthropic Messages

_ANTHROPIC_STOP = {"stop": "end_turn", "length": "max_tokens", "toolUse": "tool_use", "refusal": "refusal"}


def _anthropic_usage(usage: dict[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": usage["input"],
        "cache_creation_input_tokens": usage["cacheWrite"],
        "cache_read_input_tokens": usage["cacheRead"],
        "output_tokens": usage["output"],
    }


def _anthropic_blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.redacted:
        blocks.append({"type": "redacted_thinking", "data": reply.redacted})
    if reply.thinking:
        blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": reply.signature})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    blocks += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in reply.calls]
    return blocks


def anthropic_json(reply: Reply, number: int, model: str, prompt_tokens: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number:06d}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _anthropic_blocks(reply),
        "stop_reason": _ANTHROPIC_STOP.get(stop_of(reply), stop_of(reply)),
        "stop_sequence": None,
        "usage": _anthropic_usage(usage_of(reply, prompt_tokens)),
    }


def anthropic_stream(reply: Reply, number: int, model: str, prompt_tokens: int) -> Rendered:
    out = Rendered()
    whole = anthropic_json(reply, number, model, prompt_tokens)
    usage = whole["usage"]
    opening = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    out.head = _event({"type": "message_start", "message": opening}) + _event({"type": "ping"})
    for index, block in enumerate(whole["content"]):
        stop = _event({"type": "content_block_stop", "index": index})
        match block["type"]:
            case "text":
                start = {"type": "content_block_start", "index": index, "content_block": {**block, "text": ""}}
                out.head += _event(start)
                lead = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,' % index
                lead += b'"delta":{"type":"text_delta","text":'
                out.tokens = [lead + _encode(token) + b"}}\n\n" for token in reply.tokens]
                out.tail += stop
            case "thinking":
                out.head += _anthropic_thinking(index, block) + stop
            case "redacted_thinking":
                out.head += _event({"type": "content_block_start", "index": index, "content_block": block}) + stop
            case _:
                out.tail += _anthropic_call(index, block, reply) + stop
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    out.end = _event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": usage["output_tokens"]}})
    out.end += _event({"type": "message_stop"})
    return out


def _anthropic_thinking(index: int, block: dict[str, Any]) -> bytes:
    empty = {**block, "thinking": "", "signature": ""}
    out = _event({"type": "content_block_start", "index": index, "content_block": empty})
    deltas: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": part} for part in _halves(block["thinking"])]
    deltas.append({"type": "signature_delta", "signature": block["signature"]})
    return out + b"".join(_event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas)


def _anthropic_call(index: int, block: dict[str, Any], reply: Reply) -> bytes:
    call = next(call for call in reply.calls if call.id == block["id"])
    out = _event({"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}})
    for part in _halves(arguments_text(call)):
        delta = {"type": "input_json_delta", "partial_json": part}
        out += _event({"type": "content_block_delta", "index": index, "delta": delta})
    return out


# OpenAI chat completions

_CHAT_STOP = {"stop": "stop", "length": "length", "toolUse": "tool_calls", "refusal": "content_filter"}


def _chat_usage(usage: dict[str, int]) -> dict[str, Any]:
    prompt = usage["input"] + usage["cacheRead"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage["output"],
        "total_tokens": prompt + usage["output"],
        "prompt_tokens_details": {"cached_tokens": usage["cacheRead"]},
        "completion_tokens_details": {"reasoning_tokens": usage["reasoning"]},
    }


def chat_json(reply: Reply, number: int, model: str, prompt_tokens: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message["tool_calls"] = [_chat_call(call) for call in reply.calls]
    return {
        "id": f"chatcmpl-{number:06d}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _CHAT_STOP.get(stop_of(reply), stop_of(reply))}],
        "usage": _chat_usage(usage_of(reply, prompt_tokens)),
    }


def _chat_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}


def chat_stream(reply: Reply, number: int, model: str, prompt_tokens: int) -> Rendered:
    whole = chat_json(reply, number, model, prompt_tokens)
    base = {"id": whole["id"], "object": "chat.completion.chunk", "created": whole["created"], "model": model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return b"data: " + _encode({**base, "choices": choices}) + b"\n\n"

    out = Rendered(head=chunk({"role": "assistant", "content": ""}))
    out.head += b"".join(chunk({"reasoning_content": part}) for part in _halves(reply.thinking))
    before, after = chunk({"content": "\0"}).split(b'"\\u0000"')
    out.tokens = [before + _encode(token) + after for token in reply.tokens]
    for index, call in enumerate(reply.calls):
        opening = {**_chat_call(call), "index": index, "function": {"name": call.name, "arguments": ""}}
        out.tail += chunk({"tool_calls": [opening]})
        for part in _halves(arguments_text(call)):
            out.tail += chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    out.end = chunk({}, whole["choices"][0]["finish_reason"])
    out.end += b"data: " + _encode({**base, "choices": [], "usage": whole["usage"]}) + b"\n\n" + b"data: [DONE]\n\n"
    return out


# OpenAI Responses


def responses_json(reply: Reply, number: int, model: str, prompt_tokens: int) -> dict[str, Any]:
    usage = usage_of(reply, prompt_tokens)
    stop = stop_of(reply)
    reasons = {"length": "max_output_tokens", "refusal": "content_filter"}
    return {
        "id": f"resp_{number:06d}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": model,
        "status": "incomplete" if stop in reasons else "completed",
        "incomplete_details": {"reason": reasons[stop]} if stop in reasons else None,
        "error": None,
        "output": _items(reply, number),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["input"] + usage["cacheRead"],
            "input_tokens_details": {"cached_tokens": usage["cacheRead"]},
            "output_tokens": usage["output"],
            "output_tokens_details": {"reasoning_tokens": usage["reasoning"]},
            "total_tokens": usage["input"] + usage["cacheRead"] + usage["output"],
        },
    }


def _items(reply: Reply, number: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        items.append(
            {"id": f"rs_{number:06d}", "type": "reasoning", "summary": summary, "encrypted_content": reply.signature}
        )
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        message = {"id": f"msg_{number:06d}", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**message, "content": content})
    for index, call in enumerate(reply.calls):
        items.append(
            {
                "id": f"fc_{number:06d}_{index}",
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": arguments_text(call),
                "status": "completed",
            }
        )
    return items


def responses_stream(reply: Reply, number: int, model: str, prompt_tokens: int) -> Rendered:
    whole = responses_json(reply, number, model, prompt_tokens)
    opening = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    counter = iter(range(1_000_000))

    def event(kind: str, **data: Any) -> bytes:
        return _event({"type": kind, "sequence_number": next(counter), **data})

    out = Rendered(head=event("response.created", response=opening) + event("response.in_progress", response=opening))
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        done = {"output_index": index, "item": item}
        match item["type"]:
            case "reasoning":
                out.head += event("response.output_item.added", output_index=index, item={**item, "summary": []})
                part = {"type": "summary_text", "text": ""}
                out.head += event("response.reasoning_summary_part.added", **place, summary_index=0, part=part)
                for text in _halves(reply.thinking):
                    out.head += event("response.reasoning_summary_text.delta", **place, summary_index=0, delta=text)
                part = {"type": "summary_text", "text": reply.thinking}
                out.head += event("response.reasoning_summary_part.done", **place, summary_index=0, part=part)
                out.head += event("response.output_item.done", **done)
            case "message":
                empty = {**item, "content": [], "status": "in_progress"}
                out.head += event("response.output_item.added", output_index=index, item=empty)
                part = {"type": "output_text", "text": "", "annotations": []}
                out.head += event("response.content_part.added", **place, content_index=0, part=part)
                delta = {**place, "content_index": 0, "delta": "\0", "logprobs": []}
                before, after = event("response.output_text.delta", **delta).split(b'"\\u0000"')
                out.tokens = [before + _encode(token) + after for token in reply.tokens]
                out.tail += event("response.output_text.done", **place, content_index=0, text=reply.text, logprobs=[])
                out.tail += event("response.content_part.done", **place, content_index=0, part=item["content"][0])
                out.tail += event("response.output_item.done", **done)
            case _:
                empty = {**item, "arguments": "", "status": "in_progress"}
                out.tail += event("response.output_item.added", output_index=index, item=empty)
                for text in _halves(item["arguments"]):
                    out.tail += event("response.function_call_arguments.delta", **place, delta=text)
                finished = {**place, "name": item["name"], "arguments": item["arguments"]}
                out.tail += event("response.function_call_arguments.done", **finished)
                out.tail += event("response.output_item.done", **done)
    out.end = event(f"response.{whole['status']}", response=whole)
    return out
