"""Two Gateways on one database: whatever a client asks of either, it sees the same conversation."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from openclaw.cluster.links import LinkLost, OnPart
from openclaw.gateway.cluster.service import ClusterService
from openclaw.inbound.message import Inbound, Peer, Sender
from openclaw.inbound.notices import injected_message
from openclaw.sessions.keys import SessionRef
from openclaw.storage.errors import Fenced
from openclaw.tools.exec.approvals import ApprovalRequest, approval_question, decision_of
from tests.support.gateway import TOKEN, RequestFailed, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply
from tests.support.node import NodeUnderTest, serving
from tests.support.postgres import storage_for


class Pair(NamedTuple):
    """The first owns the main session."""

    owner: InProcessGateway
    other: InProcessGateway


def says(payload: dict[str, Any], text: str) -> bool:
    return payload["state"] == "final" and "message" in payload and text_of(payload) == text


async def start_pair(stack: AsyncExitStack, tmp_path: Path, models: ModelServer, **config: Any) -> Pair:
    storage = storage_for(tmp_path / "state")
    made: list[InProcessGateway] = []
    for name in ("a", "b"):
        settings = model_config(models.base_url, models.api_key, storage=storage, **config)
        settings["gateway"]["http"] = {"endpoints": {"chatCompletions": {"enabled": True}}}
        made.append(await stack.enter_async_context(InProcessGateway(tmp_path / name / "state", settings)))
    for gateway in made:
        cluster = gateway.gateway.cluster
        assert isinstance(cluster, ClusterService)
        async with asyncio.timeout(30):
            while not cluster.links.all():
                await asyncio.sleep(0.01)
    return Pair(*made)


@pytest.fixture
async def pair(tmp_path: Path, models: ModelServer) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        yield await start_pair(stack, tmp_path, models)


async def test_a_message_may_enter_at_any_node_and_both_see_the_stream(pair: Pair, models: ModelServer) -> None:
    async with pair.owner.client() as here, pair.other.client() as there:
        assert text_of(await here.chat("hello [[reply:Hi.]]", run_id="r1")) == "Hi."
        assert text_of(await there.ending("r1")) == "Hi."
        assert text_of(await there.chat("again [[reply:Again.]]", run_id="r2")) == "Again."
        assert text_of(await here.ending("r2")) == "Again."
        for client in (here, there):
            history = await client.call("chat.history", {"sessionKey": "main"})
            assert [message["role"] for message in history["messages"]] == ["user", "assistant"] * 2
            waited = await client.call("agent.wait", {"runId": "r2", "timeoutMs": 30_000})
            assert waited["status"] == "ok"
        assert not pair.other.gateway.runs.index.get("r2"), "the owner has run it"
    assert len(models.requests) == 2


async def test_a_run_is_stopped_steered_and_awaited_from_the_other_node(pair: Pair, models: ModelServer) -> None:
    async with pair.owner.client() as here, pair.other.client() as there:
        await here.chat("hello [[reply:Hi.]]", run_id="r0")
        models.queue(Reply("never said", hold=asyncio.Event(), hold_after=0))
        await here.call("chat.send", {"sessionKey": "main", "message": "think", "idempotencyKey": "r1"})
        await models.wait_for_requests(2)
        waiting = asyncio.create_task(there.call("agent.wait", {"runId": "r1", "timeoutMs": 50_000}))
        queued = await there.call("chat.send", {"sessionKey": "main", "message": "and", "idempotencyKey": "r2"})
        assert queued.get("queued")
        assert (await there.call("chat.drop", {"sessionKey": "main", "runId": "r2"}))["ok"]
        stopped = await there.call("chat.abort", {"sessionKey": "main", "runId": "r1"})
        assert stopped["runIds"] == ["r1"]
        assert (await waiting)["status"] == "error"
        assert (await here.ending("r1"))["state"] == (await there.ending("r1"))["state"] == "aborted"


async def test_the_openai_endpoint_of_any_node_answers_in_a_session_of_another(pair: Pair, models: ModelServer) -> None:
    async with pair.owner.client() as client:
        await client.chat("hello [[reply:Hi.]]")
    headers = {"authorization": f"Bearer {TOKEN}", "x-openclaw-session-key": "agent:main:main"}
    for stream in (False, True):
        body = {
            "model": "openclaw",
            "messages": [{"role": "user", "content": f"[[reply:{stream}!]]"}],
            "stream": stream,
        }
        async with aiohttp.ClientSession() as http, asyncio.timeout(60):
            url = f"{pair.other.url}/v1/chat/completions"
            async with http.post(url, json=body, headers=headers) as answer:
                text = await answer.text()
                assert answer.status == 200 and f"{stream}!" in text, text
    assert pair.other.gateway.runs.busy() == 0
    async with pair.other.client() as client:
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert [message["role"] for message in history["messages"]] == ["user", "assistant"] * 3


async def test_two_callers_of_one_run_of_another_node_each_get_all_its_words(pair: Pair, models: ModelServer) -> None:
    async with pair.owner.client() as client:
        await client.chat("hello [[reply:Hi.]]")
    held = asyncio.Event()
    models.reply("one two three four", hold=held, hold_after=2)
    headers = {"authorization": f"Bearer {TOKEN}", "x-openclaw-session-key": "agent:main:main", "idempotency-key": "k"}
    body = {"model": "openclaw", "messages": [{"role": "user", "content": "count"}], "stream": True}
    url = f"{pair.other.url}/v1/chat/completions"
    async with aiohttp.ClientSession(headers=headers) as http, asyncio.timeout(60), http.post(url, json=body) as first:
        begun = await first.content.readuntil(b"two")
        async with http.post(url, json=body) as second:
            again = await second.content.readuntil(b"assistant")
            held.set()
            for seen, answer in ((begun, first), (again, second)):
                assert spoken_in(seen + await answer.content.read()) == "one two three four"


@pytest.mark.parametrize("lost", [1, 1000])
async def test_a_caller_gets_the_words_of_another_node_that_were_left_out_on_the_way(
    pair: Pair, models: ModelServer, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    async with pair.owner.client() as client:
        await client.chat("hello [[reply:Hi.]]")
    cluster, dropped = pair.owner.gateway.cluster, list[str]()
    assert isinstance(cluster, ClusterService)
    broadcast = cluster.links.broadcast

    def busy(kind: str, data: bytes, *, may_be_lost: bool = False) -> bool:
        if kind == "delta agent" and len(dropped) < lost:
            dropped.append(kind)
            return False
        return broadcast(kind, data, may_be_lost=may_be_lost)

    monkeypatch.setattr(cluster.links, "broadcast", busy)
    held = asyncio.Event()
    models.reply("one two three four five six seven", hold=held, hold_after=2, delay_ms=50)
    headers = {"authorization": f"Bearer {TOKEN}", "x-openclaw-session-key": "agent:main:main"}
    body = {"model": "openclaw", "messages": [{"role": "user", "content": "count"}], "stream": True}
    url = f"{pair.other.url}/v1/chat/completions"
    async with aiohttp.ClientSession(headers=headers) as http, asyncio.timeout(60), http.post(url, json=body) as answer:
        begun = await answer.content.readuntil(b"two")
        held.set()
        assert spoken_in(begun + await answer.content.read()) == "one two three four five six seven"
    assert dropped


def spoken_in(stream: bytes) -> str:
    """The words of a stream of chat completion chunks."""
    chunks = [json.loads(part[6:]) for part in stream.decode().split("\n\n") if part.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


async def test_a_stream_over_http_ends_with_a_run_of_another_node(pair: Pair) -> None:
    async with pair.owner.client() as client:
        await client.chat("hello [[reply:Hi.]]")
    params = {"sessionKey": "main", "message": "more [[reply:More.]]", "idempotencyKey": "r1"}
    body = {"method": "chat.send", "params": params, "stream": True}
    headers = {"authorization": f"Bearer {TOKEN}"}
    url = f"{pair.other.url}/__openclaw__/rpc"
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as answer:
        frames = [json.loads(line) async for line in answer.content]
    assert frames[0]["type"] == "res" and frames[0]["payload"]["status"] == "started"
    final = [frame["payload"] for frame in frames if frame.get("event") == "chat"][-1]
    assert final["state"] == "final" and text_of(final) == "More."


async def test_a_channel_message_is_answered_by_the_owner_of_its_session_and_taken_once(
    tmp_path: Path, models: ModelServer
) -> None:
    signal = {"enabled": False, "dmPolicy": "open", "allowFrom": ["*"]}
    inbound = Inbound(
        channel="signal",
        message_id="m1",
        peer=Peer(kind="direct", id="+1555"),
        sender=Sender(id="+1555", name="Ann"),
        to="+1555",
        text="hello [[reply:From afar.]]",
        timestamp_ms=1,
    )
    async with AsyncExitStack() as stack:
        pair = await start_pair(stack, tmp_path, models, channels={"signal": signal})
        async with pair.owner.client() as here:
            await here.chat("hello [[reply:Hi.]]")
            assert await pair.other.gateway.pipeline.receive(inbound)
            await here.event(lambda event, payload: event == "chat" and says(payload, "From afar."))
            assert await pair.owner.gateway.pipeline.receive(inbound), "the platform delivers it again, elsewhere"
            listed = await here.call("messages.list", {"sessionKey": "main"})
    assert [(one["source"], one["state"]) for one in listed["messages"]] == [
        ("signal", "answered"),
        ("webchat", "answered"),
    ]
    assert len(models.requests) == 2


async def test_what_a_node_writes_into_a_session_of_another_does_not_confuse_its_owner(pair: Pair) -> None:
    session = SessionRef("main", "agent:main:main")
    async with pair.owner.client() as here, pair.other.client() as there:
        await here.chat("hello [[reply:Hi.]]")
        sessions = pair.other.gateway.runtime.stores.sessions
        await sessions.update(session.agent_id, session.key, lambda entry: {**(entry or {}), "label": "told"})
        assert text_of(await here.chat("one [[reply:1]]")) == "1"
        row = await pair.owner.gateway.runtime.stores.sessions.get(session.agent_id, session.key)
        assert row is not None and row.get("label") == "told"
        await pair.other.gateway.notices.write(session, injected_message("from beside", 1))
        assert text_of(await here.chat("two [[reply:2]]")) == "2"
        assert text_of(await there.chat("three [[reply:3]]")) == "3"
        for client in (here, there):
            history = await client.call("chat.history", {"sessionKey": "main"})
            said = [text_of({"message": one}) for one in history["messages"] if one["role"] == "assistant"]
            assert said == ["Hi.", "1", "from beside", "2", "3"]


async def test_a_question_is_answered_from_any_node(pair: Pair) -> None:
    request = ApprovalRequest(command="rm -r old", agent_id="main")
    desk = pair.owner.gateway.runtime.tools.questions
    approval = await desk.ask(approval_question(request, timeout_ms=60_000))
    async with pair.other.client() as there:
        listed = await there.call("exec.approval.list", {})
        assert [one["id"] for one in listed["approvals"]] == [approval.id]
        await there.call("exec.approval.resolve", {"id": approval.id, "decision": "deny"})
    assert decision_of(await desk.wait(approval)) == "deny"


async def test_the_status_names_every_node_and_what_it_owns(pair: Pair) -> None:
    async with pair.owner.client() as here, pair.other.client() as there:
        await here.chat("hello [[reply:Hi.]]")
        async with asyncio.timeout(30):
            while True:
                status = await there.call("cluster.status", {})
                nodes = {node["url"]: node for node in status["nodes"]}
                if nodes[pair.owner.url]["sessions"] == 1:
                    break
                await asyncio.sleep(0.05)
    assert status["clustered"] and set(nodes) == {pair.owner.url, pair.other.url}
    assert nodes[pair.other.url]["id"] == status["node"] and nodes[pair.owner.url]["connected"]
    assert all(node["state"] == "alive" and node["leaseMs"] > 0 for node in nodes.values())


async def test_a_node_that_is_told_to_stop_finishes_its_run_and_hands_the_session_over(
    pair: Pair, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("Done before I go.", hold=held, hold_after=0))
    async with pair.other.client() as there:
        async with pair.owner.client() as here:
            await here.call("chat.send", {"sessionKey": "main", "message": "think", "idempotencyKey": "r1"})
            await models.wait_for_requests(1)
        stopping = asyncio.create_task(pair.owner.stop())
        cluster = pair.other.gateway.cluster
        assert isinstance(cluster, ClusterService)
        async with asyncio.timeout(30):
            while all(node.state == "alive" for node in cluster.membership.peers.values()):
                await asyncio.sleep(0.01)
        held.set()
        assert text_of(await there.ending("r1")) == "Done before I go."
        await stopping
        assert text_of(await there.chat("and? [[reply:Here.]]", run_id="r2")) == "Here."
        rows = {run_id: await pair.other.gateway.runtime.stores.ledger.by_run(run_id) for run_id in ("r1", "r2")}
        assert {run_id: row.attempts for run_id, row in rows.items() if row is not None} == {"r1": 1, "r2": 1}


async def test_a_node_that_is_given_up_while_it_starts_leaves_its_port_to_the_next_try(
    tmp_path: Path, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def given_up(_: ClusterService, url: str, fingerprint: str = "") -> None:
        listening.append(int(url.rpartition(":")[2]))
        raise Fenced("the node no longer counts")

    listening: list[int] = []
    settings = model_config(models.base_url, models.api_key, storage=storage_for(tmp_path / "state"))
    gateway = InProcessGateway(tmp_path / "state", settings)
    with monkeypatch.context() as patched:
        patched.setattr(ClusterService, "start", given_up)
        with pytest.raises(Fenced):
            await gateway.start()
    gateway.port = listening[0]
    async with gateway, gateway.client() as client:
        assert text_of(await client.chat("hello [[reply:Hi.]]")) == "Hi."


async def test_a_ticket_of_the_dashboard_is_redeemed_once_at_any_node(pair: Pair) -> None:
    async with pair.owner.client() as here:
        ticket = (await here.call("signIn.create", {"secret": TOKEN}))["ticket"]
    url = f"{pair.other.url}/__openclaw__/sign-in"
    async with aiohttp.ClientSession() as http:
        answers = [await http.post(url, json={"ticket": given}) for given in ("guess", ticket, ticket)]
        assert [answer.status for answer in answers] == [401, 200, 401]
        assert await answers[1].json() == {"secret": TOKEN}


async def test_the_status_is_what_was_seen_last_while_the_database_is_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: object) -> None:
        raise OSError(errno.ENOTCONN, "nobody listens there")

    cluster = pair.owner.gateway.cluster
    assert isinstance(cluster, ClusterService)
    monkeypatch.setattr(cluster.membership, "all_nodes", partial(away, None))
    async with pair.owner.client() as here, asyncio.timeout(60):
        while True:  # It looks at the others a few times a second.
            status = await here.call("cluster.status", {})
            assert status["problem"] == "nobody listens there"
            if {node["url"] for node in status["nodes"]} == {pair.owner.url, pair.other.url}:
                break
            await asyncio.sleep(0.05)


async def test_what_may_have_been_done_where_its_answer_was_lost_is_not_done_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {
        "name": "once",
        "schedule": {"kind": "every", "everyMs": 3_600_000},
        "sessionTarget": "isolated",
        "wakeMode": "next-heartbeat",
        "payload": {"kind": "agentTurn", "message": "hello"},
    }
    cluster = pair.other.gateway.cluster
    assert isinstance(cluster, ClusterService) and pair.owner.gateway.scheduler.running
    ask, lost = cluster.links.ask, [False, True]

    async def cut(node: str, kind: str, data: bytes, _on_part: OnPart | None = None) -> bytes:
        if lost[0]:
            await ask(node, kind, data)  # It is done, and nobody hears so.
        raise LinkLost("the node went away", may_be_done=lost.pop(0))

    async with pair.other.client() as there:
        with monkeypatch.context() as patched:
            patched.setattr(cluster.links, "ask", cut)
            with pytest.raises(RequestFailed, match="may or may not have been done"):
                await there.call("cron.add", job)
        assert not lost, "a request that was not sent is sent again"
        assert [one["name"] for one in (await there.call("cron.list", {}))["jobs"]] == ["once"]


async def test_a_command_is_answered_where_it_was_sent_although_another_node_carried_it_out(
    pair: Pair, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair.owner.client() as client:
        await client.chat("hello [[reply:Hi.]]", run_id="r0")

    async def stays_here(*_: object) -> None:
        """The session changes its node only after the call was placed."""

    monkeypatch.setattr(pair.other.gateway.cluster, "answer_elsewhere", stays_here)
    async with pair.other.client() as there:
        assert "mock-1" in text_of(await there.chat("/status", run_id="c1"))
        asked = {"sessionKey": "main", "message": "/status", "idempotencyKey": "c2"}
        sent = await there.send("agent", asked)
        assert (await there.answer(sent))["status"] == "accepted"
        done = await there.answer(sent)
        assert "mock-1" in done["result"]["payloads"][0]["text"]
        models.queue(Reply("never said", hold=asyncio.Event(), hold_after=0))
        await there.call("chat.send", {"sessionKey": "main", "message": "think", "idempotencyKey": "r1"})
        await models.wait_for_requests(2)
        stop = {"sessionKey": "main", "message": "/stop", "idempotencyKey": "c3"}
        assert await there.call("chat.send", stop) == {"ok": True, "aborted": True, "runIds": ["r1"]}
        assert (await there.ending("r1"))["state"] == "aborted"


async def test_a_session_is_taken_up_once_when_the_answer_was_lost(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = pair.other.gateway.cluster
    assert isinstance(cluster, ClusterService)
    ask, cuts = cluster.links.ask, [True]

    async def cut(node: str, kind: str, data: bytes, on_part: OnPart | None = None) -> bytes:
        answer = await ask(node, kind, data, None if cuts else on_part)
        if cuts:
            cuts.pop()
            raise LinkLost("the node went away", may_be_done=True)
        return answer

    async with pair.owner.client() as here, pair.other.client() as there:
        await here.chat("one [[reply:1]]")
        first = (await here.call("chat.history", {"sessionKey": "main"}))["sessionId"]
        await here.call("sessions.reset", {"key": "main"})
        await here.chat("two [[reply:2]]")
        with monkeypatch.context() as patched:
            patched.setattr(cluster.links, "ask", cut)
            with pytest.raises(RequestFailed, match="may or may not have been done"):
                await there.call("sessions.resume", {"key": "main"})
        assert (await here.call("chat.history", {"sessionKey": "main"}))["sessionId"] == first


async def test_a_machine_is_called_by_its_name_at_any_node(pair: Pair, tmp_path: Path) -> None:
    async with serving(NodeUnderTest(pair.owner, tmp_path / "machine", name="attic")), pair.other.client() as there:
        for name in ("Attic", "attic"):
            asked = {"nodeId": name, "command": "system.which", "params": {"bins": ["sh"]}, "idempotencyKey": name}
            assert (await there.call("node.invoke", asked))["payload"]["bins"]["sh"]


async def test_nodes_connect_again_after_one_could_not_take_in_what_the_other_sent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = [one.gateway.cluster for one in pair]
    first, second = clusters
    assert isinstance(first, ClusterService) and isinstance(second, ClusterService)
    ours, theirs = sorted((first, second), key=lambda cluster: cluster.claims.node)
    before = ours.links.open_to(theirs.claims.node)
    with monkeypatch.context() as patched:
        patched.setattr(ours.links.service, "receive", lambda *_: 1 / 0)
        theirs.relay.ended("a run")
        async with asyncio.timeout(30):
            while before is not None and before.open:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        while ours.links.open_to(theirs.claims.node) is None:
            await asyncio.sleep(0.01)
