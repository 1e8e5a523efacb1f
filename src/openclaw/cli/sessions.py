"""``openclaw sessions``: the conversations the Gateway keeps, and the way back to earlier ones."""

from __future__ import annotations

import sys
import time

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.errors import UserError
from openclaw.cli.session_files import ACTIONS as FILE_ACTIONS
from openclaw.cli.terminal import age, paint, print_json, printable, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

KEY_WIDTH = 26
MIN_MODEL_WIDTH = 14
MAX_MODEL_WIDTH = 32
ROW_FIELDS = (
    "key",
    "kind",
    "channel",
    "updatedAt",
    "ageMs",
    "sessionId",
    "label",
    "systemSent",
    "abortedLastRun",
    "thinkingLevel",
    "verboseLevel",
    "reasoningLevel",
    "elevatedLevel",
    "responseUsage",
    "groupActivation",
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "cacheRead",
    "cacheWrite",
    "model",
    "contextTokens",
    "compactionCount",
)


def build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--active", metavar="N", help="only sessions used in the last N minutes")
    parser.add_argument("--agent", metavar="ID", help="only sessions of this agent")
    parser.add_argument("--search", metavar="TEXT", help="only sessions whose name, label or key has this text")
    parser.add_argument("--limit", metavar="N", type=int, help="at most N sessions")
    add_json(parser)
    add_gateway_options(parser)


def run(args: argparse.Namespace) -> int:
    active = _active_minutes(args.active)
    params: dict[str, Any] = {}
    optional = {"activeMinutes": active, "agentId": args.agent, "search": args.search, "limit": args.limit}
    params |= {key: value for key, value in optional.items() if value is not None}
    listed = clients.from_args(args).call("sessions.list", params)
    now = int(listed.get("ts") or time.time() * 1000)
    rows = [_row(row, now) for row in listed.get("sessions") or []]
    stores: list[Any] = listed.get("paths") or [listed.get("path")]
    if args.json:
        shape = {"path": stores[0], "paths": stores, "count": len(rows)}
        print_json({**shape, "activeMinutes": active, "sessions": rows})
        return 0
    sys.stdout.write(f"Session store: {stores[0]}\nSessions listed: {len(rows)}\n")
    if active is not None:
        sys.stdout.write(f"Filtered to the last {active} minute(s)\n")
    if rows:
        sys.stdout.write("\n" + table(rows) + "\n")
    else:
        sys.stdout.write('None yet. Start one with: openclaw message send "Hello"\n')
    return 0


def _active_minutes(value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise UserError("--active must be a positive integer (minutes)")
    return int(value)


def _row(row: dict[str, Any], now: int) -> dict[str, Any]:
    updated = row.get("updatedAt")
    full = {**row, "ageMs": max(0, now - updated) if isinstance(updated, int | float) else None}
    return {field: full[field] for field in ROW_FIELDS if field in full}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of ``sessions`` and ``status``; both must show the same numbers."""
    models = [shorten(printable(str(row.get("model") or "unknown")), MAX_MODEL_WIDTH) for row in rows]
    widths = (6, KEY_WIDTH, 9, max([MIN_MODEL_WIDTH, *map(len, models)]), 20)
    lines = [paint(_line(("Kind", "Key", "Age", "Model", "Tokens (ctx %)", "Flags"), widths), "bold")]
    for row, model in zip(rows, models, strict=True):
        cells = (
            str(row.get("kind") or "unknown"),
            middle_cut(printable(str(row.get("key") or "")), KEY_WIDTH),
            age(row.get("ageMs", row.get("age"))),
            model,
            token_text(row),
            " ".join(flags(row)),
        )
        lines.append(_line(cells, widths, _usage_colour(percent_used(row))))
    return "\n".join(lines)


def _line(cells: tuple[str, ...], widths: tuple[int, ...], token_colour: str | None = None) -> str:
    padded = [f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)]
    if token_colour is not None:
        padded[-1] = paint(padded[-1], token_colour)
    return " ".join([*padded, cells[-1]]).rstrip()


def middle_cut(text: str, width: int) -> str:
    """Long keys keep both ends: the agent at the front, the peer at the back."""
    if len(text) <= width:
        return text
    tail = 6
    return f"{text[: width - tail - 4]}...{text[-tail:]}"


def percent_used(row: dict[str, Any]) -> int | None:
    used, window = row.get("totalTokens"), row.get("contextTokens")
    if not isinstance(used, int | float) or not isinstance(window, int | float) or not window:
        return None
    return min(999, int(100 * used / window + 0.5))


def token_text(row: dict[str, Any]) -> str:
    """``0.1k/200k (0%)``; what is not known is shown as not known."""
    used, window = row.get("totalTokens"), row.get("contextTokens")
    share = percent_used(row)
    shown = f"{_thousands(used)}/{_thousands(window)}" if window else f"{_thousands(used)}/?"
    return f"{shown} ({share}%)" if share is not None else f"{shown} (?%)" if window else shown


def _thousands(number: Any) -> str:
    if not isinstance(number, int | float):
        return "?"
    value = number / 1000
    return f"{round(value)}k" if value >= 10 else f"{value:.1f}k"


def flags(row: dict[str, Any]) -> list[str]:
    levels = (
        ("think", "thinkingLevel"),
        ("verbose", "verboseLevel"),
        ("reasoning", "reasoningLevel"),
        ("elev", "elevatedLevel"),
        ("usage", "responseUsage"),
        ("activation", "groupActivation"),
    )
    shown = [f"{name}:{row[field]}" for name, field in levels if row.get(field)]
    if row.get("systemSent"):
        shown.append("system")
    if row.get("abortedLastRun"):
        shown.append("aborted")
    if row.get("compactionCount"):
        shown.append(f"compactions:{row['compactionCount']}")
    if row.get("sessionId"):
        shown.append(f"id:{row['sessionId']}")
    return [printable(flag) for flag in shown]


def _usage_colour(share: int | None) -> str | None:
    if share is None or share < 60:
        return None
    return "red" if share >= 95 else "yellow" if share >= 80 else "green"


# Earlier sessions of a conversation


def build_archived(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", nargs="?", default="main", metavar="KEY", help="session key (default main)")
    add_json(parser)
    add_gateway_options(parser)


def list_archived(args: argparse.Namespace) -> int:
    listed = clients.from_args(args).call("sessions.archived", {"key": args.key})
    if args.json:
        print_json(listed)
        return 0
    rows = listed.get("sessions") or []
    key = printable(str(listed.get("key")))
    if not rows:
        sys.stdout.write(f"{key} has no earlier sessions.\n")
        return 0
    now = int(listed.get("ts") or time.time() * 1000)
    sys.stdout.write(f"Earlier sessions of {key}:\n\n")
    for row in rows:
        ended = f"{age(now - row['endedAt'])}" if row.get("endedAt") else "unknown"
        title = shorten(printable(str(row.get("title") or "")), 60)
        sys.stdout.write(f"{row.get('index'):>3}  {str(row.get('sessionId'))[:8]:<8}  {ended:<9}  {title}\n")
    sys.stdout.write(f"\nBring one back with: openclaw sessions resume {key} --session 1\n")
    return 0


def build_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", nargs="?", default="main", metavar="KEY", help="session key (default main)")
    parser.add_argument("--session", metavar="N|ID", help="number from the list or session id (default: the newest)")
    add_json(parser)
    add_gateway_options(parser)


def resume(args: argparse.Namespace) -> int:
    params: dict[str, Any] = {"key": args.key}
    wanted = (args.session or "").strip()
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 4:
        if int(wanted) < 1:
            raise UserError(f"--session {wanted}: the newest earlier session is number 1")
        params["index"] = int(wanted)
    elif wanted:
        params["sessionId"] = wanted
    answer = clients.from_args(args).call("sessions.resume", params)
    if args.json:
        print_json(answer)
        return 0
    sys.stdout.write(printable(f"{answer.get('key')}: {answer.get('marker')}") + "\n")
    return 0


ACTIONS = {
    "list": Action("List the sessions the Gateway keeps", run, build, example="openclaw sessions --active 120 --json"),
    "archived": Action(
        "List the earlier sessions of a conversation",
        list_archived,
        build_archived,
        example="openclaw sessions archived main",
    ),
    "resume": Action(
        "Make an earlier session the current one again; the current one is kept",
        resume,
        build_resume,
        example="openclaw sessions resume main --session 2",
    ),
    **FILE_ACTIONS,
}
DEFAULT = "list"
