"""Two Gateways on one PostgreSQL: what is made at one holds at the other, and what one does goes on when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.gateway.assemble import start_scheduler
from openclaw.gateway.cluster.service import ClusterService
from openclaw.gateway.gateway import Gateway
from openclaw.messages import Route
from openclaw.storage.message_ledger import Accept, MessageBody, OutboxPart
from openclaw.tools.exec.allowlist import AllowRule
from openclaw.tools.exec.approvals import ApprovalRequest, approval_question
from tests.support.clock import MovableClock
from tests.support.gateway_in_process import gateway_parts
from tests.support.loopback_channel import Loopback
from tests.support.postgres import new_schema, postgres_server
from tests.support.scripted_model import ScriptedModel

PATIENCE_S = 90
CHANNEL = {"loopback": {"enabled": True, "dmPolicy": "open", "allowFrom": ["*"]}}
EVERY_MINUTE = {"kind": "every", "everyMs": 60_000}
JOB = {"name": "b", "schedule": EVERY_MINUTE, "payload": {"kind": "agentTurn", "message": "Brief me"}}
ROUTE = Route(channel="loopback", to="loopback:ann", account_id="default")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.02)


class Node:
    """One of the Gateways, with its own channel to the same world outside."""

    def __init__(self, gateway: Gateway, phone: Loopback) -> None:
        self.gateway = gateway
        self.phone = phone

    async def die(self) -> None:
        """What the others see of a kill -9. Nothing of it is told to this node, which goes on for a moment."""
        assert isinstance(self.gateway.cluster, ClusterService)
        membership = self.gateway.cluster.membership
        assert membership._watching is not None and membership._connection is not None
        membership._watching.cancel()
        membership._connection.terminate()

    @property
    def has_account(self) -> bool:
        return "default" in self.phone.lives


class Cluster:
    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._storage = {"url": postgres_server().url, "schema": new_schema(), "poolSize": 4}
        self.clock = MovableClock()
        self.model = ScriptedModel()
        self.nodes: list[Node] = []

    async def join(self) -> Node:
        phone = Loopback()
        state = self._folder / f"node{len(self.nodes)}"
        config: dict[str, Any] = {"storage": self._storage, "channels": CHANNEL}
        parts = gateway_parts(state, self.model, clock=self.clock, channel=phone, **config)
        gateway = await self._stack.enter_async_context(parts)
        await gateway.cluster.start("ws://127.0.0.1:9")
        await gateway.channel_services.start()
        await start_scheduler(gateway)
        self.nodes.append(Node(gateway, phone))
        return self.nodes[-1]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


async def test_who_and_what_is_let_in_at_one_node_is_let_in_at_the_other(cluster: Cluster) -> None:
    first, second = (await cluster.join()).gateway, (await cluster.join()).gateway
    asked = await first.pairing.ask("signal", "+1")
    assert asked is not None and await second.pairing.allowed("signal") == frozenset()
    assert [request.id for _, request in await second.pairing.pending()] == ["+1"]
    assert await second.pairing.approve(asked.code) is not None
    assert await first.pairing.allowed("signal") == {"+1"} and await first.pairing.pending() == []

    facts = {"role": "operator", "roles": ["operator"], "scopes": ["operator.read"], "silent": False}
    request, _ = await first.devices.request_pairing("d", "k", facts)
    device = await second.devices.approve(request["requestId"])
    assert device is not None
    token = device["tokens"]["operator"]["token"]
    await first.devices.load()
    assert first.devices.token_is_valid("d", token, "operator", ["operator.read"])
    await second.devices.revoke_token("d", "operator")

    async def hears() -> bool:
        return not first.devices.token_is_valid("d", token, "operator", ["operator.read"])

    await until(hears)

    rule = AllowRule(pattern="/bin/ls")
    await first.runtime.tools.approval_rules.allow_always("main", rule, "ls")
    assert [one.pattern for one in (await second.runtime.tools.approval_rules.rules_for("main")).allowlist] == [
        "/bin/ls"
    ]


async def test_what_an_agent_is_told_next_is_told_by_whichever_node_runs_it(cluster: Cluster) -> None:
    first, second = (await cluster.join()).gateway, (await cluster.join()).gateway
    first.runtime.notes.put("agent:main:x", "the door is open", id="1")
    await first.runtime.notes.synced()
    (line,) = await second.runtime.notes.take("agent:main:x", "run")
    assert line.endswith("the door is open")
    assert await first.runtime.notes.take("agent:main:x", "another run") == []
    first.runtime.notes.put("agent:main:x", "the door is open", id="1")
    await first.runtime.notes.synced()
    assert await second.runtime.notes.take("agent:main:x", "third run") == []


async def test_a_job_runs_once_for_each_moment_and_goes_on_when_its_node_dies(cluster: Cluster) -> None:
    first, second = await cluster.join(), await cluster.join()
    assert first.gateway.scheduler.running and not second.gateway.scheduler.running
    cluster.model.queue("one", "two", "three")
    job = await second.gateway.cron.add({**JOB, "delivery": {"mode": "none"}})

    async def ran(count: int) -> list[str]:
        async def enough() -> bool:
            cluster.clock.advance(1)
            return len(await second.gateway.cron.history.entries(job["id"])) >= count

        await until(enough)
        return [entry["summary"] for entry in await second.gateway.cron.history.entries(job["id"])]

    cluster.clock.advance(61)
    assert await ran(1) == ["one"]
    await first.die()

    async def taken_over() -> bool:
        return second.gateway.scheduler.running

    await until(taken_over)
    cluster.clock.advance(61)
    assert await ran(2) == ["one", "two"]
    assert len(cluster.model.requests) == 2


async def test_a_job_that_an_agent_runs_at_another_node_runs_at_its_owner(cluster: Cluster) -> None:
    first, second = await cluster.join(), await cluster.join()
    cluster.model.queue("by hand")
    job = await second.gateway.cron.add({**JOB, "delivery": {"mode": "none"}})
    response = await second.gateway.cron.run(job["id"], wait=False)
    assert msgspec.to_builtins(response) == {"ok": True, "ran": True}

    async def ran() -> bool:
        return bool(await first.gateway.cron.history.entries(job["id"]))

    await until(ran)
    assert not second.gateway.cron._active and len(cluster.model.requests) == 1


async def test_an_account_is_connected_by_one_node_and_moves_when_that_dies(cluster: Cluster) -> None:
    first, second = await cluster.join(), await cluster.join()
    await first.phone.until(lambda: first.has_account)
    assert not second.has_account
    await first.phone.say("hi")
    await first.phone.got(1)
    await first.die()
    await second.phone.until(lambda: second.has_account)
    await second.phone.say("are you there", message_id="m2")
    await second.phone.got(1)
    assert second.phone.opened == 1


async def test_an_account_moves_when_its_node_leaves_and_is_given_back_to_nobody_else(cluster: Cluster) -> None:
    first, second = await cluster.join(), await cluster.join()
    await first.phone.until(lambda: first.has_account)
    await first.gateway.channel_services.stop()
    await second.phone.until(lambda: second.has_account)
    assert not first.has_account
    (account,) = first.gateway.channel_services.channels.accounts()
    assert await first.gateway.channel_services.channels.owner(account) == second.gateway.runtime.stores.claims.node


async def test_a_part_that_one_node_stored_is_sent_once_by_the_node_with_the_account(cluster: Cluster) -> None:
    first, second = await cluster.join(), await cluster.join()
    await first.phone.until(lambda: first.has_account)
    accept = Accept(
        run_id="r1",
        dedupe_key="",
        agent_id="main",
        session_key="agent:main:x",
        session_id="s",
        source="cron",
        route=ROUTE,
        body=MessageBody(text="hello"),
    )
    parts = [OutboxPart(part=0, channel="loopback", payload={"text": "hello"})]
    row, _ = await second.gateway.runtime.stores.ledger.post(accept, parts)
    delivery = second.gateway.channel_services.delivery
    delivery.wake()
    (sent,) = await delivery.wait(row.id, PATIENCE_S)
    assert sent.state == "sent" and sent.doubts == 0
    assert [part.text for part in first.phone.delivered] == ["hello"] and second.phone.delivered == []


async def test_a_part_that_was_on_the_wire_when_its_node_died_is_sent_again_with_a_doubt(cluster: Cluster) -> None:
    first, second = await cluster.join(), await cluster.join()
    await first.phone.until(lambda: first.has_account)
    first.phone.gate.clear()
    accept = Accept(
        run_id="r2",
        dedupe_key="",
        agent_id="main",
        session_key="agent:main:x",
        session_id="s",
        source="cron",
        route=ROUTE,
        body=MessageBody(text="hello"),
    )
    row, _ = await first.gateway.runtime.stores.ledger.post(
        accept, [OutboxPart(part=0, channel="loopback", payload={"text": "hello"})]
    )
    first.gateway.channel_services.delivery.wake()

    async def sending() -> bool:
        (part,) = await second.gateway.runtime.stores.ledger.outbox_of(row.id)
        return part.state == "sending"

    await until(sending)
    await first.die()
    await second.phone.got(1)
    assert second.phone.delivered[0].possibly_duplicate
    (part,) = await second.gateway.channel_services.delivery.wait(row.id, PATIENCE_S)
    assert (part.state, part.doubts) == ("sent", 1)
    first.phone.gate.set()


async def test_questions_of_a_node_that_died_are_closed(cluster: Cluster) -> None:
    first, second = await cluster.join(), await cluster.join()
    request = approval_question(ApprovalRequest(command="ls"), timeout_ms=60_000)
    question = await second.gateway.runtime.tools.questions.ask(request)
    await second.die()

    async def withdrawn() -> bool:
        stored = await first.gateway.runtime.stores.ledger.question(question.id)
        return stored is not None and stored.state == "withdrawn"

    await until(withdrawn)
