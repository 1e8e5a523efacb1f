"""The connections between nodes: one WebSocket for each pair, which carries requests, answers and events.

The node with the smaller id opens it. Both sides prove with a message code that they know the secret in the database;
the secret itself is never sent. Everything that one node sends to another stays in its order.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import aiohttp
import msgspec
from aiohttp import web

if TYPE_CHECKING:
    from openclaw.cluster.membership import Membership, NodeRow

LINK_PATH = "/__openclaw__/link"
NODE, NONCE, PROOF = "X-OpenClaw-Node", "X-OpenClaw-Nonce", "X-OpenClaw-Proof"
MOST_NONCES, NONCE_S = 256, 30.0
MOST_GONE = 1_000
CONNECT_S = 5.0
REDIAL_S, LONGEST_REDIAL_S = 0.125, 2.0
WAIT_FOR_LINK_S = 5.0
SLOW_BYTES = 1_572_864
"""From this many waiting bytes on, events that may be lost are left out."""
MOST_BYTES = 16 * 1024 * 1024
"""With this many waiting bytes, everything is forgotten that waits for the node."""
LARGEST_MESSAGE = 64 * 1024 * 1024
PING_S = 1.0
PATIENCE_S, RETRY_S = 15.0, 0.1
"""How long a request waits for a node that does not answer, or for the one that takes its place, and the pauses."""

log = logging.getLogger("openclaw.cluster")


class LinkRequest(msgspec.Struct, tag="ask", array_like=True):
    id: int
    kind: str
    data: bytes


class LinkPart(msgspec.Struct, tag="part", array_like=True):
    """Something on the way to the answer of a request."""

    id: int
    kind: str
    data: bytes


class LinkAnswer(msgspec.Struct, tag="end", array_like=True):
    id: int
    data: bytes
    problem: str = ""
    """Why the call failed, or empty if ``data`` is the answer."""


class LinkEvent(msgspec.Struct, tag="event", array_like=True):
    kind: str
    data: bytes


class LinkPing(msgspec.Struct, tag="ping", array_like=True):
    at: float
    is_answer: bool = False


LinkMessage: TypeAlias = LinkRequest | LinkPart | LinkAnswer | LinkEvent | LinkPing
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LinkMessage).decode
OnPart: TypeAlias = Callable[[str, bytes], None]
"""Takes a part of an answer. It is called before anything that came later is looked at."""
Side: TypeAlias = Literal["dials", "answers"]


class LinkLost(Exception):
    """The other node cannot be reached, or went away before it answered."""

    def __init__(self, problem: str, *, may_be_done: bool) -> None:
        super().__init__(problem)
        self.may_be_done = may_be_done
        """Whether the request had been sent, so that the other node may have done what it asks for."""


class RemoteFailure(Exception):
    """The other node could not do what it was asked."""


class PartSender:
    """Sends parts of one answer to the node that asked."""

    def __init__(self, link: Link, id: int) -> None:
        self._link = link
        self._id = id
        self.node = link.node

    def send(self, kind: str, data: bytes) -> None:
        self._link.send(LinkPart(self._id, kind, data))

    @property
    def waiting_bytes(self) -> int:
        return self._link.waiting_bytes


RequestHandler: TypeAlias = Callable[[bytes, PartSender], Awaitable[bytes]]
"""Answers a request: its data, and where parts of the answer go."""
OnEvent: TypeAlias = Callable[[str, str, bytes], None]
"""Receives an event: the node, the kind and the data."""


class LinkService:
    """The handlers of the requests and events that other nodes send."""

    def __init__(self) -> None:
        self._handlers: dict[str, RequestHandler] = {}
        self._subscribers: list[OnEvent] = []

    def handle(self, handlers: Mapping[str, RequestHandler]) -> None:
        """Answer requests of these kinds."""
        self._handlers.update(handlers)

    def subscribe(self, subscriber: OnEvent) -> None:
        self._subscribers.append(subscriber)

    async def answer(self, kind: str, data: bytes, parts: PartSender) -> bytes:
        return await self._handlers[kind](data, parts)

    def receive(self, node: str, kind: str, data: bytes) -> None:
        for subscriber in self._subscribers:
            subscriber(node, kind, data)


class Link:
    """One open connection to another node."""

    def __init__(self, node: str, ws: Any, service: LinkService, *, accepted: bool) -> None:
        self.node = node
        self.accepted = accepted
        """Whether the other node has opened it. Then it is a connection of our server, and ends with it."""
        self._ws = ws
        self._service = service
        self._waiting: deque[bytes] = deque()
        self.waiting_bytes = 0
        self._wake = asyncio.Event()
        self._asked: dict[int, tuple[asyncio.Future[bytes], OnPart | None]] = {}
        self._next_id = 1
        self.answering: set[asyncio.Task[None]] = set()
        """The requests of the other node that are being answered."""
        self._reading: asyncio.Task[None] | None = None
        self.open = True
        self.lag_ms = 0.0
        self.dropped = 0

    async def run(self) -> None:
        """Read and write until the connection ends."""
        tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._ping())]
        try:
            self._reading = asyncio.create_task(self._read())
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.result()
        except (msgspec.MsgspecError, ConnectionError) as error:
            log.warning("the connection to node %s broke: %s", self.node, error)
        except Exception:
            # Whoever dials goes on, so that a fault in one message does not part the nodes for good.
            log.exception("what node %s sent could not be handled; reconnecting", self.node)
        finally:
            self.open = False
            for task in (self._reading, *tasks, *self.answering):
                if task is not None:
                    task.cancel()
            for future, _ in self._asked.values():
                if not future.done():
                    future.set_exception(LinkLost(f"node {self.node} went away", may_be_done=True))
            self._asked.clear()
            with contextlib.suppress(Exception):
                await self._ws.close()

    async def _read(self) -> None:
        async for message in self._ws:
            if message.type != aiohttp.WSMsgType.BINARY:
                break
            self._take(_decode(message.data))

    def send(self, message: LinkMessage) -> None:
        self.send_packed(_encode(message))

    def send_packed(self, packed: bytes, *, may_be_lost: bool = False) -> bool:
        """Put a message in the queue. False when it was left out, because the other node reads too slowly."""
        if not self.open:
            return False
        if may_be_lost and self.waiting_bytes > SLOW_BYTES:
            self.dropped += 1
            return False
        if self.waiting_bytes > MOST_BYTES:
            log.error("node %s does not read its messages; reconnecting", self.node)
            self.close()
            return False
        self._waiting.append(packed)
        self.waiting_bytes += len(packed)
        self._wake.set()
        return True

    def close(self) -> None:
        """End the connection. ``run`` returns soon after."""
        self.open = False
        if self._reading is not None:
            self._reading.cancel()

    async def ask(self, kind: str, data: bytes, on_part: OnPart | None = None) -> bytes:
        """Ask the other node. Raises ``LinkLost`` when it goes away, and ``RemoteFailure`` when it cannot."""
        if not self.open:
            raise LinkLost(f"node {self.node} cannot be reached", may_be_done=False)
        id, self._next_id = self._next_id, self._next_id + 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[id] = (future, on_part)
        try:
            self.send(LinkRequest(id, kind, data))
            return await future
        finally:
            self._asked.pop(id, None)

    async def _write(self) -> None:
        while True:
            while self._waiting:
                packed = self._waiting.popleft()
                await self._ws.send_bytes(packed)
                self.waiting_bytes -= len(packed)
            self._wake.clear()
            await self._wake.wait()

    async def _ping(self) -> None:
        """Measures how long a message waits before it is read. A node that does not answer is closed by its lease."""
        while True:
            self.send(LinkPing(time.monotonic()))
            await asyncio.sleep(PING_S)

    def _take(self, message: LinkMessage) -> None:
        match message:
            case LinkEvent(kind, data):
                self._service.receive(self.node, kind, data)
            case LinkRequest(id, kind, data):
                task = asyncio.create_task(self._answer(id, kind, data))
                self.answering.add(task)
                task.add_done_callback(self.answering.discard)
            case LinkAnswer(id, data, problem):
                future, _ = self._asked.get(id, (None, None))
                if future is None or future.done():
                    return
                if problem:
                    future.set_exception(RemoteFailure(problem))
                else:
                    future.set_result(data)
            case LinkPart(id, kind, data):
                _, on_part = self._asked.get(id, (None, None))
                if on_part is not None:
                    on_part(kind, data)
            case LinkPing(at, is_answer):
                if is_answer:
                    self.lag_ms = (time.monotonic() - at) * 1000 / 2
                else:
                    self.send(LinkPing(at, True))

    async def _answer(self, id: int, kind: str, data: bytes) -> None:
        try:
            answer = LinkAnswer(id, await self._service.answer(kind, data, PartSender(self, id)))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("a request of node %s failed", self.node)
            answer = LinkAnswer(id, b"", f"{type(error).__name__}: {error}")
        self.send(answer)


class Links:
    """The links of this node to all others. ``follow`` keeps them as the nodes come and go."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.service = LinkService()
        self._links: dict[str, Link] = {}
        self._changed = asyncio.Event()
        self._dialing: dict[str, asyncio.Task[None]] = {}
        self._nonces: dict[str, float] = {}
        self._session: aiohttp.ClientSession | None = None
        self._unsent: dict[str, deque[bytes]] = {}
        """Events for nodes whose connection is broken or not open yet."""
        self._unsent_bytes: dict[str, int] = {}
        self._known: set[str] = set()
        """The nodes that lived when ``follow`` last looked."""
        self._gone: dict[str, None] = {}
        """Nodes that were given up or have left. They come back under another id, or not at all."""
        self.opened = 0
        """How many links were opened. After each, the other node knows nothing of what was sent before."""

    @property
    def any(self) -> bool:
        """Whether there is another node. It may be connected before the next poll finds it."""
        return bool(self._membership.peers or self._links)

    @property
    def node(self) -> str:
        return self._membership.node

    def open_to(self, node: str) -> Link | None:
        link = self._links.get(node)
        return link if link is not None and link.open else None

    def all(self) -> list[Link]:
        return [link for link in self._links.values() if link.open]

    async def ask(self, node: str, kind: str, data: bytes, on_part: OnPart | None = None) -> bytes:
        return await (await self._wait_for(node)).ask(kind, data, on_part)

    async def _wait_for(self, node: str) -> Link:
        until = time.monotonic() + WAIT_FOR_LINK_S
        while (link := self.open_to(node)) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise LinkLost(f"node {node} cannot be reached", may_be_done=False)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, 0.5)):
                    await self._changed.wait()
        return link

    def broadcast(self, kind: str, data: bytes, *, may_be_lost: bool = False) -> bool:
        """Send an event to every other node. False when one of them did not get it."""
        packed, whole = _encode(LinkEvent(kind, data)), True
        for node in {**self._membership.peers, **self._links}:
            link = self.open_to(node)
            if link is not None:
                whole &= link.send_packed(packed, may_be_lost=may_be_lost)
            elif may_be_lost:
                whole = False
            else:
                self._keep(node, packed)
        return whole

    def _keep(self, node: str, packed: bytes) -> None:
        queue = self._unsent.setdefault(node, deque())
        queue.append(packed)
        size = self._unsent_bytes.get(node, 0) + len(packed)
        while size > SLOW_BYTES:
            size -= len(queue.popleft())
        self._unsent_bytes[node] = size

    async def follow(self) -> None:
        """Dial nodes that are new, and forget those that are gone."""
        peers = self._membership.peers
        for node, row in peers.items():
            if self.node < node and row.url and node not in self._dialing:
                self._dialing[node] = asyncio.create_task(self._dial(node), name=f"link to {node}")
        for node in self._known - set(peers):
            if (dialing := self._dialing.pop(node, None)) is not None:
                dialing.cancel()
            if (link := self._links.pop(node, None)) is not None:
                link.close()
            self._unsent.pop(node, None)
            self._unsent_bytes.pop(node, None)
            self._gone[node] = None
            while len(self._gone) > MOST_GONE:
                self._gone.pop(next(iter(self._gone)))
        self._known = set(peers)

    async def close_accepted(self, within_s: float) -> None:
        """End the links that others have opened, because the server stops. Requests under way get ``within_s``."""
        accepted = [link for link in self._links.values() if link.accepted]
        if answering := [task for link in accepted for task in link.answering]:
            await asyncio.wait(answering, timeout=within_s)
        for link in accepted:
            link.close()

    async def close(self) -> None:
        for task in self._dialing.values():
            task.cancel()
        await asyncio.gather(*self._dialing.values(), return_exceptions=True)
        for link in list(self._links.values()):
            link.close()
        if self._session is not None:
            await self._session.close()

    # Opening

    async def _dial(self, node: str) -> None:
        pause = REDIAL_S
        while (row := self._membership.peers.get(node)) is not None:
            try:
                ws = await self._connect(row)
                pause = REDIAL_S
                await self._use(node, ws, accepted=False)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                level = logging.WARNING if pause == LONGEST_REDIAL_S / 2 else logging.DEBUG
                log.log(level, "node %s cannot be reached at %s (cluster.advertiseUrl): %s", node, row.url, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_REDIAL_S)

    async def _connect(self, row: NodeRow) -> aiohttp.ClientWebSocketResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CONNECT_S))
        url = row.url.replace("ws", "http", 1) if row.url.startswith("ws") else row.url
        url = f"{url.rstrip('/')}{LINK_PATH}"
        ssl: Any = aiohttp.Fingerprint(bytes.fromhex(row.fingerprint.replace(":", ""))) if row.fingerprint else True
        async with self._session.get(url, ssl=ssl) as response:
            theirs = response.headers.get(NONCE, "")
        ours = secrets.token_hex(16)
        headers = {NODE: self.node, NONCE: ours, PROOF: self._proof("dials", self.node, row.id, theirs)}
        ws = await self._session.ws_connect(
            url, ssl=ssl, headers={**headers, "X-OpenClaw-For": theirs}, max_msg_size=LARGEST_MESSAGE
        )
        answered = ws._response.headers.get(PROOF, "")  # pyright: ignore[reportPrivateUsage]
        if not _same(answered, self._proof("answers", row.id, self.node, ours)):
            await ws.close()
            raise aiohttp.ClientError("the server there is not a node of this cluster")
        return ws

    async def challenge(self) -> web.Response:
        """Answer whoever wants to open a link with the number to prove itself with."""
        now = time.monotonic()
        self._nonces = {nonce: at for nonce, at in self._nonces.items() if now - at < NONCE_S}
        while len(self._nonces) >= MOST_NONCES:
            self._nonces.pop(next(iter(self._nonces)))
        nonce = secrets.token_hex(16)
        self._nonces[nonce] = now
        return web.Response(status=401, headers={NONCE: nonce})

    async def accept(self, request: web.BaseRequest, recognise: Callable[[], object]) -> web.StreamResponse:
        """Serve a link that another node opens. ``recognise`` is called when it has proved what it is."""
        node, nonce = request.headers.get(NODE, ""), request.headers.get("X-OpenClaw-For", "")
        issued = self._nonces.pop(nonce, None) is not None
        proof = self._proof("dials", node, self.node, nonce)
        if node in self._gone:
            return web.Response(status=410, text="this node was given up")
        # Without a secret, which the database gives, anybody could make the proof.
        if not issued or not self._membership.secret or not _same(request.headers.get(PROOF, ""), proof):
            return await self.challenge()
        recognise()
        ws = web.WebSocketResponse(max_msg_size=LARGEST_MESSAGE, compress=False)
        ws.headers[PROOF] = self._proof("answers", self.node, node, request.headers.get(NONCE, ""))
        await ws.prepare(request)
        await self._use(node, ws, accepted=True)
        return ws

    def _proof(self, side: Side, own: str, other: str, nonce: str) -> str:
        return hmac.new(
            self._membership.secret.encode(),
            f"{side}|{own}|{other}|{nonce}".encode("utf-8", "replace"),  # Headers may hold any bytes.
            "sha256",
        ).hexdigest()

    async def _use(self, node: str, ws: Any, *, accepted: bool) -> None:
        link = Link(node, ws, self.service, accepted=accepted)
        before = self._links.get(node)
        self._links[node] = link
        if before is not None:
            before.close()
        for packed in self._unsent.pop(node, ()):
            link.send_packed(packed)
        self._unsent_bytes.pop(node, None)
        self.opened += 1
        self._changed.set()
        log.info("connected to node %s", node)
        try:
            await link.run()
        finally:
            if self._links.get(node) is link:
                del self._links[node]


def _same(actual: str, expected: str) -> bool:
    return hmac.compare_digest(actual.encode("utf-8", "replace"), expected.encode())
