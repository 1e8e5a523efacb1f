"""Messages that one node hands on to the owner of their session: from channels, jobs and other sessions."""

from __future__ import annotations

import asyncio
import errno
import time
from typing import TYPE_CHECKING

import msgspec

from openclaw.cluster.claims import session_name
from openclaw.cluster.links import PATIENCE_S, RETRY_S, LinkLost, Links, PartSender, RemoteFailure
from openclaw.config.agents import default_agent_id
from openclaw.inbound.incoming import Incoming, SessionGone
from openclaw.inbound.pipeline import Accepted, Blocked, HandedOn, Result, TakenElsewhere
from openclaw.sessions.keys import agent_of
from openclaw.storage.base import AbortReason

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway


class WakeRequest(msgspec.Struct, array_like=True):
    run_id: str
    text: str
    own_id: str


class StopRequest(msgspec.Struct, array_like=True):
    session_key: str
    run_id: str | None
    reason: AbortReason


_encode = msgspec.msgpack.Encoder().encode
_incoming = msgspec.msgpack.Decoder(Incoming).decode
_handed_on = msgspec.msgpack.Decoder(HandedOn | None).decode
"""None stands for a session that is gone."""
_wake = msgspec.msgpack.Decoder(WakeRequest).decode
_stop = msgspec.msgpack.Decoder(StopRequest).decode
_texts = msgspec.msgpack.Decoder(list[str]).decode


class RemoteMessages:
    """``OtherNodes`` for the pipeline, and the answers to the same requests of other nodes."""

    def __init__(self, gateway: Gateway, links: Links) -> None:
        self._gateway = gateway
        self._links = links
        self.served = {
            "process": self._answer_process,
            "wake": self._answer_wake,
            "note": self._answer_note,
            "stop": self._answer_stop,
        }

    # Asking

    async def process(self, owner: str, message: Incoming) -> Result:
        facts = message.facts
        # The patterns of mentions are made from the configuration again.
        listening = msgspec.structs.replace(facts.listening, mentions=())
        sent = msgspec.structs.replace(message, facts=msgspec.structs.replace(facts, listening=listening))
        name, data = session_name(facts.session.agent_id, facts.session.key), _encode(sent)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                result = _handed_on(await self._links.ask(owner, "process", data))
            except (LinkLost, RemoteFailure) as lost:
                if time.monotonic() > until:
                    raise OSError(errno.ENOTCONN, f"the node that answers {facts.session.key}: {lost}") from lost
            else:
                if result is None:
                    raise SessionGone(facts.session.key)
                return result
            # The same message may be handed in twice: its run id is taken once.
            await asyncio.sleep(RETRY_S)
            self._gateway.runtime.claims.forget_owner(name)
            now = await self._gateway.runtime.claims.claim(name)
            if now.mine:
                return await self._gateway.pipeline.take_from(message)
            owner = now.node

    async def wake(self, owner: str, run_id: str, text: str, own_id: str) -> None:
        await self._ask_or_here(owner, "wake", _encode(WakeRequest(run_id, text, own_id)))

    async def note(self, owner: str, session_key: str, text: str) -> None:
        await self._ask_or_here(owner, "note", _encode([session_key, text]))

    async def stop(self, session_key: str, run_id: str | None, reason: AbortReason) -> list[str]:
        """Stops the runs of a session that another node owns."""
        claims, default = self._gateway.runtime.claims, default_agent_id(self._gateway.runtime.config.current)
        owner = await claims.owner(session_name(agent_of(session_key, default_agent=default), session_key))
        if owner is None or owner == claims.node:
            return []
        try:
            return _texts(await self._links.ask(owner, "stop", _encode(StopRequest(session_key, run_id, reason))))
        except (LinkLost, RemoteFailure):
            return []

    async def _ask_or_here(self, owner: str, kind: str, data: bytes) -> None:
        """Asks the owner. If it has gone, this node does it, and claims the session for it."""
        try:
            await self._links.ask(owner, kind, data)
        except (LinkLost, RemoteFailure):
            await asyncio.sleep(RETRY_S)
            await self.served[kind](data, None)

    # Answering

    async def _answer_process(self, data: bytes, _parts: PartSender | None) -> bytes:
        message = _incoming(data)
        session = message.facts.session
        self._gateway.runtime.claims.forget_owner(session_name(session.agent_id, session.key))
        try:
            return _encode(_handed(await self._gateway.pipeline.take_from(message)))
        except SessionGone:
            return _encode(None)

    async def _answer_wake(self, data: bytes, _parts: PartSender | None) -> bytes:
        asked = _wake(data)
        if (row := await self._gateway.runtime.ledger.by_run(asked.run_id)) is not None:
            self._gateway.runtime.claims.forget_owner(session_name(row.agent_id, row.session_key))
        await self._gateway.pipeline.wake(asked.run_id, asked.text, asked.own_id)
        return b""

    async def _answer_note(self, data: bytes, _parts: PartSender | None) -> bytes:
        key, text = _texts(data)
        self._gateway.runtime.notes.add(key, text)
        return b""

    async def _answer_stop(self, data: bytes, _parts: PartSender | None) -> bytes:
        asked = _stop(data)
        if not self._gateway.dispatcher.occupied(asked.session_key):
            return _encode([])
        return _encode(await self._gateway.dispatcher.abort(asked.session_key, asked.run_id, asked.reason))


def _handed(result: Result) -> HandedOn:
    """The result for another node. What a command answered, its session's owner has said."""
    match result:
        case Accepted(submission):
            # The record lives here, where the run is.
            return msgspec.structs.replace(result, submission=msgspec.structs.replace(submission, record=None))
        case Blocked():
            return result
        case _:
            return TakenElsewhere()
