"""A sandbox with a real bubblewrap around a temporary state folder, and the tools that work in it."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from openclaw.agent.tool_set import SandboxOutputs
from openclaw.clock import SystemClock
from openclaw.config.load import parse_config
from openclaw.config.schema import Config
from openclaw.config.schema.agents import SandboxPrune
from openclaw.rights import OWNER_CALLER
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult
from openclaw.tools.exec.settings import ExecSettings
from openclaw.tools.policy import ToolSettings, built_in_tools
from openclaw.tools.process import ProcessRegistry
from openclaw.tools.sandbox.boundary import Boundary
from openclaw.tools.sandbox.launch import make_plan, missing

KEY = "agent:main:main"
MADE: list[str] = []
"""The control groups of the sandboxes that a test made."""


def config_with(sandbox: dict[str, Any], tools: dict[str, Any] | None = None) -> Config:
    values = {"agents": {"defaults": {"sandbox": {"mode": "all", **sandbox}}}, "tools": tools or {}}
    snapshot = parse_config("openclaw.json", json.dumps(values), {})
    assert snapshot.valid, snapshot.issues
    return snapshot.config


@functools.cache
def no_bubblewrap() -> str | None:
    """Why bubblewrap cannot be used here."""
    plan = make_plan(config_with({}), Path("/nonexistent-state"), "main", KEY, [("main", KEY)])
    return missing(plan, Boundary(plan, [], SandboxPrune(), SystemClock()).parts)


def needs_bubblewrap() -> None:
    """Skips the test where there is no bubblewrap. With ``OPENCLAW_TEST_REQUIRE_ALL`` it fails instead."""
    if (why := no_bubblewrap()) is not None:
        if os.environ.get("OPENCLAW_TEST_REQUIRE_ALL"):
            pytest.fail(why)
        pytest.skip(why)


class Inside:
    """The tools of one sandboxed session."""

    def __init__(self, state: Path, sandbox: dict[str, Any] | None = None, key: str = KEY) -> None:
        self.state = state
        self.config = config_with(sandbox or {})
        self.plan = make_plan(self.config, state, "main", key, [("main", key)])
        MADE.append(self.plan.group_name)
        self.plan.workspace.mkdir(parents=True, exist_ok=True)
        self.boundary = Boundary(self.plan, [state / "skills"], SandboxPrune(), SystemClock())
        self.processes = ProcessRegistry(spill_folder=state)
        made = built_in_tools(
            workspace=self.plan.workspace,
            settings=ToolSettings(confine=True, exec=ExecSettings()),
            processes=self.processes,
            sandbox=self.boundary,
            outputs=SandboxOutputs(self.boundary.opener),
        )
        self.tools: dict[str, Tool] = {tool.spec.name: tool for tool in made}
        self.context = ToolContext(agent_id="main", session_key=key, workspace=self.plan.folder, caller=OWNER_CALLER)

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        return await self.tools[tool].run(arguments, self.context)

    async def run(self, command: str, **arguments: Any) -> str:
        """What a command printed, also when it failed."""
        try:
            result = await self.call("exec", command=command, **{"yieldMs": 60_000, **arguments})
        except ToolError as failed:
            return str(failed)
        return "".join(getattr(block, "text", "") for block in result.content)
