"""The ``agent`` and ``chat`` events of a run. Text deltas are collected, so that long replies stay cheap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from openclaw.clock import Clock
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    CompactionEnded,
    CompactionStarted,
    Event,
    Spoken,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
    ToolUpdated,
)
from openclaw.gateway.server.broadcast import Broadcaster
from openclaw.messages import ImageBlock, UserBlock
from openclaw.outbound.usage_text import with_footer
from openclaw.runs.run_index import RunRecord
from openclaw.sessions.keys import shown_key
from openclaw.text import clipped

CHAT_DELTA_S = 0.150
AGENT_DELTA_S = 0.040
CUMULATIVE_BYTES_PER_S = 64_000
"""Older clients get the whole text so far in each event, so longer texts are sent less often."""


class GrowingText:
    """The text of a message while it arrives. Any earlier state of it can still be asked for later."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._joined = ""
        self.size = 0

    def add(self, delta: str) -> None:
        self._parts.append(delta)
        self.size += len(delta)

    def upto(self, size: int) -> str:
        """The first ``size`` characters. The parts are joined only when a client needs the whole text."""
        if self._parts:
            self._joined += "".join(self._parts)
            self._parts = []
        return self._joined if size == self.size else self._joined[:size]


class RunStream:
    """Publishes one run. Text is collected and flushed by a timer; the first words go out at once."""

    def __init__(
        self,
        record: RunRecord,
        broadcaster: Broadcaster,
        clock: Clock,
        verbose: Callable[[], str],
        notice: Callable[[str, str], None] = lambda entry_id, text: None,
    ) -> None:
        self._record = record
        self._key = shown_key(record.session_key)
        self._broadcaster = broadcaster
        self._clock = clock
        self._verbose = verbose
        self._notice = notice
        self._seq = 0
        self._text = GrowingText()
        self._spoke = False
        self._unsent: list[str] = []
        self._thoughts: list[str] = []
        self._thought_unsent: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last_flush = 0.0
        self._last_chat = 0.0
        self._chat_closed = False

    def started(self) -> None:
        self._agent("lifecycle", {"phase": "start", "startedAt": self._record.started_at})

    def event(self, event: Event) -> None:
        match event:
            case TextDelta(delta):
                self._text.add(delta)
                self._unsent.append(delta)
                if self._timer is None:
                    self._schedule()
            case ThinkingDelta(delta) if self._record.reasoning != "off":
                self._thoughts.append(delta)
                self._thought_unsent.append(delta)
                if self._record.reasoning == "stream" and self._timer is None:
                    self._schedule()
            case AssistantStarted():
                self._flush()
                if self._text.size:
                    self._text = GrowingText()
                self._thoughts, self._thought_unsent = [], []
            case AssistantEnded(_, speech):
                self._flush()
                if self._thought_unsent and isinstance(speech, Spoken):
                    self._flush_thoughts()
            case ToolStarted(call_id, name, arguments):
                self._flush()
                self._tool({"phase": "start", "name": name, "toolCallId": call_id, "args": arguments})
            case ToolUpdated(call_id, name, _, partial):
                data = {"phase": "update", "name": name, "toolCallId": call_id}
                self._tool(data, ("partialResult", lambda: result_view(partial.content, partial.details)))
            case ToolEnded(message, arguments, failed):
                data = {
                    "phase": "result",
                    "name": message.tool_name,
                    "toolCallId": message.tool_call_id,
                    "meta": tool_meta(message.tool_name, arguments),
                    "isError": failed,
                }
                self._tool(data, ("result", lambda: result_view(message.content, message.details)))
            case CompactionStarted():
                self._flush()
                self._agent("compaction", {"phase": "start"})
            case CompactionEnded():  # This may come after the end of the run.
                error = {"error": event.error} if event.error else {}
                self._agent("compaction", {"phase": "end", "willRetry": event.will_retry, **error})
                if event.entry_id is not None and self._verbose() in ("on", "full"):
                    self._notice(f"compaction-{event.entry_id}", f"🧹 Auto-compaction complete (count {event.count}).")
            case _:
                pass

    def aborted(self, reason: str) -> None:
        self._flush()
        if not self._chat_closed:
            self._seq += 1
            self._chat("aborted", stopReason=_stop_reason(reason))
            self._chat_closed = True

    def absorbed(self, by: str) -> None:
        """Ends a run whose message another run answers. Older clients read ``queued`` as the sign of that."""
        self._seq += 1
        self._chat("final", queued=True, answeredBy=by)
        self._chat_closed = True

    def finished(self) -> None:
        self._flush()
        record = self._record
        if record.state == "error":
            error = {"phase": "error", "error": record.error, "endedAt": record.ended_at}
            self._agent("lifecycle", error)
            if not self._chat_closed:
                self._chat("error", errorMessage=record.error or "the run failed")
            return
        aborted = {"aborted": True} if record.state == "aborted" else {}
        self._agent("lifecycle", {"phase": "end", "endedAt": record.ended_at, **aborted})
        if self._chat_closed:
            return
        if record.state == "aborted":
            self._chat("aborted", stopReason=_stop_reason(record.error or "stop"))
            return
        self._chat("final", **self._final_message())
        # The prompt report warns, for example, that a workspace file was too long to be read whole.
        report = record.result.report if record.result else None
        for number, warning in enumerate(report.warnings if report else ()):
            self._notice(f"notice-{record.run_id}-{number}", f"⚠️ {warning}")

    def _final_message(self) -> dict[str, Any]:
        """The message of the final event. It is absent for silence, and a notice when an answer is missing."""
        result = self._record.result
        if result is None:
            return {}
        text = with_footer(result.speech.text, result.footer) if isinstance(result.speech, Spoken) else result.notice
        if not text:
            return {}
        message = spoken(text, self._clock.now_ms())
        if result.reasoning:
            message["content"].insert(0, {"type": "thinking", "thinking": result.reasoning.strip()})
        return {"message": message}

    # Text

    def _schedule(self) -> None:
        """Flushes at once when the last flush is long enough ago, otherwise later."""
        interval = max(AGENT_DELTA_S, self._text.size / CUMULATIVE_BYTES_PER_S)
        due = self._last_flush + interval - self._clock.monotonic()
        if due <= 0:
            self._flush()
        else:
            self._timer = asyncio.get_running_loop().call_later(due, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thought_unsent and self._record.reasoning == "stream":
            self._flush_thoughts()
        if not self._unsent:
            return
        delta = "".join(self._unsent)
        self._unsent = []
        self._last_flush = self._clock.monotonic()
        self._agent_text(delta)
        if self._last_flush - self._last_chat >= CHAT_DELTA_S and not self._chat_closed:
            self._last_chat = self._last_flush
            self._chat_delta()

    def _flush_thoughts(self) -> None:
        """Publishes reasoning as its own stream, for sessions that show it."""
        delta = "".join(self._thought_unsent)
        if delta:
            self._thought_unsent = []
            self._last_flush = self._clock.monotonic()
            self._agent("thinking", {"text": "".join(self._thoughts), "delta": delta})

    # A client that missed an event gets it much later, so the payload functions below capture the current values and
    # not the run.

    def _agent_text(self, delta: str) -> None:
        self._seq += 1
        text, size = self._text, self._text.size
        # Clients that get only increments see from the text that another message of the run begins.
        begins = self._spoke and size == len(delta)
        self._spoke = True
        data = {"text": delta, "delta": delta} if begins else {"delta": delta}
        increment = self._payload("assistant", data)
        self._broadcaster.publish_variants(
            "agent", lambda: {**increment, "data": {"text": text.upto(size), "delta": delta}}, increment
        )

    def _chat_delta(self) -> None:
        text, size, now = self._text, self._text.size, self._clock.now_ms()
        head = self._chat_head("delta")
        self._broadcaster.publish_variants(
            "chat", lambda: {**head, "message": spoken(text.upto(size), now)}, head, drop_if_slow=True
        )

    # Frames

    def _chat_head(self, state: str) -> dict[str, Any]:
        return {"runId": self._record.run_id, "sessionKey": self._key, "seq": self._seq, "state": state}

    def _chat(self, state: str, **more: Any) -> None:
        self._broadcaster.publish("chat", {**self._chat_head(state), **more})

    def _agent(self, stream: str, data: dict[str, Any]) -> None:
        self._seq += 1
        self._broadcaster.publish("agent", self._payload(stream, data))

    def _payload(self, stream: str, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "runId": self._record.run_id,
            "stream": stream,
            "data": data,
            "sessionKey": self._key,
            "seq": self._seq,
            "ts": self._clock.now_ms(),
        }

    def _tool(self, data: dict[str, Any], body: tuple[str, Callable[[], Any]] | None = None) -> None:
        """Sends a tool event to the connections that asked for this run, as detailed as the session's verbosity.

        Our own clients (``delta-events``) show tool calls as progress lines at every verbosity.
        """
        self._seq += 1
        if not self._record.watchers:
            return
        level = self._verbose()
        watching = [self._broadcaster.clients.get(conn_id) for conn_id in self._record.watchers]
        ids = [
            client.conn_id
            for client in watching
            if client is not None
            and "tool-events" in client.caps
            and (level in ("on", "full") or "delta-events" in client.caps)
        ]
        if not ids:
            return
        if body is not None and level == "full":
            data = {**data, body[0]: body[1]()}
        self._broadcaster.send_to(ids, "agent", self._payload("tool", data))


def spoken(text: str, at: int) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "timestamp": at}


def _stop_reason(reason: str) -> str:
    """The stop reason for clients. They know only ``rpc``, ``stop`` and ``timeout``."""
    return "stop" if reason in ("reset", "delete") else reason


TEXT_LIMIT = 8_000
META_LIMIT = 200
_META_FIELDS = ("path", "file_path", "command", "url", "query", "action", "sessionKey", "message", "task")


def tool_meta(name: str, arguments: dict[str, Any]) -> str:
    """The argument that describes the call best, or the tool's name."""
    for field in _META_FIELDS:
        value = arguments.get(field)
        if isinstance(value, str) and value.strip():
            return clipped(" ".join(value.split()), META_LIMIT)
    return name


def result_view(content: list[UserBlock], details: Any) -> dict[str, Any]:
    view: dict[str, Any] = {"content": [_block(block) for block in content]}
    if details is not msgspec.UNSET and details is not None:
        view["details"] = details
    return view


def _block(block: UserBlock) -> dict[str, Any]:
    if isinstance(block, ImageBlock):
        return {"type": "image", "mimeType": block.mime_type, "bytes": len(block.data) * 3 // 4, "omitted": True}
    if len(block.text) <= TEXT_LIMIT:
        return {"type": "text", "text": block.text}
    return {"type": "text", "text": block.text[:TEXT_LIMIT] + "\n…(truncated)…"}
