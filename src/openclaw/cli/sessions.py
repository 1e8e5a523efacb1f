"""``openclaw sessions``: lists, resumes, searches, exports, imports and compresses conversations."""

from __future__ import annotations

import os
import sys
import time

from openclaw import paths
from openclaw.cli import service
from openclaw.cli.client import GatewayClient, from_args
from openclaw.cli.command import (
    CLIENT,
    EXIT_FAILURE,
    EXIT_USAGE,
    Action,
    Flag,
    Group,
    UserError,
    answer,
    decoded,
    query,
    report,
    yes,
)
from openclaw.cli.config import current_config
from openclaw.cli.gateway_target import resolve
from openclaw.cli.session_lookup import find_session, resolve_key
from openclaw.cli.terminal import CountedWork, note, paint, print_json, working
from openclaw.cli.turn_stream import MOST_SHOWN, READ_FOR_ONE, message_text, recent
from openclaw.text import age, counted, printable_json, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from typing import Any

    from openclaw.cli.answers import SessionAnswer, SessionReport, SessionsAnswer, SessionsReport


SLOW_MS = 120_000
"""The first search reads every transcript there is."""
SEARCH_PIECE = 8 << 20
"""Bytes that one call of a search reads of what was never searched."""
ARCHIVE_PIECE = 20
MOST_PIECES = 10_000
PROGRESS_S = 1.0
"""How often a long import says how far it is, where it does not print every session."""
SNIPPET_WIDTH = 300
LARGEST_IMPORT = 12 << 20
"""The most that one request to the Gateway holds, with room for JSON's quoting."""
MAX_MODEL_WIDTH = 18
LAST_SHOWN = 6
# fmt: off
ROW_FIELDS = (
    "key", "kind", "channel", "updatedAt", "ageMs", "sessionId", "label", "systemSent", "abortedLastRun",
    "thinkingLevel", "verboseLevel", "reasoningLevel", "elevatedLevel", "responseUsage", "groupActivation",
    "inputTokens", "outputTokens", "totalTokens", "cacheRead", "cacheWrite", "model", "contextTokens",
    "compactionCount",
)
# fmt: on
_SESSION = Flag("session SESSION", "session key, id or label")
_KEY = Flag(
    "key SESSION", "session key, id or label (default main)", param="key", session=True, nargs="?", default="main"
)


def _active_minutes(args: argparse.Namespace) -> int | None:
    value: str | None = args.active
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise UserError("--active must be a positive integer (minutes)")
    return int(value)


def _listed(listed: SessionsAnswer, args: argparse.Namespace) -> SessionsReport:
    now = int(listed.get("ts") or time.time() * 1000)
    rows = [_row(row, now) for row in listed.get("sessions") or []]
    stores = listed.get("paths") or [listed.get("path") or ""]
    active = _active_minutes(args)
    return {"path": stores[0], "paths": stores, "count": len(rows), "activeMinutes": active, "sessions": rows}


def _show_list(listed: SessionsReport, args: argparse.Namespace) -> Iterator[str]:
    yield f"Session store: {listed['path']}"
    yield f"Sessions listed: {listed['count']}"
    if listed["activeMinutes"] is not None:
        yield f"Filtered to the last {listed['activeMinutes']} minute(s)"
    if listed["sessions"]:
        yield ""
        yield from table(listed["sessions"]).split("\n")
    else:
        yield 'None yet. Start one with: openclaw message send "Hello"'


def _row(row: SessionAnswer, now: int) -> SessionAnswer:
    updated = row.get("updatedAt")
    full: dict[str, object] = {**row, "ageMs": max(0, now - updated) if updated is not None else None}
    shown: Any = {field: full[field] for field in ROW_FIELDS if field in full}
    return shown


def table(rows: list[SessionAnswer]) -> str:
    """The table of ``openclaw sessions`` and ``openclaw status``.

    The key is last and whole, so that it can be given to ``--session`` and the other columns fit 80 characters with it.
    """
    models = [shortened(str(row.get("model") or "unknown"), MAX_MODEL_WIDTH) for row in rows]
    used = [token_text(row) for row in rows]
    widths = (9, max([14, *map(len, used)]), max([5, *map(len, models)]))
    lines = [paint(_line(("Age", "Tokens (ctx %)", "Model", "Key"), widths), "bold")]
    for row, model, tokens in zip(rows, models, used, strict=True):
        share = percent_used(row) or 0
        colour = "red" if share >= 95 else "yellow" if share >= 80 else "green" if share >= 60 else None
        tokens = f"{tokens:<{widths[1]}}"
        key, label = str(row.get("key") or ""), str(row.get("label") or "")
        condensed = next((flag for flag in flags(row) if flag.startswith("compactions:")), "")
        cells = (
            age(row.get("ageMs", row.get("age"))),
            paint(tokens, colour) if colour else tokens,
            model,
            "  ".join(part for part in (key, shortened(label, 20), condensed) if part),
        )
        lines.append(_line(cells, widths))
    return "\n".join(lines)


def _line(cells: tuple[str, ...], widths: tuple[int, ...]) -> str:
    padded = [f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)]
    return " ".join([*padded, cells[-1]]).rstrip()


def percent_used(row: SessionAnswer) -> int | None:
    used, window = row.get("totalTokens"), row.get("contextTokens")
    if used is None or not window:
        return None
    return min(999, int(100 * used / window + 0.5))


def token_text(row: SessionAnswer) -> str:
    """``0.1k/200k (0%)``; an unknown number is a question mark."""
    used, window = row.get("totalTokens"), row.get("contextTokens")
    share = percent_used(row)
    shown = f"{_thousands(used)}/{_thousands(window)}" if window else f"{_thousands(used)}/?"
    return f"{shown} ({share}%)" if share is not None else f"{shown} (?%)" if window else shown


def _thousands(number: Any) -> str:
    if not isinstance(number, int | float):
        return "?"
    value = number / 1000
    return f"{round(value)}k" if value >= 10 else f"{value:.1f}k"


def flags(row: SessionAnswer) -> list[str]:
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
    if count := row.get("compactionCount"):
        shown.append(f"compactions:{count}")
    if session_id := row.get("sessionId"):
        shown.append(f"id:{session_id}")
    return shown


# One session


def _named(args: argparse.Namespace, *, changes: bool = False) -> tuple[GatewayClient, str]:
    """The client, and the key of the session that was named by its key, id or label. A change needs a Gateway."""
    client = from_args(args)
    client.reads_folder = not changes
    key = find_session(client, args.session, None)
    if key is None:
        raise UserError(f"No session found: {args.session}. `openclaw sessions` lists them.")
    return client, key


def _session(args: argparse.Namespace) -> SessionReport:
    """Return a session's row and last messages: as shown for people, in the public form with ``--json``."""
    client, key = _named(args)
    listed = client.call("sessions.list", {"search": key, "limit": 200, "includeGlobal": True, "includeUnknown": True})
    rows: list[SessionAnswer] = listed.get("sessions") or []
    row: SessionAnswer = next((row for row in rows if row["key"] == key), {"key": key})
    most = max(1, args.last * READ_FOR_ONE)
    view = client.call("chat.view", {"sessionKey": key, "limit": min(most, MOST_SHOWN)})
    messages = view.get("messages") or []
    if args.json:
        asked = {"sessionKey": key, "limit": min(most, 1000), "format": "messages"}
        messages = client.call("chat.history", asked).get("messages") or []
    messages = recent(messages, args.last)
    content = messages[0].get("content") if args.json and messages else None
    if isinstance(content, list) and all(block.get("type") == "tool_result" for block in content):
        del messages[0]  # Their calls are not among the last messages.
    now = int(listed.get("ts") or time.time() * 1000)
    return {**_row(row, now), "running": view.get("run"), "waiting": view.get("waiting") or [], "messages": messages}


def _show_session(found: SessionReport, args: argparse.Namespace) -> Iterator[str]:
    yield f"Session {found['key']}"
    yield from (f"  {name:<8} {value}" for name, value in _facts(found))
    for message in found["messages"]:
        failure = message.get("errorMessage") if message.get("stopReason") == "error" else None
        text = message_text(message) or (f"failed: {failure}" if failure else "")
        role = message.get("role")
        if role in ("user", "assistant") and text.strip():
            yield f"{'›' if role == 'user' else ' '} {shortened(text, 300)}"


def _facts(row: SessionReport) -> Iterator[tuple[str, str]]:
    named = (("id", "sessionId"), ("label", "label"), ("kind", "kind"), ("channel", "channel"), ("model", "model"))
    yield from ((name, str(row[field])) for name, field in named if row.get(field))
    yield "used", age(row.get("ageMs"))
    yield "tokens", token_text(row)
    if settings := [flag for flag in flags(row) if not flag.startswith("id:") and flag != "system"]:
        yield "settings", ", ".join(settings)
    if row["running"] or row["waiting"]:
        yield "now", f"{'a reply is being written' if row['running'] else 'idle'}, {len(row['waiting'])} waiting"


def rename(args: argparse.Namespace) -> int:
    client, key = _named(args, changes=True)
    report = client.call("sessions.patch", {"key": key, "label": args.label})
    return answer(args, report, f"{key} is now called {args.label}")


def delete(args: argparse.Namespace) -> int:
    """Takes a session off the list, after a question. Its transcript is kept as an archive beside the others."""
    client, key = _named(args, changes=True)
    if not args.yes:
        if not sys.stdin.isatty():
            raise UserError(f"This deletes {key}. Say --yes to do it without a question.", EXIT_USAGE)
        if not yes(f"Delete {key}? Its transcript is kept as an archive.", usual=False):
            note("Nothing was deleted.")
            return EXIT_FAILURE
    report = client.call("sessions.delete", {"key": key}, timeout_ms=SLOW_MS)
    kept = ", ".join(map(str, report.get("archived") or []))
    return answer(args, report, f"{key} deleted" + (f"; its transcript is kept as {kept}" if kept else ""))


# Earlier sessions of a conversation


def _show_archived(payload: object, args: argparse.Namespace) -> Iterator[str]:
    from openclaw.protocol.sessions import EarlierSessions

    earlier = decoded(payload, EarlierSessions)
    if not earlier.sessions:
        yield f"{earlier.key} has no earlier sessions."
        return
    yield f"Earlier sessions of {earlier.key}:"
    yield ""
    for session in earlier.sessions:
        ended = age(earlier.ts - session.ended_at) if session.ended_at else "unknown"
        yield f"{session.index:>3}  {session.session_id[:8]:<8}  {ended:<9}  {shortened(session.title, 60)}"
    yield ""
    yield f"Bring one back with: openclaw sessions resume {earlier.key} --session 1"


def _resumed(args: argparse.Namespace) -> dict[str, object]:
    wanted = (args.session or "").strip()
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 4:
        if int(wanted) < 1:
            raise UserError(f"--session {wanted}: the newest earlier session is number 1")
        return {"index": int(wanted)}
    return {"sessionId": wanted} if wanted else {}


# Transcripts: search, export, import, compress


def _query(args: argparse.Namespace) -> dict[str, object]:
    words: list[str] = args.query
    if len(words) == 1 and " " in words[0] and not words[0].startswith('"'):
        return {"query": f'"{words[0]}"'}  # The shell took the quotes away.
    return {"query": " ".join(words)}


def _search_all(client: GatewayClient, wanted: Mapping[str, object]) -> Any:
    """Searches, and reads what was never searched piece by piece, so that the person sees how far it is."""
    found: Any = {}
    with CountedWork("Reading transcripts for the first time") as progress:
        for _ in range(MOST_PIECES):
            found = client.call("sessions.search", {**wanted, "readBytes": SEARCH_PIECE}, SLOW_MS)
            if found.get("complete", True):
                break
            progress.tell(found["indexed"]["done"], found["indexed"]["total"])
    return found


def _show_hits(payload: object, args: argparse.Namespace) -> Iterator[str]:
    from openclaw.protocol.sessions import SessionSearch

    search = decoded(payload, SessionSearch)
    for hit in search.results:
        yield paint(f"{hit.session_key or hit.session_id}  {hit.role}  {hit.timestamp}  entry {hit.entry_id}", "bold")
        yield "  " + shortened(hit.snippet, SNIPPET_WIDTH)
    if not search.results:
        yield "Nothing found."
    if not search.complete:
        yield "Not everything has been read yet: search again for the rest."


def export(args: argparse.Namespace) -> int:
    """Writes JSON lines. A file is written completely or not at all."""
    pages = _pages(args)
    if not args.output:
        for line in pages:
            sys.stdout.write(printable_json(line) + "\n")
        return 0
    if os.path.exists(args.output):
        raise UserError(f"{args.output} exists already; choose another file")
    part = f"{args.output}.part"
    count = 0
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file, working("Exporting"):
            for line in pages:
                file.write(line + "\n")
                count += 1
        os.rename(part, args.output)
    except OSError as error:
        raise UserError(f"cannot write {args.output}: {error.strerror}") from None
    finally:
        if os.path.exists(part):
            os.unlink(part)
    report = {"ok": True, "path": args.output, "lines": count}
    return answer(args, report, f"{count} lines written to {args.output}")


def _pages(args: argparse.Namespace) -> Iterator[str]:
    import json

    gateway = from_args(args)
    key = resolve_key(gateway, args.key)
    document = {"markdown": "markdown", "md": "markdown", "html": "html"}.get(args.format or "")
    params: dict[str, str] = {"key": key, "format": "raw" if args.raw else document or "public"}
    one_array, first = args.format == "json" and not args.raw, True
    if args.session:
        params["sessionId"] = args.session
    cursor: int | None = 0
    while cursor is not None:
        page = gateway.call("sessions.export", {**params, "cursor": cursor}, timeout_ms=SLOW_MS)
        # The session may be reset while we read, so all pages are asked of the one we began with.
        params["sessionId"] = page["sessionId"]
        cursor = page["next"]
        for item in page["items"]:
            if args.raw or document:
                yield item.rstrip("\n")
                continue
            line = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
            yield f"{'[' if first else ','}{line}" if one_array else line
            first = False
    if one_array:
        yield "[]" if first else "]"


def import_(args: argparse.Namespace) -> int:
    """Brings in one exported conversation, or with ``--from`` everything that another state folder holds."""
    if args.from_ is not None:
        if args.file or args.key:
            raise UserError("--from FOLDER brings in whole sessions under their own keys; leave FILE and --key out")
        return _import_folder(args)
    if not args.file or not args.key:
        hint = "openclaw sessions import FILE --key KEY, or openclaw sessions import --from FOLDER"
        raise UserError(f"Name an export and the key of its new session, or a state folder: {hint}", EXIT_USAGE)
    lines = _export_lines(args.file)
    with working("Importing"):
        report = from_args(args).call("sessions.import", {"key": args.key, "lines": lines}, timeout_ms=SLOW_MS)
    return answer(args, report, f"{len(lines)} lines imported as {report.get('key')}")


def _export_lines(name: str) -> list[str]:
    try:
        size = os.stat(name).st_size
        if size > LARGEST_IMPORT:
            raise UserError(f"{name} has {size} bytes; at most {LARGEST_IMPORT} can be imported")
        with open(name, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file]
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{name} is not a text file in UTF-8") from None


def _import_folder(args: argparse.Namespace) -> int:
    """Prints one line for each session as it is done, and the totals at the end."""
    folder = os.path.abspath(os.path.expanduser(args.from_))
    by_gateway = args.url or service.running_pid() is not None or not resolve().local
    source = _by_gateway(args, folder) if by_gateway else _by_itself(args, folder)
    sessions: list[dict[str, Any]] = []
    totals = {"imported": 0, "present": 0, "conflict": 0, "failed": 0, "events": 0}
    told = time.monotonic()
    for session in source:
        sessions.append(session)
        totals[session["outcome"]] += 1
        totals["events"] += session["events"]
        if args.json and time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            note(f"{len(sessions)} sessions, {totals['events']} events")
        elif not args.json:
            what = f"{session['outcome']:<9} {session['key']}  {session['events']} events  {session['sha256'][:12]}"
            sys.stdout.write(f"{what}  {session['detail']}".rstrip() + "\n")
            sys.stdout.flush()
    ok = not totals["failed"]
    if args.json:
        print_json({"ok": ok, "from": folder, "dryRun": args.dry_run, "totals": totals, "sessions": sessions})
    else:
        counts = ", ".join(f"{totals[name]} {name}" for name in ("imported", "present", "conflict", "failed"))
        would = "Nothing was imported. It would be: " if args.dry_run else ""
        sys.stdout.write(f"{would}{len(sessions)} sessions ({counts}), {totals['events']} events.\n")
    return 0 if ok else EXIT_FAILURE


def _by_gateway(args: argparse.Namespace, folder: str) -> Iterator[dict[str, Any]]:
    gateway, params = from_args(args), {"from": folder, "dryRun": args.dry_run, "seen": 0}
    done = False
    while not done:
        page = gateway.call("sessions.importFolder", params, timeout_ms=SLOW_MS)
        yield from page["sessions"]
        done, params["seen"] = page["done"], page["seen"]


def _by_itself(args: argparse.Namespace, folder: str) -> Iterator[dict[str, Any]]:
    """No Gateway runs: the store is opened here, and no Gateway can start meanwhile."""
    import asyncio
    from pathlib import Path

    import msgspec

    from openclaw.clock import SystemClock
    from openclaw.config.agents import agent_ids
    from openclaw.storage.files.import_sessions import import_sessions
    from openclaw.storage.files.newer_state import Unreadable
    from openclaw.storage.files.session_store import FileSessionStore
    from openclaw.storage.inspection import storage_url

    state, config = paths.make_private_dir(paths.state_dir()), current_config()
    if storage_url(config, os.environ):
        raise UserError("The sessions are kept in a database, and folders are imported into files only.")

    async def opened() -> FileSessionStore:
        return await FileSessionStore.open(
            state, clock=SystemClock(), store_template=config.session.store, agent_ids=agent_ids(config)
        )

    with service.locked_state(), asyncio.Runner() as runner:
        store = runner.run(opened())
        source = import_sessions(Path(folder), Path(state), store, dry_run=args.dry_run)

        async def following() -> Any:
            return msgspec.to_builtins(await anext(source, None))

        try:
            while (session := runner.run(following())) is not None:
                yield session
        except Unreadable as problem:
            raise UserError(f"Not imported: {problem}") from None
        finally:
            runner.run(store.close())


def _archive_all(client: GatewayClient, wanted: dict[str, Any]) -> dict[str, Any]:
    """Compresses piece by piece until nothing is left that can be compressed."""
    total: dict[str, Any] = {"ok": True, "compressed": 0, "bytesBefore": 0, "bytesAfter": 0, "left": 0, "problems": []}
    with CountedWork("Compressing old transcripts") as progress:
        for _ in range(MOST_PIECES):
            piece = client.call("sessions.archive", {**wanted, "most": ARCHIVE_PIECE}, SLOW_MS)
            for count in ("compressed", "bytesBefore", "bytesAfter"):
                total[count] += piece[count]
            total["problems"] = list(dict.fromkeys([*total["problems"], *piece["problems"]]))
            total |= {"ok": not total["problems"], "left": piece["left"]}
            if not piece["left"] or not piece["compressed"]:
                break
            progress.tell(total["compressed"], total["compressed"] + piece["left"])
    return total


def _show_archive(payload: object, args: argparse.Namespace) -> Iterator[str]:
    from openclaw.protocol.sessions import TranscriptsArchived

    done = decoded(payload, TranscriptsArchived)
    if not done.compressed and not done.problems:
        yield "No transcript is old enough to be compressed."
        return
    what = counted(done.compressed, "transcript", "transcripts")
    yield f"{what} compressed: {done.bytes_before / 1e6:.1f} MB are now {done.bytes_after / 1e6:.1f} MB."
    yield from (f"left as it is: {problem}" for problem in done.problems)


_ACTIONS = {
    "list": query(
        "List the sessions the Gateway keeps",
        "sessions.list",
        (
            Flag("--active N", "only sessions used in the last N minutes"),
            Flag("--agent ID", "only sessions of this agent", param="agentId"),
            Flag("--search TEXT", "only sessions whose name, label or key has this text", param="search"),
            Flag("--limit N", "at most N sessions", param="limit", type=int),
        ),
        params=lambda args: {} if (minutes := _active_minutes(args)) is None else {"activeMinutes": minutes},
        shape=_listed,
        show=_show_list,
        example="openclaw sessions --active 120 --json",
    ),
    "show": report(
        "Show a session and its last messages",
        _session,
        (_SESSION, Flag("--last N", f"messages to show ({LAST_SHOWN})", type=int, default=LAST_SHOWN), *CLIENT),
        show=_show_session,
        example="openclaw sessions show work",
    ),
    "rename": Action(
        "Give a session a label that can be used in place of its key",
        rename,
        (_SESSION, Flag("label LABEL", "its new label"), *CLIENT),
        example='openclaw sessions rename agent:main:work "Garden"',
    ),
    "delete": Action(
        "Delete a session; its transcript is kept as an archive",
        delete,
        (_SESSION, Flag("--yes", "do it without a question"), *CLIENT),
        example="openclaw sessions delete work --yes",
    ),
    "archived": query(
        "List the earlier sessions of a conversation",
        "sessions.archived",
        (_KEY,),
        show=_show_archived,
        example="openclaw sessions archived main",
    ),
    "resume": query(
        "Make an earlier session the current one again; the current one is kept",
        "sessions.resume",
        (_KEY, Flag("--session N|ID", "number from the list or session id (default: the newest)")),
        params=_resumed,
        show=lambda answer, args: [f"{answer.get('key')}: {answer.get('marker')}"],
        example="openclaw sessions resume main --session 2",
    ),
    "search": query(
        "Search everything that was ever said, tool results included",
        "sessions.search",
        (
            Flag("query WORD", 'words that must all occur; "in quotes" as a phrase', nargs="+"),
            Flag("--session NAME", "only the current session of this key, id or label", param="key", session=True),
            Flag("--agent ID", "only sessions of this agent", param="agentId"),
            Flag(
                "--role",
                "only what this one said",
                param="role",
                choices=("user", "assistant", "toolResult", "summary"),
            ),
            Flag("--limit N", "at most N results (default 20)", param="limit", type=int, default=20),
        ),
        params=_query,
        show=_show_hits,
        call=_search_all,
        about=(
            "The first search reads what was never searched and shows how many transcripts are read. It answers "
            "when all of them are."
        ),
        example='openclaw sessions search "green shed" --role assistant',
    ),
    "export": Action(
        "Write a conversation as JSON lines, Markdown or HTML",
        export,
        (
            _KEY,
            Flag("--session ID", "an earlier session of that key"),
            Flag("--raw", "the transcript's own lines instead of plain messages"),
            Flag(
                "--format",
                "a document to read, or one JSON array (default: JSON lines)",
                choices=("jsonl", "json", "markdown", "html"),
            ),
            Flag("--output FILE", "a new file to write to (default: the terminal)"),
            *CLIENT,
        ),
        example="openclaw sessions export main --format markdown --output main.md",
    ),
    "import": Action(
        "Bring in an exported conversation, or the sessions of another state folder",
        import_,
        (
            Flag("file FILE", "an export in either format", nargs="?"),
            Flag("--key KEY", "for FILE: a session that does not exist yet"),
            Flag("--from FOLDER", "a state folder, also of OpenClaw 2026.8 and newer; it is only read", dest="from_"),
            Flag("--dry-run", "with --from: only say what would be brought in"),
            *CLIENT,
        ),
        example="openclaw sessions import --from ~/.openclaw --dry-run",
    ),
    "archive": query(
        "Compress old transcripts now; they open as before",
        "sessions.archive",
        (Flag("--after-days N", "those not written to for N days", param="afterDays", type=int),),
        show=_show_archive,
        failed=lambda answer, args: not answer.get("ok"),
        call=_archive_all,
        about=(
            "Without --after-days the age of session.archive.afterDays counts (30 days). The Gateway does the "
            "same by itself every hour; a transcript in use is left as it is."
        ),
        example="openclaw sessions archive --after-days 30",
    ),
}
COMMANDS = {"sessions": Group(_ACTIONS, default="list")}
