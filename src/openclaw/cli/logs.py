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
from openclaw.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

COLOURS = {"fatal": "red", "error": "red", "warn": "yellow", "warning": "yellow", "debug": "dim", "trace": "dim"}
MAX_BYTES = 250_000


def run(args: argparse.Namespace) -> int:
    if args.limit < 1 or args.interval < 50 or args.max_bytes < 1:
        raise UserError("--limit and --max-bytes must be at least 1, --interval at least 50 (milliseconds)")
    if args.plain:
        os.environ["NO_COLOR"] = "1"
    client = from_args(args)
    params: dict[str, Any] = {"limit": args.limit, "maxBytes": args.max_bytes}
    try:
        page = client.call("logs.tail", params)
    except Unreachable:
        if not client.target.local or args.follow:
            raise
        page = _from_file(args.limit, args.max_bytes)
    if args.json:
        _emit({"type": "meta", "file": page.get("file"), "cursor": page.get("cursor"), "size": page.get("size")})
    else:
        sys.stdout.write(f"Log file: {page.get('file')}\n")
    _show(page, as_json=args.json)
    while args.follow:
        time.sleep(args.interval / 1000)
        page = client.call("logs.tail", {**params, "cursor": page.get("cursor", 0)})
        _show(page, as_json=args.json)
    return 0


def _from_file(limit: int, max_bytes: int) -> dict[str, Any]:
    directory = os.path.join(paths.state_dir(), "logs")
    files = os.listdir(directory) if os.path.isdir(directory) else []
    names = [name for name in files if name.startswith("openclaw-") and name.endswith(".log")]
    if not names:
        raise UserError(f"No Gateway is running, and there is no log in {directory}. Start one: openclaw gateway start")
    path = os.path.join(directory, max(names))
    note("No Gateway is running; reading its last log file.")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - max_bytes))
        text = file.read(max_bytes).decode("utf-8", "replace")
    lines = text.splitlines()
    return {"file": path, "cursor": size, "size": size, "lines": (lines[1:] if size > max_bytes else lines)[-limit:]}


def _show(page: dict[str, Any], *, as_json: bool) -> None:
    if page.get("reset") or page.get("truncated"):
        notice = "The log was rotated." if page.get("reset") else "Some lines were skipped."
        if as_json:
            _emit({"type": "notice", "message": notice})
        else:
            note(notice)
    for raw in page.get("lines") or []:
        record = parse_line(raw)
        if as_json:
            _emit({"type": "log", **record, "raw": raw} if record else {"type": "raw", "raw": raw})
        else:
            sys.stdout.write((_text(record) if record else printable(raw)) + "\n")
    sys.stdout.flush()


def parse_line(raw: str) -> dict[str, Any] | None:
    """Returns time, level, subsystem and message of a line in our format or the original's; else ``None``."""
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
    parsed = {"time": record.get("time") or (meta or {}).get("date"), "level": level, "message": message}
    return {**parsed, "subsystem": subsystem} if subsystem else parsed


def _text(record: dict[str, Any]) -> str:
    level = record["level"]
    shown = paint(f"{level:<5}", COLOURS[level]) if level in COLOURS else f"{level:<5}"
    subsystem = f"[{record['subsystem']}] " if record.get("subsystem") else ""
    text = str(record["message"]).replace("\n", " ⏎ ")
    return f"{record.get('time') or ''} {shown} {printable(subsystem + text)}"


def _emit(value: dict[str, Any]) -> None:
    print_json(value, indent=None)


COMMANDS = {
    "logs": Action(
        "Show the Gateway's log",
        run,
        (
            Flag("-f --follow", "go on printing new lines until Ctrl-C"),
            Flag("--interval MS", "how often to look for new lines (1000)", type=int, default=1000),
            Flag("--limit N", "lines to show at first (200)", type=int, default=200),
            Flag("--max-bytes N", "bytes to read at once (250000)", type=int, default=MAX_BYTES),
            Flag("--json", "one JSON object per line"),
            Flag("--plain", "no colours"),
            *GATEWAY,
        ),
        example="openclaw logs -f",
    )
}
