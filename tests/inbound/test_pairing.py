"""Codes for strangers, and the list of those who were let in."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from openclaw.inbound.pairing import CODE_LETTERS, PairingStore, pairing_reply
from openclaw.storage.files.disk import FileDocuments
from tests.storage.still_clock import StillClock

HOUR = 3_600_000


@pytest.fixture
def clock() -> StillClock:
    return StillClock(1_700_000_000_000)


@pytest.fixture
def store(tmp_path: Path, clock: StillClock) -> PairingStore:
    return PairingStore(FileDocuments(tmp_path), clock)


async def code_of(store: PairingStore, sender: str, channel: str = "signal") -> str:
    asked = await store.ask(channel, sender)
    assert asked is not None
    return asked.code


async def test_a_stranger_gets_one_code_and_one_answer(store: PairingStore, clock: StillClock) -> None:
    first = await store.ask("signal", "+1", {"name": " Ana ", "username": None})
    clock.now += 1000
    again = await store.ask("signal", "+1")
    assert first and again and first.new and not again.new
    assert first.code == again.code and len(first.code) == 8 and set(first.code) <= set(CODE_LETTERS)
    [(channel, request)] = await store.pending()
    assert (channel, request.id, request.meta) == ("signal", "+1", {"name": "Ana"})
    assert (request.created_at, request.last_seen_at) == ("2023-11-14T22:13:20.000Z", "2023-11-14T22:13:21.000Z")


async def test_a_fourth_stranger_gets_nothing_until_a_place_is_free(store: PairingStore, clock: StillClock) -> None:
    for sender in ("+1", "+2", "+3"):
        assert await store.ask("signal", sender)
    assert await store.ask("signal", "+4") is None
    assert await store.ask("telegram", "4")
    clock.now += HOUR
    assert await store.ask("signal", "+4")
    assert [request.id for _, request in await store.pending("signal")] == ["+4"]


async def test_a_code_lets_its_sender_in_once_whatever_its_case(store: PairingStore) -> None:
    code = await code_of(store, "+1")
    assert await store.allowed("signal") == frozenset()
    approved = await store.approve(f" {code.lower()} ", "signal")
    assert approved and (approved.channel, approved.id) == ("signal", "+1")
    assert await store.allowed("signal") == {"+1"}
    assert await store.pending() == [] and await store.approve(code) is None


async def test_an_expired_code_opens_nothing(store: PairingStore, clock: StillClock) -> None:
    code = await code_of(store, "+1")
    clock.now += HOUR
    assert await store.approve(code) is None and await store.allowed("signal") == frozenset()


async def test_a_code_is_valid_on_its_own_channel_only(store: PairingStore) -> None:
    code = await code_of(store, "+1")
    assert await store.approve(code, "telegram") is None
    approved = await store.approve(code)
    assert approved and approved.channel == "signal"


async def test_the_files_have_the_known_shape_and_are_private(store: PairingStore, tmp_path: Path) -> None:
    code = await code_of(store, "+1")
    folder = tmp_path / "credentials"
    waiting = json.loads((folder / "signal-pairing.json").read_text())
    assert waiting["version"] == 1 and list(waiting["requests"][0]) == ["id", "code", "createdAt", "lastSeenAt"]
    await store.approve(code)
    assert json.loads((folder / "signal-allowFrom.json").read_text()) == {"version": 1, "allowFrom": ["+1"]}
    assert json.loads((folder / "signal-pairing.json").read_text()) == {"version": 1, "requests": []}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]}
    assert modes.pop("credentials") == 0o700 and set(modes.values()) == {0o600}


async def test_a_hand_edited_list_counts_at_once_but_never_a_star(store: PairingStore, tmp_path: Path) -> None:
    await store.approve(await code_of(store, "+1"))
    path = tmp_path / "credentials" / "signal-allowFrom.json"
    path.write_text('{"version": 1, "allowFrom": ["*", "signal:+2", 5]}')
    assert await store.allowed("signal") == {"+2"}
    path.unlink()
    assert await store.allowed("signal") == frozenset()


@pytest.mark.parametrize("content", ["{", "[]", '{"allowFrom": "*"}', '"*"', ""])
async def test_a_damaged_list_lets_nobody_in(store: PairingStore, tmp_path: Path, content: str) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "signal-allowFrom.json").write_text(content)
    (folder / "signal-pairing.json").write_text(content)
    assert await store.allowed("signal") == frozenset() and await store.pending() == []
    await store.approve(await code_of(store, "+1"))
    assert await store.allowed("signal") == {"+1"}


async def test_a_list_that_cannot_be_read_is_neither_obeyed_nor_overwritten(
    store: PairingStore, tmp_path: Path
) -> None:
    code = await code_of(store, "+1")
    path = tmp_path / "credentials" / "signal-allowFrom.json"
    path.mkdir()
    assert await store.allowed("signal") == frozenset()
    with pytest.raises(OSError):
        await store.approve(code)
    path.rmdir()
    assert await store.approve(code)


@pytest.mark.parametrize("created", ["", "yesterday", None, 12])
async def test_a_request_without_a_readable_time_counts_as_expired(
    store: PairingStore, tmp_path: Path, created: object
) -> None:
    (tmp_path / "credentials").mkdir()
    request = {"id": "+1", "code": "ABCDEFGH", "createdAt": created, "lastSeenAt": "2023-11-14T22:13:20Z"}
    (tmp_path / "credentials" / "signal-pairing.json").write_text(json.dumps({"version": 1, "requests": [request]}))
    assert await store.pending() == [] and await store.approve("ABCDEFGH") is None


async def test_messages_of_one_stranger_at_once_make_one_code_and_one_answer(store: PairingStore) -> None:
    answers = await asyncio.gather(*(store.ask("signal", "+1555") for _ in range(10)))
    assert len({answer.code for answer in answers if answer}) == 1
    assert sum(answer.new for answer in answers if answer) == 1
    assert len(await store.pending("signal")) == 1


async def test_strangers_who_come_together_are_all_counted(store: PairingStore) -> None:
    answers = await asyncio.gather(*(store.ask("signal", f"+{number}") for number in range(10)))
    codes = [answer.code for answer in answers if answer]
    assert len(codes) == len(set(codes)) == 3 == len(await store.pending())


async def test_a_channel_name_cannot_leave_the_folder(store: PairingStore, tmp_path: Path) -> None:
    code = await code_of(store, "1", "../../evil")
    assert [path.parent.name for path in tmp_path.rglob("*-pairing.json")] == ["credentials"]
    approved = await store.approve(code)
    assert approved and approved.channel == "../../evil"


def test_the_answer_says_who_you_are_your_code_and_what_the_owner_types() -> None:
    text = pairing_reply("signal", "+1555", "ABCD2345")
    lines = ["+1555", "Pairing code: ABCD2345", "openclaw pairing approve signal ABCD2345"]
    places = [text.index(line) for line in lines]
    assert places == sorted(places)
