"""``openclaw sessions search|export|import|archive``: transcripts found, taken along and kept small."""

from __future__ import annotations

import os
import sys

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.errors import UserError
from openclaw.cli.terminal import paint, print_json, printable, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

SLOW_MS = 120_000
"""The first search reads every transcript there is."""
SNIPPET_WIDTH = 300
LARGEST_IMPORT = 12 << 20
"""What one request to the Gateway holds, with room for its quoting."""


def build_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", nargs="+", metavar="WORD", help='words that must all occur; "in quotes" as a phrase')
    parser.add_argument("--session", metavar="KEY", help="only the current session of this key")
    parser.add_argument("--agent", metavar="ID", help="only sessions of this agent")
    parser.add_argument(
        "--role", choices=("user", "assistant", "toolResult", "summary"), help="only what this one said"
    )
    parser.add_argument("--limit", metavar="N", type=int, default=20, help="at most N results (default 20)")
    add_json(parser)
    add_gateway_options(parser)


def search(args: argparse.Namespace) -> int:
    query = args.query[0] if len(args.query) == 1 else " ".join(args.query)
    if len(args.query) == 1 and " " in query and not query.startswith('"'):
        query = f'"{query}"'  # The shell took the quotes away.
    params: dict[str, Any] = {"query": query, "limit": args.limit}
    optional = {"key": args.session, "agentId": args.agent, "role": args.role}
    params |= {name: value for name, value in optional.items() if value is not None}
    answer = clients.from_args(args).call("sessions.search", params, timeout_ms=SLOW_MS)
    if args.json:
        print_json(answer)
        return 0
    for found in answer.get("results") or []:
        where = f"{found.get('sessionKey') or found.get('sessionId')}  {found.get('role')}  {found.get('timestamp')}"
        sys.stdout.write(paint(printable(f"{where}  entry {found.get('entryId')}"), "bold") + "\n")
        sys.stdout.write("  " + shorten(printable(" ".join(str(found.get("snippet")).split())), SNIPPET_WIDTH) + "\n")
    if not answer.get("results"):
        sys.stdout.write("Nothing found.\n")
    if not answer.get("complete"):
        sys.stdout.write("Not everything has been read yet: search again for the rest.\n")
    return 0


def build_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", nargs="?", default="main", metavar="KEY", help="session key (default main)")
    parser.add_argument("--session", metavar="ID", help="an earlier session of that key")
    parser.add_argument("--raw", action="store_true", help="the transcript's own lines instead of plain messages")
    parser.add_argument("--output", metavar="FILE", help="a new file to write to (default: the terminal)")
    add_gateway_options(parser)


def export(args: argparse.Namespace) -> int:
    """JSON lines either way. A file is complete or not there at all."""
    pages = _pages(args)
    if not args.output:
        for line in pages:
            sys.stdout.write(line + "\n")
        return 0
    if os.path.exists(args.output):
        raise UserError(f"{args.output} exists already; choose another file")
    part = f"{args.output}.part"
    count = 0
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            for line in pages:
                file.write(line + "\n")
                count += 1
        os.rename(part, args.output)
    except OSError as error:
        raise UserError(f"cannot write {args.output}: {error.strerror}") from None
    finally:
        if os.path.exists(part):
            os.unlink(part)
    sys.stdout.write(f"{count} lines written to {args.output}\n")
    return 0


def _pages(args: argparse.Namespace) -> Iterator[str]:
    import json

    gateway = clients.from_args(args)
    params: dict[str, Any] = {"key": args.key, "format": "raw" if args.raw else "public"}
    if args.session:
        params["sessionId"] = args.session
    cursor: int | None = 0
    while cursor is not None:
        page = gateway.call("sessions.export", {**params, "cursor": cursor}, timeout_ms=SLOW_MS)
        # The session may be replaced while we read: all pages are of the one we began with.
        params["sessionId"] = page["sessionId"]
        cursor = page["next"]
        for item in page["items"]:
            yield item if args.raw else json.dumps(item, ensure_ascii=False, separators=(",", ":"))


def build_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an export in either format")
    parser.add_argument("--key", metavar="KEY", required=True, help="a session that does not exist yet")
    add_json(parser)
    add_gateway_options(parser)


def import_(args: argparse.Namespace) -> int:
    try:
        size = os.stat(args.file).st_size
        if size > LARGEST_IMPORT:
            raise UserError(f"{args.file} has {size} bytes; at most {LARGEST_IMPORT} can be imported")
        with open(args.file, encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in file]
    except OSError as error:
        raise UserError(f"cannot read {args.file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{args.file} is not a text file in UTF-8") from None
    params = {"key": args.key, "lines": lines}
    answer = clients.from_args(args).call("sessions.import", params, timeout_ms=SLOW_MS)
    if args.json:
        print_json(answer)
        return 0
    sys.stdout.write(printable(f"{len(lines)} lines imported as {answer.get('key')}") + "\n")
    return 0


def build_archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--after-days", metavar="N", type=int, help="those not written to for N days")
    add_json(parser)
    add_gateway_options(parser)


def archive(args: argparse.Namespace) -> int:
    params = {} if args.after_days is None else {"afterDays": args.after_days}
    answer = clients.from_args(args).call("sessions.archive", params, timeout_ms=SLOW_MS)
    if args.json:
        print_json(answer)
        return 0 if answer.get("ok") else 1
    before, after = answer.get("bytesBefore", 0), answer.get("bytesAfter", 0)
    sys.stdout.write(f"{answer.get('compressed')} transcripts compressed, {before} bytes are now {after}.\n")
    for problem in answer.get("problems") or []:
        sys.stdout.write(printable(f"left as it is: {problem}") + "\n")
    return 0 if answer.get("ok") else 1


ACTIONS = {
    "search": Action(
        "Search everything that was ever said, tool results included",
        search,
        build_search,
        example='openclaw sessions search "green shed" --role assistant',
    ),
    "export": Action(
        "Write a conversation as JSON lines",
        export,
        build_export,
        example="openclaw sessions export main --output main.jsonl",
    ),
    "import": Action(
        "Bring an exported conversation in as a new session",
        import_,
        build_import,
        example="openclaw sessions import main.jsonl --key old-main",
    ),
    "archive": Action(
        "Compress old transcripts now; they open as before",
        archive,
        build_archive,
        example="openclaw sessions archive --after-days 30",
    ),
}
