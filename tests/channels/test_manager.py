"""Accounts started, kept running, changed and stopped; one that misbehaves harms nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from openclaw.channels.base import ChannelKinds, NotConfigured, default_account_id
from openclaw.channels.manager import ChannelManager
from openclaw.config.load import parse_config
from openclaw.inbound.message import Inbound, Media
from openclaw.messages import Route
from openclaw.outbound.deliver import Delivery
from openclaw.outbound.reply import OutgoingMessage, SendFailed
from openclaw.storage.files.disk import FileBlobStore, FileDocuments
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.message_ledger import Accept, MessageBody, OutboxPart
from tests.support.clock import HeldClock
from tests.support.loopback_channel import Loopback, everybody


class SleepyClock(HeldClock):
    """Tells when somebody goes to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.naps: list[float] = []
        self._asleep = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self._asleep.set()
        await super().sleep(seconds)

    async def until_nap(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.naps) < count:
                self._asleep.clear()
                await self._asleep.wait()


def config(channels: dict[str, Any], **more: Any) -> Any:
    loaded = parse_config("openclaw.json", json.dumps({"channels": channels, **more}), {})
    assert loaded.valid, loaded.issues
    return loaded.config


class Stage:
    def __init__(self, state: Path) -> None:
        self.world = Loopback()
        self.clock = SleepyClock()
        self.config = config({"loopback": {}})
        self.received: list[Inbound] = []
        self.channels = ChannelManager(
            kinds=ChannelKinds({}, {self.world.id: self.world}),
            config=lambda: self.config,
            clock=self.clock,
            state_dir=str(state),
            documents=FileDocuments(state),
            blobs=FileBlobStore(str(state)),
            receive=self.receive,
            admits=everybody,
            chance=lambda: 0.0,
        )

    async def receive(self, inbound: Inbound) -> None:
        self.received.append(inbound)

    async def start(self, *accounts: str) -> None:
        await self.channels.start()
        await self.world.until(lambda: set(self.world.lives) == set(accounts or ("default",)))

    async def reconfigure(self, channels: dict[str, Any]) -> None:
        old, self.config = self.config, config(channels)
        await self.channels.config_changed(old, self.config, ["channels.loopback"])


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    yield made
    await made.channels.stop()


async def test_a_configured_channel_runs_and_hands_messages_in(stage: Stage) -> None:
    await stage.start()
    await stage.world.say("hello", media=(Media(mime_type="image/png", blob="ab"),))
    await stage.world.say("hi all", group="g1", mentioned=True)
    assert [(m.text, m.peer.kind, len(m.media)) for m in stage.received] == [
        ("hello", "direct", 1),
        ("hi all", "group", 0),
    ]
    (account,) = stage.channels.accounts()
    view = account.status.view()
    assert (view["running"], view["connected"], view["accountId"]) == (True, True, "default")
    assert view["lastInboundAt"] == stage.clock.now_ms()


async def test_a_channel_may_redeliver_in_any_order(stage: Stage) -> None:
    await stage.start()
    await stage.world.say("one")
    await stage.world.say("two")
    await stage.world.redeliver(newest_first=True)
    assert [inbound.message_id for inbound in stage.received] == ["m1", "m2", "m2", "m1"]


async def test_a_crashed_channel_is_started_again_with_growing_pauses(stage: Stage) -> None:
    stage.world.crashes = [RuntimeError("boom"), RuntimeError("boom again"), ValueError()]
    await stage.channels.start()
    for number, pause in enumerate((1.0, 2.0, 4.0), 1):
        await stage.clock.until_nap(number)
        assert stage.clock.naps[-1] == pause
        stage.clock.advance(pause)
    await stage.world.until(lambda: bool(stage.world.lives))
    (account,) = stage.channels.accounts()
    assert (account.status.restarts, account.status.connected, account.status.last_error) == (3, True, None)


async def test_a_channel_that_cannot_work_as_configured_is_not_tried_again(stage: Stage) -> None:
    stage.world.crashes = [NotConfigured("set channels.loopback.password")]
    await stage.channels.start()
    (account,) = stage.channels.accounts()
    assert account.task is not None
    await account.task
    assert (account.status.configured, account.status.last_error) == (False, "set channels.loopback.password")
    assert stage.clock.naps == []
    await stage.reconfigure({"loopback": {"password": "x"}})
    await stage.world.until(lambda: bool(stage.world.lives))


async def test_disabled_and_incomplete_accounts_say_why_they_are_off(stage: Stage) -> None:
    stage.config = config({"loopback": {"accounts": {"a": {"enabled": False}, "b": {"password": ""}, "c": {}}}})
    await stage.start("c")
    states = {running.account.id: running.status for running in stage.channels.accounts()}
    assert (states["a"].enabled, states["a"].running, states["a"].last_error) == (
        False,
        False,
        "disabled in the configuration",
    )
    assert (states["b"].configured, states["b"].last_error) == (False, "set a password")
    assert states["c"].running


async def test_only_accounts_that_changed_are_restarted(stage: Stage) -> None:
    stage.config = config({"loopback": {"accounts": {"a": {"x": 1}, "b": {"x": 1}}}})
    await stage.start("a", "b")
    kept, replaced = stage.world.lives["a"], stage.world.lives["b"]
    await stage.reconfigure({"loopback": {"accounts": {"a": {"x": 1}, "b": {"x": 2}, "c": {}}}})
    await stage.world.until(lambda: set(stage.world.lives) == {"a", "b", "c"})
    assert stage.world.lives["a"] is kept and stage.world.lives["b"] is not replaced
    await stage.reconfigure({})
    assert stage.world.lives == {} and stage.channels.accounts() == []


async def test_changes_elsewhere_leave_channels_alone(stage: Stage) -> None:
    await stage.start()
    await stage.channels.config_changed(stage.config, config({}), ["agents.defaults.model"])
    assert stage.world.opened == 1 and set(stage.world.lives) == {"default"}


async def test_sends_go_through_the_named_account_else_the_default_one(stage: Stage) -> None:
    stage.config = config({"loopback": {"accounts": {"home": {}, "work": {}}}})
    await stage.start("home", "work")
    for account in ("Work", None):
        await stage.channels.send(
            "loopback", Route(channel="loopback", to="ann", account_id=account), OutgoingMessage(text="x"), "k"
        )
    assert [delivered.account for delivered in stage.world.delivered] == ["work", "home"]


async def test_a_send_that_cannot_be_made_says_so(stage: Stage) -> None:
    await stage.start()
    route = Route(channel="loopback", to="ann")
    with pytest.raises(SendFailed, match=r"channels\.irc"):
        await stage.channels.send("irc", route, OutgoingMessage(text="x"), "k")
    with pytest.raises(SendFailed, match="is invalid") as unreadable:
        await stage.channels.send("loopback", Route(), OutgoingMessage(text="x"), "k")
    assert unreadable.value.permanent
    stage.world.failures = [RuntimeError("a bug")]
    with pytest.raises(SendFailed, match="a bug") as bug:
        await stage.channels.send("loopback", route, OutgoingMessage(text="x"), "k")
    assert bug.value.maybe_sent


async def test_a_channel_that_lost_its_connection_is_not_ready(stage: Stage) -> None:
    await stage.start()
    route = Route(channel="loopback", to="ann")
    assert stage.channels.ready("loopback", route)
    stage.world.disconnect(error="cut")
    assert not stage.channels.ready("loopback", route)
    (account,) = stage.channels.accounts()
    assert (account.status.reconnect_attempts, account.status.last_error) == (1, "cut")
    stage.world.reconnect()
    assert stage.channels.ready("loopback", route)


async def test_the_typing_sign_never_raises(stage: Stage) -> None:
    await stage.start()
    await stage.channels.typing("loopback", Route(channel="loopback", to="ann"), True)
    await stage.channels.typing("irc", Route(channel="irc", to="ann"), True)
    (account,) = stage.channels.accounts()
    with patch.object(account.channel, "typing", side_effect=RuntimeError("a bug")) as broken:
        await stage.channels.typing("loopback", Route(channel="loopback", to="ann"), True)
    assert stage.world.typing == [("ann", True)] and broken.called


async def test_replies_wait_in_the_outbox_while_the_channel_is_away(stage: Stage, tmp_path: Path) -> None:
    ledger = await FileLedger.open(str(tmp_path), clock=stage.clock)
    delivery = Delivery(ledger, stage.channels, stage.clock)
    await stage.start()
    stage.world.disconnect()
    accept = Accept(
        run_id="r1",
        dedupe_key="",
        agent_id="main",
        session_key="agent:main:main",
        session_id="s",
        source="loopback",
        route=Route(channel="loopback", to="loopback:ann"),
        body=MessageBody(),
    )
    await ledger.post(accept, [OutboxPart(part=n, channel="loopback", payload={"text": t}) for n, t in enumerate("ab")])
    await delivery.deliver_due()
    await delivery.drain()
    assert stage.world.delivered == []
    stage.world.reconnect()
    await delivery.deliver_due()
    await delivery.drain()
    assert [(one.to, one.text, one.key) for one in stage.world.delivered] == [
        ("loopback:ann", "a", "r1:0"),
        ("loopback:ann", "b", "r1:1"),
    ]
    await ledger.close()


@pytest.mark.parametrize(
    ("ids", "wanted", "bindings", "default"),
    [
        ([], None, [], "default"),
        (["work", "home"], None, [], "home"),
        (["work", "default"], None, [], "default"),
        (["work", "home"], "Work", [], "work"),
        (["work", "home"], "gone", [], "home"),
        (["a", "b"], None, [{"agentId": "main", "match": {"channel": "signal", "accountId": "b"}}], "b"),
        (["a", "b"], None, [{"agentId": "other", "match": {"channel": "signal", "accountId": "b"}}], "a"),
        (["a", "b"], None, [{"agentId": "main", "match": {"channel": "irc", "accountId": "b"}}], "a"),
    ],
)
def test_the_default_account_is_named_bound_default_or_first(
    ids: list[str], wanted: str | None, bindings: list[Any], default: str
) -> None:
    assert default_account_id(config({}, bindings=bindings), "signal", ids, wanted) == default
