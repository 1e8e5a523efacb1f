"""Starts, restarts and stops the configured channel accounts, and sends through them.

A crash of one account does not affect others. In a cluster, only the node that owns an account connects it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from openclaw.channels.base import (
    Account,
    AccountStatus,
    Channel,
    ChannelContext,
    ChannelKind,
    ChannelKinds,
    Disconnect,
    DraftChannel,
    NativeCommand,
    NotConfigured,
    Receive,
    Webhook,
)
from openclaw.clock import Backoff, Chance, Clock
from openclaw.cluster.claims import CHANNEL, SCHEDULER, Claims, SoleClaims, channel_name
from openclaw.config.channels import DEFAULT_ACCOUNT, normalize_account_id
from openclaw.config.schema import Config
from openclaw.inbound.message import Inbound, MovedChat
from openclaw.messages import Route
from openclaw.outbound.reply import REPEAT_MARK, OutgoingMessage, SendFailed, SendReceipt
from openclaw.storage.blobs import BlobStore
from openclaw.storage.disk_errors import FOREVER, until_written
from openclaw.storage.documents import DocumentStore
from openclaw.storage.errors import Fenced

OnInbound: TypeAlias = Callable[[Inbound], Awaitable[None]]
RESTART = Backoff(initial_s=1.0, max_s=300.0)
ANSWER_S = 10.0
"""The time limit of a probe."""
ELSEWHERE = "another node has this account"
STABLE_S = 60.0
"""An account that has run this long resets its restart backoff."""


class RemoteAccounts(Protocol):
    """Calls to the node that owns an account. Implemented by ``RemoteChannels`` in ``gateway/cluster``."""

    async def typing(self, running: RunningAccount, route: Route, on: bool) -> None: ...

    async def draft(self, running: RunningAccount, route: Route, draft_id: int, text: str) -> bool: ...

    async def act(self, running: RunningAccount, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        """Raises ``SendFailed``."""
        ...

    async def status(self, running: RunningAccount, probe_s: float) -> dict[str, Any] | None:
        """Return the account as its owner sees it, or None if the owner cannot be reached.

        ``probe_s`` is how long its platform may take to answer. With 0 it is not asked.
        """
        ...

    async def claimed(self, running: RunningAccount, serves: Callable[[Route], bool]) -> None:
        """Reclaim the deliveries that the previous owner of an account had begun, on the routes it ``serves``."""
        ...

    async def load_paths(self) -> None:
        """Load the webhook paths of the other nodes' accounts."""
        ...

    def publish_path(self, path: str, name: str) -> None:
        """Share the webhook path of an account. ``name`` is the account's name in the claims."""
        ...

    def webhook_at(self, path: str) -> tuple[Webhook, str] | None:
        """Return a handler that forwards to the owner of the path, and the remainder of the path."""
        ...


class NoRemoteAccounts:
    """The accounts of other nodes where there is one node."""

    async def typing(self, running: RunningAccount, route: Route, on: bool) -> None:
        pass

    async def draft(self, running: RunningAccount, route: Route, draft_id: int, text: str) -> bool:
        return False

    async def act(self, running: RunningAccount, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        raise SendFailed("no other node has the account", reached=False)

    async def status(self, running: RunningAccount, probe_s: float) -> dict[str, Any] | None:
        return None

    async def claimed(self, running: RunningAccount, serves: Callable[[Route], bool]) -> None:
        pass

    async def load_paths(self) -> None:
        pass

    def publish_path(self, path: str, name: str) -> None:
        pass

    def webhook_at(self, path: str) -> tuple[Webhook, str] | None:
        return None


class RunningAccount:
    """One account: its channel, its status and its supervising task."""

    def __init__(self, kind: ChannelKind, account: Account) -> None:
        self.kind = kind
        self.account = account
        self.status = AccountStatus(
            account_id=account.id, name=account.name, enabled=account.enabled, configured=not account.problem
        )
        self.channel: Channel | None = None
        self.task: asyncio.Task[None] | None = None
        self.leaving = False
        """Another node is about to claim the account, so this node sends nothing more."""

    @property
    def name(self) -> str:
        """The account's name in the claims."""
        return channel_name(self.kind.id, self.account.id)


class ChannelManager:
    def __init__(
        self,
        *,
        kinds: ChannelKinds,
        config: Callable[[], Config],
        clock: Clock,
        state_dir: str,
        blobs: BlobStore,
        documents: DocumentStore,
        receive: Receive,
        admits: Receive,
        notice: OnInbound | None = None,
        edited: OnInbound | None = None,
        deleted: OnInbound | None = None,
        moved: Callable[[MovedChat], Awaitable[None]] | None = None,
        commands: Callable[[], list[NativeCommand]] = list,
        environ: Mapping[str, str] = MappingProxyType({}),
        reserved_names: Callable[[], set[str]] = set,
        claims: Claims | None = None,
        others: RemoteAccounts | None = None,
        chance: Chance = random.random,
    ) -> None:
        """``reserved_names`` are the first path segments that the Gateway serves itself."""
        self.kinds = kinds
        self._config = config
        self._clock = clock
        self._state_dir = Path(state_dir) / "channels"
        self._blobs = blobs
        self._documents = documents
        self._receive = receive
        self._admits = admits
        self._notice, self._edited, self._deleted = notice, edited, deleted
        self._moved = moved
        self._commands = commands
        self._environ = environ
        self._webhooks: dict[str, Webhook] = {}
        self.on_connected: Callable[[], object] = lambda: None
        """Called whenever an account becomes able to send."""
        self._reserved_names = reserved_names
        self._chance = chance
        self._claims = claims or SoleClaims()
        self.on_claimed: Callable[[RunningAccount], Awaitable[None]] | None = None
        """Called before an account is connected that another node may have owned. Set during assembly."""
        self.on_release: Callable[[RunningAccount], Awaitable[None]] | None = None
        """Called before an account moves to another node, so that deliveries in progress can finish."""
        self.others = others or NoRemoteAccounts()
        """The accounts of other nodes."""
        self._claims.on_gained(CHANNEL, self._gained)
        self._claims.on_lost(CHANNEL, self._lost)
        self._accounts: dict[tuple[str, str], RunningAccount] = {}
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Start the configured accounts without waiting for their connections."""
        with contextlib.suppress(OSError):
            await self.others.load_paths()
        await self.apply(self._config())

    def list_configured(self) -> None:
        """Register the configured accounts without connecting them, for a read-only Gateway."""
        config = self._config()
        for kind in self.kinds.configured(config):
            for account in kind.accounts(config):
                running = RunningAccount(kind, account)
                running.status.last_error = account.problem or None
                if self._claims.owns(running.name):
                    self._accounts[kind.id, account.id] = running

    async def apply(self, config: Config) -> None:
        """Start and stop accounts to match a configuration. Unchanged accounts keep running."""
        async with self._changing:
            configured = {
                (kind.id, account.id): (kind, account)
                for kind in self.kinds.configured(config)
                for account in kind.accounts(config)
            }
            changed = [
                key
                for key, running in self._accounts.items()
                if key not in configured or configured[key][1] != running.account
            ]
            await asyncio.gather(*(self._stop(self._accounts.pop(key)) for key in changed))
            await self._unwant([channel_name(*key) for key in changed if key not in configured])
            for key, (kind, account) in configured.items():
                if key not in self._accounts:
                    self._accounts[key] = RunningAccount(kind, account)
                    await self._begin(self._accounts[key])

    async def config_changed(self, old: Config, new: Config, changed: Sequence[str]) -> None:
        if any(path == "channels" or path.startswith(("channels.", "bindings")) for path in changed):
            await self.apply(new)

    async def stop(self) -> None:
        async with self._changing:
            await asyncio.gather(*(self._stop(running) for running in self._accounts.values()))
            await self._unwant([running.name for running in self._accounts.values()])

    async def _begin(self, running: RunningAccount) -> None:
        """Start an account that this node owns, or register a claim for it."""
        account, status = running.account, running.status
        if not account.enabled or account.problem:
            status.last_error = account.problem if account.enabled else "disabled in the configuration"
            await self._unwant([running.name])
        elif self._claims.owns(running.name):
            self._start(running)
        else:
            status.last_error = ELSEWHERE
            with contextlib.suppress(OSError):  # The claims retry by themselves.
                await self._claims.want(running.name)

    def _start(self, running: RunningAccount) -> None:
        name = f"channel {running.kind.id}/{running.account.id}"
        running.task = asyncio.create_task(self._supervise(running), name=name)

    async def _stop(self, running: RunningAccount) -> None:
        if running.task is not None:
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)
            running.task = None

    # Ownership in a cluster

    async def _unwant(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError, Fenced):
                await self._claims.unwant(name)

    async def _gained(self, name: str) -> None:
        running = self._named(name)
        if running is not None and running.task is None and running.account.enabled and not running.account.problem:
            running.leaving, running.status.last_error = False, None
            self._start(running)

    async def _lost(self, name: str) -> None:
        running = self._named(name)
        if running is not None:
            running.leaving = True
            if self.on_release is not None:
                await self.on_release(running)
            await self._stop(running)
            running.status.last_error = ELSEWHERE

    def _named(self, name: str) -> RunningAccount | None:
        return next((running for running in self._accounts.values() if running.name == name), None)

    def is_ours(self, channel: str, route: Route) -> bool:
        """Return whether this node delivers on a route. The scheduler's node owns routes without a usable account."""
        running = self.find(channel, route.account_id)
        if running is None or not running.account.enabled or running.account.problem:
            return self._claims.owns(SCHEDULER)
        return self._claims.owns(running.name)

    async def owner(self, running: RunningAccount) -> str | None:
        """Return the node that owns the account, or None without an owner or a cluster."""
        return await self._claims.owner(running.name) or None

    async def _supervise(self, running: RunningAccount) -> None:
        """Run the channel, restarting it after a crash, until cancelled or ``NotConfigured``."""
        kind, status, attempt = running.kind, running.status, 0
        log = logging.getLogger(f"openclaw.channels.{kind.id}")
        if (on_claimed := self.on_claimed) is not None:
            await until_written(lambda: on_claimed(running), self._clock.sleep, unknown_tries=FOREVER)
        while True:
            began = self._clock.monotonic()
            status.running, status.last_start_at = True, self._clock.now_ms()
            error = "it stopped unexpectedly"
            try:
                running.channel = kind.open(self._context(running, log))
                await running.channel.run()
            except NotConfigured as problem:
                status.configured, status.last_error = False, str(problem)
                log.error("%s account %s stays off: %s", kind.label, running.account.id, problem)
                return
            except Exception as crash:
                error = f"{type(crash).__name__}: {crash}" if str(crash) else type(crash).__name__
                log.exception("%s account %s crashed", kind.label, running.account.id)
            finally:
                running.channel = None
                status.running = status.connected = False
                status.last_stop_at = self._clock.now_ms()
            attempt = 1 if self._clock.monotonic() - began >= STABLE_S else attempt + 1
            status.last_error = error
            status.restarts += 1
            await self._clock.sleep(RESTART.delay_s(attempt, self._chance))

    def _context(self, running: RunningAccount, log: logging.Logger) -> ChannelContext:
        status, account, channel = running.status, running.account, running.kind.id

        async def receive(inbound: Inbound) -> bool | None:
            status.last_inbound_at = self._clock.now_ms()
            return await self._receive(inbound)

        async def nothing(inbound: Inbound) -> None:
            pass

        def connected() -> None:
            status.connected, status.last_connected_at = True, self._clock.now_ms()
            status.reconnect_attempts, status.last_error = 0, None
            self.on_connected()

        def disconnected(error: str) -> None:
            status.connected, status.last_error = False, error
            status.reconnect_attempts += 1
            status.last_disconnect = Disconnect(self._clock.now_ms(), error)

        async def moved(old: str, new: str) -> None:
            if self._moved is not None:
                await self._moved(MovedChat(channel=channel, account_id=account.id, old=old, new=new))

        return ChannelContext(
            channel=channel,
            account=account,
            clock=self._clock,
            state_dir=self._state_dir / channel / account.id,
            blobs=self._blobs,
            documents=self._documents,
            receive=receive,
            admits=self._admits,
            notice=self._notice or nothing,
            edited=self._edited or nothing,
            deleted=self._deleted or nothing,
            moved=moved,
            serve=partial(self.serve, running=running),
            commands=self._commands,
            environ=self._environ,
            connected=connected,
            disconnected=disconnected,
            log=log,
        )

    # Webhooks

    def serve(self, path: str, webhook: Webhook, running: RunningAccount | None = None) -> Callable[[], None]:
        """Route requests below this path to ``webhook`` until the returned function is called."""
        key = f"/{path.strip('/')}"
        if key.split("/")[1] in self._reserved_names() or path_below(key, self._webhooks) is not None:
            raise NotConfigured(f"the path {key} is already in use; set another webhookPath")
        self._webhooks[key] = webhook
        if running is not None:
            self.others.publish_path(key, running.name)

        def end() -> None:
            if self._webhooks.get(key) is webhook:
                del self._webhooks[key]

        return end

    def webhook(self, path: str) -> tuple[Webhook, str] | None:
        """Return the handler of a path on the Gateway's port, and the remainder of the path."""
        if (base := path_below(path, self._webhooks)) is not None:
            return self._webhooks[base], path[len(base) :].strip("/")
        return self.others.webhook_at(path)

    def own_webhook(self, base: str) -> Webhook | None:
        """Return this node's handler of exactly this path."""
        return self._webhooks.get(base)

    # Sending

    def find(self, channel: str, account_id: str | None) -> RunningAccount | None:
        """Return the named account of a channel, or its default account."""
        if account_id:
            return self._accounts.get((channel, normalize_account_id(account_id)))
        kind = self.kinds.get(channel)
        return self._accounts.get((channel, kind.default_account(self._config()) if kind else DEFAULT_ACCOUNT))

    def ready(self, channel: str, route: Route) -> bool:
        running = self.find(channel, route.account_id)
        if running is None or running.leaving:
            return False
        return running.channel is not None and running.status.connected

    def idempotent(self, channel: str) -> bool:
        kind = self.kinds.get(channel)
        return kind is not None and kind.capabilities.idempotent

    async def answers(self, channel: str, route: Route) -> bool:
        running = self.find(channel, route.account_id)
        return running is not None and bool((await self.probe(running, ANSWER_S)).get("ok"))

    def _elsewhere(self, running: RunningAccount, here: bool) -> RemoteAccounts | None:
        """Return the other nodes' accounts if another node owns this one, unless ``here`` forces a local call."""
        return None if here or running.channel is not None or self._claims.owns(running.name) else self.others

    async def send(
        self, channel: str, route: Route, message: OutgoingMessage, key: str, *, here: bool = False
    ) -> SendReceipt:
        account_id = route.account_id
        running = self.find(channel, account_id)
        if running is None:
            account = f" account {account_id}" if account_id else ""
            raise SendFailed(f"{channel}{account} is not configured (channels.{channel})", reached=False)
        if (others := self._elsewhere(running, here)) is not None:
            return await others.act(running, route, message, key)
        if running.channel is None:
            raise SendFailed(f"{channel} is not running: {running.status.last_error or 'starting'}", reached=False)
        if not route.channel:
            raise SendFailed("the stored route is invalid", permanent=True)
        if message.act == "send" and not message.text.strip() and not message.media:
            raise SendFailed("the message is empty", permanent=True)
        if message.possibly_duplicate and message.act == "send":
            message = msgspec.structs.replace(message, text=f"{REPEAT_MARK} {message.text}".strip())
        try:
            receipt = await running.channel.send(route, message, key)
        except SendFailed:
            raise
        except Exception as error:
            logging.getLogger(f"openclaw.channels.{channel}").exception("sending failed unexpectedly")
            raise SendFailed(f"{type(error).__name__}: {error}", maybe_sent=True) from error
        running.status.last_outbound_at = self._clock.now_ms()
        return receipt

    async def typing(self, channel: str, route: Route, on: bool, *, here: bool = False) -> None:
        """Show or clear the typing indicator. Failures are only logged."""
        running = self.find(channel, route.account_id)
        if running is None or not running.kind.capabilities.typing:
            return
        if (others := self._elsewhere(running, here)) is not None:
            with contextlib.suppress(OSError, Fenced):
                await others.typing(running, route, on)
        if (live := running.channel) is not None:
            await self._best_effort(channel, "typing indicator", lambda: live.typing(route, on))

    async def draft(self, channel: str, route: Route, draft_id: int, text: str, *, here: bool = False) -> bool:
        """Show an unfinished reply. Returns False if it was not shown."""
        running = self.find(channel, route.account_id)
        if running is None or not running.kind.capabilities.drafts:
            return False
        if (others := self._elsewhere(running, here)) is not None:
            with contextlib.suppress(OSError, Fenced):
                return await others.draft(running, route, draft_id, text)
        if running.channel is None:
            return False
        drafting = cast("DraftChannel", running.channel)
        return await self._best_effort(channel, "draft", lambda: drafting.draft(route, draft_id, text))

    async def _best_effort(self, channel: str, what: str, action: Callable[[], Awaitable[None]]) -> bool:
        """Run an action whose failure is only logged. Returns whether it succeeded."""
        log = logging.getLogger(f"openclaw.channels.{channel}")
        try:
            await action()
        except SendFailed as failure:
            log.debug("%s: %s", what, failure)
            return False
        except Exception:
            log.exception("the %s failed", what)
            return False
        return True

    # State

    def accounts(self, channel: str | None = None) -> list[RunningAccount]:
        return [running for (name, _), running in self._accounts.items() if channel in (None, name)]

    async def probe(self, running: RunningAccount, timeout_s: float) -> Mapping[str, object]:
        if running.channel is None:
            return {"ok": False, "error": running.status.last_error or "not running"}
        try:
            async with asyncio.timeout(timeout_s):
                return await running.channel.probe()
        except TimeoutError:
            return {"ok": False, "error": f"no answer within {timeout_s:g} s"}
        except SendFailed as failure:
            return {"ok": False, "error": str(failure)}
        except Exception as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def path_below(path: str, bases: Iterable[str]) -> str | None:
    """Return the base that equals or contains the path."""
    return next((base for base in bases if path == base or path.startswith(f"{base}/")), None)
