"""A very long conversation costs the other sessions nothing: the event loop does no work that grows with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw.agent.compaction import compaction, summary
from openclaw.agent.window import history_cleaner, tokens
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply

SESSION_ID = "44444444-4444-4444-8444-444444444444"
TURNS = 5000
FEW = 4000
"""Work of the event loop on more messages than this in one turn would have grown with the conversation."""
GOOD = "## Goal\nCount.\n## Progress\n### Done\n- [x] counted for a long time\n## Next Steps\n1. count on"


def seed(state: Path, turns: int) -> None:
    folder = state / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": SESSION_ID, "timestamp": "t", "cwd": "/"}]
    for number in range(2 * turns):
        role = "assistant" if number % 2 else "user"
        message = {"role": role, "content": [{"type": "text", "text": f"{role} says {number}"}], "timestamp": 1}
        parent = f"{number - 1:08x}" if number else None
        lines.append(
            {"type": "message", "id": f"{number:08x}", "parentId": parent, "timestamp": "t", "message": message}
        )
    (folder / f"{SESSION_ID}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entry = {"sessionId": SESSION_ID, "updatedAt": 9_999_999_999_999}
    (folder / "sessions.json").write_text(json.dumps({"agent:main:main": entry}))


@pytest.mark.files_only("it begins with a file of years")
@pytest.mark.parametrize("compaction_on", [True, False])
async def test_no_work_on_all_messages_is_done_on_the_event_loop(
    tmp_path: Path, models: ModelServer, monkeypatch: pytest.MonkeyPatch, compaction_on: bool
) -> None:
    on_loop: dict[str, int] = {}

    def watch(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counted(first: Any, *rest: Any, **named: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                on_loop[name] = on_loop.get(name, 0) + 1
            return original(first, *rest, **named)

        monkeypatch.setattr(module, name, counted)

    for module, name in (
        (tokens, "message_chars"),
        (history_cleaner, "attributed"),
        (summary, "labelled"),
        (summary, "_of_message"),
        (compaction, "message_tokens"),
    ):
        watch(module, name)
    state = tmp_path / "state"
    seed(state, TURNS)
    config = model_config(models.base_url, models.api_key)
    config["models"]["providers"]["mock"]["models"][0] |= {"contextWindow": 9000, "maxTokens": 500}
    config["compaction"] = {"enabled": compaction_on, "reserveTokens": 2000, "keepRecentTokens": 500}
    config["agents"]["defaults"]["compaction"] = {"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}}
    models.queue(*([Reply(text=GOOD)] if compaction_on else []), Reply(text="one"), Reply(text="two"))
    async with InProcessGateway(state, config) as gateway, gateway.client() as client:
        assert (await client.chat("and now?"))["state"] == "final"
        assert (await client.chat("and then?"))["state"] == "final"
        await client.call("chat.history", {"sessionKey": "main", "limit": 50})
    assert {name: count for name, count in on_loop.items() if count > FEW} == {}
