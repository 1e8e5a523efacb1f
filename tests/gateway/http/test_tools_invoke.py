"""A tool called by a program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.http.served import Served

pytestmark = pytest.mark.asyncio(loop_scope="package")
PATH = "/tools/invoke"


async def test_a_tool_runs_and_its_result_comes_back(gateway: Served) -> None:
    status, answer = await gateway.post(PATH, {"tool": "write", "args": {"path": "note.txt", "content": "hello"}})
    assert (status, answer["ok"]) == (200, True)
    status, answer = await gateway.post(PATH, {"tool": "read", "args": {"path": "note.txt"}, "sessionKey": "main"})
    assert answer["result"]["content"][0]["type"] == "text"
    assert "hello" in answer["result"]["content"][0]["text"]
    assert (gateway.gateway.state_dir / "workspace" / "note.txt").read_text() == "hello"


async def test_another_agents_session_means_its_workspace(gateway: Served) -> None:
    body = {"tool": "write", "args": {"path": "b.txt", "content": "x"}, "sessionKey": "agent:beta:main"}
    assert (await gateway.post(PATH, body))[0] == 200
    assert (gateway.gateway.state_dir / "workspace-beta" / "b.txt").exists()


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ({"tool": "nope"}, 404, {"ok": False, "error": {"type": "not_found", "message": "Tool not available: nope"}}),
        ({}, 400, {"error": {"message": "tools.invoke requires body.tool", "type": "invalid_request_error"}}),
        (
            {"tool": " "},
            400,
            {"error": {"message": "tools.invoke requires body.tool", "type": "invalid_request_error"}},
        ),
    ],
)
async def test_an_unknown_or_missing_tool_is_said(gateway: Served, body: Any, status: int, expected: Any) -> None:
    assert await gateway.post(PATH, body) == (status, expected)


@pytest.mark.parametrize("arguments", [{"path": "does-not-exist.txt"}, {"nonsense": 1}])
async def test_a_failure_of_the_tool_is_a_tool_error(gateway: Served, arguments: Any) -> None:
    status, answer = await gateway.post(PATH, {"tool": "read", "args": arguments})
    assert status == 400
    assert answer["error"]["type"] == "tool_error"
    assert answer["error"]["message"]


async def test_a_dry_run_touches_nothing(gateway: Served) -> None:
    body = {"tool": "write", "args": {"path": "dry.txt", "content": "x"}, "dryRun": True}
    status, answer = await gateway.post(PATH, body)
    assert (status, answer["result"]["details"]["dryRun"]) == (200, True)
    assert not (gateway.gateway.state_dir / "workspace" / "dry.txt").exists()


async def test_tools_need_the_secret_and_a_bounded_body(gateway: Served) -> None:
    url = gateway.gateway.url + PATH
    async with gateway.http.post(url, json={"tool": "read"}) as response:
        assert response.status == 401
    status, answer = await gateway.post(PATH, {"tool": "read", "args": {"path": "x" * (2 * 1024 * 1024)}})
    assert status == 400
    assert "larger than" in json.dumps(answer)
