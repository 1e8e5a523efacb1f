"""What an extension may register, and what happens when it is wrong, fails or hangs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from openclaw.config.schema import Config
from openclaw.config.schema.agents import AgentDefaults, Agents
from openclaw.config.schema.system import Plugins
from openclaw.extensions import points
from openclaw.extensions.api import MessageReceived, PromptAbout
from openclaw.extensions.points import ExtensionPoints, Taken, load_extensions
from tests.flows.conftest import models
from tests.support.gateway import model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_script import Call, Reply
from tests.support.model_server import ModelServer

__all__ = ["models"]
HEAD = """
from openclaw.extensions.api import *
from openclaw.messages import ToolSpec
class T:
    summary = "t"
    def __init__(self, name): self.spec = ToolSpec(name=name, description="d", parameters={"type": "object"})
    async def run(self, arguments, context): raise RuntimeError("no")
def f(about): return "said"
"""
TAKEN = Taken(tools=frozenset({"read"}), commands=frozenset({"status"}), methods=frozenset({"bad.list"}))


async def load(tmp_path: Path, body: str, name: str = "bad", **more: Any) -> ExtensionPoints:
    file = tmp_path / f"{name}.py"
    file.write_text(HEAD + "def register(api):\n" + "".join(f"    {line}\n" for line in body.splitlines()))
    config = Config(
        agents=Agents(defaults=AgentDefaults(workspace=str(tmp_path / "workspace"))),
        plugins=Plugins(load={"paths": [str(file)]}, **more),
    )
    return await load_extensions(config, str(tmp_path / "state"), TAKEN)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("api.add_command('x', f, help='')", "missing 1 required keyword-only argument: 'right'"),
        ("api.add_command('x', f, right='everything', help='')", "command /x needs a right: one of"),
        ("api.add_command('x', f, right=None, help='')", "command /x needs a right"),
        ("api.add_command('status', f, right='read', help='')", "there is /status already"),
        ("api.add_command('X Y', f, right='read', help='')", "cannot be the name of a command"),
        ("api.add_command('x', 'f', right='read', help='')", "a function is needed"),
        ("api.add_method('x', f)", "missing 1 required keyword-only argument: 'right'"),
        ("api.add_method('x', f, right='node')", "method bad.x needs a right"),
        ("api.add_method('list', f, right='read')", "there is bad.list already"),
        ("api.add_route('GET', 'x', f)", "missing 1 required keyword-only argument: 'auth'"),
        ("api.add_route('GET', 'x', f, auth='nobody')", "auth must be secret or open"),
        ("api.add_route('GET', '../x', f, auth='open')", "cannot be a path"),
        ("api.add_tool(T('t'))", "missing 1 required keyword-only argument: 'sessions'"),
        ("api.add_tool(T('t'), sessions='some')", "sessions must be owner or all"),
        ("api.add_tool(T('read'), sessions='all')", "there is a tool read already"),
        ("api.add_tool(T('docs__x'), sessions='all')", "cannot be the name of a tool"),
        ("api.on('nothing', f)", "unknown hook 'nothing'; the hooks are after_compaction"),
        ("api.add_prompt_section('', 'x')", "cannot be the title"),
        ("raise RuntimeError('broken, token=tellnobody123')", "broken, token=***"),
        ("raise SystemExit(3)", "SystemExit"),
        ("import no_such_module", "No module named"),
    ],
)
async def test_a_wrong_registration_is_refused_with_its_reason(tmp_path: Path, body: str, problem: str) -> None:
    (tmp_path / "state").mkdir()
    made = await load(tmp_path, f"api.on('message_received', f)\n{body}")
    (bad,) = made.extensions
    assert bad.state == "failed" and problem in bad.problem
    assert not made.hooks["message_received"], "half of a failed extension was kept"
    assert points.failed_at_start(tmp_path / "state") == {"bad": bad.problem}


async def test_one_that_hangs_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "LONGEST_REGISTER_S", 0.2)
    made = await load(tmp_path, "import threading\nthreading.Event().wait()")
    assert made.extensions[0].problem == "register did not return within 0.2 s"


async def test_nothing_can_be_added_later(tmp_path: Path) -> None:
    made = await load(tmp_path, "global kept\nkept = api\napi.on('message_received', f)", name="late")
    import sys

    with pytest.raises(ValueError, match="nothing can be added any more"):
        sys.modules["openclaw_extension_late"].kept.on("message_sent", print)
    assert not made.hooks["message_sent"]


async def test_a_failing_hook_is_counted_and_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
def bad(about): raise ValueError("not today")
async def slow(about): await __import__("asyncio").sleep(3600)
api.on("before_accept", bad)
api.on("before_accept", slow)
api.on("before_accept", lambda about: InstantAnswer("the third"))
api.add_prompt_section("Bad", bad)
api.add_prompt_section("Good", "# System\\n\\nBe kind.")
api.add_command("bad", bad, right="read", help="Fails.")
"""
    monkeypatch.setattr(points, "LONGEST_HOOK_S", 0.2)
    made = await load(tmp_path, body.strip())
    about = MessageReceived(agent_id="main", session_key="k", channel="webchat", text="hi")
    assert await made.before_accept(about) == "the third"
    (one,) = made.extensions
    assert (one.failures, one.last_failure) == (2, "no answer within 0.2 s")
    sections = await made.prompt_sections(PromptAbout(agent_id="main", session_key="k", private=True))
    assert sections == ("## Good\nSystem\nBe kind.",)


async def test_nothing_is_loaded_from_a_workspace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "bad.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef register(api): pass\n")
    (tmp_path / "linked").symlink_to(workspace)
    for place in (workspace, workspace / "bad.py", tmp_path / "linked"):
        config = Config(
            agents=Agents(defaults=AgentDefaults(workspace=str(workspace))),
            plugins=Plugins(load={"paths": [str(place)]}),
        )
        made = await load_extensions(config, str(tmp_path / "state"), Taken())
        assert made.extensions[0].state == "failed"
    assert not (tmp_path / "ran").exists()
    assert "is not loaded: agents can write in" in caplog.text


async def test_a_named_extension_that_is_not_installed_is_told(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key, plugins={"entries": {"gone": {"enabled": True}}})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        assert text_of(await client.chat("hi [[reply:hello]]")) == "hello"
        shown = await gateway.command("plugins", "info", "gone")
        assert shown.returncode == 1 and "no installed package has an extension of this name" in shown.stdout
        checked = await gateway.command("doctor")
        assert "the extension gone cannot be used" in checked.stdout


async def test_a_run_goes_on_when_everything_of_an_extension_fails(tmp_path: Path, models: ModelServer) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        HEAD
        + """
def bad(about): raise ValueError("not today")
def register(api):
    for name in ("message_received", "before_accept", "message_sent", "before_tool_call", "after_tool_call",
                 "gateway_started", "gateway_stopping"):
        api.on(name, bad)
    api.add_tool(T("wreck"), sessions="owner")
    api.add_prompt_section("Bad", bad)
    api.add_command("wreck", bad, right="read", help="Fails.")
    api.add_method("wreck", bad, right="read")
"""
    )
    config = model_config(models.base_url, models.api_key, plugins={"load": {"paths": [str(file)]}})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        models.queue(Reply(calls=[Call("wreck", {})]), Reply(text="went on"))
        assert text_of(await client.chat("hi")) == "went on"
        assert "RuntimeError: no" in json.dumps(models.requests[1].body["messages"][-1])
        assert text_of(await client.chat("/wreck")) == "❌ /wreck failed: not today"
        await client.chat("in a group", "agent:main:signal:group:g")
        assert "wreck" not in [tool["name"] for tool in models.requests[-1].body["tools"]]
        async with asyncio.timeout(60):
            while gateway.gateway.runtime.extensions.extensions[0].failures < 8:
                await asyncio.sleep(0.02)
