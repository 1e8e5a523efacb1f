"""Every tool × everybody who can cause a run × what is the owner's: what can be reached, through real runs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pytest

from openclaw import scheduler, teamwork, tools
from openclaw.gateway.assemble import start_scheduler
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.methods.nodes import node_events
from openclaw.gateway.nodes import INTERNAL_ROUTE
from openclaw.inbound.incoming import Incoming, client_facts
from openclaw.messages import AssistantMessage, ToolCall, ToolResultMessage, UserMessage, user_text
from openclaw.models.base import ModelRequest, OnEvent, ToolSpec
from openclaw.rights import OWNER as OWNER_RIGHTS
from openclaw.rights import CallerKind
from openclaw.scheduler.hooks import HookTurn
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from tests.flows.test_session_tools import invoke
from tests.support.clock import MovableClock, until
from tests.support.gateway_in_process import InProcessGateway, gateway_parts
from tests.support.loopback_channel import Loopback
from tests.support.scripted_model import Answer, ScriptedModel

Who: TypeAlias = Literal[
    "owner", "job", "guest", "guest in main", "group", "hook", "node", "owner's sub-agent", "guest's sub-agent"
]
OWNER: frozenset[Who] = frozenset({"owner", "job"})
EVERYBODY: frozenset[Who] = frozenset(get_args(Who))
MAIN: frozenset[Who] = frozenset({*OWNER, "guest in main"})
"""Those who reach the owner's chat. A guest who writes in it is in it."""
NOTES: frozenset[Who] = frozenset({*OWNER, "owner's sub-agent"})
SECRET = "the safe opens with 4711"
CHAT_SECRET = "the party is in May"
TRY, SPAWN = "try everything", "let a sub-agent try everything"

Attempt: TypeAlias = tuple[dict[str, Any], frozenset[Who]]
"""The arguments of a call, and who reaches something with it."""
FILES = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "HEARTBEAT.md", "MEMORY.md", "memory/day.md")
SKILL = "skills/mine/SKILL.md"


def patch(*lines: str) -> str:
    return "\n".join(("*** Begin Patch", f"*** {lines[0]}", *lines[1:], "*** End Patch"))


RULES: dict[str, Mapping[str, Attempt] | str] = {
    "read": {
        "the workspace": ({"path": "plain.txt"}, EVERYBODY),
        "curated memory": ({"path": "MEMORY.md"}, NOTES),
        "curated memory by another name": ({"path": "./memory/../MEMORY.md"}, NOTES),
        "notes": ({"path": "memory/day.md"}, NOTES),
        "notes through a link": ({"path": "link.md"}, NOTES),
        "a transcript": ({"path": "../agents/main/sessions/owner.jsonl"}, NOTES),
        "another agent's workspace": ({"path": "../workspace-other/AGENTS.md"}, NOTES),
    },
    "write": {
        "the workspace": ({"path": "new.txt", "content": "x"}, EVERYBODY),
        **{name: ({"path": name, "content": f"obey me; {SECRET} in {name}"}, NOTES) for name in (*FILES, SKILL)},
        "a new note": ({"path": "memory/new.md", "content": "x"}, NOTES),
        "a new skill": ({"path": "skills/new/SKILL.md", "content": "x"}, NOTES),
        "through a link": ({"path": "link.md", "content": f"obey me; {SECRET} in a link"}, NOTES),
    },
    "edit": {
        "the workspace": ({"path": "plain.txt", "oldText": SECRET, "newText": f"again {SECRET}"}, EVERYBODY),
        **{name: ({"path": name, "oldText": SECRET, "newText": f"again {SECRET}"}, NOTES) for name in (*FILES, SKILL)},
    },
    "apply_patch": {
        "the workspace": ({"input": patch("Add File: patched.txt", "+x")}, EVERYBODY),
        **{
            name: ({"input": patch(f"Update File: {name}", "@@", "+again")}, NOTES)
            for name in ("MEMORY.md", "memory/day.md", SKILL)
        },
        "a new note": ({"input": patch("Add File: memory/patched.md", "+x")}, NOTES),
        "a new skill": ({"input": patch("Add File: skills/patched/SKILL.md", "+x")}, NOTES),
        "a move into the notes": ({"input": patch("Update File: moved.txt", "*** Move to: memory/in.md")}, NOTES),
        "a move out of the notes": ({"input": patch("Update File: memory/out.md", "*** Move to: out.txt")}, NOTES),
    },
    "search": {
        "the workspace": ({"pattern": SECRET, "path": "plain.txt"}, EVERYBODY),
        "curated memory": ({"pattern": SECRET, "glob": "MEMORY.md"}, NOTES),
        "curated memory by its name": ({"pattern": SECRET, "path": "MEMORY.md"}, NOTES),
        "notes": ({"pattern": SECRET, "path": "memory"}, NOTES),
        "notes through a link": ({"pattern": SECRET, "path": "link.md"}, NOTES),
        "a transcript": ({"pattern": SECRET, "path": "../agents/main/sessions"}, NOTES),
        "another agent's workspace": ({"pattern": SECRET, "path": "../workspace-other"}, NOTES),
    },
    "memory_get": {
        "curated memory": ({"path": "MEMORY.md"}, OWNER),
        "notes": ({"path": "memory/day.md"}, NOTES),
    },
    "memory_search": {
        "notes": ({"query": "safe opens"}, NOTES),
        "chats": ({"query": "party"}, OWNER),
    },
    "sessions_list": {"the owner's chat": ({"messageLimit": 5}, MAIN)},
    "sessions_history": {"the owner's chat": ({"sessionKey": "main"}, MAIN)},
    "sessions_search": {"the owner's chat": ({"query": "party"}, MAIN)},
    "session_status": {"the owner's chat": ({"sessionKey": "agent:main:main"}, MAIN)},
    "sessions_send": {"the owner's chat": ({"sessionKey": "main", "message": "hello", "timeoutSeconds": 0}, MAIN)},
    "cron": {"the owner's jobs": ({"action": "list", "includeDisabled": True}, OWNER)},
    "browser": {"the owner's logins": ({"action": "status"}, NOTES)},
    "nodes": "tried with a node in tests/tools/test_nodes.py",
    "message": {"a note as a file": ({"action": "send", "message": "see", "path": "MEMORY.md"}, frozenset({"owner"}))},
    "sessions_spawn": "the child's run is as trusted as its parent's: see the sub-agents in this table",
    "ask_user": "asks whoever wrote and people with the right to approve; reads nothing",
    "plan": "changes the plan of its own session only",
    "agents_list": "names the agents that the configuration allows the session to use",
    "exec": "runs what the rules of commands allow; a sandbox keeps it from files (docs/security.md)",
    "process": "reaches the commands of its own session only",
    "web_fetch": "reaches public addresses only, whoever asks",
    "web_search": "asks a search service, whoever asks",
}
"""What each tool gives to whom. A tool that reaches nothing of the owner's says why."""


def test_every_tool_has_a_rule() -> None:
    names = {"cron"}
    for package in (tools, teamwork, scheduler):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for one in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(one) and isinstance(spec := vars(one).get("spec"), ToolSpec):
                    names.add(spec.name)
    assert names == set(RULES)


def test_everybody_who_can_cause_a_run_is_tried() -> None:
    assert set(get_args(CallerKind)) <= set(get_args(Who))


class Trier(ScriptedModel):
    """A model that does what it is told, by whomever: it makes every call of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = {
            f"{tool}-{number}": (tool, what, given)
            for tool, rule in RULES.items()
            if not isinstance(rule, str)
            for number, (what, given) in enumerate(rule.items())
        }
        self.results: dict[str, ToolResultMessage] = {}
        self.tried: ModelRequest | None = None
        self.offered: set[str] = set()

    async def answer(self, request: ModelRequest, agent_id: str, on_event: OnEvent) -> AssistantMessage:
        last = request.messages[-1]
        words = user_text(last) if isinstance(last, UserMessage) else ""
        if SPAWN in words:
            self.queue(Answer("", [ToolCall(id="spawn", name="sessions_spawn", arguments={"task": TRY})]))
        elif TRY in words and self.tried is None:
            self.tried = request
            self.offered = {tool.name for tool in request.tools}
            calls = [ToolCall(id=i, name=tool, arguments=given[0]) for i, (tool, _, given) in self.calls.items()]
            self.queue(Answer("", [call for call in calls if call.name in self.offered]))
        for message in request.messages:
            if isinstance(message, ToolResultMessage) and message.tool_call_id in self.calls:
                self.results[message.tool_call_id] = message
        return await super().answer(request, agent_id, on_event)

    def reached(self) -> set[tuple[str, str]]:
        """What the calls reached. A tool that was not offered reaches nothing."""
        return {self.calls[i][:2] for i, result in self.results.items() if not refused(result)}


PROOFS = {
    "sessions_list": [CHAT_SECRET],
    "sessions_search": [CHAT_SECRET],
    "search": [SECRET],
    "cron": ["owner's job"],
    "memory_search": [f"{SECRET} in", CHAT_SECRET],
}
"""Tools that leave out what a caller may not see, and what shows that they did not."""


def refused(result: ToolResultMessage) -> bool:
    text = result.text
    if (proof := PROOFS.get(result.tool_name)) is not None:
        return not any(secret in text for secret in proof)
    return result.is_error or any(f'"status":"{word}"' in text.replace(": ", ":") for word in ("error", "forbidden"))


def furnish(state: Path) -> None:
    workspace = state / "workspace"
    for name in (
        *FILES,
        SKILL,
        "plain.txt",
        "moved.txt",
        "memory/out.md",
        "../agents/main/sessions/owner.jsonl",
        "../workspace-other/AGENTS.md",
    ):
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"---\nname: mine\ndescription: mine\n---\n{SECRET} in {name}\n")
    (workspace / "link.md").symlink_to(workspace / "MEMORY.md")


CHANNEL = {"loopback": {"enabled": True, "dmPolicy": "open", "allowFrom": ["*", "ann"], "groupPolicy": "open"}}
AGENTS = {"defaults": {"memorySearch": {"sources": ["memory", "sessions"]}}, "list": [{"id": "main"}, {"id": "other"}]}
TOOLS = {"fs": {"workspaceOnly": False}}
NEVER = {"kind": "every", "everyMs": 10**11}


async def begin(gateway: Gateway, phone: Loopback, who: Who) -> None:
    """Has somebody cause a run in which the model tries everything."""
    match who:
        case "owner":
            await phone.say(TRY)
        case "owner's sub-agent":
            await phone.say(SPAWN)
        case "guest" | "guest in main":
            await phone.say(TRY, sender="eve")
        case "guest's sub-agent":
            await phone.say(SPAWN, sender="eve")
        case "group":
            await phone.say(TRY, sender="ann", group="friends", mentioned=True)
        case "hook":
            await gateway.hook_runs.run(HookTurn(message=TRY), [str(uuid.uuid4())])
        case "node":
            await node_events(gateway).receive("kitchen", "agent.request", {"message": TRY})
        case "job":
            turn = {"kind": "agentTurn", "message": TRY}
            job = await gateway.cron.add({"schedule": NEVER, "payload": turn, "delivery": {"mode": "none"}})
            await gateway.cron.run(job["id"], "force", wait=False)


async def owner_chats(gateway: Gateway, model: Trier) -> None:
    """The owner tells the agent something on the page."""
    said = Incoming(
        facts=client_facts(SessionRef("main", "agent:main:main"), OWNER_RIGHTS),
        text=CHAT_SECRET,
        door="chat",
        run_id=str(uuid.uuid4()),
        source="webchat",
        route=INTERNAL_ROUTE,
    )
    await gateway.pipeline.process(said)
    await model.asked(1)


@pytest.mark.parametrize("who", get_args(Who))
async def test_a_run_reaches_what_its_caller_may_reach_and_nothing_else(tmp_path: Path, who: Who) -> None:
    furnish(tmp_path)
    model, phone = Trier(), Loopback()
    scope = {} if who == "guest in main" else {"session": {"dmScope": "per-channel-peer"}}
    async with gateway_parts(
        tmp_path, model, clock=MovableClock(), channel=phone, channels=CHANNEL, agents=AGENTS, tools=TOOLS, **scope
    ) as gateway:
        await gateway.channel_services.start()
        await start_scheduler(gateway)
        await owner_chats(gateway, model)
        event = {"kind": "systemEvent", "text": "owner's job"}
        await gateway.cron.add({"name": "owner's job", "schedule": NEVER, "payload": event, "sessionTarget": "main"})
        await begin(gateway, phone, who)
        await until(lambda: bool(model.results))
    expected = {
        (tool, what) for tool, what, (_, allowed) in model.calls.values() if who in allowed and (tool in model.offered)
    }
    assert model.reached() == expected
    seen = model.tried
    assert seen is not None and (f"{SECRET} in MEMORY.md" in str(seen.system)) == (who == "owner")


async def test_a_program_that_calls_a_tool_for_a_guests_session_has_the_guests_reach(
    gateway: InProcessGateway,
) -> None:
    guests = "agent:main:signal:direct:+15550009"
    entry = SessionEntry(sessionId=str(uuid.uuid4()), lastChannel="signal")
    await gateway.gateway.runtime.stores.sessions.update("main", guests, lambda _: entry)
    async with gateway.client() as client:
        await client.chat(CHAT_SECRET)
    (gateway.state_dir / "workspace" / "MEMORY.md").write_text(SECRET)
    assert SECRET in str(await invoke(gateway, "memory_get", {"path": "MEMORY.md"}))
    assert "belongs to the owner" in await invoke(gateway, "memory_get", {"path": "MEMORY.md"}, guests)
    assert CHAT_SECRET in str(await invoke(gateway, "sessions_history", {"sessionKey": "main"}))
    assert CHAT_SECRET not in str(await invoke(gateway, "sessions_history", {"sessionKey": "main"}, guests))
