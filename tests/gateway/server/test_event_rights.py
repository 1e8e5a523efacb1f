"""Events × scopes: who gets which event, live, replayed, sent to one connection, and in the first snapshot."""

from __future__ import annotations

import ast
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from openclaw.gateway.auth.authorise import EVENT_RIGHTS
from openclaw.gateway.server.events import Broadcaster, Client, catch_up
from openclaw.gateway.server.registry import EVENTS, EVENTS_SINCE_4
from tests.gateway.server.test_broadcast import Recorder, client
from tests.gateway.support import Running

SOURCE = Path(__file__).parents[3] / "src" / "openclaw"
SCOPES = ["operator.admin", "operator.read", "operator.write", "operator.pairing", "operator.approvals"]
SCOPE_SETS = [frozenset(some) for size in range(len(SCOPES) + 1) for some in combinations(SCOPES, size)]
CLIENTS = [("operator", scopes) for scopes in SCOPE_SETS] + [("node", frozenset()), ("node", frozenset(SCOPES))]

# The rules a second time, by scope: a change must be made in both places.
EVERYONE = {"connect.challenge", "tick", "shutdown"}
FOR_NODES = {"node.invoke.request", "node.invoke.cancel"}
FOR_SCOPE = {
    "operator.pairing": {"device.pair.requested", "device.pair.resolved", "node.pair.requested", "node.pair.resolved"},
    "operator.approvals": {
        *("exec.approval.requested", "exec.approval.resolved", "question.opened", "question.closed"),
    },
    "operator.read": {
        *("agent", "chat", "presence", "health", "heartbeat", "cron", "talk.mode", "voicewake.changed"),
        *("sessions.changed", "session.message", "models.snapshot"),
    },
}


def expected(role: str, scopes: frozenset[str], event: str) -> bool:
    if event in EVERYONE:
        return True
    if role == "node":
        return event in FOR_NODES
    if event in FOR_NODES:
        return False
    if "operator.admin" in scopes:
        return True
    given = scopes | ({"operator.read"} if "operator.write" in scopes else frozenset())
    return any(event in FOR_SCOPE.get(scope, ()) for scope in given)


def everyone() -> list[tuple[Client, Recorder]]:
    return [client(f"c{number}", role=role, scopes=scopes) for number, (role, scopes) in enumerate(CLIENTS)]


@pytest.mark.parametrize("event", [*EVENTS, *EVENTS_SINCE_4, "an.event.nobody.knows"])
async def test_an_event_reaches_those_and_only_those_whose_scopes_cover_it(event: str) -> None:
    ways: dict[str, list[bool]] = {}
    broadcaster, live = Broadcaster(), everyone()
    for made, _ in live:
        broadcaster.add(made)
    broadcaster.publish(event, {"secret": 1})
    ways["live"] = [bool(sink.written) for _, sink in live]
    broadcaster.publish_variants(event, lambda: {"secret": 2}, {"secret": 2})
    ways["in two forms"] = [len(sink.written) > written for (_, sink), written in zip(live, ways["live"], strict=True)]
    before = [len(sink.written) for _, sink in live]
    broadcaster.send_to([made.conn_id for made, _ in live], event, {"secret": 3})
    ways["to one connection"] = [len(sink.written) > had for (_, sink), had in zip(live, before, strict=True)]
    late = everyone()
    for made, _ in late:
        broadcaster.add(made)
        await catch_up(broadcaster, made, 0)
    ways["replayed"] = [bool(sink.written) for _, sink in late]
    for way, got in ways.items():
        for (role, scopes), reached in zip(CLIENTS, got, strict=True):
            assert reached == expected(role, scopes, event), (way, role, sorted(scopes))


def published_names() -> set[str]:
    """Every name of an event that the source writes as the first argument of a call that sends events."""
    found: set[str] = set()
    places = {"publish": 0, "_publish": 0, "publish_variants": 0, "encode_event": 0, "send_to": 1}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if any(name in text for name in places) else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            place = places.get(name)
            if place is not None and len(node.args) > place:
                argument = node.args[place]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    found.add(argument.value)
    return found


def test_every_event_that_the_source_publishes_has_a_rule() -> None:
    found = published_names()
    assert {"chat", "agent", "tick", "presence", "health", "shutdown", "connect.challenge"} <= found
    assert found <= {*EVENT_RIGHTS}
    assert {*EVENTS, *EVENTS_SINCE_4} == {*EVENT_RIGHTS}


@pytest.mark.parametrize(
    "caller",
    [
        {"scopes": ["operator.pairing"]},
        {"scopes": ["operator.approvals"]},
        {"scopes": ["operator.invented"]},
        {"role": "node"},
        {"role": "node", "scopes": ["operator.admin"]},
    ],
)
async def test_who_may_not_read_gets_nothing_to_read(running: Running, caller: dict[str, Any]) -> None:
    async with running.client(), running.client(**caller) as socket:
        snapshot = socket.hello["snapshot"]
        assert (snapshot["presence"], snapshot["health"]) == ([], {})
        assert not {"configPath", "stateDir", "sessionDefaults"} & {*snapshot}
        running.gateway.broadcaster.publish("chat", {"sessionKey": "main", "state": "final"})
        running.gateway.broadcaster.publish("agent", {"stream": "assistant"})
        running.gateway.publish_presence()
        await running.gateway.health.refresh()
        running.gateway.broadcaster.publish("tick", {})
        await socket.event("tick")
        assert not [frame for frame in socket.unread if frame["type"] == "event"]
        assert not (await socket.call("events.replay", {"afterSeq": 0}))["ok"]


@pytest.mark.parametrize("caller", [{"scopes": ["operator.pairing"]}, {"role": "node"}])
async def test_coming_back_brings_no_events_of_others(running: Running, caller: dict[str, Any]) -> None:
    publish = running.gateway.broadcaster.publish
    publish("chat", {"state": "final", "message": "a secret"})
    publish("tick", {})
    async with running.client(lastSeq=0, epoch=running.gateway.broadcaster.epoch, **caller) as socket:
        assert (await socket.event("tick"))["seq"]
        assert not [frame for frame in socket.unread if frame.get("event") == "chat"]


async def test_a_reader_gets_the_snapshot_whole(running: Running) -> None:
    async with running.client(scopes=["operator.read"]) as socket:
        snapshot = socket.hello["snapshot"]
        assert {"presence", "health", "configPath", "stateDir", "sessionDefaults"} <= {*snapshot}
        assert snapshot["presence"]
