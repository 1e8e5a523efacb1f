"""This Gateway as a node of a cluster: what it does when it gains sessions, is idle, is given up, or leaves."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from openclaw.cluster.claims import SESSION, session_name
from openclaw.gateway.server.places import place_of, session_of
from openclaw.gateway.server.registry import Answer, MethodCall, MethodError

if TYPE_CHECKING:
    from openclaw.cluster.membership import NodeLoad
    from openclaw.cluster.postgres_claims import PostgresClaims
    from openclaw.gateway.gateway import Gateway
    from openclaw.storage.postgres.ledger import PostgresLedger

TAKEN_AT_ONCE = 20
"""How many sessions without an owner a node claims together. The others take theirs meanwhile."""
MOST_TAKEN = 100
RELEASED_AT_ONCE = 500

log = logging.getLogger("openclaw.cluster")


class ClusterService:
    """Wires the claims of this node to the rest of the Gateway. There is none with files."""

    def __init__(self, gateway: Gateway, claims: PostgresClaims, ledger: PostgresLedger) -> None:
        self._gateway = gateway
        self.claims = claims
        self._ledger = ledger
        self.membership = claims.membership
        self.membership.load = self._load
        self.membership.on_fenced = self._fenced
        self.membership.hearers += [claims.try_wanted, self.take_unowned, self.release_idle]
        claims.on_gained(SESSION, self._gained)

    async def start(self, url: str, fingerprint: str = "") -> None:
        """Tells the others where this node is, takes up what nobody owns, and begins to watch."""
        configured = self._gateway.runtime.config.current.cluster.advertise_url
        await self.membership.advertise(configured or url, fingerprint)
        await self.take_unowned()
        self.membership.start()

    async def answer_elsewhere(self, call: MethodCall, raw: msgspec.Raw | bytes) -> Answer | None:
        """Answers a call that belongs to another node. None: this node answers it."""
        place = place_of(call.method)
        if place == "session" and (session := await session_of(call)) is not None:
            owner = await self.claims.claim(session_name(session.agent_id, session.key))
            if not owner.mine:
                raise MethodError("another node answers this session, and it cannot be reached", code="UNAVAILABLE")
        return None

    async def take_unowned(self) -> None:
        """Claims sessions with unfinished messages that nobody owns. ``_gained`` goes on with their messages."""
        for _ in range(MOST_TAKEN):
            found = [session_name(*session) for session in await self._ledger.unowned(TAKEN_AT_ONCE)]
            if not found or not await self.claims.claim_free(found):
                return

    async def release_idle(self) -> None:
        """Lets sessions go that nobody has used for a while, so that any node may answer their next message."""
        seconds = self._gateway.runtime.config.current.cluster.idle_seconds
        names = self.claims.idle(SESSION, seconds, RELEASED_AT_ONCE)
        await self.claims.release_all([name for name in names if not self._gateway.dispatcher.in_use(_key_of(name))])

    async def _gained(self, name: str) -> None:
        """Goes on with the messages that the session's last owner left, before anything new happens in it."""
        agent_id, _, key = name.removeprefix(SESSION).partition(":")
        runtime = self._gateway.runtime
        # The session is in memory from here on, so that messages which come together stay in their order.
        _, left = await asyncio.gather(runtime.sessions.get(agent_id, key), runtime.ledger.unfinished((agent_id, key)))
        if left:
            log.info("taking up the unfinished messages of %s", key)
            await self._gateway.notices.end_interrupted((agent_id, key))
            await self._gateway.dispatcher.find_unfinished(session=(agent_id, key))
            self._gateway.dispatcher.start_unfinished(key)

    def _load(self) -> NodeLoad:
        from openclaw.cluster.membership import NodeLoad

        dispatcher = self._gateway.dispatcher
        return NodeLoad(
            sessions=len(self.claims.owned(SESSION)),
            runs=dispatcher.busy(),
            queued=dispatcher.queued(),
            clients=len(self._gateway.broadcaster.clients),
        )

    def _fenced(self) -> None:
        """Forgets every run without a word, because another node goes on with them, and starts anew."""
        self._gateway.dispatcher.drop()
        self._gateway.restart.requested.set()


def _key_of(name: str) -> str:
    return name.removeprefix(SESSION).partition(":")[2]
