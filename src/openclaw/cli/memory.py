"""``openclaw memory``: what an agent wrote down, and finding it."""

from __future__ import annotations

import sys

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.terminal import paint, print_json, printable, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

SLOW_MS = 600_000
SNIPPET_WIDTH = 300


def _build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="ID", help="whose memory (default: the default agent's)")
    add_json(parser)
    add_gateway_options(parser)


def _call(args: argparse.Namespace, method: str, **more: Any) -> dict[str, Any]:
    params = {"agentId": args.agent, **more}
    given = {name: value for name, value in params.items() if value is not None}
    return clients.from_args(args).call(method, given, timeout_ms=SLOW_MS)


def build_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="also ask the embedding provider whether it works")
    _build(parser)


def status(args: argparse.Namespace) -> int:
    answer = _call(args, "memory.status", deep=args.deep)
    if args.json:
        print_json(answer)
        return 0
    state = "on" if answer.get("enabled") else "off (agents.defaults.memorySearch.enabled)"
    lines = [
        f"Memory of {answer.get('agentId')}: {answer.get('files')} files, {answer.get('bytes')} bytes, "
        f"{answer.get('chunks')} pieces",
        f"Search: {state}, by {answer.get('mode')}, in {', '.join(answer.get('sources') or [])}",
        f"Embeddings: {_embedder(answer)}",
        f"Workspace: {answer.get('workspace')}",
        f"Index: {answer.get('index')}",
    ]
    sys.stdout.write(printable("\n".join(lines)) + "\n")
    _say_fallback(answer)
    return 0


def _embedder(answer: dict[str, Any]) -> str:
    if answer.get("provider") in (None, "none"):
        return "none; words only"
    works = {True: ", works", False: ", does not work", None: ""}[answer.get("embeddingsWork")]
    have = f"{answer.get('embedded')} of {answer.get('chunks')} pieces"
    return f"{answer.get('provider')} ({answer.get('model')}), {have}{works}"


def _say_fallback(answer: dict[str, Any]) -> None:
    """What could not be used; to stderr, beside the answer it does not belong to."""
    fallback = answer.get("fallback")
    if fallback:
        sys.stderr.write(printable(f"Embeddings of {fallback.get('from')} not used: {fallback.get('reason')}") + "\n")


def build_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="throw the index away and make it anew")
    _build(parser)


def index(args: argparse.Namespace) -> int:
    answer = _call(args, "memory.index", force=args.force)
    if args.json:
        print_json(answer)
        return 0
    sys.stdout.write(f"{answer.get('files')} files indexed in {answer.get('chunks')} pieces.\n")
    if answer.get("provider") not in (None, "none"):
        sys.stdout.write(f"Embeddings: {_embedder(answer)}\n")
    _say_fallback(answer)
    return 0


def build_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", nargs="+", metavar="WORD", help="words to look for")
    parser.add_argument("--max-results", metavar="N", type=int, help="at most N passages (default 6)")
    parser.add_argument("--min-score", metavar="X", type=float, help="leave out what fits worse, 0 to 1 (default 0.35)")
    _build(parser)


def search(args: argparse.Namespace) -> int:
    more = {"query": " ".join(args.query), "maxResults": args.max_results, "minScore": args.min_score}
    answer = _call(args, "memory.search", **more)
    if args.json:
        print_json(answer)
        return 0
    for found in answer.get("results") or []:
        where = f"{found.get('path')}#L{found.get('startLine')}-L{found.get('endLine')}"
        sys.stdout.write(paint(printable(where), "bold") + f"  {found.get('score')}\n")
        sys.stdout.write("  " + shorten(printable(" ".join(str(found.get("snippet")).split())), SNIPPET_WIDTH) + "\n")
    if not answer.get("results"):
        sys.stdout.write("Nothing found.\n")
    _say_fallback(answer)
    return 0


ACTIONS = {
    "status": Action("Show what there is and where", status, build_status, example="openclaw memory status"),
    "index": Action("Bring the search index up to date", index, build_index, example="openclaw memory index --force"),
    "search": Action("Search the notes", search, build_search, example="openclaw memory search green shed"),
}
DEFAULT = "status"
