"""One turn as the person sees it: frames in, things to show out. Knows no terminal."""

from __future__ import annotations

import json

from openclaw.cli.client import refused
from openclaw.cli.terminal import printable, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TEXT = "text"
BREAK = "break"
TOOL = "tool"
RESULT = "result"
FAILED = "failed"
NOTE = "note"

_TELLING_ARGUMENTS = ("command", "path", "file_path", "query", "url", "sessionKey", "task", "message", "action", "name")
RESULT_LINES = 3
_TERMINAL_STATES = ("final", "error", "aborted")


class Turn:
    """Digests the frames of one streamed call and remembers how it stands."""

    def __init__(self, run_id: str, session_key: str = "") -> None:
        self.run_id = run_id
        self.session_key = session_key
        self.streamed = ""
        """Text of the assistant message now arriving."""
        self.accepted: dict[str, Any] | None = None
        self.payload: dict[str, Any] | None = None
        """Payload of the last response."""
        self.state = ""
        """``final``, ``error`` or ``aborted`` once the run has ended."""
        self.queued = False
        self.final_text: str | None = None
        self.from_gateway = False
        """The final text is the Gateway's own (the answer to a command): lines as they are, no Markdown."""
        self.error: str | None = None

    def digest(self, frame: dict[str, Any]) -> list[tuple[str, str]]:
        payload = frame.get("payload")
        payload = payload if isinstance(payload, dict) else {}
        if frame.get("type") == "res":
            return self._response(frame, payload)
        if payload.get("runId") not in (None, self.run_id):
            return []
        self.session_key = payload.get("sessionKey") or self.session_key
        if frame.get("event") == "agent":
            return self._agent(str(payload.get("stream")), _dict(payload.get("data")))
        if frame.get("event") == "chat":
            self._chat(payload)
        return []

    def _response(self, frame: dict[str, Any], payload: dict[str, Any]) -> list[tuple[str, str]]:
        if not frame.get("ok"):
            if self.accepted is None:
                raise refused(frame.get("error"))
            self.error = self.error or str(
                _dict(frame.get("error")).get("message") or payload.get("summary") or "failed"
            )
            self.state = self.state or "error"
        self.run_id = payload.get("runId") or self.run_id
        if self.accepted is None:
            self.accepted = payload
        self.payload = payload
        return []

    def _agent(self, stream: str, data: dict[str, Any]) -> list[tuple[str, str]]:
        if stream == "assistant":
            return self._text(data)
        if stream == "tool":
            return self._tool(data)
        if stream == "lifecycle" and data.get("phase") == "error":
            self.error = str(data.get("error") or "the run failed")
        if stream == "compaction" and data.get("phase") == "start":
            return [(NOTE, "compacting older messages…")]
        return []

    def _text(self, data: dict[str, Any]) -> list[tuple[str, str]]:
        delta, whole = str(data.get("delta") or ""), data.get("text")
        updates: list[tuple[str, str]] = []
        if isinstance(whole, str) and len(whole) <= len(delta) and self.streamed:
            # Cumulative text that starts again: a new message of the same run.
            updates.append((BREAK, ""))
            self.streamed = ""
        if delta:
            self.streamed += delta
            updates.append((TEXT, delta))
        return updates

    def _tool(self, data: dict[str, Any]) -> list[tuple[str, str]]:
        phase, name = data.get("phase"), str(data.get("name") or "tool")
        if phase == "start":
            updates = [(BREAK, "")] if self.streamed else []
            self.streamed = ""
            return [*updates, (TOOL, tool_line(name, data.get("args"), data.get("meta")))]
        if phase == "result":
            text = result_text(data.get("result"))
            if data.get("isError"):
                return [(FAILED, f"{name}: {text or data.get('meta') or 'failed'}")]
            return [(RESULT, text)] if text else []
        return []

    def _chat(self, payload: dict[str, Any]) -> None:
        state = payload.get("state")
        if state not in _TERMINAL_STATES:
            return
        self.state = str(state)
        self.queued = bool(payload.get("queued"))
        if state == "error":
            self.error = str(payload.get("errorMessage") or self.error or "the run failed")
        message = payload.get("message")
        if isinstance(message, dict):
            self.final_text = message_text(message)
            self.from_gateway = is_from_gateway(message)

    def rest(self) -> str | None:
        """What is still to be printed so that what stands on the screen ends with the final text.

        ``None`` means that the streamed text differs from the final one, which must then be shown whole.
        """
        final = self.final_text
        if final is None or final.strip() == self.streamed.strip() or self.streamed.rstrip().endswith(final.strip()):
            return ""
        if final.startswith(self.streamed):
            return final[len(self.streamed) :]
        return None if self.streamed.strip() else final


def reply_texts(payload: dict[str, Any] | None) -> list[str]:
    """The texts and media lines of an ``agent`` result, in order."""
    texts: list[str] = []
    for part in _dict(_dict(payload).get("result")).get("payloads") or []:
        part = _dict(part)
        if part.get("text"):
            texts.append(str(part["text"]))
        media = part.get("mediaUrls") or ([part["mediaUrl"]] if part.get("mediaUrl") else [])
        texts += [f"MEDIA:{url}" for url in media]
    return texts


def is_from_gateway(message: dict[str, Any]) -> bool:
    return message.get("model") == "gateway-injected"


def message_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [str(_dict(block).get("text") or "") for block in blocks if _dict(block).get("type") == "text"]
    return "\n\n".join(text for text in texts if text)


def tool_line(name: str, args: Any, meta: Any = None) -> str:
    """``exec: echo hi``: the tool and the one argument that tells what it does."""
    detail = meta if isinstance(meta, str) and meta else _telling(_dict(args))
    return printable(f"{name}: {shorten(detail, 100)}" if detail else name)


def _telling(args: dict[str, Any]) -> str:
    for key in _TELLING_ARGUMENTS:
        if isinstance(args.get(key), str) and args[key]:
            return args[key]
    return json.dumps(args, ensure_ascii=False) if args else ""


def result_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict) and isinstance(result.get("content"), list | str):
        return message_text(result)
    return "" if result is None else json.dumps(result, ensure_ascii=False)


def short_result(text: str) -> list[str]:
    """The first lines of a tool's result, and how much more there is."""
    lines = [line for line in printable(text[:20_000]).splitlines() if line.strip()]
    shown = [shorten(line, 120) for line in lines[:RESULT_LINES]]
    if len(lines) > RESULT_LINES:
        shown.append(f"… {len(lines) - RESULT_LINES} more lines")
    return shown


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
