"""Logs: JSON lines in a file per day, readable lines on the console, secrets masked, and no waiting for the disk.

Code logs through the standard library (``logging.getLogger("openclaw.gateway.ws")``; facts go in ``extra={"fields":
{...}}``). A record is queued and one thread writes it, so that a slow disk never stops the loop.

``RunLog`` writes one line for each step of a message that a person would ask about. The lines name the message by the
number that ``openclaw why`` takes. The log never contains message texts.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
import re
import sys
import threading
import time
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from openclaw import redact
from openclaw.config.schema.system import Logging
from openclaw.events import CompactionEnded, ModelSwitched, RetryScheduled, ToolEnded, ToolStarted
from openclaw.paths import make_private_dir
from openclaw.runs.endings import ending_of
from openclaw.runs.reasons import stopped_by
from openclaw.runs.run import Run, RunAbsorbed, RunBegan, RunEvent, RunFinished
from openclaw.sessions.keys import shown_key
from openclaw.text import counted, duration, failure_text, printable, printable_json, shortened

KEEP_DAYS = 7
MAX_FILE_BYTES = 100 * 1024 * 1024
"""A file of this size is renamed to ``.1`` and replaces an earlier one, so that logs cannot fill the disk."""
MAX_QUEUED = 10_000
GATHER_S = 0.05
MAX_TEXT = 4096
"""The most characters of a message and of a field. Strangers choose some of them, and the queue holds many."""
MAX_TRACE = 16_384
MAX_FIELDS = 32
TRACE = 5
LEVELS = {
    "silent": logging.CRITICAL + 10,
    "fatal": logging.CRITICAL,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
}
_NAMES = {logging.CRITICAL: "fatal", logging.WARNING: "warn", TRACE: "trace"}
DAILY_NAME = re.compile(r"openclaw-(\d{4}-\d{2}-\d{2})\.log(\.1)?")
log = logging.getLogger("openclaw.logs")


def log_path(state_dir: str | Path, file: str | None, at: float | None = None) -> Path:
    """The file for lines of the moment ``at``, which is now by default."""
    if file:
        return Path(file).expanduser()
    day = time.strftime("%Y-%m-%d", time.localtime(at))
    return Path(state_dir) / "logs" / f"openclaw-{day}.log"


def subsystem_of(logger_name: str) -> str:
    """``openclaw.gateway.ws`` is the subsystem ``gateway/ws``."""
    return logger_name.removeprefix("openclaw.").replace(".", "/")


def level_name(level: int) -> str:
    return _NAMES.get(level) or logging.getLevelName(level).lower()


def as_json(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
    level, message = level_name(record.levelno), redact.redact(cut(record.getMessage()))
    line: dict[str, Any] = {"time": moment, "level": level, "subsystem": subsystem_of(record.name), "message": message}
    fields = getattr(record, "fields", None)
    some = islice(fields.items(), MAX_FIELDS) if isinstance(fields, dict) else ()
    fields = {str(key)[:MAX_TEXT]: _masked(value) for key, value in some}
    if record.exc_text:
        fields["trace"] = redact.redact(cut(record.exc_text, MAX_TRACE))
    if fields:
        line["fields"] = fields
    # Log viewers read the positional fields: first where a line comes from, then what it says.
    line |= {"0": line["subsystem"], "1": message}
    name = json.dumps({"subsystem": line["subsystem"]})
    line["_meta"] = {"logLevelName": level.upper(), "name": name, "date": moment}
    return json.dumps(line, ensure_ascii=False, default=str)


def _masked(value: Any) -> Any:
    return value if isinstance(value, int | float | bool) or value is None else redact.redact(cut(str(value)))


def cut(text: str, most: int = MAX_TEXT) -> str:
    """A long text without its middle. It is cut before it is masked, so that masking costs little."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} …({len(text) - most} characters cut)… {text[-half:]}"


class DailyFile(logging.Handler):
    """Appends JSON lines to the day's file (0600) and removes files older than a week."""

    def __init__(self, state_dir: str, file: str | None) -> None:
        super().__init__()
        self._state_dir = state_dir
        self._file = file
        self._path: Path | None = None
        self._fd = -1
        self._size = 0
        self._torn = False
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record. When the disk refuses, the line is dropped and the file says so later."""
        try:
            path = log_path(self._state_dir, self._file, record.created)
            if self._fd < 0 or path != self._path or self._size > MAX_FILE_BYTES:
                self._open(path)
            lines = [as_json(record), ""]
            if self._lost:
                text = f"{self._lost} lines could not be written to this file"
                lost = logging.LogRecord("openclaw.logs", logging.WARNING, __file__, 0, text, None, None)
                lost.created = record.created
                lines.insert(0, as_json(lost))
            data = "\n".join(lines).encode("utf-8", "backslashreplace")
            data = b"\n" + data if self._torn else data
            written = os.write(self._fd, data)
        except (OSError, ValueError):
            self._lost += 1
            return
        self._size += written
        self._torn = written < len(data)
        self._lost = 1 if self._torn else 0

    def _open(self, path: Path) -> None:
        self.close_file()
        make_private_dir(str(path.parent))
        if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
            path.replace(path.with_name(path.name + ".1"))
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._path, self._size, self._torn = path, os.fstat(self._fd).st_size, False
        if self._file is None:
            prune(path.parent, today=path.name)

    def close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        self.close_file()
        super().close()


def prune(folder: Path, *, today: str) -> None:
    """Remove daily files more than a week older than ``today``'s."""
    current = DAILY_NAME.fullmatch(today)
    if current is None:
        return
    newest = datetime.strptime(current[1], "%Y-%m-%d")
    for path in folder.iterdir():
        match = DAILY_NAME.fullmatch(path.name)
        if not match:
            continue
        try:
            too_old = (newest - datetime.strptime(match[1], "%Y-%m-%d")).days > KEEP_DAYS
        except ValueError:
            continue
        if too_old:
            path.unlink(missing_ok=True)


class Console(logging.Handler):
    """Writes ``<ISO> [subsystem] text``, one line for each record, so that a line break cannot forge a second line."""

    def __init__(self, stream: TextIO, style: str) -> None:
        super().__init__()
        self._stream = stream
        self._json = style == "json"

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._stream.write((printable_json(as_json(record)) if self._json else console_line(record)) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass


def console_line(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
    subsystem = subsystem_of(record.name).removeprefix("gateway/").removeprefix("channels/")
    text = redact.redact(cut(record.getMessage()))
    if record.levelno >= logging.WARNING:
        text = f"{level_name(record.levelno)}: {text}"
    if record.exc_text:
        text += f" ({redact.redact(cut(record.exc_text.strip().splitlines()[-1]))}; the log file has the trace)"
    return f"{moment} [{subsystem}] {printable(text).replace(chr(10), ' ⏎ ').expandtabs()}"


class BoundedQueue(logging.handlers.QueueHandler):
    """Queues records and never waits. When the writer is too slow, records are dropped and counted."""

    def __init__(self, lines: queue.Queue[Any]) -> None:
        super().__init__(lines)
        self._lines = lines
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Formats the record now, because its arguments may change before the thread writes it."""
        if record.exc_info and not record.exc_text:
            record.exc_text = cut(logging.Formatter().formatException(record.exc_info), MAX_TRACE)
        record.msg, record.args, record.exc_info = cut(record.getMessage()), None, None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.dropped:
                record.msg = f"{record.msg} ({self.dropped} lines before this one were dropped)"
            self._lines.put_nowait(record)
            self.dropped = 0
        except queue.Full:
            self.dropped += 1


class GatheringListener(logging.handlers.QueueListener):
    """The thread that writes. It lets ordinary lines gather for a moment, because being woken for every line cost
    0.6 ms of CPU a turn, against 0.2 ms. Warnings and errors are written at once, since a crash may follow.
    """

    def __init__(self, lines: queue.Queue[Any], *outputs: logging.Handler) -> None:
        super().__init__(lines, *outputs, respect_handler_level=True)
        self._lines = lines
        self._stopping = threading.Event()

    def dequeue(self, block: bool) -> logging.LogRecord:
        first = self._lines.empty()
        record = self._lines.get(block)
        # The end marker of the thread is not a record.
        if first and isinstance(record, logging.LogRecord) and record.levelno < logging.WARNING:
            self._stopping.wait(GATHER_S)
        return record

    def stop(self) -> None:
        self._stopping.set()
        super().stop()


class Logs:
    """Logging as configured, from ``start`` until ``stop``."""

    def __init__(self, handler: BoundedQueue, listener: logging.handlers.QueueListener, file: DailyFile) -> None:
        self._handler = handler
        self._listener = listener
        self._file = file

    @classmethod
    def start(
        cls, state_dir: str, settings: Logging, *, console: TextIO | None = sys.stderr, verbose: bool = False
    ) -> Logs:
        """Begin to log. ``verbose`` shows more on the console and changes nothing in the file."""
        refused = redact.configure(settings.redact_patterns, enabled=settings.redact_sensitive != "off")
        file = DailyFile(state_dir, settings.file)
        file.setLevel(LEVELS[settings.level])
        outputs: list[logging.Handler] = [file]
        if console is not None:
            shown = Console(console, settings.console_style)
            shown.setLevel(logging.DEBUG if verbose else LEVELS[settings.console_level or "info"])
            outputs.append(shown)
        lines: queue.Queue[Any] = queue.Queue(MAX_QUEUED)
        handler = BoundedQueue(lines)
        listener = GatheringListener(lines, *outputs)
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(logging.WARNING)
        logging.getLogger("openclaw").setLevel(min(output.level for output in outputs))
        listener.start()
        for problem in refused:
            log.warning("%s", problem)
        return cls(handler, listener, file)

    def stop(self) -> None:
        """Write the queued records and close the file."""
        logging.getLogger().removeHandler(self._handler)
        self._listener.stop()
        self._file.close()


message_log = logging.getLogger("openclaw.messages")

LONG_WAIT_MS = 1_000
"""A shorter wait for the turn of a message is not mentioned."""
LONGEST_ERROR = 200
OWN = (None, "", "internal")
"""Channels of messages that came from a client or from the Gateway itself. Their source says more."""
_LOGGED = frozenset(
    {ToolStarted, ToolEnded, RetryScheduled, ModelSwitched, CompactionEnded, RunBegan, RunAbsorbed, RunFinished}
)
_WORDS = {"answered": "answered", "silent": "ended in silence", "failed": "failed", "expired": "expired"}


class RunLog:
    """Follows a run and logs its message, its failures and its end."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tools = 0
        row = run.row
        key = shown_key(row.session_key)
        self._fields: dict[str, Any] = {"messageId": row.id, "runId": row.run_id, "sessionKey": key}
        resumed = " is resumed" if run.recovered else ""
        channel = row.route.channel
        self._say(logging.INFO, "%s for %s from %s", resumed, key, row.source if channel in OWN else channel)

    def _began(self) -> None:
        run = self._run
        waited = (run.started_at or 0) - run.row.accepted_at
        if waited >= LONG_WAIT_MS:
            self._say(logging.INFO, " begins after waiting for %s", duration(waited))

    def event(self, event: RunEvent) -> None:
        if type(event) not in _LOGGED:
            return  # Most events are words of the reply.
        match event:
            case RunBegan():
                self._began()
            case RunAbsorbed(by):
                self._say(logging.INFO, " is answered together with another, in run %s", by.run_id)
            case RunFinished():
                self._finished()
            case ToolStarted():
                self._tools += 1
            case ToolEnded(failed=True):
                failed = event.message
                self._say(
                    logging.WARNING, ": the tool %s failed: %s", failed.tool_name, _short(failure_text(failed.text))
                )
            case RetryScheduled():
                again = duration(event.delay_ms)
                self._say(logging.WARNING, ": the model is asked again in %s: %s", again, _short(event.error))
            case ModelSwitched():
                self._say(logging.WARNING, ": %s answers in the place of %s", event.active, event.chosen)
            case CompactionEnded() if event.entry_id is not None:
                sizes = event.tokens_before, event.tokens_after
                self._say(logging.INFO, ": its conversation was condensed from %d to %d tokens", *sizes)
            case CompactionEnded() if event.error:
                self._say(logging.WARNING, ": its conversation could not be condensed: %s", _short(event.error))
            case _:
                pass

    def _finished(self) -> None:
        run, result = self._run, self._run.result
        if result is None:
            return
        state = self._fields["state"] = ending_of(result).state
        took = (run.ended_at or 0) - (run.started_at or run.ended_at or 0)
        if state in ("failed", "expired"):
            self._say(logging.ERROR, " %s after %s: %s", _WORDS[state], duration(took), _short(run.error or ""))
        elif state in _WORDS:
            used = result.account.spent or result.account.usage
            tokens = f", {used.input + used.cache_read + used.cache_write} tokens in, {used.output} out" if used else ""
            tools = f", {counted(self._tools, 'tool call', 'tool calls')}" if self._tools else ""
            model = f" by {run.model}" if run.model else ""
            self._say(logging.INFO, " %s in %s%s%s%s", _WORDS[state], duration(took), model, tokens, tools)
        else:
            self._say(
                logging.INFO,
                " was stopped after %s: %s",
                duration(took),
                _short(stopped_by(run.error or "") or run.error or state),
            )

    def _say(self, level: int, text: str, *values: Any) -> None:
        message_log.log(level, f"message %d{text}", self._run.row.id, *values, extra={"fields": self._fields})


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), LONGEST_ERROR)
