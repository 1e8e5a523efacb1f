"""The channels of a Gateway and the worker that delivers to them, and what a channel is shown of a run.

Before its reply arrives, a run shows the typing sign, an acknowledging reaction, drafts, blocks and notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from openclaw.channels.base import AccountStatus
from openclaw.channels.manager import ChannelManager, RunningAccount
from openclaw.clock import Clock, wait_within
from openclaw.config.agents import agent_config
from openclaw.config.channels import account_settings
from openclaw.config.schema import Config
from openclaw.config.schema.channels import AckReaction, TelegramAccount
from openclaw.events import Event, TextDelta, ThinkingDelta, ToolStarted, ToolUpdated
from openclaw.messages import Route
from openclaw.outbound.blocks import BlockChunker, block_settings
from openclaw.outbound.deliver import Delivery
from openclaw.outbound.reply import OutgoingMessage, ReplyShape, SendFailed, Speaker, reply_shape
from openclaw.outbound.reply_files import Files
from openclaw.outbound.stream import DRAFT_CHUNK, DraftStream, ReplyStream, run_notice
from openclaw.protocol.health import ChannelSummary
from openclaw.runs.run import (
    Run,
    RunAbsorbed,
    RunBegan,
    RunEvent,
    RunFilesReady,
    RunFinished,
    RunSettling,
    RunStopping,
    RunWatched,
    StoreFiles,
)
from openclaw.sessions.keys import chat_type_of
from openclaw.storage.errors import Fenced

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime

log = logging.getLogger("openclaw.channels")
OUTBOX = "outbox"
"""What the nodes tell each other when there are parts to send. It names no document."""
DELIVERED_S = 60.0
"""How long the delivery of a reply is waited for before the acknowledging reaction stays."""
SEEN = "👀"
"""The reaction that says that a message was seen, where nothing else is configured."""
TTL_S = 120.0
"""The typing sign ends when the run shows no activity for this long."""


class ChannelServices:
    """Owns the channel manager and the delivery worker."""

    def __init__(self, runtime: Runtime, channels: ChannelManager, parts_ready: asyncio.Event) -> None:
        """``parts_ready`` is set when the outbox has new parts."""
        self._config = runtime.config
        self.clock = runtime.clock
        self.ledger = runtime.stores.ledger
        self.may_send = runtime.may_send
        self.channels = channels
        documents = runtime.stores.documents
        self.delivery = Delivery(
            runtime.stores.ledger,
            channels,
            runtime.clock,
            is_ours=channels.is_ours,
            woken=parts_ready,
            tell_others=lambda: self._spawn(documents.tell(OUTBOX)),
        )
        channels.on_connected = self.delivery.wake
        channels.on_claimed, channels.on_release = self._claimed, self._leave
        self._tasks: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Start both. Call it once runs can be accepted: messages may come in before it returns."""
        self._unsubscribe = self._config.subscribe(self._config_changed)
        self._worker = asyncio.create_task(self.delivery.run(), name="outbox")
        await self.channels.start()

    async def stop(self) -> None:
        """Stop both. Call it after the last run has ended. Parts that are on the wire may finish."""
        self._unsubscribe()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self.delivery.stop()
        await self.channels.stop()

    async def _claimed(self, running: RunningAccount) -> None:
        """Reclaim what the node was sending that had the account before."""
        await self.channels.others.claimed(running, lambda route: self._goes_through(running, route))
        self.delivery.wake()

    async def _leave(self, running: RunningAccount) -> None:
        def serves(channel: str, account_id: str) -> bool:
            return channel == running.kind.id and self._goes_through(running, Route(account_id=account_id))

        await self.delivery.leave(serves)

    def _goes_through(self, running: RunningAccount, route: Route) -> bool:
        return self.channels.find(running.kind.id, route.account_id) is running

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(OSError, Fenced):  # The others look for themselves after a while.
                await work

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _config_changed(self, old: Config, new: Config, changed: list[str]) -> None:
        if new.gateway.reload.mode != "restart":
            await self.channels.config_changed(old, new, changed)


class ChannelRun:
    """Follows a run: shows on its channel that the agent is typing, sends what is finished of the reply, and wakes
    the delivery when the run has ended.

    After the run has ended, the typing sign is not shown again.
    """

    def __init__(self, run: Run, services: ChannelServices, config: Config) -> None:
        self._run = run
        self._services = services
        session, defaults = config.session, config.agents.defaults
        direct = chat_type_of(run.session_key) == "direct"
        addressed = direct or run.row.body.mentioned
        self._mode = session.typing_mode or defaults.typing_mode or ("instant" if addressed else "message")
        self._direct = direct
        self._config = config
        route = run.row.route
        self._begun = False
        self._store_files: StoreFiles | None = None
        self._stream: ReplyStream | None = None
        self._draft: DraftStream | None = None
        self._channel, self._account_id = route.channel, route.account_id
        account = services.channels.find(self._channel, self._account_id)
        self._capabilities = account.kind.capabilities if account is not None else None
        self._sign = TypingSign(
            services.clock,
            session.typing_interval_seconds or defaults.typing_interval_seconds,
            self._show_sign,
            outlasts_reply=self._capabilities is not None and self._capabilities.typing_outlasts_reply,
        )
        self._ack: asyncio.Task[bool] | None = None
        self._emoji = ""
        self._closing: set[asyncio.Task[None]] = set()
        self._acknowledge()

    def _begin(self) -> None:
        """Make the draft, or the stream of blocks and notices, that shows the reply while it is written.

        Most runs need neither. It is done when the run begins: many messages wait and are answered with another.
        """
        run, services = self._run, self._services
        blocks = block_settings(self._config, self._channel, self._account_id)
        self._draft = self._draft_stream() if blocks is None else None
        if blocks is None and self._verbose() == "off":
            return
        self._stream = ReplyStream(
            run.row,
            services.ledger,
            services.clock,
            shape=self._shape,
            blocks=blocks,
            notice=lambda event: run_notice(event, self._verbose()),
            files=self._reply_files,
            may_send=partial(services.may_send, run.agent_id, run.session_key, run.row.route),
            wake=services.delivery.wake,
        )

    def _draft_stream(self) -> DraftStream | None:
        """Show drafts where the channel can, and the configuration does not ask for blocks instead."""
        account = account_settings(self._config, self._channel, self._account_id)
        if not isinstance(account, TelegramAccount) or account.stream_mode == "off":
            return None
        if self._capabilities is None or not self._capabilities.drafts:
            return None
        chunk = account.draft_chunk or DRAFT_CHUNK
        pieces = BlockChunker(chunk.min_chars, chunk.max_chars, chunk.break_preference)
        return DraftStream(
            self._services.clock,
            self._show_draft,
            chunker=pieces if account.stream_mode == "block" else None,
            with_reasoning=lambda: self._run.reasoning == "stream",
        )

    async def _show_draft(self, text: str) -> bool:
        row = self._run.row
        if text and not await self._services.may_send(row.agent_id, row.session_key, row.route):
            return False
        return await self._services.channels.draft(self._channel, row.route, row.id, text)

    # The reaction that says that the message was seen

    def _acknowledge(self) -> None:
        run, target = self._run, self._run.row.route.reply_to_id
        if run.recovered or not target or self._capabilities is None or not self._capabilities.reactions:
            return
        self._emoji = ack_emoji(
            self._config,
            self._channel,
            self._account_id,
            run.agent_id,
            direct=self._direct,
            mentioned=run.row.body.mentioned,
        )
        if self._emoji:
            self._ack = asyncio.create_task(self._react(str(target), remove=False))

    async def _react(self, target: str, *, remove: bool) -> bool:
        reaction = OutgoingMessage(act="react", target_id=target, emoji=self._emoji, remove=remove)
        key = f"{self._run.run_id}:{'unack' if remove else 'ack'}"
        try:
            await self._services.channels.send(self._channel, self._run.row.route, reaction, key)
        except SendFailed as failure:
            log.info("the reaction to %s was not sent: %s", self._run.run_id, failure)
            return False
        return True

    async def _take_ack_back(self, ack: asyncio.Task[bool]) -> None:
        row = self._run.row
        if not await ack:
            return
        parts = await self._services.delivery.wait(row.id, DELIVERED_S)
        if any(part.state == "sent" for part in parts):
            await self._react(row.route.reply_to_id, remove=True)

    def _close(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # The run

    def _shape(self) -> ReplyShape:
        run = self._run
        speaker = Speaker(agent_id=run.agent_id, model=run.model, thinking=run.thinking)
        return reply_shape(self._config, run.row.route, speaker)

    async def _reply_files(self, addresses: Sequence[str], voice: bool) -> Files:
        return Files() if self._store_files is None else await self._store_files(addresses, voice)

    def _verbose(self) -> str:
        """Return how much of the tool calls the chat shows. Groups show nothing."""
        if not self._direct:
            return "off"
        return self._run.verbose or self._config.agents.defaults.verbose_default or "off"

    def _started(self) -> None:
        if not self._begun:
            self._begun = True
            self._begin()
        if self._mode == "instant":
            self._sign.active()

    def event(self, event: RunEvent) -> None:
        match event:
            case RunBegan():
                self._started()
            case RunFilesReady(store):
                self._store_files = store
            case RunStopping():
                self._stopping()
            case RunAbsorbed():
                self._end_draft()
                self._sign.end(after=_at_once)  # The reply of the other run follows.
            case RunSettling(pending):
                if self._stream is not None:
                    pending.append(self._stream.settle())
            case RunFinished():
                self._finished()
            case RunWatched():
                pass
            case _:
                self._show(event)

    def _show(self, event: Event) -> None:
        if self._stream is not None:
            self._stream.event(event)
        if self._draft is not None:
            self._draft.event(event)
        if self._mode == "never":
            return
        match event:
            # Text that may turn out to be silence does not come as an event.
            case TextDelta() | ToolStarted() | ToolUpdated():
                self._sign.active()
            case ThinkingDelta() if self._mode == "thinking":
                self._sign.active()
            case _:
                pass

    def _stopping(self) -> None:
        if self._stream is not None:
            self._stream.stop()
        self._end_draft()
        self._sign.end()

    def _finished(self) -> None:
        result = self._run.result
        has_reply = result is not None and bool(result.texts or result.notice)
        self._end_draft()
        self._sign.end(after=self._delivered if has_reply or self._run.state == "error" else None)
        self._services.delivery.wake()
        if self._ack is not None and self._config.messages.remove_ack_after_reply:
            self._close(self._take_ack_back(self._ack))

    async def _delivered(self) -> None:
        await self._services.delivery.wait(self._run.row.id, DELIVERED_S)

    def _end_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            self._close(draft.end())

    async def _show_sign(self, on: bool) -> None:
        route = self._run.row.route
        await self._services.channels.typing(route.channel, route, on)


async def _at_once() -> None:
    """Wait for nothing."""


class TypingSign:
    """Shows the typing sign of one run from its first activity to its end, and renews it meanwhile.

    A call of the platform that is under way is never cancelled: nobody would know whether the sign is shown. After
    ``end`` the sign is not shown again.
    """

    def __init__(
        self, clock: Clock, interval_s: float, show: Callable[[bool], Awaitable[None]], *, outlasts_reply: bool
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._show = show
        self._outlasts_reply = outlasts_reply
        self._active_at = 0.0
        self._ended = asyncio.Event()
        self._reply: Callable[[], Awaitable[None]] | None = None
        self._task: asyncio.Task[None] | None = None

    def active(self) -> None:
        self._active_at = self._clock.monotonic()
        if not self._ended.is_set() and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._keep_showing())

    def end(self, *, after: Callable[[], Awaitable[None]] | None = None) -> None:
        """End the sign, ``after`` the reply if one follows.

        On most platforms a reply ends the sign, so nothing is removed then.
        """
        if not self._ended.is_set():
            self._reply = after
            self._ended.set()

    async def _keep_showing(self) -> None:
        overtaken = False
        while not self._ended.is_set() and self._clock.monotonic() - self._active_at < TTL_S:
            await self._show(True)
            # The reply may have arrived before the sign. Then it has not ended the sign.
            overtaken = self._ended.is_set()
            await wait_within(self._ended, self._interval_s, self._clock)
        if self._reply is not None:
            if not overtaken and not self._outlasts_reply:
                return
            await self._reply()
        await self._show(False)


def ack_emoji(
    config: Config, channel: str, account_id: str | None, agent_id: str, *, direct: bool, mentioned: bool
) -> str:
    """The emoji for a message, or nothing if messages like this one are not acknowledged."""
    account = account_settings(config, channel, account_id)
    own = account.ack_reaction if account is not None else None
    if isinstance(own, AckReaction):
        in_group = own.group == "always" or (own.group == "mentions" and mentioned)
        return own.emoji.strip() if (own.direct if direct else in_group) else ""
    match config.messages.ack_reaction_scope:
        case "all":
            in_scope = True
        case "direct":
            in_scope = direct
        case "group-all":
            in_scope = not direct
        case "group-mentions":
            in_scope = not direct and mentioned
        case "off" | "none":
            in_scope = False
    if not in_scope:
        return ""
    chosen = own if own is not None else config.messages.ack_reaction
    if chosen is not None:
        return chosen.strip()
    agent = agent_config(config, agent_id)
    return (agent.identity.emoji if agent is not None else None) or SEEN


# State, for answers about status and health


def by_channel(channels: ChannelManager) -> dict[str, list[RunningAccount]]:
    """Group the accounts by the id of their channel."""
    grouped: dict[str, list[RunningAccount]] = {}
    for running in channels.accounts():
        grouped.setdefault(running.kind.id, []).append(running)
    return grouped


def summary_of(accounts: Sequence[AccountStatus]) -> ChannelSummary:
    """The flags of one channel, from its accounts. It is as well as the best of them."""
    best = max(accounts, key=lambda one: (one.connected, one.running, one.configured, one.enabled))
    return ChannelSummary(best.enabled, best.configured, best.running, best.connected, best.last_error or None)


def summary_lines(channels: ChannelManager) -> list[str]:
    """One line for each channel, such as ``Signal: connected``."""
    lines: list[str] = []
    for accounts in by_channel(channels).values():
        summary = summary_of([running.status for running in accounts])
        if not summary.enabled:
            state = "disabled"
        elif not summary.configured:
            state = "not configured"
        elif summary.connected:
            state = "connected"
        else:
            state = "connecting" if summary.running else "not running"
            state += f" ({summary.last_error})" if summary.last_error else ""
        lines.append(f"{accounts[0].kind.label}: {state}")
    return lines
