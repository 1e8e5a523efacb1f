"""A session goes by its key, its id or its label, and means the same in every command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw.cli.main import main

from .fake_gateway import FakeGateway, Refusal

KEY = "agent:main:work"
NAMES = {"key": (KEY, "work"), "sessionId": ("0a1b2c3d-0000-4000-8000-000000000000",), "label": ("Garden plans",)}
LONE = {"ok": True, "key": KEY, "sessionId": "s", "sessions": [], "items": [], "next": None, "ts": 1}
LONE |= {"results": [], "complete": True, "indexed": {"done": 1, "total": 1}}
SEEN = {"runs": 1, "sightings": [], "inViewNow": False, "where": []}


def resolve(params: dict[str, Any]) -> dict[str, Any]:
    (field,) = {*params} - {"agentId"}
    if params[field] in NAMES[field]:
        return {"ok": True, "key": KEY}
    raise Refusal(f"No session found: {params[field]}", details={"code": "SESSION_NOT_FOUND"})


COMMANDS: list[tuple[str, Callable[[str], list[str]], str]] = [
    ("chat.view", lambda name: ["sessions", "show", name], "sessionKey"),
    ("sessions.patch", lambda name: ["sessions", "rename", name, "New"], "key"),
    ("sessions.delete", lambda name: ["sessions", "delete", name, "--yes"], "key"),
    ("sessions.archived", lambda name: ["sessions", "archived", name], "key"),
    ("sessions.resume", lambda name: ["sessions", "resume", name], "key"),
    ("sessions.export", lambda name: ["sessions", "export", name], "key"),
    ("sessions.search", lambda name: ["sessions", "search", "x", "--session", name], "key"),
    ("context.find", lambda name: ["context", "--session", name, "--search", "x"], "key"),
    ("send", lambda name: ["message", "send", "-t", "+1", "-m", "x", "--session", name], "sessionKey"),
]


@pytest.mark.parametrize("name", [name for names in NAMES.values() for name in names])
def test_every_command_finds_a_session_by_each_of_its_names(
    gateway: FakeGateway, state: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(state))
    monkeypatch.delenv("OPENCLAW_GATEWAY_PORT", raising=False)
    gateway.replies |= {method: LONE for method, _, _ in COMMANDS}
    gateway.replies |= {"sessions.resolve": resolve, "sessions.list": {**LONE}, "context.find": SEEN}
    for method, command, param in COMMANDS:
        assert main(command(name)) == 0, command(name)
        assert gateway.params_of(method)[-1][param] == KEY, command(name)
