"""Old tool output leaves the prompt of a run, through a real Gateway; the transcript keeps every byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import MovableClock
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

TRIMMED = "[Tool result trimmed: kept first 1500 chars and last 1500 chars of "
CLEARED = "[Old tool result content cleared]"


def config_of(models: ModelServer, provider: str, pruning: dict[str, Any], window: int) -> dict[str, Any]:
    config = model_config(models.base_url, models.api_key)
    section = config["models"]["providers"].pop("mock")
    section["models"][0]["contextWindow"] = window
    config["models"]["providers"][provider] = section
    config["tools"] = {"allow": ["read"]}  # What else there is must not fill the small window.
    config["agents"]["defaults"] |= {"model": f"{provider}/mock-1", "contextPruning": pruning}
    return config


@pytest.mark.parametrize(
    ("provider", "pruning", "window", "expected"),
    [
        ("anthropic", {"mode": "cache-ttl", "ttl": "1ms"}, 32_000, TRIMMED),
        ("anthropic", {"ttl": "1ms"}, 32_000, TRIMMED),
        ("anthropic", {}, 32_000, None),
        ("anthropic", {"mode": "off", "ttl": "1ms"}, 32_000, None),
        ("anthropic", {"mode": "cache-ttl", "ttl": "1ms", "tools": {"deny": ["re*"]}}, 32_000, None),
        ("mock", {"mode": "cache-ttl", "ttl": "1ms"}, 32_000, None),
        ("mock", {"mode": "always"}, 32_000, TRIMMED),
        ("mock", {"mode": "always"}, 200_000, None),
        ("mock", {"mode": "always", "softTrim": {"maxChars": 90_000}, "hardClearRatio": 0.1,
                  "minPrunableToolChars": 1000}, 32_000, CLEARED),
    ],
    ids=["expired", "unset and expired", "unset", "off", "denied", "no cache", "always", "room", "cleared"],
)  # fmt: skip
async def test_old_output_is_trimmed_or_cleared_when_the_rules_say_so(
    tmp_path: Path, models: ModelServer, provider: str, pruning: dict[str, Any], window: int, expected: str | None
) -> None:
    config = config_of(models, provider, pruning, window)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        workspace = gateway.state_dir / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        long = "\n".join(f"line {number:05} of a long log" for number in range(1600))
        (workspace / "log.txt").write_text(long)
        models.queue(Reply(calls=[Call("read", {"path": "log.txt"})]), Reply(text="I see."))
        await client.chat("What does the log say?")
        for number in range(3):
            models.reply(f"Yes {number}.")
            await client.chat(f"And then {number}?")
        sent = json.dumps(models.requests[-1].body["messages"])
        assert (TRIMMED in sent, CLEARED in sent) == (expected == TRIMMED, expected == CLEARED)
        assert ("line 00800 of" in sent) is (expected is None)
        (row,) = (await client.call("sessions.list", {}))["sessions"]
        stored = json.dumps(gateway.transcript(row["sessionId"]))
        assert "line 00800 of" in stored and TRIMMED not in stored and CLEARED not in stored


async def test_what_left_the_prompt_does_not_come_back_while_the_cache_is_warm(
    tmp_path: Path, models: ModelServer
) -> None:
    config, clock = config_of(models, "anthropic", {"mode": "cache-ttl", "ttl": "5m"}, 32_000), MovableClock()
    config["agents"]["defaults"]["compaction"] = {"memoryFlush": {"enabled": False}}
    async with InProcessGateway(tmp_path / "state", config, clock=clock) as gateway, gateway.client() as client:
        workspace = gateway.state_dir / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        (workspace / "log.txt").write_text("\n".join(f"line {number:05} of a long log" for number in range(1600)))
        models.queue(Reply(calls=[Call("read", {"path": "log.txt"})]))
        for number in range(7):
            clock.advance(600 if number == 4 else 60)
            await client.chat(f"And then {number}?")
        trimmed = [TRIMMED in json.dumps(request.body["messages"]) for request in models.requests]
        assert trimmed == [False] * 5 + [True] * 3, "one call more than turns: the first turn has two"
