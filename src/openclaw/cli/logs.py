"""``openclaw logs``: the log, from the running Gateway, or from the file when no Gateway answers."""

from __future__ import annotations

import json
import os
import sys
import time

from openclaw import paths
from openclaw.cli.client import Unreachable, from_args
from openclaw.cli.command import GATEWAY, Action, Flag, UserError
from openclaw.cli.terminal import note, paint, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from openclaw.cli.answers import LogLine, LogPage


COLOURS = {"fatal": "red", "error": "red", "warn": "yellow", "warning": "yellow", "debug": "dim", "trace": "dim"}
MAX_BYTES = 250_000
LEVELS = ("trace", "debug", "info", "warn", "error", "fatal")


def run(args: argparse.Namespace) -> int:
    if args.limit < 1 or args.interval < 50 or args.max_bytes < 1:
        raise UserError("--limit and --max-bytes must be at least 1, --interval at least 50 (milliseconds)")
    if args.plain:
        os.environ["NO_COLOR"] = "1"
    client, wanted = from_args(args), Wanted(args)
    params: dict[str, object] = {"limit": args.limit, "maxBytes": args.max_bytes}
    try:
        page = client.call("logs.tail", params)
    except Unreachable:
        if not client.target.local:
            raise
        page = _from_file(args.limit, args.max_bytes)
    if args.json:
        _emit({"type": "meta", "file": page.get("file"), "cursor": page.get("cursor"), "size": page.get("size")})
    else:
        sys.stdout.write(f"Log file: {page.get('file')}\n")
    _show(page, wanted, as_json=args.json)
    gone = False
    while args.follow:
        time.sleep(args.interval / 1000)
        try:
            page = client.call("logs.tail", {**params, "cursor": page.get("cursor", 0)})
        except Unreachable:
            # A Gateway that restarts writes on in the same file.
            if not client.target.local:
                raise
            if not gone:
                note("The Gateway does not answer; waiting for it.")
            gone, client = True, from_args(args)
            continue
        gone = False
        _show(page, wanted, as_json=args.json)
    return 0


class Wanted:
    """Which lines the flags ask for."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._rank = LEVELS.index(args.level)
        self._messages = args.messages
        self._subsystem = args.subsystem
        self._session = args.session
        self._text = (args.grep or "").lower()

    def __contains__(self, record: LogLine) -> bool:
        level = {"warning": "warn"}.get(record["level"], record["level"])
        subsystem, fields = str(record.get("subsystem") or ""), record.get("fields") or {}
        return (
            (LEVELS.index(level) if level in LEVELS else len(LEVELS)) >= self._rank
            and (not self._messages or "messageId" in fields)
            and (not self._subsystem or f"{subsystem}/".startswith(f"{self._subsystem}/"))
            and (not self._session or self._is_of_session(str(fields.get("sessionKey") or "")))
            and self._text in str(record["message"]).lower()
        )

    def _is_of_session(self, key: str) -> bool:
        return key == self._session or key.endswith(f":{self._session}")

    @property
    def everything(self) -> bool:
        return not (self._rank or self._messages or self._subsystem or self._session or self._text)


def _from_file(limit: int, max_bytes: int) -> LogPage:
    path = _last_file()
    note("No Gateway is running; reading its last log file.")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - max_bytes))
        text = file.read(max_bytes).decode("utf-8", "replace")
    lines = text.splitlines()
    return {"file": path, "cursor": size, "size": size, "lines": (lines[1:] if size > max_bytes else lines)[-limit:]}


def _last_file() -> str:
    """The file that the configuration names, else the newest daily one."""
    from openclaw.cli.config import current_config

    if named := current_config().logging.file:
        path = os.path.expanduser(named)
        if os.path.exists(path):
            return path
        raise UserError(f"No Gateway is running, and no log exists at {path}. Start one: openclaw gateway start")
    directory = os.path.join(paths.state_dir(), "logs")
    files = os.listdir(directory) if os.path.isdir(directory) else []
    names = [name for name in files if name.startswith("openclaw-") and name.endswith(".log")]
    if not names:
        raise UserError(f"No Gateway is running, and no log exists in {directory}. Start one: openclaw gateway start")
    return os.path.join(directory, max(names))


def _show(page: LogPage, wanted: Wanted, *, as_json: bool) -> None:
    if page.get("reset") or page.get("truncated"):
        notice = "The log was rotated." if page.get("reset") else "Some lines were skipped."
        if as_json:
            _emit({"type": "notice", "message": notice})
        else:
            note(notice)
    for raw in page.get("lines") or []:
        record = parse_line(raw)
        if not (wanted.everything if record is None else record in wanted):
            continue
        if as_json:
            _emit({"type": "log", **record, "raw": raw} if record else {"type": "raw", "raw": raw})
        else:
            sys.stdout.write((_text(record) if record else raw) + "\n")
    sys.stdout.flush()


def parse_line(raw: str) -> LogLine | None:
    """Returns time, level, subsystem, message and fields of a line in our format or the original's; else ``None``."""
    try:
        record = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    meta = record.get("_meta") if isinstance(record.get("_meta"), dict) else {}
    subsystem, message = record.get("subsystem"), record.get("message")
    if message is None:
        parts = [record[key] for key in sorted((k for k in record if k.isdigit()), key=int)]
        if parts and isinstance(parts[0], str) and parts[0].startswith("{"):
            subsystem = subsystem or (parse_line(parts.pop(0)) or {}).get("subsystem")
        message = " ".join(part if isinstance(part, str) else json.dumps(part) for part in parts)
    level = str(record.get("level") or (meta or {}).get("logLevelName") or "info").lower()
    parsed: LogLine = {"time": record.get("time") or (meta or {}).get("date"), "level": level, "message": message}
    if subsystem:
        parsed["subsystem"] = subsystem
    if isinstance(record.get("fields"), dict):
        parsed["fields"] = record["fields"]
    return parsed


def _text(record: LogLine) -> str:
    level = record["level"]
    shown = paint(f"{level:<5}", COLOURS[level]) if level in COLOURS else f"{level:<5}"
    subsystem = f"[{subsystem}] " if (subsystem := record.get("subsystem")) else ""
    text = str(record["message"]).replace("\n", " ⏎ ")
    state = (record.get("fields") or {}).get("state")
    colour = "red" if level in ("error", "fatal") else "green" if state == "answered" else None
    text = paint(text, colour) if colour else text
    return f"{_clock(record.get('time'))} {shown} {subsystem}{text}"


def _clock(time: Any) -> str:
    """``2026-11-17 12:03:04`` of a line's own time. Other text stays as it is."""
    text = str(time or "")
    return f"{text[:10]} {text[11:19]}" if len(text) >= 19 and text[10] == "T" else text


def _emit(value: dict[str, object]) -> None:
    print_json(value, indent=None)


COMMANDS = {
    "logs": Action(
        "Show what the Gateway does: each message, run, outcome and failure on one line",
        run,
        (
            Flag("-f --follow", "go on printing new lines until Ctrl-C"),
            Flag("--interval MS", "how often to look for new lines (500)", type=int, default=500),
            Flag("--limit N", "lines to show at first (200)", type=int, default=200),
            Flag("--max-bytes N", "bytes to read at once (250000)", type=int, default=MAX_BYTES),
            Flag("--messages", "only what happens to messages: each one, its run, its failures and its end"),
            Flag("--session NAME", "only lines about this session, by its key or the last part of it"),
            Flag("--level LEVEL", "only lines of this level and above (trace)", choices=LEVELS, default=LEVELS[0]),
            Flag("--subsystem NAME", "only lines of this part, e.g. gateway or channels/telegram"),
            Flag("--grep TEXT", "only lines with this text"),
            Flag("--json", "one JSON object per line"),
            Flag("--plain", "no colours"),
            *GATEWAY,
        ),
        about=(
            "Each message, failed tool or model call, outcome and delivery is one line. The text of messages is not in "
            "the log. -f goes on over a restart; while the Gateway is down, its last file is shown."
        ),
        example="openclaw logs -f --messages",
    )
}
