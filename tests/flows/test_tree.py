"""A conversation is a tree: another way can be tried from any point, and nothing is lost by it."""

from __future__ import annotations

import json

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply


async def test_another_way_is_tried_from_an_earlier_point_and_a_summary_is_left(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("first [[reply:one]]")
        before = await client.call("sessions.tree", {"key": "main"})
        await client.chat("second [[reply:two]]")
        models.queue(Reply("They tried the second way."))
        moved = await client.call("sessions.branch", {"key": "main", "entryId": before["leafId"]})
        assert text_of(await client.chat("third [[reply:three]]")) == "three"
        after = await client.call("sessions.tree", {"key": "main"})
        history = await client.call("chat.history", {"sessionKey": "main"})
    asked = json.dumps(models.requests[-1].body["messages"])
    assert "first" in asked
    assert "They tried the second way." in asked
    assert "second [[reply" not in asked
    shown = json.dumps(history["messages"])
    assert "third" in shown
    assert "second [[reply" not in shown
    parents = {entry["id"]: entry["parentId"] for entry in after["entries"]}
    assert parents[moved["leafId"]] == before["leafId"]
    lines = json.dumps(gateway.transcript(history["sessionId"]))
    assert "second [[reply" in lines


async def test_the_new_branch_is_still_there_after_a_restart(
    gateway_process: ForkedGateway, models: ModelServer
) -> None:
    async with gateway_process.client() as client:
        await client.chat("first")
        await client.chat("second")
        await client.call("sessions.branch", {"key": "main", "summarize": False})
    gateway_process.kill()
    await gateway_process.start()
    async with gateway_process.client() as client:
        await client.chat("anew")
    assert "first" not in json.dumps(models.requests[-1].body["messages"])


async def test_entries_can_be_named_and_wrong_names_are_refused(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("first")
        leaf = (await client.call("sessions.tree", {"key": "main"}))["leafId"]
        await client.call("sessions.label", {"key": "main", "entryId": leaf, "label": "good place"})
        tree = await client.call("sessions.tree", {"key": "main"})
        assert [entry["label"] for entry in tree["entries"] if "label" in entry] == ["good place"]
        for method, params in (
            ("sessions.label", {"key": "main", "entryId": "nope", "label": "x"}),
            ("sessions.branch", {"key": "main", "entryId": "nope"}),
            ("sessions.tree", {"key": "nowhere"}),
        ):
            with pytest.raises(RequestFailed, match="found"):
                await client.call(method, params)
