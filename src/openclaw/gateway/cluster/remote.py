"""What the nodes of a cluster do for each other over their links. With files there is one node, and nobody looks here.

* Calls of clients: which node answers a method (``PLACES``), and how one node hands a call on to another, with the
  rights of its caller. Every method that is registered must be in the table.
* Messages from channels, jobs and other sessions, which are handed on to the owner of their session.
* Accounts that another node has: the typing sign, drafts and reactions of runs here, and the state of the account.
* Events: each node publishes the events of the others to its own clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from openclaw.channels.base import Webhook, WebhookAnswer, WebhookRequest
from openclaw.channels.manager import RunningAccount, path_below
from openclaw.cluster.claims import session_name
from openclaw.cluster.links import PATIENCE_S, RETRY_S, LinkLost, Links, PartSender, RemoteFailure, RequestHandler
from openclaw.config.agents import default_agent_id, main_session_key
from openclaw.gateway.auth.authorise import EVENT_RIGHTS
from openclaw.gateway.server import registry
from openclaw.gateway.server.events import (
    MAX_BUFFERED_BYTES,
    Client,
    ClientInfo,
    GrowingText,
    Payload,
    field_of,
    spoken,
)
from openclaw.gateway.server.frames import NotJson, decode_any, encode
from openclaw.gateway.server.registry import Answer, MethodCall, MethodError
from openclaw.inbound.incoming import Handled, Incoming, SessionGone
from openclaw.inbound.pipeline import Accepted, Blocked, HandedOn, Result, TakenElsewhere
from openclaw.messages import Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt
from openclaw.paths import normalize_agent_id
from openclaw.runs.reasons import reason_text
from openclaw.sessions.keys import SessionRef, agent_of, is_session_id, shown_key
from openclaw.storage.disk_errors import until_written
from openclaw.storage.documents import SharedDocument
from openclaw.storage.errors import Fenced
from openclaw.storage.message_ledger import AbortReason, LedgerRow

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.channels.manager import ChannelManager
    from openclaw.clock import Clock
    from openclaw.cluster.claims import Claims
    from openclaw.config.store import ConfigStore
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.events import Broadcaster
    from openclaw.inbound.pipeline import Pipeline
    from openclaw.runs.runs import Runs
    from openclaw.storage.documents import DocumentStore
    from openclaw.storage.message_ledger import Ledger

OnWords: TypeAlias = Callable[[str, bool], None]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, Any]], object]

# Calls

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
    protocol: int


class RemoteAnswer(msgspec.Struct, array_like=True):
    frame: bytes
    ok: bool
    message: str


_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(RemoteCall).decode
_decode_answer = msgspec.msgpack.Decoder(RemoteAnswer).decode


async def forward_call(links: Links, node: str, call: MethodCall, raw: msgspec.Raw | bytes) -> Answer:
    """Let another node answer the call. Raises ``LinkLost`` when that node went away before it had."""
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
        protocol=client.protocol,
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
    """Answer a call that another node handed on."""
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
        self._parts.send("frame", packed)

    async def room(self) -> None:
        """The node of the client looks after its buffer."""

    async def until_read(self) -> None:
        """Ask the node of the client, after everything that was sent to it."""
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
            protocol=call.protocol,
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
- ``here``: the node that was asked, with data of the database or of this machine.
- ``session``: the owner of the session that the parameters name. If it has none, the node that was asked becomes it.
- ``owner``: the same, except that a session without an owner gets none by it. It shows what an owner has in memory.
- ``scheduler``: the owner of the scheduled jobs and heartbeats.
- ``holder``: the node that has what an id names. The node that was asked looks first, then it asks the others.
- ``all``: every node, and the lists in their answers are joined.
"""

_METHODS: dict[Place, str] = {
    "session": """
        agent chat.send chat.abort chat.drop chat.reword chat.promote chat.inject sessions.patch sessions.reset
        sessions.delete sessions.compact sessions.compaction sessions.resume sessions.branch sessions.fork
        sessions.label sessions.import send system-event sessions.create sessions.rewind
    """,
    "owner": """
        chat.view chat.media context.get context.diff context.find chat.startup sessions.messages.subscribe
        sessions.messages.unsubscribe
    """,
    "scheduler": """
        cron.list cron.status cron.add cron.update cron.remove cron.run cron.runs last-heartbeat set-heartbeats wake
        cron.get
    """,
    "holder": """
        exec.approval.resolve question.answer node.invoke exec.approvals.node.get exec.approvals.node.set
        channels.logout
    """,
    "all": "exec.approval.list question.list",
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
        sessions.archived sessions.tree sessions.versions sessions.entries sessions.usage sessions.usage.timeseries
        sessions.usage.logs usage.cost usage.status cluster.status
        sessions.subscribe sessions.unsubscribe sessions.describe sessions.branches.list chat.metadata commands.list
        models.authStatus tasks.list taskSuggestions.list plugin.approval.list openclaw.approval.list progressCard.get
        sessions.companion.state sessions.observer.visibility update.status channels.pairing.list
    """,
}
PLACES: Mapping[str, Place] = {name: place for place, names in _METHODS.items() for name in names.split()}


def place_of(method: str) -> Place:
    """Where the method is answered. Those of extensions are answered by the node that was asked."""
    return PLACES.get(method, "here")


async def session_of(call: MethodCall) -> SessionRef | None:
    """Return the session that a call is about, as its method finds it. None when it names none or a wrong one."""
    gateway, params = call.gateway, call.params
    try:
        if call.method == "agent":
            return await _session_of_agent(gateway, params)
        key = getattr(params, "session_key", None) or getattr(params, "key", None)
        if call.method == "system-event" and key is None:
            key = gateway.main_session_key()
        if call.method == "chat.send" and key:
            return await _session_named(gateway, key, getattr(params, "agent_id", None))
        return gateway.directory.target(key) if key else None
    except MethodError:
        return None  # The method says what is wrong.


async def _session_named(gateway: Gateway, name: str, agent_id: str | None) -> SessionRef:
    """Look up ids only, because messages overtake one that is looked up. The pipeline forwards those to a label."""
    row = await gateway.runtime.stores.sessions.find_session_id(name.lower()) if is_session_id(name) else None
    return gateway.directory.target(name, agent_id) if row is None else SessionRef(row.agent_id, row.key)


async def _session_of_agent(gateway: Gateway, params: object) -> SessionRef | None:
    agent_id = getattr(params, "agent_id", None)
    agent_id = normalize_agent_id(agent_id) if agent_id else None
    if key := getattr(params, "session_key", None):
        return await _session_named(gateway, key, agent_id)
    if session_id := getattr(params, "session_id", None):
        found = await gateway.runtime.stores.sessions.find_session_id(session_id)
        return None if found is None else SessionRef(found.agent_id, found.key)
    if agent_id is not None:
        return gateway.directory.target(main_session_key(gateway.runtime.config.current, agent_id), agent_id)
    return gateway.directory.target("main")


# Messages

_forwarded_result = msgspec.msgpack.Decoder(HandedOn | None).decode
"""None means that the session is gone."""
_texts = msgspec.msgpack.Decoder(list[str]).decode


def _answering(shape: Any, answer: Callable[..., Awaitable[bytes]]) -> RequestHandler:
    """Make a handler of requests that are lists with values of these types."""
    decode = msgspec.msgpack.Decoder(shape).decode

    async def answer_request(data: bytes, _parts: PartSender) -> bytes:
        return await answer(*decode(data))

    return answer_request


class RemoteMessages:
    """``OtherNodes`` for the pipeline and for the runs: requests to the node that owns a session."""

    def __init__(self, links: Links, claims: Claims, config: ConfigStore, relay: ClusterRelay) -> None:
        self._links = links
        self._claims = claims
        self._config = config
        self._relay = relay

    async def process(self, owner: str, message: Incoming) -> Result | None:
        facts = message.facts
        # The owner derives the patterns of mentions from its configuration.
        listening = msgspec.structs.replace(facts.listening, mentions=())
        sent = msgspec.structs.replace(message, facts=msgspec.structs.replace(facts, listening=listening))
        name, data = session_name(facts.session.agent_id, facts.session.key), _encode(sent)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                result = _forwarded_result(await self._links.ask(owner, "process", data))
            except (LinkLost, RemoteFailure) as lost:
                if time.monotonic() > until:
                    raise OSError(errno.ENOTCONN, f"the node that answers {facts.session.key}: {lost}") from lost
            else:
                if result is None:
                    raise SessionGone(facts.session.key)
                return result
            # The message may be submitted twice. Its run id is accepted once.
            await asyncio.sleep(RETRY_S)
            self._claims.forget_owner(name)
            claimed = await self._claims.claim(name)
            if claimed.mine:
                return None
            owner = claimed.node

    async def wake(self, owner: str, run_id: str, text: str, own_id: str) -> bool:
        return await self._ask(owner, "wake", _encode((run_id, text, own_id)))

    async def note(self, owner: str, session_key: str, text: str) -> bool:
        return await self._ask(owner, "note", _encode([session_key, text]))

    async def _ask(self, owner: str, kind: str, data: bytes) -> bool:
        """Return False, after a pause, if the owner is gone."""
        try:
            await self._links.ask(owner, kind, data)
        except (LinkLost, RemoteFailure):
            await asyncio.sleep(RETRY_S)
            return False
        return True

    async def stop(self, session_key: str, run_id: str | None, reason: AbortReason) -> list[str]:
        default = default_agent_id(self._config.current)
        owner = await self._claims.owner(session_name(agent_of(session_key, default_agent=default), session_key))
        if owner is None or owner == self._claims.node:
            return []
        try:
            return _texts(await self._links.ask(owner, "stop", _encode((session_key, run_id, reason))))
        except (LinkLost, RemoteFailure):
            return []

    def ended(self, run_id: str) -> None:
        self._relay.ended(run_id)


class MessageServer:
    """Answers the requests that ``RemoteMessages`` of other nodes makes."""

    def __init__(self, runtime: Runtime, runs: Runs, pipeline: Pipeline, spawn: Spawn) -> None:
        self._notes = runtime.notes
        self._claims = runtime.stores.claims
        self._ledger = runtime.stores.ledger
        self._runs = runs
        self._pipeline = pipeline
        self._spawn = spawn
        self.handlers: dict[str, RequestHandler] = {
            "process": self._process,
            "wake": _answering(tuple[str, str, str], self._wake),
            "note": _answering(tuple[str, str], self._note),
            "stop": _answering(tuple[str, str | None, AbortReason], self._stop),
        }

    async def _process(self, data: bytes, _parts: PartSender) -> bytes:
        message = msgspec.msgpack.decode(data, type=Incoming)
        session = message.facts.session
        self._claims.forget_owner(session_name(session.agent_id, session.key))
        try:
            result = await self._pipeline.accept_forwarded(message)
        except SessionGone:
            return _encode(None)
        if isinstance(result, Handled) and message.inbound is None and result.stopped is None:
            # The pipeline answers channels. The answer of a command to a client is sent here.
            self._spawn(self._pipeline.answer(message, result))
        return _encode(_handed(result))

    async def _wake(self, run_id: str, text: str, own_id: str) -> bytes:
        if (row := await self._ledger.by_run(run_id)) is not None:
            self._claims.forget_owner(session_name(row.agent_id, row.session_key))
        await self._pipeline.wake(run_id, text, own_id)
        return b""

    async def _note(self, session_key: str, text: str) -> bytes:
        self._notes.add(session_key, text)
        return b""

    async def _stop(self, session_key: str, run_id: str | None, reason: AbortReason) -> bytes:
        if not self._runs.occupied(session_key):
            return _encode([])
        return _encode(await self._runs.abort(session_key, run_id, reason))


def _handed(result: Result) -> HandedOn:
    """The result for another node. What a command answered, its session's owner has said."""
    match result:
        case Accepted(submission):
            # The run lives on this node.
            return msgspec.structs.replace(result, submission=msgspec.structs.replace(submission, run=None))
        case Blocked():
            return result
        case Handled(stopped=stopped):
            return TakenElsewhere(stopped)
        case _:
            return TakenElsewhere()


# Accounts

PATHS = "channels/webhooks.json"
MAX_PATHS = 1000
KNOWN_S = 2.0
"""So long a node is taken for the one that has an account, once it was looked up."""

NOT_CONNECTED = WebhookAnswer(status=503, text="the account is not connected at this moment; try again")
"""The platform sends it again, when a node has the account."""


class RemoteChannels:
    """``RemoteAccounts`` for the channels of this node: requests to the node that has an account."""

    def __init__(self, links: Links, claims: Claims, ledger: Ledger, documents: DocumentStore, clock: Clock) -> None:
        self._links = links
        self._claims = claims
        self._ledger = ledger
        self._clock = clock
        self._known: dict[str, tuple[str, float]] = {}
        self._paths: SharedDocument[dict[str, str]] = SharedDocument(
            documents,
            PATHS,
            dict,
            lambda data: msgspec.json.decode(data, type=dict[str, str]),
            msgspec.json.encode,
            damaged="drop",
        )
        """Webhook path → name of its account, shared by the nodes."""
        self._publishing: set[asyncio.Task[None]] = set()

    async def claimed(self, running: RunningAccount, serves: Callable[[Route], bool]) -> None:
        await self._ledger.outbox_reclaim(running.kind.id, serves)

    async def load_paths(self) -> None:
        await self._paths.latest()

    def publish_path(self, path: str, name: str) -> None:
        if self._paths.value.get(path) != name:
            task = asyncio.create_task(self._publish_path(path, name))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)

    async def _publish_path(self, path: str, name: str) -> None:
        """Share a path with the other nodes, because a platform may call any of them."""

        def put(paths: dict[str, str]) -> None:
            paths.pop(path, None)
            while len(paths) >= MAX_PATHS:
                del paths[next(iter(paths))]
            paths[path] = name

        with contextlib.suppress(Fenced):
            await until_written(lambda: self._paths.change(put), self._clock.sleep)

    def webhook_at(self, path: str) -> tuple[Webhook, str] | None:
        if (base := path_below(path, self._paths.value)) is None:
            return None
        return partial(self._webhook, self._paths.value[base], base), path[len(base) :].strip("/")

    async def typing(self, running: RunningAccount, route: Route, on: bool) -> None:
        await self._ask(running.name, "channel.typing", (running.kind.id, route, on))

    async def draft(self, running: RunningAccount, route: Route, draft_id: int, text: str) -> bool:
        return await self._ask(running.name, "channel.draft", (running.kind.id, route, draft_id, text)) == b"1"

    async def act(self, running: RunningAccount, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        """Does a reaction or the like. Replies go through the outbox."""
        answer = await self._ask(running.name, "channel.act", (running.kind.id, route, message, key))
        if answer is None:
            raise SendFailed("the node that has the account cannot be reached", reached=False)
        message_id, problem = _texts(answer)
        if problem:
            raise SendFailed(problem, reached=False)
        return SendReceipt(message_id=message_id)

    async def status(self, running: RunningAccount, probe_s: float) -> dict[str, Any] | None:
        """The account as the node sees it that has it. ``probe_s``: how long its platform may take to answer; 0: it is
        not asked. None when the node cannot be reached."""
        answer = await self._ask(running.name, "channel.status", (running.kind.id, running.account.id, probe_s))
        return msgspec.msgpack.decode(answer) if answer else None

    async def _webhook(self, name: str, path: str, request: WebhookRequest) -> WebhookAnswer:
        answer = await self._ask(name, "channel.webhook", (path, request))
        return NOT_CONNECTED if answer is None else msgspec.msgpack.decode(answer, type=WebhookAnswer)

    async def _ask(self, name: str, kind: str, request: Any) -> bytes | None:
        """Ask the node that has the account. None: nobody has it, or the node cannot be reached."""
        claims, now = self._claims, time.monotonic()
        node, until = self._known.get(name, ("", 0.0))
        if now > until:
            node = await claims.owner(name) or ""
            self._known[name] = (node, now + KNOWN_S)
        if node in ("", claims.node) or self._links.open_to(node) is None:
            return None
        try:
            return await self._links.ask(node, kind, _encode(request))
        except (LinkLost, RemoteFailure):
            return None


class AccountServer:
    """Answers the requests that ``RemoteChannels`` of other nodes makes."""

    def __init__(self, channels: ChannelManager) -> None:
        self._channels = channels
        self.handlers: dict[str, RequestHandler] = {
            "channel.typing": _answering(tuple[str, Route, bool], self._typing),
            "channel.draft": _answering(tuple[str, Route, int, str], self._draft),
            "channel.act": _answering(tuple[str, Route, OutgoingMessage, str], self._act),
            "channel.status": _answering(tuple[str, str, float], self._status),
            "channel.webhook": _answering(tuple[str, WebhookRequest], self._webhook),
        }

    async def _typing(self, channel: str, route: Route, on: bool) -> bytes:
        await self._channels.typing(channel, route, on, here=True)
        return b""

    async def _draft(self, channel: str, route: Route, draft_id: int, text: str) -> bytes:
        return b"1" if await self._channels.draft(channel, route, draft_id, text, here=True) else b"0"

    async def _act(self, channel: str, route: Route, message: OutgoingMessage, key: str) -> bytes:
        try:
            receipt = await self._channels.send(channel, route, message, key, here=True)
        except SendFailed as failure:
            return _encode(("", str(failure) or "it failed"))
        return _encode((receipt.message_id, ""))

    async def _status(self, channel: str, account_id: str, probe_s: float) -> bytes:
        running = self._channels.find(channel, account_id)
        if running is None:
            return b""
        view = running.status.view()
        return _encode({**view, "probe": await self._channels.probe(running, probe_s)} if probe_s else view)

    async def _webhook(self, path: str, request: WebhookRequest) -> bytes:
        webhook = self._channels.own_webhook(path)
        return _encode(NOT_CONNECTED if webhook is None else await webhook(request))


# Events

OWN_EVENTS = frozenset(
    {
        *("connect.challenge", "tick", "shutdown", "presence", "health", "talk.mode", "voicewake.changed"),
        *("node.invoke.request", "node.invoke.cancel"),
    }
)
"""Events that are about one node, or for a client of it."""
RELAYED = frozenset(EVENT_RIGHTS) - OWN_EVENTS
MOST_RUNS = 5_000
"""How many runs of other nodes, and of this one, are remembered at most."""
ENDED = "ended"


class ClusterRelay:
    """Sends the events of this node to the others, and tracks the runs of theirs.

    A growing text is sent in increments. A node that missed one, or that was connected later, gets the whole text with
    the next. Ends and other events are always sent; a node that reads too slowly for them is reconnected.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._publishing = False
        self._sent: OrderedDict[tuple[str, str], int] = OrderedDict()
        """The state of the links when a text was last sent whole or in part, by event and run."""
        self.active: OrderedDict[str, str] = OrderedDict()
        """The runs of other nodes that are under way, and their nodes."""
        self.followers: OrderedDict[str, list[OnWords]] = OrderedDict()
        """The subscribers to the text of a run of another node, by run id."""

    # To the others

    def event(self, event: str, payload: Any, *, may_be_lost: bool) -> None:
        if not self._publishing and event in RELAYED and self._links.any:
            self._links.broadcast(f"event {event}", encode(payload), may_be_lost=may_be_lost)

    def growing(self, event: str, full: Payload, delta: Any) -> None:
        if self._publishing or not self._links.any:
            return
        key, opened = (event, str(field_of(delta, "runId"))), self._links.opened
        if self._sent.get(key) == opened:
            sent = self._links.broadcast(f"delta {event}", encode(delta), may_be_lost=True)
        else:
            payload = full() if callable(full) else full
            sent = self._links.broadcast(f"whole {event}", encode([delta, payload]), may_be_lost=True)
        if sent:
            _remember(self._sent, key, opened)
        else:
            self._sent.pop(key, None)

    def to(self, conn_ids: Sequence[str], event: str, payload: Any) -> None:
        if not self._publishing and self._links.any:
            self._links.broadcast(f"to {event}", encode([list(conn_ids), payload]), may_be_lost=True)

    def ended(self, run_id: str) -> None:
        """Tell those who wait on other nodes that the ledger has the end of a run."""
        if not self._publishing and self._links.any:
            self._links.broadcast(ENDED, run_id.encode())

    @contextmanager
    def only_here(self) -> Generator[None]:
        """Keep what is published meanwhile from the other nodes."""
        self._publishing = True
        try:
            yield
        finally:
            self._publishing = False

    def follow(self, run_id: str, on_words: OnWords) -> None:
        """Call ``on_words`` with the text of a run of another node, and whether a new message begins with it."""
        _remember(self.followers, run_id, [*self.followers.get(run_id, ()), on_words])

    def unfollow(self, run_id: str, on_words: OnWords) -> None:
        if others := [follower for follower in self.followers.pop(run_id, ()) if follower != on_words]:
            _remember(self.followers, run_id, others)


class RelayedEvents:
    """Publishes the events of other nodes to the clients of this one."""

    def __init__(self, relay: ClusterRelay, broadcaster: Broadcaster, runs: Runs, clock: Clock) -> None:
        self._relay = relay
        self._broadcaster = broadcaster
        self._runs = runs
        self._clock = clock
        self._texts: OrderedDict[str, GrowingText] = OrderedDict()
        """The current message of runs of other nodes."""

    def receive(self, node: str, kind: str, data: bytes) -> None:
        if kind == ENDED:
            run_id = data.decode("utf-8", "replace")
            self._relay.active.pop(run_id, None)
            self.wake(run_id)
            return
        form, _, event = kind.partition(" ")
        if event not in RELAYED:
            return
        try:
            payload = decode_any(data)
        except NotJson:
            return
        with self._relay.only_here():
            match form:
                case "event":
                    self._note(node, event, payload)
                    self._broadcaster.publish(event, payload)
                case "delta":
                    self._grow(event, payload, None)
                case "whole":
                    self._grow(event, *payload)
                case "to":
                    self._broadcaster.send_to(payload[0], event, payload[1])
                case _:
                    pass

    def wake(self, run_id: str) -> None:
        """Wake those who wait here for a run of another node."""
        with self._relay.only_here():
            self._runs.index.wake_waiters(run_id)

    def publish_end(self, row: LedgerRow) -> None:
        """Tell the clients of this node the end of a run whose own node died before it could."""
        text, key = str((row.result or {}).get("text") or ""), shown_key(row.session_key)
        state = {"answered": "final", "silent": "final", "superseded": "aborted"}.get(row.state, "error")
        payload: dict[str, Any] = {"runId": row.run_id, "sessionKey": key, "seq": 0, "state": state}
        if state == "error":
            payload["errorMessage"] = reason_text(row.reason) or row.state
        elif text:
            payload["message"] = spoken(text, self._clock.now_ms())
        with self._relay.only_here():
            self._broadcaster.publish("chat", payload)
        self._texts.pop(row.run_id, None)

    def _note(self, node: str, event: str, payload: Any) -> None:
        run_id = field_of(payload, "runId")
        if not isinstance(run_id, str):
            return
        if event == "agent" and field_of(payload, "stream") == "lifecycle":
            if field_of(field_of(payload, "data"), "phase") in ("end", "error"):
                self._relay.active.pop(run_id, None)
                self._texts.pop(run_id, None)
            else:
                _remember(self._relay.active, run_id, node)

    def _grow(self, event: str, delta: Any, full: Any) -> None:
        run_id = str(field_of(delta, "runId"))
        text = self._texts.get(run_id)
        if event != "agent":
            if text is None:
                return
            size, head = text.size, dict(delta)
            at = field_of(field_of(full, "message"), "timestamp") or self._clock.now_ms()
            self._broadcaster.publish_variants(
                event, lambda: {**head, "message": spoken(text.upto(size), at)}, delta, drop_if_slow=True
            )
            return
        data = dict(field_of(delta, "data") or {})
        said, begins = str(data.get("delta", "")), "text" in data
        if text is None or full is not None or begins:
            before = "" if text is None or begins else text.upto(text.size)
            text = GrowingText()
            whole = field_of(field_of(full, "data"), "text") if full is not None else None
            text.add(whole if isinstance(whole, str) else said)
            # The whole text comes after an increment was left out, which a follower lacks too.
            said = text.upto(text.size).removeprefix(before)
        else:
            text.add(said)
        _remember(self._texts, run_id, text)
        size, grown = text.size, text
        self._broadcaster.publish_variants(event, lambda: {**delta, "data": {**data, "text": grown.upto(size)}}, delta)
        for follower in self._relay.followers.get(run_id, ()):
            follower(said, begins)


def _remember(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > MOST_RUNS:
        kept.popitem(last=False)
