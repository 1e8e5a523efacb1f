"""Streams as the vendors send them, with the fields and oddities of the real ones."""

from __future__ import annotations

from tests.models.streams import sse

ANTHROPIC = {
    "text with pings, carriage returns and unicode": (
        b'event: message_start\r\ndata: {"type":"message_start","message":{"id":"msg_01A","type":"message","role":'
        b'"assistant","model":"claude-sonnet-4-5","content":[],"stop_reason":null,"stop_sequence":null,"usage":'
        b'{"input_tokens":25,"cache_creation_input_tokens":12,"cache_read_input_tokens":300,"cache_creation":'
        b'{"ephemeral_5m_input_tokens":12,"ephemeral_1h_input_tokens":0},"output_tokens":1,"service_tier":"standard"}}}'
        b"\r\n\r\n"
        b'event: content_block_start\r\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text",'
        b'"text":""}}\r\n\r\n'
        b'event: ping\r\ndata: {"type": "ping"}\r\n\r\n'
        b": keep-alive\r\n\r\n"
        b'event: content_block_delta\r\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
        b'"text":"Gr\\u00fc\\u00dfe "}}\r\n\r\n'
        b'event: content_block_delta\r\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
        b'"text":"\\ud83d\\ude00!"}}\r\n\r\n'
        b'event: content_block_stop\r\ndata: {"type":"content_block_stop","index":0}\r\n\r\n'
        b'event: message_delta\r\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn",'
        b'"stop_sequence":null},"usage":{"output_tokens":15}}\r\n\r\n'
        b'event: message_stop\r\ndata: {"type":"message_stop"}\r\n\r\n'
    ),
    "thinking, text and two calls": (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_01B","type":"message","role":'
        b'"assistant","model":"claude-sonnet-4-5","content":[],"stop_reason":null,"stop_sequence":null,'
        b'"usage":{"input_tokens":472,"output_tokens":2}}}\n\n'
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"thinking",'
        b'"thinking":"","signature":""}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta",'
        b'"thinking":"Two files "}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta",'
        b'"thinking":"to read."}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta",'
        b'"signature":"EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds="}}\n\n'
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        b'event: content_block_start\ndata: {"type":"content_block_start","index":1,"content_block":'
        b'{"type":"redacted_thinking","data":"EmwKAhgBEgy3va3pzix"}}\n\n'
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":1}\n\n'
        b'event: content_block_start\ndata: {"type":"content_block_start","index":2,"content_block":{"type":"text",'
        b'"text":""}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta",'
        b'"text":"Reading both."}}\n\n'
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":2}\n\n'
        b'event: content_block_start\ndata: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use",'
        b'"id":"toolu_01T1","name":"read","input":{}}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta",'
        b'"partial_json":""}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta",'
        b'"partial_json":"{\\"path\\": \\"a"}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta",'
        b'"partial_json":".txt\\", \\"lines\\": [1, 2.5, null, true]}"}}\n\n'
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":3}\n\n'
        b'event: content_block_start\ndata: {"type":"content_block_start","index":4,"content_block":{"type":"tool_use",'
        b'"id":"toolu_01T2","name":"status","input":{}}}\n\n'
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":4}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},'
        b'"usage":{"input_tokens":472,"cache_creation_input_tokens":0,"cache_read_input_tokens":7,"output_tokens":89}}'
        b"\n\n"
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    ),
}

_CHUNK = {"id": "chatcmpl-A", "object": "chat.completion.chunk", "created": 1700000000, "model": "gpt-4o",
          "service_tier": "default", "system_fingerprint": "fp_1"}  # fmt: skip


def _chunk(finish: str | None = None, usage: object = None, **delta: object) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**_CHUNK, "choices": [choice], "usage": usage}


_USAGE = {
    "prompt_tokens": 90, "completion_tokens": 33, "total_tokens": 123,
    "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 16, "audio_tokens": 0, "accepted_prediction_tokens": 0},
}  # fmt: skip
CHAT = {
    "text": sse(
        _chunk(role="assistant", content="", refusal=None), _chunk(content="Grüße "), _chunk(content="😀!"),
        _chunk("stop"), {**_CHUNK, "choices": [], "usage": _USAGE}, "[DONE]",
    ),
    "cut by the limit": sse(
        _chunk(role="assistant", content=""), _chunk(content="never fini"), _chunk("length"),
        {**_CHUNK, "choices": [], "usage": _USAGE}, "[DONE]",
    ),
    "two calls": sse(
        _chunk(role="assistant", content=None, tool_calls=[
            {"index": 0, "id": "call_1", "type": "function", "function": {"name": "read", "arguments": ""}}]),
        _chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"path":'}}]),
        _chunk(tool_calls=[{"index": 0, "function": {"arguments": '"a.txt"}'}}]),
        _chunk(tool_calls=[
            {"index": 1, "id": "call_2", "type": "function", "function": {"name": "status", "arguments": ""}}]),
        _chunk(tool_calls=[{"index": 1, "function": {"arguments": "{}"}}]),
        _chunk("tool_calls"), {**_CHUNK, "choices": [], "usage": _USAGE}, "[DONE]",
    ),
}  # fmt: skip
