"""Notes found by meaning through a real Gateway: the agent's tool, the methods and the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.embedding_server import KEY, EmbeddingServer
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

QUERY = "where do we persist rows"


@pytest.fixture
async def embeddings() -> AsyncIterator[EmbeddingServer]:
    async with EmbeddingServer() as server:
        yield server


async def test_the_agent_the_methods_and_the_command_line_find_by_meaning(
    tmp_path: Path, models: ModelServer, embeddings: EmbeddingServer
) -> None:
    config: dict[str, Any] = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["memorySearch"] = {
        "provider": "openai",
        "remote": {"baseUrl": f"{embeddings.url}/v1", "apiKey": KEY},
    }
    notes = tmp_path / "state" / "workspace" / "memory"
    notes.mkdir(parents=True)
    (notes / "2026-01-30.md").write_text("# Choices\n\n- the database is SQLite\n")
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        models.queue(Reply(calls=[Call("memory_search", {"query": QUERY})]), Reply(text="In SQLite."))
        await client.chat("Where are the rows kept?")
        (result,) = [row for row in gateway.transcript(await _session(client)) if _is_result(row)]
        answer = json.loads(result["message"]["content"][0]["text"])
        (found,) = answer["results"]
        assert (found["path"], found["startLine"], found["endLine"]) == ("memory/2026-01-30.md", 1, 3)
        assert found["citation"] == "memory/2026-01-30.md#L1-L3"
        assert (answer["provider"], answer["model"], answer["fallback"]) == ("openai", "text-embedding-3-small", None)

        found = await client.call("memory.search", {"query": QUERY})
        assert [row["path"] for row in found["results"]] == ["memory/2026-01-30.md"] and found["mode"] == "hybrid"
        assert len(embeddings.texts) == 2  # The note once, the question once.

        status = await gateway.command("memory", "status", "--deep")
        assert "Embeddings: openai (text-embedding-3-small), 1 of 1 pieces, works" in status.stdout, status
        (notes / "2026-01-31.md").write_text("".join(f"# Day {n}\n\n{'word ' * 400}{n}\n\n" for n in range(9)))
        first = await client.call("memory.index", {"most": 2})
        assert (first["embedded"], first["waiting"]) == (3, first["chunks"] - 3)
        again = json.loads((await gateway.command("memory", "index", "--json")).stdout)
        assert (again["waiting"], again["embedded"]) == (0, first["chunks"])
        (notes / "2026-01-31.md").unlink()
        embeddings.fail = 500
        indexed = await gateway.command("memory", "index", "--force")
        assert "1 files indexed in 1 pieces" in indexed.stdout and "not used: 500" in indexed.stderr, indexed
        shown = await gateway.command("memory", "search", "sqlite")
        assert "memory/2026-01-30.md#L1-L3" in shown.stdout and "not used: 500" in shown.stderr, shown
        assert KEY not in status.stdout + indexed.stderr + shown.stderr
        assert KEY not in json.dumps(await client.call("config.get", {}))


async def test_embeddings_are_on_the_bill_and_obey_the_budget(
    tmp_path: Path, models: ModelServer, embeddings: EmbeddingServer
) -> None:
    config: dict[str, Any] = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["memorySearch"] = {
        "provider": "openai",
        "remote": {"baseUrl": f"{embeddings.url}/v1", "apiKey": KEY},
    }
    config["agents"]["defaults"]["budget"] = {"dayTokens": 200_000}
    notes = tmp_path / "state" / "workspace" / "memory"
    notes.mkdir(parents=True)
    (notes / "2026-01-30.md").write_text("# Choices\n\n- the database is SQLite\n")
    embeddings.tokens = 1000
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        models.queue(
            Reply(calls=[Call("memory_search", {"query": QUERY})], usage={"input": 10, "output": 1}),
            Reply(text="In SQLite.", usage={"input": 20, "output": 2}),
        )
        await client.chat("Where are the rows kept?")
        session = (await client.call("sessions.usage", {"key": "main"}))["totals"]
        assert session["totalTokens"] == 33 + 2000  # The note and the question.
        assert session["totalCost"] == pytest.approx(2000 * 0.02 / 1e6)
        # A search that belongs to no session is on the agent's bill.
        await client.call("memory.search", {"query": "which colour has the shed"})
        assert (await client.call("usage.cost", {}))["totals"]["totalTokens"] == 33 + 3000
        embeddings.tokens = 300_000
        await client.call("memory.search", {"query": "who called"})
        refused = await client.call("memory.search", {"query": "a cup of tea"})
        assert refused["mode"] == "keyword" and "agents.defaults.budget.dayTokens" in refused["fallback"]["reason"]
        assert len(embeddings.texts) == 4
        assert (await client.chat("hello"))["state"] == "error"


@pytest.mark.parametrize(
    ("session_key", "is_read"),
    [
        ("main", True),
        ("agent:main:signal:direct:+15550001", True),
        ("cron:daily", True),
        ("hook:doorbell", False),
        ("agent:main:signal:group:g1", False),
        ("agent:main:chat:room:r1", False),
    ],
)
async def test_the_curated_memory_is_for_the_owners_sessions_only(
    tmp_path: Path, models: ModelServer, session_key: str, is_read: bool
) -> None:
    workspace = tmp_path / "state" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "MEMORY.md").write_text("The safe opens with 4711.\n")
    config = model_config(models.base_url, models.api_key)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        models.queue(Reply(calls=[Call("memory_get", {"path": "MEMORY.md"})]), Reply(text="done"))
        await client.chat("What do you remember?", session_key)
        (result,) = [row for row in gateway.transcript(await _session(client)) if _is_result(row)]
        assert ("4711" in result["message"]["content"][0]["text"]) is is_read


async def _session(client: Any) -> str:
    (row,) = (await client.call("sessions.list", {}))["sessions"]
    return row["sessionId"]


def _is_result(row: dict[str, Any]) -> bool:
    return row.get("type") == "message" and row["message"]["role"] == "toolResult"
