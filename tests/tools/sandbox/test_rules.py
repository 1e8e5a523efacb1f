"""Which tools a sandboxed session has: every tool of the product against every kind of sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw.config.load import parse_config
from openclaw.tools.policy import ToolFilter
from openclaw.tools.sandbox.launch import DEFAULT_ALLOW, PLACES, SandboxPlan, blocked_text, make_plan, tools_inside

from .support import KEY, config_with

FILES = {"read", "search", "write", "edit", "apply_patch", "image"}
COMMANDS = {"exec", "process"}
SESSIONS = {
    *("sessions_list", "sessions_history", "sessions_search", "sessions_send", "sessions_spawn"),
    "session_status",
}


def offered(sandbox: dict[str, Any], **rules: Any) -> set[str]:
    plan = make_plan(config_with(sandbox, {"sandbox": {"tools": rules}}), Path("/state"), "main", KEY, [("main", KEY)])
    return set(tools_inside([*PLACES, "brand_new"], plan.filters))


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ("none", FILES | COMMANDS | SESSIONS),
        ("ro", {"read", "search", "image"} | COMMANDS | SESSIONS),
        ("rw", FILES | COMMANDS | SESSIONS),
    ],
)
def test_the_usual_tools_of_each_access(access: str, expected: set[str]) -> None:
    assert offered({"workspaceAccess": access}) == expected


@pytest.mark.parametrize(
    ("rules", "has", "lacks"),
    [
        ({"allow": ["exec", "web_fetch"]}, {"exec", "web_fetch"}, {"read", "process"}),
        ({"deny": ["group:fs"]}, {"exec", "browser"} - {"browser"}, {"read", "write"}),
        ({"allow": []}, {"message", "memory_search"}, {"browser", "cron", "gateway", "nodes", "canvas"}),
        ({"allow": ["*"], "deny": []}, {"browser", "cron"}, {"brand_new"}),
        ({"allow": ["brand_new", "exec"]}, {"brand_new"}, {"read"}),
    ],
)
def test_the_configuration_decides_and_a_tool_without_a_place_is_kept_away(
    rules: dict[str, Any], has: set[str], lacks: set[str]
) -> None:
    found = offered({}, **rules)
    assert has <= found and not lacks & found


def test_the_defaults_name_only_tools_with_a_place() -> None:
    assert set(DEFAULT_ALLOW) <= PLACES.keys()


def test_an_agents_own_rules_take_the_place_of_the_general_ones() -> None:
    own = {"id": "a", "tools": {"sandbox": {"tools": {"allow": ["read"]}}}}
    values = {
        "agents": {"defaults": {"sandbox": {"mode": "all"}}, "list": [own]},
        "tools": {"sandbox": {"tools": {"deny": ["exec"]}}},
    }
    config = parse_config("openclaw.json", json.dumps(values), {}).config
    plan = make_plan(config, Path("/state"), "a", "agent:a:main", [("a", "agent:a:main")])
    assert tools_inside(PLACES, plan.filters) == ["read"]


def test_a_refusal_names_the_keys() -> None:
    text = blocked_text("browser", [ToolFilter(allow=("exec",))], agent_id="main", mode="all", access="none") or ""
    assert "tools.sandbox.tools.allow" in text and "openclaw sandbox explain --agent main" in text
    assert blocked_text("exec", [ToolFilter(allow=("exec",))], agent_id="main", mode="all", access="none") is None


def family(child: dict[str, Any], parent: dict[str, Any]) -> SandboxPlan:
    """The plan of a session of agent ``child`` that a session of agent ``parent`` spawned."""
    listed = [{"id": "child", "sandbox": child}, {"id": "parent", "sandbox": parent}]
    config = parse_config("openclaw.json", json.dumps({"agents": {"list": listed}}), {}).config
    own = [("child", "agent:child:subagent:1")] if child.get("mode", "off") != "off" else []
    return make_plan(config, Path("/s"), "child", "agent:child:subagent:1", [*own, ("parent", "agent:parent:main")])


@pytest.mark.parametrize("child_mode", ["off", "all"])
@pytest.mark.parametrize("child_access", ["none", "ro", "rw"])
@pytest.mark.parametrize("parent_access", ["none", "ro", "rw"])
def test_a_childs_rights_are_never_wider_than_its_parents(
    child_mode: str, child_access: str, parent_access: str
) -> None:
    order = ["none", "ro", "rw"]
    child = {"mode": child_mode, "workspaceAccess": child_access, "scope": "shared",
             "docker": {"network": "host", "memory": "64g", "binds": ["/opt:/opt:rw"]}}  # fmt: skip
    parent = {"mode": "all", "workspaceAccess": parent_access, "scope": "session", "docker": {"memory": "1g"}}
    plan = family(child, parent)
    assert order.index(plan.access) <= order.index(parent_access)
    assert (plan.scope, plan.docker.network, plan.docker.memory, plan.docker.binds) == ("session", "none", "1g", [])


def test_sandboxes_are_told_apart_by_their_scope() -> None:
    def folder(scope: str, agent: str, key: str) -> Path:
        return make_plan(config_with({"scope": scope}), Path("/s"), agent, key, [(agent, key)]).folder

    one, two = "agent:main:a", "agent:main:b"
    assert folder("session", "main", one) != folder("session", "main", two)
    assert folder("agent", "main", one) == folder("agent", "main", two) != folder("agent", "other", one)
    assert folder("shared", "main", one) == folder("shared", "other", two)
    assert folder("session", "main", "agent:main:A/../x") != folder("session", "main", "agent:main:a-..-x")
    assert all(part not in ("..", ".") for part in folder("session", "main", "../../x").parts)
