"""The configuration of 2026.9 opens: its keys are read as ours, checked as ours, and named as the file has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from openclaw.config.agents import agent_config, agent_ids, default_agent_id, sandbox_config, workspace_dir
from openclaw.config.keypath import get_path
from openclaw.config.load import Snapshot, parse_config
from openclaw.sessions.reset import expiry, reset_policy

NEWER = """{
  meta: { lastTouchedVersion: "2026.9.6" },
  agents: {
    ownership: "explicit",
    defaults: { workspace: "/w", model: { primary: "mock/mock-1" } },
    entries: {
      main: { tools: { deny: ["exec"], exec: { mode: "ask", timeoutSeconds: 90 } }, sandbox: { mode: "all" } },
      work: { default: true, workspace: "/work", identity: { name: "Willa" }, memory: { search: { enabled: false } } },
    },
  },
  bindings: [{ agentId: "main", match: { channel: "telegram" } }],
  session: { reset: { mode: "none" } },
  channels: {
    signal: { account: "+15550001", transport: { kind: "external-native", url: "http://127.0.0.1:8081" } },
    telegram: {
      botToken: "1:a",
      streaming: {
        mode: "block", chunkMode: "newline", preview: { chunk: { minChars: 50 } }, block: { enabled: true },
      },
      accounts: { second: { botToken: "2:b", streaming: { mode: "off" } } },
    },
  },
  gateway: { nodes: { commands: { deny: ["camera.snap"] } } },
}"""


def read(text: str) -> Snapshot:
    return parse_config("openclaw.json", text, {})


def test_agents_of_entries_have_their_tools_sandbox_workspace_bindings_and_identity() -> None:
    snapshot = read(NEWER)
    config = snapshot.config
    assert snapshot.valid and snapshot.refusals == [] and snapshot.warnings == []
    assert agent_ids(config) == ["main", "work"] and default_agent_id(config) == "work"
    main, work = agent_config(config, "main"), agent_config(config, "work")
    assert main and work and main.tools.deny == ["exec"] and sandbox_config(config, "main").mode == "all"
    assert main.tools.exec and main.tools.exec.security == "allowlist" and main.tools.exec.ask == "on-miss"
    assert main.tools.exec.timeout_sec == 90
    assert work.identity.name == "Willa" and work.memory_search and not work.memory_search.enabled
    assert workspace_dir(config, "/state", "work") == Path("/work")
    assert config.bindings[0].agent_id == "main"
    assert config.gateway.nodes.deny_commands == ["camera.snap"]


def test_channels_have_the_transport_and_the_drafts_that_the_file_names() -> None:
    channels = read(NEWER).config.channels
    assert (channels.signal.http_url, channels.signal.auto_start) == ("http://127.0.0.1:8081", False)
    telegram = channels.telegram
    assert (telegram.stream_mode, telegram.chunk_mode, telegram.block_streaming) == ("block", "newline", True)
    assert telegram.draft_chunk and telegram.draft_chunk.min_chars == 50
    assert telegram.accounts["second"].stream_mode == "off"


@pytest.mark.parametrize(
    ("transport", "settings"),
    [
        (
            {"kind": "managed-native", "cliPath": "/s", "httpPort": 9},
            {"auto_start": True, "cli_path": "/s", "http_port": 9},
        ),
        ({"kind": "external-native", "url": "http://h:1"}, {"auto_start": False, "http_url": "http://h:1"}),
        ({"kind": "container", "url": "http://h:1"}, {"enabled": False, "http_url": None}),
    ],
)
def test_every_transport_of_signal_is_read(transport: dict[str, Any], settings: dict[str, Any]) -> None:
    import json

    snapshot = read(json.dumps({"channels": {"signal": {"account": "+1", "transport": transport}}}))
    assert snapshot.valid and snapshot.warnings == []
    assert settings.items() <= asdict(snapshot.config.channels.signal).items()


@pytest.mark.parametrize(
    ("mode", "security", "ask"),
    [
        ("deny", "deny", None),
        ("allowlist", "allowlist", "off"),
        ("ask", "allowlist", "on-miss"),
        ("auto", "allowlist", "on-miss"),
        ("full", "full", "off"),
    ],
)
def test_the_mode_of_exec_never_allows_more_than_it_says(mode: str, security: str, ask: str | None) -> None:
    settings = get_path(read(f"{{ tools: {{ exec: {{ mode: '{mode}' }} }} }}").translated, ("tools", "exec"))
    assert settings.get("security") == security and settings.get("ask") == ask and "mode" not in settings


def test_every_difference_is_named_by_the_key_of_the_file() -> None:
    notes = {note.path: note for note in read(NEWER).notes}
    assert notes["agents.entries"].line == 6 and "main, work" in notes["agents.entries"].message
    assert "security allowlist" in notes["agents.entries.main.tools.exec.mode"].message
    assert "http://127.0.0.1:8081" in notes["channels.signal.transport"].message
    assert "streamMode off" in notes["channels.telegram.accounts.second.streaming.mode"].message
    assert "collect" in notes["messages.queue.mode"].message and "session.reset.mode" not in notes
    assert (
        "daily at 4"
        in {note.path: note.message for note in read("{ agents: { entries: {} } }").notes}["session.reset.mode"]
    )


def test_a_file_of_our_own_is_not_touched_and_has_no_notes() -> None:
    snapshot = read("{ agents: { list: [{ id: 'a' }] }, tools: { deny: ['exec'] } }")
    assert snapshot.notes == [] and snapshot.translated is snapshot.resolved


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("{ agents: { entries: { a: { tools: { deny: 7 } } } } }", "agents.entries.a.tools.deny", "expected a list"),
        ("{ agents: { entries: { a: 7 } } }", "agents.entries.a", "expected an object"),
        ("{ agents: { entries: 7 } }", "agents.entries", "expected"),
        ("{ agents: { list: [{ id: 'a' }], entries: { A: {} } } }", "agents.entries.A.id", "must differ"),
        ("{ channels: { telegram: { streaming: { mode: 'x' } } } }", "channels.telegram.streaming.mode", "expected"),
        ("{ channels: { signal: { transport: { kind: 'x' } } } }", "channels.signal.transport", "unknown key"),
        ("{ channels: { telegram: { streamMode: 'off', streaming: { chunkMode: 9 } } } }",
         "channels.telegram.streaming.chunkMode", "expected"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_at_the_key_that_was_written(text: str, path: str, words: str) -> None:
    snapshot = read(text)
    assert [(issue.path, words in issue.message) for issue in (*snapshot.issues, *snapshot.warnings)] == [(path, True)]


@pytest.mark.parametrize("kind", [[], {}, {"a": []}, 3, None, "x"])
@pytest.mark.parametrize("key", ["agents", "channels", "gateway", "session", "memory", "tools", "meta"])
def test_values_of_any_type_are_no_failure(key: str, kind: object) -> None:
    import json

    assert isinstance(read(json.dumps({key: kind, "meta": {"lastTouchedVersion": "2026.9.1"}})), Snapshot)


def test_a_session_without_reset_lives_for_ever() -> None:
    policy = reset_policy(
        read('{ session: { reset: { mode: "none", idleMinutes: 5 }, idleMinutes: 3 } }').config.session, "direct"
    )
    assert expiry(0, policy, 10**14) is None
    by_type = read('{ session: { reset: { mode: "none" }, resetByType: { group: { mode: "daily" } } } }').config.session
    assert expiry(0, reset_policy(by_type, "direct"), 10**14) is None
    assert expiry(0, reset_policy(by_type, "group"), 10**14) == "daily"
