"""``openclaw mcp serve``, used by the official client as another agent would."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw.mcp import serve as serving
from openclaw.mcp.serve import TOOLS, answer_call
from tests.flows.conftest import gateway, models
from tests.support.gateway import TOKEN
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

__all__ = ["gateway", "models"]


@asynccontextmanager
async def agent(gateway: InProcessGateway, *args: str) -> AsyncIterator[Any]:
    from mcp import Client, StdioServerParameters

    command = ["-m", "openclaw", "mcp", "serve", *args]
    async with Client(StdioServerParameters(command=sys.executable, args=command, env=gateway.env)) as client:
        yield client


def said(result: Any) -> str:
    return result.content[0].text


async def test_another_agent_lists_reads_sends_and_asks_why(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as wire:
        await wire.chat("remember the milk [[reply:noted]]", "agent:main:shopping")
    async with agent(gateway) as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == [tool.spec.name for tool in TOOLS]
        rows = json.loads(said(await client.call_tool("sessions_list", {})))["sessions"]
        assert [row["key"] for row in rows] == ["agent:main:shopping"]
        history = said(await client.call_tool("sessions_history", {"sessionKey": "agent:main:shopping"}))
        assert "remember the milk" in history and "noted" in history
        asked = {"message": "and? [[reply:bread]]", "sessionKey": "agent:main:shopping", "idempotencyKey": "one"}
        first = json.loads(said(await client.call_tool("sessions_send", asked)))
        assert (first["status"], first["reply"]) == ("completed", "bread")
        count = len(models.requests)
        again = json.loads(said(await client.call_tool("sessions_send", asked)))
        assert again["reply"] == "bread" and len(models.requests) == count
        messages = json.loads(said(await client.call_tool("messages_list", {"limit": 1})))["messages"]
        assert messages[0]["runId"] == "one" and messages[0]["state"] == "answered"
        assert "answered" in said(await client.call_tool("why", {"ref": "one"})).lower()
        unknown = await client.call_tool("why", {"ref": "nothing-like-it"})
        assert unknown.is_error and "nothing-like-it" in said(unknown)
        wrong = await client.call_tool("sessions_send", {"sessionKey": "main"})
        assert wrong.is_error and "message" in said(wrong)


async def test_an_answer_that_takes_long_can_be_waited_for_again(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    import asyncio

    from tests.support.model_script import Reply

    hold = asyncio.Event()
    models.queue(Reply(text="at last", hold=hold))
    async with agent(gateway) as client:
        asked = {"message": "slow", "timeoutSeconds": 1}
        early = json.loads(said(await client.call_tool("sessions_send", asked)))
        assert early["status"] == "running" and "nothing is sent twice" in early["note"]
        hold.set()
        late = await client.call_tool("sessions_send", {**asked, "idempotencyKey": early["idempotencyKey"]})
        assert json.loads(said(late))["reply"] == "at last"
    assert len(models.requests) == 1


async def test_a_wrong_token_and_a_missing_gateway_are_told_in_words(gateway: InProcessGateway) -> None:
    async with agent(gateway, "--url", gateway.url.replace("http", "ws"), "--token", "wrong-token-12345") as client:
        refused = await client.call_tool("sessions_list", {})
        assert refused.is_error and "unauthorized" in said(refused).lower()
    async with agent(gateway, "--url", "ws://127.0.0.1:9", "--token", TOKEN) as client:
        missing = await client.call_tool("sessions_list", {})
        assert missing.is_error and "No Gateway is running at" in said(missing)


async def test_without_the_library_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert serving.serve(None) == 1  # type: ignore[arg-type]
    assert "openclaw extras add mcp" in capsys.readouterr().err


async def test_an_unknown_tool_is_told(tmp_path: Path) -> None:
    text, failed = await answer_call(None, "nothing", {})  # type: ignore[arg-type]
    assert failed and "sessions_send" in text
