"""A model in this process that uses tools: the real prompt, its calls, their results and its reasoning.

The library and its weights are replaced by a script. What the model would read and write is Qwen3's own text form.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.models.local import provider
from tests.support.gateway import model_config, text_of
from tests.support.gateway_in_process import InProcessGateway


class ScriptedWorker:
    """Stands in for the model's process. ``answers`` are what it writes, one for each request."""

    answers: list[str] = []
    bodies: list[dict[str, Any]] = []

    def __init__(self, weights: str, context: int) -> None:
        self.weights = weights
        self.context = context
        self.alive = True
        self.busy_with: int | None = None

    @classmethod
    async def start(cls, weights: str, context: int) -> ScriptedWorker:
        return cls(weights, context)

    async def ask(self, request: dict[str, Any]) -> None:
        self.bodies.append(request["body"])
        self.busy_with = len(self.bodies)

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        text = self.answers.pop(0)
        for start in range(0, len(text), 7):
            await asyncio.sleep(0)
            yield {"id": self.busy_with, "text": text[start : start + 7]}
        self.busy_with = None
        yield {"id": 1, "done": "stop", "input": 900, "cached": 100, "output": 20}

    async def stop(self) -> None:
        self.alive = False


async def test_a_local_model_reads_a_file_with_its_tool_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "Worker", ScriptedWorker)
    call = json.dumps({"name": "read", "arguments": {"path": "list.md"}})
    ScriptedWorker.bodies = []
    ScriptedWorker.answers = [
        f"<think>\nI should look.\n</think>\n\nI look into it.\n<tool_call>\n{call}\n</tool_call>",
        "<think>\n\n</think>\n\nYou need milk.",
    ]
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF")
    config = model_config("http://127.0.0.1:9")
    model = {
        "id": "m",
        "contextWindow": 32_768,
        "maxTokens": 1024,
        "reasoning": True,
        "compat": {"toolFormat": "qwen3"},
    }
    config["models"]["providers"] = {"mine": {"api": "local", "baseUrl": str(weights), "models": [model]}}
    config["agents"]["defaults"]["model"] = "mine/m"
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        workspace = tmp_path / "state" / "workspace"
        workspace.mkdir()
        (workspace / "list.md").write_text("milk")
        answer = await client.chat("what do I need? /think low")
        assert text_of(answer) == "You need milk."
    first, second = (body["prompt"] for body in ScriptedWorker.bodies)
    assert "# Tools" in first and '"name": "exec"' in first
    assert "AGENTS.md" in first, "it gets the real prompt"
    assert len(first) < 12_000 * 3.5, "the prompt leaves room in the window"
    assert f"I look into it.\n<tool_call>\n{call}\n</tool_call><|im_end|>" in second
    assert "<tool_response>\nmilk" in second
    assert "I should look" not in second
    assert second.startswith(first[: first.index("<|im_start|>user")]), "what was read once need not be read again"
