"""The answer of a Responses request: the whole object, or the same object as the stream of events that builds it."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.gateway.http.openai_run import NOTHING_SAID, Call, Ending
from openclaw.gateway.http.sse import sse_event
from openclaw.messages import Usage


class Reply(msgspec.Struct, kw_only=True):
    """What every form of the answer repeats of the request."""

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
        """``streamed``: the text the caller has seen, which the object must repeat."""
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


def call_item(call: Call, *, begun: bool = False) -> dict[str, Any]:
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
    """Events in the order clients rely on; the text's item begins with its first piece."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._number = 0
        self._pieces: list[str] = []
        self._item = 0
        """The output's next free place."""

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

    def _call(self, call: Call) -> list[bytes]:
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
