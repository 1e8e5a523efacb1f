"""One streamed turn: turns the Gateway's frames into things to show, and prints them."""

from __future__ import annotations

import json
import os
import sys

from openclaw.cli.client import GatewayClient, Lost, refused
from openclaw.cli.command import EXIT_FAILURE, EXIT_INTERRUPTED, UserError
from openclaw.cli.questions import answer_question
from openclaw.cli.terminal import note, paint
from openclaw.text import failure_text, printable, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from openclaw.cli.answers import MessageAnswer, StreamData, StreamFrame, StreamPayload
    from openclaw.cli.markdown_printer import MarkdownPrinter
    from openclaw.cli.questions import Answers

TEXT = "text"
BREAK = "break"
VOID = "void"
"""Discard the text shown of the current message; the message comes again."""
TOOL = "tool"
RESULT = "result"
FAILED = "failed"
NOTE = "note"
QUESTION = "question"
"""The run waits for a person. The text is the id of the question."""

_TELLING_ARGUMENTS = ("command", "path", "file_path", "query", "url", "sessionKey", "task", "message", "action", "name")
RESULT_LINES = 3
READ_FOR_ONE = 5
"""Messages to ask for, so that one that says something is among them: tools' results are messages too."""
MOST_SHOWN = 200
_TERMINAL_STATES = ("final", "error", "aborted")
IDLE_ALLOWANCE_S = 30


class Turn:
    """The state of one streamed call, kept from its frames."""

    def __init__(self, run_id: str, session_key: str = "") -> None:
        self.run_id = run_id
        self.session_key = session_key
        self.streamed = ""
        """The text of the assistant message that is arriving."""
        self.accepted: StreamPayload | None = None
        self.payload: StreamPayload | None = None
        """The payload of the last response."""
        self.state = ""
        """``final``, ``error`` or ``aborted`` once the run has ended."""
        self.queued = False
        """Whether another run answered this message together with its own."""
        self.waiting = False
        """Whether the message waits behind another run."""
        self.waited = False
        self.doing = "thinking…"
        """What the run does now, in words for a status line."""
        self.attached_again = False
        """Whether the connection broke, so that a part of the run was not seen."""
        self._missed_beginning = False
        """Whether the message that arrives may have begun before the connection."""
        self.final_text: str | None = None
        self.from_gateway = False
        """Whether the final text is the Gateway's own (the answer to a command) and so no Markdown."""
        self.error: str | None = None

    def digest(self, frame: StreamFrame) -> list[tuple[str, str]]:
        """Takes a frame in, and returns what to show for it: kinds with their texts."""
        payload: StreamPayload = frame.get("payload") or {}
        if frame.get("type") == "res":
            self._response(frame, payload)
            return []
        if payload.get("runId") not in (None, self.run_id):
            return []
        self.session_key = payload.get("sessionKey") or self.session_key
        if frame.get("event") == "agent":
            return self._agent(str(payload.get("stream")), payload.get("data") or {})
        if frame.get("event") == "chat":
            self._chat(payload)
        return []

    def _response(self, frame: StreamFrame, payload: StreamPayload) -> None:
        if not frame.get("ok"):
            if self.accepted is None:
                raise refused(frame.get("error"))
            reason = (frame.get("error") or {}).get("message") or payload.get("summary") or "failed"
            self.error = self.error or str(reason)
            self.state = self.state or "error"
        self.run_id = payload.get("runId") or self.run_id
        if self.accepted is None:
            self.accepted = payload
        self.payload = payload
        self.doing = "thinking…"
        # Who attaches again is not told whether the message still waits. The first event of its run tells.
        if payload.get("status") != "in_flight":
            self.waiting = bool(payload.get("queued"))
        self.waited = self.waited or self.waiting

    def attach_again(self) -> None:
        """Prepares for the same run over a new connection: what was seen of its current message is void."""
        self.attached_again, self.streamed, self.doing = True, "", "waiting for the Gateway…"
        self._missed_beginning = True

    @property
    def unfinished(self) -> bool:
        """Whether the run was accepted, or may have been, and its end was not seen."""
        return self.accepted is None or (
            (self.payload or {}).get("status") in ("started", "in_flight") and not self.state
        )

    def _agent(self, stream: str, data: StreamData) -> list[tuple[str, str]]:
        if stream == "queue":
            return []  # It says that the message waits, which the answer to the call said already.
        self.waiting = False
        if stream == "assistant":
            self.doing = "writing…"
            return self._text(data)
        if stream == "tool":
            return self._tool(data)
        if stream == "lifecycle" and data.get("phase") == "start":
            self._missed_beginning = False
        if stream == "lifecycle" and data.get("phase") == "error":
            self.error = str(data.get("error") or "the run failed")
        if stream == "lifecycle" and str(data.get("phase")).startswith("fallback"):
            return [(NOTE, str(data.get("text") or ""))]
        if stream == "lifecycle" and data.get("phase") == "retry":
            return self._retry(data)
        if stream == "compaction":
            self.doing = "compacting older messages…" if data.get("phase") == "start" else "thinking…"
        if stream == "compaction" and data.get("phase") == "start":
            return [(NOTE, "compacting older messages…")]
        return []

    def _retry(self, data: StreamData) -> list[tuple[str, str]]:
        """A failed call of the model that is tried again. Its words so far are void."""
        seconds = int(data.get("delayMs") or 0) / 1000
        when = f"in {seconds:.0f} s" if seconds >= 1 else "now"
        self.doing = f"trying again {when}…"
        updates = [(VOID, "")] if self.streamed else []
        self.streamed = ""
        reason = shortened(str(data.get("error") or "the model did not answer"), 200).rstrip(".")
        return [*updates, (NOTE, f"{reason}; trying again {when} (attempt {int(data.get('attempt') or 1) + 1})")]

    def _text(self, data: StreamData) -> list[tuple[str, str]]:
        delta, whole = str(data.get("delta") or ""), data.get("text")
        updates: list[tuple[str, str]] = []
        begins = isinstance(whole, str) and len(whole) <= len(delta)
        if self._missed_beginning:
            # What was shown of it is void, so it is shown from its beginning, which the text so far has.
            delta, self._missed_beginning = whole if isinstance(whole, str) else "", not isinstance(whole, str)
        if begins and self.streamed:
            # The cumulative text starts again: this is a new message of the same run.
            updates.append((BREAK, ""))
            self.streamed = ""
        if delta:
            self.streamed += delta
            updates.append((TEXT, delta))
        return updates

    def _tool(self, data: StreamData) -> list[tuple[str, str]]:
        phase, name = data.get("phase"), str(data.get("name") or "tool")
        self.doing = f"running {shortened(name, 40)}…" if phase in ("start", "update", "running") else "thinking…"
        if phase == "waiting":
            self.doing = "waiting for an answer…"
            return [(QUESTION, str(data.get("questionId") or ""))]
        if phase == "start":
            updates = [(BREAK, "")] if self.streamed else []
            self.streamed = ""
            return [*updates, (TOOL, tool_line(name, data.get("args"), data.get("meta")))]
        if phase == "result":
            text = result_text(data.get("result"))
            if data.get("isError"):
                return [(FAILED, f"{name}: {failure_text(text) or data.get('meta') or 'failed'}")]
            return [(RESULT, text)] if text else []
        return []

    def _chat(self, payload: StreamPayload) -> None:
        state = payload.get("state")
        if state not in _TERMINAL_STATES:
            return
        self.state, self.waiting = str(state), False
        self.queued = bool(payload.get("queued"))
        if state == "error":
            self.error = str(payload.get("errorMessage") or self.error or "the run failed")
        if (message := payload.get("message")) is not None:
            self.final_text = message_text(message)
            self.from_gateway = is_from_gateway(message)

    def rest(self) -> str | None:
        """Returns what is still to be printed of the final text.

        ``None`` means that the streamed text differs from the final one, which must be shown whole.
        """
        final = self.final_text
        if final is None or final.strip() == self.streamed.strip() or self.streamed.rstrip().endswith(final.strip()):
            return ""
        if final.startswith(self.streamed):
            return final[len(self.streamed) :]
        return None if self.streamed.strip() else final


def reply_texts(payload: StreamPayload | None) -> list[str]:
    """Returns the texts and media lines of an ``agent`` result, in order."""
    texts: list[str] = []
    for part in _dict((payload or {}).get("result")).get("payloads") or []:
        part = _dict(part)
        if part.get("text"):
            texts.append(str(part["text"]))
        media = part.get("mediaUrls") or ([part["mediaUrl"]] if part.get("mediaUrl") else [])
        texts += [f"MEDIA:{url}" for url in media]
    return texts


def is_from_gateway(message: MessageAnswer) -> bool:
    return message.get("model") == "gateway-injected"


def message_text(message: MessageAnswer) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
    texts += [f"MEDIA:{url}" for url in message.get("mediaUrls") or []]
    return "\n\n".join(text for text in texts if text)


def recent(messages: list[MessageAnswer], most: int) -> list[MessageAnswer]:
    """The end of a conversation with ``most`` messages that say something.

    Tool calls and their results between them do not count. A failed attempt that was made again is left out.
    """
    kept: list[MessageAnswer] = []
    said, later = 0, ""
    for message in reversed(messages):
        role, text = message.get("role"), message_text(message).strip()
        failed = role == "assistant" and message.get("stopReason") == "error"
        repeated = failed and not text and later == "assistant"
        later = str(role)
        if repeated:
            continue
        said += role in ("user", "assistant") and bool(text or failed)
        if said > most:
            break
        kept.append(message)
    return kept[::-1]


def tool_line(name: str, args: Any, meta: Any = None) -> str:
    """``exec: echo hi``: the tool and the one argument that tells what it does."""
    given = _dict(args)
    detail = meta if isinstance(meta, str) else ""
    if not detail:
        telling = (given[key] for key in _TELLING_ARGUMENTS if isinstance(given.get(key), str) and given[key])
        detail = next(telling, json.dumps(given, ensure_ascii=False) if given else "")
    return printable(f"{name}: {shortened(detail, 100)}" if detail else name)


def result_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(content := _dict(result).get("content"), list | str):
        return message_text({"content": content, "mediaUrls": _dict(result).get("mediaUrls") or []})
    return "" if result is None else json.dumps(result, ensure_ascii=False)


def short_result(text: str) -> list[str]:
    """Returns the first lines of a tool's result, and how many more there are."""
    lines = [line for line in printable(text[:20_000]).splitlines() if line.strip()]
    shown = [shortened(line, 120) for line in lines[:RESULT_LINES]]
    if len(lines) > RESULT_LINES:
        shown.append(f"… {len(lines) - RESULT_LINES} more lines")
    return shown


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class PlainPrinter:
    """Prints a turn as plain text: the reply to stdout as it comes, tool calls to stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._open_line = False

    def show(self, kind: str, text: str) -> None:
        if self._quiet:
            return
        if kind == TEXT:
            self._write(text)
        elif kind in (BREAK, VOID):
            self.end_line()
        elif kind == TOOL:
            self.end_line()
            note(paint(f"⚙ {text}", "dim", sys.stderr))
        elif kind == RESULT:
            for line in short_result(text):
                note(paint(f"  {line}", "dim", sys.stderr))
        elif kind == FAILED:
            self.end_line()
            note(paint(f"✗ {shortened(printable(text), 200)}", "red", sys.stderr))
        elif kind == NOTE:
            self.end_line()
            note(paint(text, "dim", sys.stderr))

    def plain(self, text: str) -> None:
        """Prints text of the Gateway's own, line by line as it is."""
        self.show(TEXT, text)

    def end_line(self) -> None:
        if self._open_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        if not text:
            return
        sys.stdout.write(printable(text))
        sys.stdout.flush()
        self._open_line = not text.endswith("\n")


def printer_for(*, quiet: bool) -> PlainPrinter | MarkdownPrinter:
    """Chooses the printer: a terminal gets rendered Markdown, a pipe or a file the text as it is."""
    if quiet or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return PlainPrinter(quiet=quiet)
    # Imported here, because it is slow to import and only a terminal needs it.
    from openclaw.cli.markdown_printer import MarkdownPrinter

    return MarkdownPrinter(in_place=True)


def run_turn(
    client: GatewayClient,
    method: str,
    params: Mapping[str, object],
    *,
    quiet: bool,
    timeout_s: int,
    answers: Answers = "ask",
) -> Turn:
    """Streams one call to its end; raises ``UserError`` when it failed, exits 130 when interrupted.

    ``answers`` says how the questions of the run are answered. Without a terminal to ask in, it exits with
    ``EXIT_QUESTION``, and the run waits.
    """
    turn = Turn(str(params["idempotencyKey"]), str(params.get("sessionKey") or ""))
    printer = printer_for(quiet=quiet)
    idle_ms = (timeout_s + IDLE_ALLOWANCE_S) * 1000 if timeout_s else None
    try:
        for frame in client.stream(method, params, idle_ms=idle_ms):
            for kind, text in turn.digest(frame):
                if kind == QUESTION:
                    printer.end_line()
                    answer_question(client, text, answers)
                else:
                    printer.show(kind, text)
    except KeyboardInterrupt:
        printer.end_line()
        _abort(client, turn, str(params.get("agentId") or "main"))
        raise SystemExit(EXIT_INTERRUPTED) from None
    except Lost as error:
        printer.end_line()
        raise _unfinished(turn, str(error)) from error
    close_turn(turn, printer)
    return turn


def close_turn(turn: Turn, printer: PlainPrinter | MarkdownPrinter) -> None:
    """Prints what is missing of the final text; raises ``UserError`` when the turn did not end well."""
    # The text of a stopped run was already shown.
    if turn.final_text is None and turn.state != "aborted" and (texts := reply_texts(turn.payload)):
        turn.final_text = "\n\n".join(texts)
    rest = turn.rest()
    if turn.from_gateway and rest:
        printer.plain(rest)
    elif rest is None:
        # The final text differs from what was streamed; the final text counts.
        printer.end_line()
        printer.show(TEXT, f"\n{turn.final_text}")
    else:
        printer.show(TEXT, rest)
    printer.end_line()
    if turn.state == "aborted":
        raise UserError("The run was stopped before it finished.", EXIT_FAILURE)
    if turn.error:
        raise UserError(f"The agent could not answer: {turn.error}")
    if turn.accepted is None or not (turn.state or (turn.payload or {}).get("status") not in ("accepted", "started")):
        raise _unfinished(turn, "The connection to the Gateway ended before the reply did.")


def _unfinished(turn: Turn, reason: str) -> UserError:
    if turn.accepted is None:
        return UserError(reason)
    return UserError(
        f"{reason}\nThe message was accepted as run {turn.run_id}; the Gateway finishes it when it can. "
        f"`openclaw chat` shows the reply, `openclaw why {turn.run_id}` how far it is."
    )


def _abort(client: GatewayClient, turn: Turn, agent_id: str) -> None:
    key = turn.session_key or f"agent:{agent_id}:main"
    try:
        client.call("chat.abort", {"sessionKey": key, "runId": turn.run_id}, timeout_ms=5000)
        note("Stopped.")
    except UserError as error:
        note(f"Could not stop the run {turn.run_id}: {error}")
