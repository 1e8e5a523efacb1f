"""Who may see and use which session, for every action, way of naming and relation."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from openclaw.agent.session_access import ALLOWED, Action, Refusal, Relation, SessionAccess
from openclaw.config.schema import Config
from openclaw.rights import OWNER_CALLER, Caller
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.storage.session_query import SessionPage, SessionQuery, select_rows
from openclaw.storage.sessions import SessionRow

MAIN, CHILD, SIBLING = "agent:main:main", "agent:main:subagent:c", "agent:main:subagent:s"
GROUP, OTHER = "agent:main:signal:group:g", "agent:beta:main"


class Rows:
    """The rows of a store."""

    def __init__(self, *rows: SessionRow) -> None:
        self._rows = rows

    async def get(self, agent_id: str, key: str) -> SessionEntry | None:
        return next((row.entry for row in self._rows if (row.agent_id, row.key) == (agent_id, key)), None)

    async def select(self, query: SessionQuery) -> SessionPage:
        return select_rows([row for row in self._rows if query.agent_id in (None, row.agent_id)], query)

    async def find_session_id(self, session_id: str) -> SessionRow | None:
        return next((row for row in self._rows if row.entry["sessionId"] == session_id), None)


def row(key: str, **entry: Any) -> SessionRow:
    made: Any = {"sessionId": f"id of {key}", "label": f"label of {key}", **entry}
    return SessionRow(key.split(":")[1] if key.startswith("agent:") else "main", key, made)


STORE = Rows(
    row(MAIN),
    row(CHILD, spawnedBy=MAIN),
    row(SIBLING, spawnedBy=MAIN),
    row(GROUP),
    row("agent:main:subagent:g", spawnedBy=GROUP),
    row(OTHER),
    row("unknown"),
    row("global"),
)


def seen_by(key: str, **config: Any) -> SessionAccess:
    sections: dict[str, Any] = {"agents": {"list": [{"id": "main"}, {"id": "beta"}]}, **config}
    caller = Caller("group" if key == GROUP else "owner", subagent=":subagent:" in key)
    return SessionAccess(msgspec.convert(sections, Config), STORE, SessionRef(key.split(":")[1], key), caller)  # type: ignore[arg-type]


SANDBOX = {"agents": {"list": [{"id": "main"}, {"id": "beta"}], "defaults": {"sandbox": {"mode": "non-main"}}}}
ALL_IN_IT = {"agents": {**SANDBOX["agents"], "defaults": {"sandbox": {"mode": "all"}}}}
LIFTED = {
    "agents": {
        **SANDBOX["agents"],
        "defaults": {"sandbox": {"mode": "all", "sessionToolsVisibility": "all"}},
    }
}
FRIENDS = {"tools": {"agentToAgent": {"enabled": True}}}

CASES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    # requester, configuration, what it may do with each session: l(ist) h(istory) s(end) t (status)
    (MAIN, {}, {MAIN: "lhst", CHILD: "lhst", SIBLING: "lhst", GROUP: "lhst", OTHER: ""}),
    (MAIN, FRIENDS, {MAIN: "lhst", OTHER: "lhst"}),
    (MAIN, {"tools": {"agentToAgent": {"enabled": True, "allow": ["main"]}}}, {OTHER: ""}),
    (MAIN, {"tools": {"agentToAgent": {"enabled": True, "allow": ["MAIN*", "b*"]}}}, {OTHER: "lhst"}),
    (MAIN, {"tools": {"agentToAgent": {"enabled": True, "allow": ["MAIN", "beta"]}}}, {OTHER: ""}),
    (GROUP, {}, {MAIN: "", GROUP: "lhst", CHILD: "", "agent:main:subagent:g": "lhst", OTHER: ""}),
    (GROUP, {"tools": {"sessions": {"visibility": "all"}}}, {MAIN: "lhst", GROUP: "lhst", CHILD: "lhst", OTHER: ""}),
    (CHILD, {}, {MAIN: "", CHILD: "lht", SIBLING: "", GROUP: "", OTHER: ""}),
    (CHILD, FRIENDS, {MAIN: "", CHILD: "lht", SIBLING: "", OTHER: ""}),
    (GROUP, SANDBOX, {MAIN: "", GROUP: "t", CHILD: "", "agent:main:subagent:g": "lhst", OTHER: ""}),
    (MAIN, SANDBOX, {MAIN: "lhst", GROUP: "lhst", CHILD: "lhst", OTHER: ""}),
    (MAIN, ALL_IN_IT, {MAIN: "t", CHILD: "lhst", GROUP: "", OTHER: ""}),
    (CHILD, ALL_IN_IT, {MAIN: "", CHILD: "t", SIBLING: "", OTHER: ""}),
    (MAIN, LIFTED, {MAIN: "lhst", CHILD: "lhst", GROUP: "lhst", OTHER: ""}),
    (MAIN, {"tools": {"sessions": {"visibility": "self"}}}, {MAIN: "lhst", CHILD: "", GROUP: "", OTHER: ""}),
    (MAIN, {"tools": {"sessions": {"visibility": "tree"}}}, {MAIN: "lhst", CHILD: "lhst", GROUP: "", OTHER: ""}),
    (MAIN, {**FRIENDS, "tools": {**FRIENDS["tools"], "sessions": {"visibility": "agent"}}}, {GROUP: "lhst", OTHER: ""}),
]
LETTERS: dict[Action, str] = {"list": "l", "history": "h", "send": "s", "status": "t"}


def test_every_action_and_relation_has_a_rule() -> None:
    for rules in ALLOWED.values():
        assert set(rules) == set(get_args(Action)) == set(LETTERS)
        assert all(relations <= set(get_args(Relation)) for relations in rules.values())


@pytest.mark.parametrize(("requester", "config", "expected"), CASES)
@pytest.mark.parametrize("naming", ["key", "id", "shouted key"])
async def test_what_a_session_may_do_with_others_is_the_table(
    requester: str, config: dict[str, Any], expected: dict[str, str], naming: str
) -> None:
    visibility = seen_by(requester, **config)
    for key, letters in expected.items():
        name = {"key": key, "id": f"id of {key}", "shouted key": f" {key.upper()} "}[naming]
        found = await visibility.find(name)
        allowed = ""
        for action, letter in LETTERS.items():
            try:
                visibility.check(found, action, name)
                allowed += letter
            except Refusal as refusal:
                assert refusal.status == "forbidden" and str(refusal)
            assert visibility.allows(found, action) == (letter in allowed)
        assert allowed == letters, (key, naming)


async def test_main_means_the_main_chat_of_the_agent_that_asks() -> None:
    assert (await seen_by(OTHER).find("main")).key == OTHER
    assert (await seen_by(GROUP).find("main")).key == MAIN
    assert seen_by(GROUP).shown(MAIN) == "main" and seen_by(OTHER).shown(MAIN) == MAIN


@pytest.mark.parametrize("name", ["nothing", "agent:main:nowhere", "unknown", "global", "", "a" * 600, "x\ny", "../.."])
async def test_a_name_that_means_no_session_is_an_error(name: str) -> None:
    with pytest.raises(Refusal, match="No session found") as raised:
        await seen_by(MAIN).find(name)
    assert raised.value.status == "error"


async def test_in_the_global_scope_main_is_the_session_of_all() -> None:
    visibility = seen_by(MAIN, session={"scope": "global"})
    assert (await visibility.find("main")).key == "global"
    assert visibility.shown("global") == "main"


async def test_a_label_is_looked_up_among_the_own_sessions_unless_an_agent_is_named() -> None:
    visibility = seen_by(MAIN)
    assert (await visibility.find("", label=f"label of {GROUP}")).key == GROUP
    with pytest.raises(Refusal, match="No session found with label"):
        await visibility.find("", label=f"label of {OTHER}")
    with pytest.raises(Refusal, match="disabled"):
        await visibility.find("", label=f"label of {OTHER}", agent_id="beta")
    found = await seen_by(MAIN, **FRIENDS).find("", label=f"label of {OTHER}", agent_id="beta")
    assert found.key == OTHER


async def test_a_label_of_two_sessions_is_refused_with_both_keys() -> None:
    rows = Rows(row(MAIN), row(CHILD, label="same"), row(SIBLING, label="same"))
    visibility = SessionAccess(msgspec.convert({}, Config), rows, SessionRef("main", MAIN), OWNER_CALLER)  # type: ignore[arg-type]
    with pytest.raises(Refusal, match=f"Multiple sessions found with label: same .*{CHILD}"):
        await visibility.find("", label="same")
