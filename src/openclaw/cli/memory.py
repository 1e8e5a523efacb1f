"""``openclaw memory``: what an agent wrote down, its search index, and searching it."""

from __future__ import annotations

from openclaw.cli.command import Flag, Group, query
from openclaw.cli.terminal import CountedWork, note, paint, working
from openclaw.text import shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from openclaw.cli.answers import MemoryStatusAnswer, Passages
    from openclaw.cli.client import GatewayClient

SLOW_MS = 600_000
PIECE = 128
"""Passages that are embedded by one call, so that the person sees how far it is."""
MOST_PIECES = 10_000
SNIPPET_WIDTH = 300


def _show_status(answer: MemoryStatusAnswer, args: argparse.Namespace) -> Iterator[str]:
    state = "on" if answer.get("enabled") else "off (agents.defaults.memorySearch.enabled)"
    yield (
        f"Memory of {answer.get('agentId')}: {answer.get('files')} files, {answer.get('bytes')} bytes, "
        f"{answer.get('chunks')} pieces"
    )
    yield f"Search: {state}, by {answer.get('mode')}, in {', '.join(answer.get('sources') or [])}"
    yield f"Embeddings: {_embedder(answer)}"
    yield f"Workspace: {answer.get('workspace')}"
    yield f"Index: {answer.get('index')}"
    _note_fallback(answer)


def _index_all(client: GatewayClient, wanted: dict[str, object]) -> Any:
    """Reads the notes, then has them embedded piece by piece."""
    with working("Reading the notes"):
        answer = client.call("memory.index", {**wanted, "most": PIECE}, SLOW_MS)
    with CountedWork("Embedding the notes") as progress:
        for _ in range(MOST_PIECES):
            if not (left := answer.get("waiting")):
                break
            progress.tell(answer["embedded"], answer["chunks"])
            answer = client.call("memory.index", {**wanted, "force": False, "most": PIECE}, SLOW_MS)
            if (answer.get("waiting") or 0) >= left:
                break  # The embedder works no more; the answer tells why.
    return answer


def _show_index(answer: MemoryStatusAnswer, args: argparse.Namespace) -> Iterator[str]:
    yield f"{answer.get('files')} files indexed in {answer.get('chunks')} pieces."
    if answer.get("provider") not in (None, "none"):
        yield f"Embeddings: {_embedder(answer)}"
    _note_fallback(answer)


def _show_found(answer: Passages, args: argparse.Namespace) -> Iterator[str]:
    for found in answer.get("results") or []:
        where = f"{found.get('path')}#L{found.get('startLine')}-L{found.get('endLine')}"
        yield paint(where, "bold") + f"  {found.get('score')}"
        yield "  " + shortened(str(found.get("snippet")), SNIPPET_WIDTH)
    if not answer.get("results"):
        yield "Nothing found."
    _note_fallback(answer)


def _embedder(answer: MemoryStatusAnswer) -> str:
    if answer.get("provider") in (None, "none"):
        return "none; words only"
    works = {True: ", works", False: ", does not work", None: ""}[answer.get("embeddingsWork")]
    have = f"{answer.get('embedded')} of {answer.get('chunks')} pieces"
    return f"{answer.get('provider')} ({answer.get('model')}), {have}{works}"


def _note_fallback(answer: MemoryStatusAnswer | Passages) -> None:
    """Says on stderr why the configured embeddings were not used."""
    if fallback := answer.get("fallback"):
        note(f"Embeddings of {fallback.get('from')} not used: {fallback.get('reason')}")


_AGENT = Flag("--agent ID", "whose memory (default: the default agent's)", param="agentId")

_ACTIONS = {
    "status": query(
        "Show what there is and where",
        "memory.status",
        (Flag("--deep", "also ask the embedding provider whether it works", param="deep"), _AGENT),
        show=_show_status,
        timeout_ms=SLOW_MS,
        example="openclaw memory status",
    ),
    "index": query(
        "Bring the search index up to date",
        "memory.index",
        (Flag("--force", "delete the index and rebuild it", param="force"), _AGENT),
        show=_show_index,
        call=_index_all,
        example="openclaw memory index --force",
    ),
    "search": query(
        "Search the notes",
        "memory.search",
        (
            Flag("query WORD", "words to look for", nargs="+"),
            Flag("--max-results N", "at most N passages (default 6)", param="maxResults", type=int),
            Flag("--min-score X", "leave out what fits worse, 0 to 1 (default 0.35)", param="minScore", type=float),
            _AGENT,
        ),
        params=lambda args: {"query": " ".join(args.query)},
        show=_show_found,
        timeout_ms=SLOW_MS,
        example="openclaw memory search green shed",
    ),
}
COMMANDS = {"memory": Group(_ACTIONS, default="status")}
