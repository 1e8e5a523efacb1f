"""Accounts that another node has: the typing sign, drafts and reactions of runs here, and the state of the account."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.channels.base import WebhookAnswer, WebhookRequest
from openclaw.channels.manager import RunningAccount
from openclaw.cluster.links import LinkLost, Links, PartSender, RemoteFailure
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

KNOWN_S = 2.0
"""So long a node is taken for the one that has an account, once it was looked up."""

NOT_CONNECTED = WebhookAnswer(status=503, text="the account is not connected at this moment; try again")
"""The platform sends it again, when a node has the account."""


class TypingSign(msgspec.Struct, array_like=True):
    channel: str
    route: dict[str, Any]
    on: bool


class RemoteDraft(msgspec.Struct, array_like=True):
    channel: str
    route: dict[str, Any]
    draft_id: int
    text: str


class RemoteAct(msgspec.Struct, array_like=True):
    """A reaction or the like. Replies go through the outbox."""

    channel: str
    route: dict[str, Any]
    message: OutgoingMessage
    key: str


class ActOutcome(msgspec.Struct, array_like=True):
    message_id: str
    problem: str = ""


class RemoteWebhook(msgspec.Struct, array_like=True):
    """What a platform sent to a node that does not have the account."""

    path: str
    request: WebhookRequest


_encode = msgspec.msgpack.Encoder().encode
_sign = msgspec.msgpack.Decoder(TypingSign).decode
_draft = msgspec.msgpack.Decoder(RemoteDraft).decode
_act = msgspec.msgpack.Decoder(RemoteAct).decode
_outcome = msgspec.msgpack.Decoder(ActOutcome).decode
_webhook = msgspec.msgpack.Decoder(RemoteWebhook).decode
_answer = msgspec.msgpack.Decoder(WebhookAnswer).decode
_names = msgspec.msgpack.Decoder(tuple[str, str, float]).decode


class RemoteChannels:
    """``OtherAccounts`` for the channels of this node, and the answers to the same requests of other nodes."""

    def __init__(self, gateway: Gateway, links: Links) -> None:
        self._gateway = gateway
        self._links = links
        self._known: dict[str, tuple[str, float]] = {}
        self.served = {
            "channel.typing": self._answer_typing,
            "channel.draft": self._answer_draft,
            "channel.act": self._answer_act,
            "channel.status": self._answer_status,
            "channel.webhook": self._answer_webhook,
        }

    # Asking

    async def typing(self, running: RunningAccount, route: dict[str, Any], on: bool) -> None:
        await self._ask(running.name, "channel.typing", TypingSign(running.kind.id, route, on))

    async def draft(self, running: RunningAccount, route: dict[str, Any], draft_id: int, text: str) -> bool:
        return (
            await self._ask(running.name, "channel.draft", RemoteDraft(running.kind.id, route, draft_id, text)) == b"1"
        )

    async def act(
        self, running: RunningAccount, route: dict[str, Any], message: OutgoingMessage, key: str
    ) -> SendReceipt:
        answer = await self._ask(running.name, "channel.act", RemoteAct(running.kind.id, route, message, key))
        if answer is None:
            raise SendFailed("the node that has the account cannot be reached", reached=False)
        outcome = _outcome(answer)
        if outcome.problem:
            raise SendFailed(outcome.problem, reached=False)
        return SendReceipt(message_id=outcome.message_id)

    async def status(self, running: RunningAccount, probe_s: float) -> dict[str, Any] | None:
        """The account as the node sees it that has it. ``probe_s``: how long its platform may take to answer; 0: it is
        not asked. None when the node cannot be reached."""
        answer = await self._ask(running.name, "channel.status", (running.kind.id, running.account.id, probe_s))
        return msgspec.msgpack.decode(answer) if answer else None

    async def webhook(self, name: str, path: str, request: WebhookRequest) -> WebhookAnswer:
        answer = await self._ask(name, "channel.webhook", RemoteWebhook(path, request))
        if answer is None:
            return NOT_CONNECTED
        return _answer(answer)

    async def _ask(self, name: str, kind: str, request: Any) -> bytes | None:
        """Asks the node that has the account. None: nobody has it, or the node cannot be reached."""
        claims, now = self._gateway.runtime.claims, time.monotonic()
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

    # Answering

    async def _answer_typing(self, data: bytes, _parts: PartSender | None) -> bytes:
        sign = _sign(data)
        await self._gateway.channel_services.channels.typing(sign.channel, sign.route, sign.on, here=True)
        return b""

    async def _answer_draft(self, data: bytes, _parts: PartSender | None) -> bytes:
        draft = _draft(data)
        channels = self._gateway.channel_services.channels
        return b"1" if await channels.draft(draft.channel, draft.route, draft.draft_id, draft.text, here=True) else b"0"

    async def _answer_act(self, data: bytes, _parts: PartSender | None) -> bytes:
        act = _act(data)
        channels = self._gateway.channel_services.channels
        try:
            sent = await channels.send(act.channel, act.route, act.message, act.key, here=True)
        except SendFailed as failure:
            return _encode(ActOutcome("", str(failure) or "it failed"))
        return _encode(ActOutcome(sent.message_id))

    async def _answer_status(self, data: bytes, _parts: PartSender | None) -> bytes:
        channel, account_id, probe_s = _names(data)
        channels = self._gateway.channel_services.channels
        running = channels.find(channel, account_id)
        if running is None:
            return b""
        view = running.status.view()
        return _encode({**view, "probe": await channels.probe(running, probe_s)} if probe_s else view)

    async def _answer_webhook(self, data: bytes, _parts: PartSender | None) -> bytes:
        asked = _webhook(data)
        webhook = self._gateway.channel_services.channels.own_webhook(asked.path)
        if webhook is None:
            return _encode(NOT_CONNECTED)
        return _encode(await webhook(asked.request))
