"""Notes are found by what they mean where embeddings can be had, and by their words always."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.memory import embedders
from openclaw.memory.embedders import Embedders, EmbeddingFailed, NoEmbedder
from openclaw.memory.index import PAUSE_MS, AgentMemories, AgentMemory, MemoryIndex, packed, similarities
from openclaw.models.http import ModelHttp
from openclaw.models.keys import Keys
from tests.support.embedding_server import KEY, EmbeddingServer

BY_MEANING = "where do we persist rows"
"""No word of it stands in the notes."""


@dataclasses.dataclass
class Hands(Clock):
    """A clock that stands still until it is moved."""

    now: int = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    async with EmbeddingServer() as running:
        yield running
    while opened:
        await opened.pop().close()


opened: list[ModelHttp] = []


def http() -> ModelHttp:
    """Connections that the ``server`` fixture closes."""
    opened.append(ModelHttp())
    return opened[-1]


@pytest.fixture(autouse=True)
def no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the memory extra happens to be installed must not matter."""
    monkeypatch.setattr(embedders, "word_vectors_folder", lambda: None)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "memory").mkdir(parents=True)
    (folder / "MEMORY.md").write_text("# About Ada\n\nShe likes green tea.\n")
    (folder / "memory/2026-01-30.md").write_text("- the database is SQLite\n")
    (folder / "memory/2026-01-31.md").write_text("- Muller called\n")
    return folder


def notes(
    workspace: Path, settings: dict[str, Any], clock: Clock | None = None, environ: dict[str, str] | None = None
) -> AgentMemory:
    config = msgspec.convert({"agents": {"defaults": {"memorySearch": settings}}}, Config)
    clock = clock or Hands()
    keys = Keys(environ or {}, state_dir=str(workspace.parent), clock=clock)
    books = AgentMemories(workspace.parent, clock, Embedders(http(), keys, environ or {}))
    return books.of("main", workspace, config.agents.defaults.memory_search, config)


def remote(server: EmbeddingServer, provider: str = "openai", **more: Any) -> dict[str, Any]:
    base = f"{server.url}/v1beta" if provider == "gemini" else f"{server.url}/v1"
    return {"provider": provider, "remote": {"baseUrl": base, "apiKey": KEY}, **more}


@pytest.mark.parametrize(
    ("provider", "model"), [("openai", "text-embedding-3-small"), ("gemini", "gemini-embedding-001")]
)
async def test_a_note_is_found_by_what_it_means(
    workspace: Path, server: EmbeddingServer, provider: str, model: str
) -> None:
    found = await notes(workspace, remote(server, provider)).search(BY_MEANING, 6, 0.35)
    assert [(hit.name, hit.first, hit.last) for hit in found.hits] == [("memory/2026-01-30.md", 1, 1)]
    assert (found.provider, found.model, found.mode, found.fallback) == (provider, model, "hybrid", None)
    assert server.refused == []


async def test_without_embeddings_words_serve_and_it_is_said(workspace: Path) -> None:
    search = notes(workspace, {"provider": "none"})
    found = await search.search("sqlite", 6, 0.35)
    assert [hit.name for hit in found.hits] == ["memory/2026-01-30.md"]
    assert (found.provider, found.model, found.mode, found.fallback) == ("none", None, "keyword", None)
    assert (await search.search(BY_MEANING, 6, 0.35)).hits == []


async def test_a_passage_is_embedded_once_however_often_it_is_searched(
    workspace: Path, server: EmbeddingServer
) -> None:
    search = notes(workspace, remote(server))
    await search.search(BY_MEANING, 6, 0.35)
    await search.search(BY_MEANING, 6, 0.35)
    assert len(server.texts) == 4  # Three notes and the question.
    (workspace / "memory/2026-01-31.md").write_text("- Muller called again\n")
    (workspace / "memory/copy.md").write_text("- the database is SQLite\n")
    await notes(workspace, remote(server)).search(BY_MEANING, 6, 0.35)
    assert server.texts[4:] == ["- Muller called again", BY_MEANING]


async def test_vectors_of_another_model_are_not_compared(workspace: Path, server: EmbeddingServer) -> None:
    await notes(workspace, remote(server)).search(BY_MEANING, 6, 0.35)
    found = await notes(workspace, remote(server, model="text-embedding-3-large")).search(BY_MEANING, 6, 0.35)
    assert [hit.name for hit in found.hits] == ["memory/2026-01-30.md"]
    assert len(server.texts) == 8


@pytest.mark.parametrize("fault", ["status", "key", "short", "gone"])
async def test_an_embedder_that_fails_leaves_the_words_and_a_note(
    workspace: Path, server: EmbeddingServer, fault: str
) -> None:
    settings = remote(server)
    match fault:
        case "status":
            server.fail = 503
        case "key":
            settings["remote"]["apiKey"] = "wrong-key-9876543210"
        case "short":
            server.drop = 1
        case _:
            settings["remote"]["baseUrl"] = "http://127.0.0.1:1/v1"
    found = await notes(workspace, settings).search("sqlite database", 6, 0.35)
    assert [hit.name for hit in found.hits] == ["memory/2026-01-30.md"]
    assert found.mode == "keyword"
    assert found.fallback is not None and found.fallback.source == "openai" and found.fallback.reason
    assert "wrong-key-9876543210" not in found.fallback.reason


async def test_a_broken_embedder_is_left_alone_for_a_while(workspace: Path, server: EmbeddingServer) -> None:
    clock = Hands()
    search = notes(workspace, remote(server), clock)
    server.fail = 500
    for _ in range(3):
        assert (await search.search("sqlite", 6, 0.35)).fallback is not None
    assert len(server.refused) == 1
    server.fail = None
    clock.now += PAUSE_MS
    assert (await search.search("sqlite", 6, 0.35)).mode == "hybrid"


async def test_the_second_provider_serves_when_the_first_fails(workspace: Path, server: EmbeddingServer) -> None:
    config: dict[str, Any] = {
        "agents": {"defaults": {"memorySearch": {"provider": "voyage", "fallback": "openai"}}},
        "models": {"providers": {"openai": {"baseUrl": f"{server.url}/v1", "apiKey": KEY}}},
    }
    built = msgspec.convert(config, Config)
    books = AgentMemories(workspace.parent, Hands(), Embedders(http(), Keys({}, clock=Hands()), {}))
    search = books.of("main", workspace, built.agents.defaults.memory_search, built)
    found = await search.search(BY_MEANING, 6, 0.35)
    assert (found.provider, [hit.name for hit in found.hits]) == ("openai", ["memory/2026-01-30.md"])
    assert (
        found.fallback is not None and found.fallback.source == "voyage" and "VOYAGE_API_KEY" in found.fallback.reason
    )


def chosen(settings: dict[str, Any], environ: dict[str, str] | None = None, providers: Any = None) -> list[str]:
    raw = {"agents": {"defaults": {"memorySearch": settings}}, "models": {"providers": providers or {}}}
    config = msgspec.convert(raw, Config)
    made = Embedders(http(), Keys(environ or {}, clock=Hands()), environ or {})
    found = made.candidates(config.agents.defaults.memory_search, config, "main")
    return [f"{embedder.provider}/{embedder.model}" for embedder in found]


@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        ({}, {}, []),
        ({}, {"OPENAI_API_KEY": "k-12345678"}, ["openai/text-embedding-3-small"]),
        ({"provider": "auto"}, {"GEMINI_API_KEY": "k-12345678"}, ["gemini/gemini-embedding-001"]),
        ({"provider": "none"}, {"OPENAI_API_KEY": "k-12345678"}, []),
        ({"provider": "openai", "model": "openai/own"}, {}, ["openai/own"]),
        ({"provider": "ollama"}, {}, ["ollama/nomic-embed-text"]),
    ],
)
def test_what_is_named_or_has_a_key_is_used(settings: Any, environ: dict[str, str], expected: list[str]) -> None:
    assert chosen(settings, environ) == expected


def test_a_model_file_is_preferred_to_a_key(tmp_path: Path) -> None:
    file = tmp_path / "embed.gguf"
    file.write_bytes(b"GGUF")
    assert chosen({"local": {"modelPath": str(file)}}, {"OPENAI_API_KEY": "k-12345678"}) == ["local/embed.gguf"]


@pytest.mark.parametrize(("name", "hint"), [("local", "openclaw extras add memory"), ("nowhere", "is not known")])
async def test_a_provider_that_cannot_be_had_is_explained_and_words_serve(
    workspace: Path, name: str, hint: str
) -> None:
    with pytest.raises(NoEmbedder, match=hint.replace("[", r"\[").replace("]", r"\]")):
        chosen({"provider": name})
    found = await notes(workspace, {"provider": name}).search("sqlite", 6, 0.35)
    assert found.hits and found.fallback is not None and hint in found.fallback.reason


async def test_the_words_themselves_are_enough_where_the_meaning_is_unclear(
    workspace: Path, server: EmbeddingServer
) -> None:
    (workspace / "memory/codes.md").write_text("- gate code zx-81\n")
    found = await notes(workspace, remote(server)).search("zx-81", 6, 0.35)
    assert [hit.name for hit in found.hits][:1] == ["memory/codes.md"]
    assert all(hit.score >= 0.35 for hit in found.hits)


async def test_many_passages_go_in_batches_and_none_is_forgotten(workspace: Path, server: EmbeddingServer) -> None:
    for number in range(150):
        (workspace / f"memory/n{number}.md").write_text(f"- note {number}\n")
    counts, embedder, fallback, waiting = await notes(workspace, remote(server)).refresh()
    assert (counts.chunks, counts.vectors, fallback, waiting) == (153, 153, None, 0)
    assert embedder is not None and max(map(len, server.requests)) == embedder.batch_texts


class _Slow:
    provider, model, identity, batch_texts = "slow", "slow", "slow", 8

    async def embed(self, texts: Sequence[str], purpose: str) -> list[list[float]]:
        await asyncio.Event().wait()
        raise EmbeddingFailed("never")


async def test_an_embedder_that_hangs_is_not_waited_for(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.memory.index.QUESTION_S", 0.01)
    search = notes(workspace, {})
    search._choose = lambda: [_Slow()]  # type: ignore[method-assign, list-item]
    found = await search.search("sqlite", 6, 0.35)
    assert [hit.name for hit in found.hits] == ["memory/2026-01-30.md"]
    assert found.fallback is not None and "within" in found.fallback.reason


def test_vectors_nobody_needs_go_first_when_there_are_too_many(tmp_path: Path, workspace: Path) -> None:
    from openclaw.memory.index import memory_files

    index = MemoryIndex(tmp_path / "m.sqlite")
    index.update(memory_files(workspace))
    needed = {digest: packed([1.0, 0.0]) for digest, _ in index.without_vector("m", 10)}
    index.store_vectors("m", {f"gone{n}": packed([0.0, 1.0]) for n in range(5)}, most=3)
    index.store_vectors("m", needed, most=3)
    assert index.without_vector("m", 10) == []


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8).filter(lambda v: any(abs(x) > 1e-3 for x in v)))
def test_a_vector_is_most_like_itself(vector: list[float]) -> None:
    blob = packed(vector)
    same, opposite = similarities(blob, [blob, packed([-x for x in vector])])
    assert same == pytest.approx(1, abs=1e-4) and opposite == pytest.approx(-1, abs=1e-4)


@pytest.mark.parametrize("vector", [[], [0.0, 0.0], [float("nan")], [float("inf"), 1.0]])
def test_what_has_no_direction_is_refused(vector: list[float]) -> None:
    with pytest.raises(ValueError):
        packed(vector)
