"""Which node answers a method, and calls that one node hands on to another, with the rights of their caller.

Every method that is registered must be in the table. With files there is one node, and nobody looks here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from openclaw.cluster.links import LinkLost, Links, PartSender, RemoteFailure
from openclaw.config.agents import main_session_key
from openclaw.gateway.server import registry
from openclaw.gateway.server.events import MAX_BUFFERED_BYTES, Client, ClientInfo, field_of
from openclaw.gateway.server.registry import Answer, MethodCall, MethodError, target_of
from openclaw.paths import normalize_agent_id
from openclaw.sessions.keys import SessionRef

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway


MOST_HOPS = 3
READ_S = 1.0


class RemoteCall(msgspec.Struct, array_like=True):
    """A request of a client that is connected to another node."""

    node: str
    hops: int
    conn_id: str
    role: str
    scopes: list[str]
    caps: list[str]
    client_info: ClientInfo
    is_local: bool
    ip: str
    device_id: str | None
    id: str
    method: str
    params: bytes


class RemoteAnswer(msgspec.Struct, array_like=True):
    frame: bytes
    ok: bool
    message: str


_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(RemoteCall).decode
_decode_answer = msgspec.msgpack.Decoder(RemoteAnswer).decode


async def hand_on(links: Links, node: str, call: MethodCall, raw: msgspec.Raw | bytes) -> Answer:
    """Lets another node answer the call. Raises ``LinkLost`` when that node went away before it had."""
    client = call.client
    request = RemoteCall(
        node=links.node,
        hops=call.hops + 1,
        conn_id=client.conn_id,
        role=client.role,
        scopes=sorted(client.scopes),
        caps=sorted(client.caps),
        client_info=client.client_info,
        is_local=client.is_local,
        ip=client.ip,
        device_id=client.device_id,
        id=call.id,
        method=call.method,
        params=bytes(raw),
    )
    answer, sent = RemoteAnswer(b"", False, ""), False

    def take(kind: str, data: bytes) -> None:
        # It is sent here, because events that the other node sent later must not overtake the answer.
        nonlocal answer, sent
        match kind:
            case "frame":
                client.send_frame(data)
            case "follow":
                client.follow_run(data.decode())
            case "finish":
                client.finish_after(data.decode())
            case "answer":
                answer, sent = _decode_answer(data), client.sink.buffered <= MAX_BUFFERED_BYTES
                if sent:
                    client.send_frame(answer.frame)
            case _:
                pass

    try:
        await links.ask(node, "call", _encode(request), take)
    except RemoteFailure as failure:
        raise LinkLost(str(failure), may_be_done=True) from failure
    return Answer(answer.frame, answer.ok, answer.message, sent)


async def answer_remote(gateway: Gateway, links: Links, data: bytes, parts: PartSender) -> bytes:
    """Answers a call that another node handed on."""
    call = _decode_call(data)
    client = RemoteClient(call, links, parts)
    gateway.broadcaster.add_remote(client)

    async def answer() -> None:
        made = await registry.answer(gateway, client, call.id, call.method, call.params, call.hops)
        # It leaves before the events of the run that the call has begun.
        parts.send("answer", _encode(RemoteAnswer(made.frame, made.ok, made.message)))

    await asyncio.shield(gateway.spawn(answer()))
    return b""


class RemoteSink:
    """Writes what a client of another node gets. Broadcasts are not written here: each node makes its own."""

    def __init__(self, call: RemoteCall, links: Links, parts: PartSender) -> None:
        self._call = call
        self._links = links
        self._parts = parts

    @property
    def buffered(self) -> int:
        return 0

    @staticmethod
    def pack(frame: bytes) -> bytes:
        return frame

    def write(self, packed: bytes) -> None:
        self.write_now(packed)

    def write_now(self, packed: bytes) -> None:
        self._parts.send("frame", packed)

    async def room(self) -> None:
        """The node of the client looks after its buffer."""

    async def read(self) -> None:
        """Asks the node of the client, after everything that was sent to it."""
        try:
            async with asyncio.timeout(READ_S):
                await self._links.ask(self._call.node, "read", self._call.conn_id.encode())
        except (TimeoutError, LinkLost, RemoteFailure):
            pass

    def close(self, code: int, reason: str) -> None:
        """The connection belongs to the other node."""

    async def closed(self, code: int, reason: str) -> None:
        pass


class RemoteClient(Client):
    """A client of another node, for as long as one of its calls is answered here."""

    def __init__(self, call: RemoteCall, links: Links, parts: PartSender) -> None:
        super().__init__(
            RemoteSink(call, links, parts),
            conn_id=call.conn_id,
            role=call.role,
            scopes=frozenset(call.scopes),
            caps=frozenset(call.caps),
            client_info=call.client_info,
            is_local=call.is_local,
            ip=call.ip,
        )
        self.device_id = call.device_id
        self._parts = parts

    def follow_run(self, run_id: str) -> None:
        self._parts.send("follow", run_id.encode())

    def finish_after(self, run_id: str) -> None:
        self._parts.send("finish", run_id.encode())

    def note_answer(self, payload: Any) -> None:
        if isinstance(run_id := field_of(payload, "runId"), str):
            self.follow_run(run_id)


Place: TypeAlias = Literal["here", "session", "owner", "scheduler", "holder", "all"]
"""
- ``here``: the node that was asked. What it needs is in the database, or belongs to this machine.
- ``session``: the owner of the session that the parameters name. If it has none, the node that was asked becomes it.
- ``owner``: the same, except that a session without an owner gets none by it. It shows what an owner has in memory.
- ``scheduler``: the owner of the scheduled jobs and heartbeats.
- ``holder``: the node that has what an id names. The node that was asked looks first, then it asks the others.
- ``all``: every node, and the lists in their answers are joined.
"""

_METHODS: dict[Place, str] = {
    "session": """
        agent chat.send chat.abort chat.drop chat.reword chat.inject sessions.patch sessions.reset sessions.delete
        sessions.compact sessions.compaction sessions.resume sessions.branch sessions.label sessions.import send
        system-event
    """,
    "owner": "chat.view chat.media context.get context.diff context.find",
    "scheduler": """
        cron.list cron.status cron.add cron.update cron.remove cron.run cron.runs last-heartbeat set-heartbeats wake
    """,
    "holder": "exec.approval.resolve node.invoke exec.approvals.node.get exec.approvals.node.set channels.logout",
    "all": "exec.approval.list",
    "here": """
        agent.wait agents.list agent.identity.get agents.create agents.update agents.delete agents.bind
        agents.files.list agents.files.get agents.files.set browser.request chat.history chat.commands config.get
        config.schema config.set config.patch config.apply device.pair.list device.pair.approve device.pair.reject
        device.token.rotate device.token.revoke device.pair.remove signIn.create health status system-presence
        logs.tail events.replay exec.approval.request exec.approvals.get exec.approvals.set mcp.status mcp.test
        memory.status memory.index memory.search messages.list messages.get messages.why models.list models.status
        models.probe outbox.list outbox.retry outbox.drop plugins.list channels.status pairing.list pairing.approve
        node.pair.request node.pair.list node.pair.approve node.pair.reject node.pair.verify node.list node.describe
        node.rename node.invoke.result node.event skills.status skills.update skills.bins sessions.search
        sessions.export sessions.importFolder sessions.archive sessions.list sessions.preview sessions.resolve
        sessions.archived sessions.tree sessions.entries sessions.usage sessions.usage.timeseries
        sessions.usage.logs usage.cost usage.status cluster.status
    """,
}
PLACES: Mapping[str, Place] = {name: place for place, names in _METHODS.items() for name in names.split()}


def place_of(method: str) -> Place:
    """Where the method is answered. Those of extensions are answered by the node that was asked."""
    return PLACES.get(method, "here")


async def session_of(call: MethodCall) -> SessionRef | None:
    """Returns the session that a call is about, as its method finds it. None when it names none or a wrong one."""
    gateway, params = call.gateway, call.params
    try:
        if call.method == "agent":
            return await _session_of_agent(gateway, params)
        key = getattr(params, "session_key", None) or getattr(params, "key", None)
        if call.method == "system-event" and key is None:
            key = gateway.main_session_key()
        return target_of(gateway, key) if key else None
    except MethodError:
        return None  # The method says what is wrong.


async def _session_of_agent(gateway: Gateway, params: object) -> SessionRef | None:
    agent_id = getattr(params, "agent_id", None)
    agent_id = normalize_agent_id(agent_id) if agent_id else None
    if key := getattr(params, "session_key", None):
        return target_of(gateway, key, agent_id)
    if session_id := getattr(params, "session_id", None):
        found = await gateway.runtime.sessions.find_session_id(session_id)
        return None if found is None else SessionRef(found.agent_id, found.key)
    if agent_id is not None:
        return target_of(gateway, main_session_key(gateway.runtime.config.current, agent_id), agent_id)
    return target_of(gateway, "main")
