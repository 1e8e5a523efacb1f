"""The list of who is connected."""

import asyncio
from pathlib import Path

from openclaw.gateway.presence import MAX_PRESENT, Presence
from tests.gateway.support import Running, running_gateway
from tests.support.clock import HeldClock

ANNOUNCEMENT = "Node: studio (10.0.0.5) · app 2026.2.9 · last input 12s ago · mode remote · reason periodic"


def hosts(presence: Presence) -> list[str]:
    return [entry["host"] for entry in presence.listing() if entry.get("reason") != "self"]


def test_entries_fade_after_five_minutes_unless_their_client_is_still_there() -> None:
    clock = HeldClock()
    presence = Presence(clock)
    presence.connect("here", {"host": "here"})
    presence.upsert("gone", {"host": "gone"})
    clock.advance(301)
    assert hosts(presence) == ["here"]
    presence.disconnect("here")
    assert presence.listing()[-1]["reason"] in ("disconnect", "self")
    clock.advance(301)
    assert hosts(presence) == []


def test_the_gateway_itself_is_always_listed_and_fresh() -> None:
    clock = HeldClock()
    presence = Presence(clock)
    clock.advance(10_000)
    own = presence.listing()[0]
    assert (own["mode"], own["reason"], own["ts"]) == ("gateway", "self", clock.now_ms())


def test_keys_are_not_case_sensitive_and_versions_grow() -> None:
    presence = Presence(HeldClock())
    presence.upsert("ABC", {"host": "a"})
    presence.upsert("abc", {"host": "b"})
    assert hosts(presence) == ["b"]
    assert presence.version == 3


def test_a_device_with_two_connections_leaves_when_the_last_one_does() -> None:
    presence = Presence(HeldClock())
    presence.connect("d", {"host": "d"})
    presence.connect("d", {"host": "d"})
    presence.disconnect("d")
    assert [entry["reason"] for entry in presence.listing() if entry["host"] == "d"] == ["connect"]
    presence.disconnect("d")
    assert [entry["reason"] for entry in presence.listing() if entry["host"] == "d"] == ["disconnect"]


def test_the_list_is_bounded() -> None:
    presence = Presence(HeldClock())
    for number in range(MAX_PRESENT + 20):
        presence.upsert(str(number), {"host": str(number)})
    assert len(hosts(presence)) == MAX_PRESENT
    assert "0" not in hosts(presence)


def test_a_machine_announces_itself_with_a_line() -> None:
    presence = Presence(HeldClock())
    assert presence.announce(ANNOUNCEMENT, {"platform": "darwin"})
    entry = next(entry for entry in presence.listing() if entry["host"] == "studio")
    assert (entry["ip"], entry["mode"], entry["lastInputSeconds"], entry["platform"]) == (
        "10.0.0.5",
        "remote",
        12,
        "darwin",
    )
    assert not presence.announce("just a note", {})


async def test_presence_is_told_when_clients_come_and_go(running: Running) -> None:
    async with running.client() as watcher:
        async with running.client(client_id="webchat", mode="ui"):
            told = await watcher.until(
                lambda frame: (
                    frame.get("event") == "presence"
                    and any(entry["host"] == "webchat" for entry in frame["payload"]["presence"])
                )
            )
            assert told["stateVersion"]["presence"] > 1
        await watcher.until(
            lambda frame: (
                frame.get("event") == "presence"
                and any(entry.get("reason") == "disconnect" for entry in frame["payload"]["presence"])
            )
        )


async def test_command_line_clients_are_not_listed(running: Running) -> None:
    async with running.client(client_id="cli", mode="cli") as socket:
        listing = (await socket.call("system-presence"))["payload"]
        assert [entry["mode"] for entry in listing] == ["gateway"]


async def test_a_system_event_is_presence_or_a_note_for_the_main_session(running: Running) -> None:
    async with running.client() as socket:
        assert (await socket.call("system-event", {"text": ANNOUNCEMENT}))["payload"] == {"ok": True}
        assert (await socket.call("system-event", {"text": "the kettle boils"}))["payload"] == {"ok": True}
        assert (await socket.call("system-event", {"text": "  "}))["error"]["message"] == "text required"
        assert (await socket.call("status"))["payload"]["queuedSystemEvents"] == ["the kettle boils"]
        assert "studio" in [entry["host"] for entry in (await socket.call("system-presence"))["payload"]]
        assert (await socket.call("last-heartbeat"))["payload"] is None


async def test_health_is_computed_once_for_clients_that_connect_together(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, clock=HeldClock()) as running:
        before = running.gateway.health.version
        await asyncio.gather(*(running.gateway.health.refresh() for _ in range(20)))
        assert running.gateway.health.version == before + 1
