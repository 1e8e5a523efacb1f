"""Calls of nodes: each has one end, whatever happens to the node, the caller and the clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openclaw.clock import SystemClock
from openclaw.config.schema.gateway import GatewayNodes
from openclaw.gateway import nodes as nodes_module
from openclaw.gateway.nodes import MAX_NODES, MAX_PENDING, ConnectedNodes, NodeConnection, answer_of, matching
from openclaw.tools.nodes import NodeFacts, NodeFailed


class Wire:
    """A node whose connection only writes down what it is sent."""

    def __init__(self, nodes: ConnectedNodes, node_id: str = "n1", conn_id: str = "c1") -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.nodes, self.conn_id = nodes, conn_id
        facts = NodeFacts(node_id=node_id, platform="linux", commands=("system.run", "camera.snap"))
        nodes.joined(NodeConnection(conn_id, facts, lambda event, payload: self.sent.append((event, payload))))

    async def asked(self, count: int = 1) -> dict[str, Any]:
        async with asyncio.timeout(30):
            while len(self.sent) < count:
                await asyncio.sleep(0)
        return self.sent[count - 1][1]

    def answer(self, request: dict[str, Any], payload: Any = None) -> bool:
        return self.nodes.answered(self.conn_id, request["id"], answer_of(True, payload, None, None))


@pytest.fixture
def nodes() -> ConnectedNodes:
    return ConnectedNodes(SystemClock(), GatewayNodes)


def start(nodes: ConnectedNodes, key: str = "k", **more: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(nodes.invoke("n1", "system.run", {"a": 1}, key=key, **more))


async def test_the_end_of_the_connection_ends_every_call_of_it(nodes: ConnectedNodes) -> None:
    wire, other = Wire(nodes), Wire(nodes, "n2", "c2")
    calls = [start(nodes, f"k{number}") for number in range(3)]
    elsewhere = asyncio.create_task(nodes.invoke("n2", "system.run", key="x"))
    await wire.asked(3)
    nodes.left("c1")
    for call in calls:
        with pytest.raises(NodeFailed, match="disconnected before it answered") as failed:
            await call
        assert (failed.value.failure, failed.value.interrupted) == ("NOT_CONNECTED", True)
    other.answer(await other.asked(), "fine")
    assert (await elsewhere).payload == "fine"
    with pytest.raises(NodeFailed, match="node not connected"):
        await start(nodes)
    assert nodes.get("n1") is None and nodes.count == 1


async def test_calls_with_one_key_are_one_until_everybody_has_left(nodes: ConnectedNodes) -> None:
    wire = Wire(nodes)
    first, second = start(nodes), start(nodes)
    request = await wire.asked()
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert len(wire.sent) == 1, "somebody still waits"
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert (await wire.asked(2))["id"] == request["id"]
    assert wire.sent[1][0] == "node.invoke.cancel"
    assert not wire.answer(request), "nobody waits any more"
    third = start(nodes)
    wire.answer(await wire.asked(3), "again")
    assert (await third).payload == "again", "what was cancelled may be asked for again"


async def test_a_node_is_not_given_more_calls_than_it_may_have(nodes: ConnectedNodes) -> None:
    wire = Wire(nodes)
    calls = [start(nodes, f"k{number}") for number in range(MAX_PENDING)]
    await wire.asked(MAX_PENDING)
    with pytest.raises(NodeFailed, match="busy") as failed:
        await start(nodes, "one too many")
    assert failed.value.failure == "BUSY"
    nodes.left("c1")
    await asyncio.gather(*calls, return_exceptions=True)


async def test_answers_that_are_kept_are_bounded(nodes: ConnectedNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "MAX_KNOWN_BYTES", 1000)
    wire = Wire(nodes)
    for number in range(20):
        call = start(nodes, f"k{number}")
        wire.answer(await wire.asked(number + 1), "x" * 400)
        await call
    assert (await start(nodes, "k19")).payload == "x" * 400, "the newest is still known"
    assert len(wire.sent) == 20
    assert len(nodes._calls) < 6  # pyright: ignore[reportPrivateUsage]


async def test_only_so_many_nodes_are_taken_in(nodes: ConnectedNodes) -> None:
    for number in range(MAX_NODES):
        assert nodes.has_room(f"n{number}")
        Wire(nodes, f"n{number}", f"c{number}")
    assert not nodes.has_room("another")
    assert nodes.has_room("n5"), "one that is connected may connect anew"


async def test_a_command_that_was_denied_meanwhile_is_not_sent() -> None:
    settings = GatewayNodes()
    nodes = ConnectedNodes(SystemClock(), lambda: settings)
    Wire(nodes)
    with pytest.raises(NodeFailed, match="not allowlisted"):
        await nodes.invoke("n1", "camera.snap", key="a")
    settings = GatewayNodes(allow_commands=["camera.snap"], deny_commands=["system.run"])
    with pytest.raises(NodeFailed, match="not allowlisted"):
        await start(nodes)
    shown = nodes.get("n1")
    assert shown is not None and shown.commands == ("camera.snap",)


def test_a_node_is_found_by_id_address_name_or_beginning() -> None:
    attic = NodeFacts(node_id="aabbccdd11", display_name="The Attic", remote_ip="10.0.0.5")
    cellar = NodeFacts(node_id="aabbccee22", display_name="cellar")
    for wanted in ("aabbccdd11", "10.0.0.5", "the attic", "the-attic", "aabbccdd"):
        assert matching([attic, cellar], wanted) == [attic]
    assert matching([attic, cellar], "aabbcc") == [attic, cellar]
    assert matching([attic, cellar], "aabb") == [], "too short to name one"
    assert matching([attic, cellar], "garage") == []


@pytest.mark.parametrize(
    ("payload_json", "expected"), [('{"a": 1}', {"a": 1}), ("not json", None), ("[" * 5000, None), ("null", None)]
)
def test_an_answer_in_a_text_is_read_if_it_can_be(payload_json: str, expected: Any) -> None:
    answer = answer_of(True, None, payload_json, None)
    assert not isinstance(answer, NodeFailed)
    assert (answer.payload, answer.payload_json) == (expected, payload_json)


def test_an_error_of_a_node_is_bounded() -> None:
    failed = answer_of(False, None, None, {"code": "X", "message": "m" * 100_000})
    assert isinstance(failed, NodeFailed) and len(str(failed)) <= 4000
    assert isinstance(answer_of(False, None, None, None), NodeFailed)
