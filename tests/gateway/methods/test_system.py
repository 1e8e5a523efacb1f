"""The small methods: status, agents, identity, logs."""

from pathlib import Path
from typing import Any

import pytest

from openclaw.gateway.methods.agents import read_identity
from openclaw.gateway.methods.system import read_tail
from openclaw.sessions.entry import SessionEntry
from tests.gateway.support import Running, running_gateway


async def payload(running: Running, method: str, params: Any = None) -> Any:
    _, answer = await running.rpc(method, params)
    assert answer["ok"], answer
    return answer["payload"]


async def remember(running: Running, key: str, **entry: Any) -> None:
    fields: SessionEntry = {"sessionId": f"id-{key[-4:]}", "updatedAt": running.gateway.runtime.clock.now_ms(), **entry}  # type: ignore[typeddict-item]
    await running.gateway.runtime.stores.sessions.update("main", key, lambda _old: fields)


async def test_health_lists_recent_sessions_of_each_agent(running: Running) -> None:
    await remember(running, "agent:main:main")
    health = await payload(running, "health", {"probe": True})
    assert health["sessions"]["count"] == 1
    assert health["agents"][0]["sessions"]["recent"][0]["key"] == "agent:main:main"
    assert health["sessions"]["path"].endswith("agents/main/sessions/sessions.json")


async def test_status_says_how_full_a_session_is(running: Running) -> None:
    counters = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 50_000, "contextTokens": 200_000}
    await remember(running, "agent:main:main", thinkingLevel="high", systemSent=True, model="m", **counters)
    await remember(running, "agent:main:fresh")
    status = await payload(running, "status")
    assert status["sessions"]["count"] == 2
    rows = {row["key"]: row for row in status["sessions"]["recent"]}
    full = rows["agent:main:main"]
    assert (full["kind"], full["remainingTokens"], full["percentUsed"]) == ("direct", 150_000, 25)
    assert full["flags"] == ["think:high", "system", "id:id-main"]
    assert rows["agent:main:fresh"]["percentUsed"] is None, "unknown is shown as unknown"
    assert status["sessions"]["byAgent"][0]["agentId"] == "main"


async def test_agents_and_identities_come_from_the_configuration(tmp_path: Path) -> None:
    agents = [{"id": "main", "default": True}, {"id": "Beta", "name": "B", "identity": {"emoji": "🦊"}}]
    async with running_gateway(tmp_path, config={"agents": {"list": agents}}) as running:
        listing = await payload(running, "agents.list")
        assert (listing["defaultId"], listing["mainKey"], listing["scope"]) == ("main", "main", "per-sender")
        assert listing["agents"] == [{"id": "main"}, {"id": "beta", "name": "B", "identity": {"emoji": "🦊"}}]
        beta = await payload(running, "agent.identity.get", {"sessionKey": "agent:beta:main"})
        assert beta == {"agentId": "beta", "name": "B", "avatar": "🦊", "emoji": "🦊"}
        _, answer = await running.rpc("agent.identity.get", {"agentId": "main", "sessionKey": "agent:beta:main"})
        assert "does not match session key agent" in answer["error"]["message"]


async def test_an_agents_details_say_where_it_lives_what_it_uses_and_what_it_gets(tmp_path: Path) -> None:
    agents = [{"id": "main", "default": True}, {"id": "beta", "workspace": str(tmp_path / "own"), "agentDir": "/a/dir"}]
    match = {"channel": "signal", "accountId": "work", "peer": {"kind": "group", "id": "g1"}}
    config = {"agents": {"list": agents}, "bindings": [{"agentId": "beta", "match": match}]}
    async with running_gateway(tmp_path, config=config) as running:
        main, beta = (await payload(running, "agents.list", {"details": True}))["agents"]
    assert (main["bindings"], main["routes"], beta["bindings"]) == (0, [], 1)
    assert main["agentDir"].endswith("agents/main/agent")
    assert (beta["workspace"], beta["agentDir"]) == (str(tmp_path / "own"), "/a/dir")
    assert beta["routes"] == ["signal:work group:g1"]
    assert beta["model"] == main["model"]


async def test_a_list_of_sessions_names_every_store_the_default_agents_first(tmp_path: Path) -> None:
    agents = [{"id": "beta"}, {"id": "main", "default": True}]
    async with running_gateway(tmp_path, config={"agents": {"list": agents}}) as running:
        listed = await payload(running, "sessions.list", {})
        of_beta = await payload(running, "sessions.list", {"agentId": "beta"})
    assert listed["path"] == "(multiple)"
    assert [Path(path).parts[-3] for path in listed["paths"]] == ["main", "beta"]
    assert of_beta["path"] == listed["paths"][1]


async def test_an_agent_without_a_name_is_the_assistant_until_it_writes_one_down(running: Running) -> None:
    assert await payload(running, "agent.identity.get") == {"agentId": "main", "name": "Assistant", "avatar": "A"}
    workspace = Path(running.gateway.runtime.state_dir) / "workspace"
    workspace.mkdir()
    (workspace / "IDENTITY.md").write_text("# Who\n- **Name:** Clawd\n- **Emoji:** 🦞\n- **Avatar:** _(not yet)_\n")
    identity = await payload(running, "agent.identity.get")
    assert (identity["name"], identity["emoji"]) == ("Clawd", "🦞")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Name: Ada", {"name": "Ada"}),
        ("- Name: Ada\n- Emoji: 🦊", {"name": "Ada", "emoji": "🦊"}),
        ("- **Name:** (pick something)", {}),
        ("No such line", {}),
    ],
)
def test_identity_files(tmp_path: Path, text: str, found: dict[str, str]) -> None:
    (tmp_path / "IDENTITY.md").write_text(text)
    assert read_identity(tmp_path) == found


async def test_channels_and_quotas_have_their_empty_shapes(running: Running) -> None:
    channels = await payload(running, "channels.status")
    assert channels["channels"] == {} and channels["channelOrder"] == []
    assert (await payload(running, "usage.status"))["providers"] == []
    assert await payload(running, "channels.status", {"probe": True, "timeoutMs": 10})


def log_file(folder: Path, text: str) -> Path:
    path = folder / "openclaw-2026-11-15.log"
    path.write_text(text)
    return path


def test_the_tail_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = log_file(tmp_path, "one\ntwo\n")
    first = read_tail(path, None, 500, 250_000)
    assert (first.lines, first.cursor, first.reset, first.truncated) == (["one", "two"], 8, False, False)
    same = read_tail(path, 8, 500, 250_000)
    assert (same.lines, same.cursor) == ([], 8)
    with path.open("a") as file:
        file.write("three\nhalf")
    more = read_tail(path, 8, 500, 250_000)
    assert (more.lines, more.cursor) == (["three"], 14), "a line being written waits for its end"


def test_a_cursor_past_the_end_resets(tmp_path: Path) -> None:
    answer = read_tail(log_file(tmp_path, "new\n"), 999, 500, 250_000)
    assert (answer.reset, answer.lines, answer.cursor) == (True, ["new"], 4)


def test_a_gap_larger_than_allowed_resets_and_drops_the_partial_first_line(tmp_path: Path) -> None:
    answer = read_tail(log_file(tmp_path, "aaaa\nbbbb\ncccc\n"), 0, 500, 7)
    assert (answer.reset, answer.truncated, answer.lines) == (True, True, ["cccc"])
    answer = read_tail(log_file(tmp_path, "aaaa\nbbbb\ncccc\n"), None, 1, 10)
    assert (answer.reset, answer.truncated, answer.lines) == (False, True, ["cccc"])


def test_before_todays_first_line_the_newest_file_is_shown(tmp_path: Path) -> None:
    log_file(tmp_path, "yesterday\n")
    assert read_tail(tmp_path / "openclaw-2026-11-16.log", None, 500, 1000).lines == ["yesterday"]
    empty = read_tail(tmp_path / "none" / "openclaw-2026-11-16.log", None, 500, 1000)
    assert (empty.lines, empty.size) == ([], 0)
