"""The way back to an earlier session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path

import pytest

from openclaw.runs.session_change import NotResumable, choose, resume
from openclaw.sessions.reset import PreviousSession, ensure_fresh, previous_sessions, rotate

from .stores import AGENT, FileStores, file_stores
from .test_reset import AFTER, BEFORE, FACTS, KEY

LISTED = [PreviousSession(session_id=name) for name in ("aaaa1111", "aaaa2222", "bbbb3333", "12345678")]


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[FileStores]:
    async with file_stores(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, "aaaa1111"),
        ("", "aaaa1111"),
        (1, "aaaa1111"),
        ("3", "bbbb3333"),
        ("BBBB", "bbbb3333"),
        ("aaaa2", "aaaa2222"),
        ("12345678", "12345678"),
        ("1234", "12345678"),
    ],
)
def test_an_earlier_session_is_named_by_number_or_id(wanted: str | int | None, found: str) -> None:
    assert choose(LISTED, wanted).session_id == found


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("0", "There is no earlier session number 0: choose 1 to 4."),
        (5, "There is no earlier session number 5: choose 1 to 4."),
        ("-1", "There is no earlier session number -1: choose 1 to 4."),
        ("aaaa", "Several earlier sessions begin with aaaa: give more of the id."),
        ("bbb", "No earlier session of this chat is called bbb: choose 1 to 4, or an id."),
        ("../x", "No earlier session of this chat is called ../x: choose 1 to 4, or an id."),
    ],
)
def test_a_name_that_means_nothing_is_answered_with_what_would(wanted: str | int, words: str) -> None:
    with pytest.raises(NotResumable) as refused:
        choose(LISTED, wanted)
    assert str(refused.value) == words


async def test_the_old_session_comes_back_with_its_words_and_settings(stores: FileStores) -> None:
    old = await stores.put(KEY, BEFORE, thinkingLevel="high", totalTokens=900, systemSent=True, label="work")
    await stores.say(old, "my name is Ada")
    fresh, _ = await ensure_fresh(stores, AGENT, KEY, FACTS, AFTER, zone=UTC)
    await stores.say(fresh, "good morning")
    rotation = await resume(stores, AGENT, KEY, None, AFTER + 1, zone=UTC)
    back = rotation.new
    assert (back["sessionId"], back.get("thinkingLevel"), back.get("totalTokens")) == (old["sessionId"], "high", 900)
    assert (back.get("label"), back.get("updatedAt"), back.get("systemSent")) == ("work", AFTER + 1, True)
    assert await stores.heard(back) == ["my name is Ada"]
    assert [previous.session_id for previous in previous_sessions(back)] == [fresh["sessionId"]]
    assert rotation.marker_text == (
        "Back in an earlier session (it ended on Sun 18 Jan 2026 at 05:00). /resume returns to the other one."
    )
    assert await stores.markers(back) == [rotation.marker_text]


async def test_a_resumed_session_does_not_expire_at_the_next_message(stores: FileStores) -> None:
    await stores.say(await stores.put(KEY, BEFORE), "hello")
    await ensure_fresh(stores, AGENT, KEY, FACTS, AFTER, zone=UTC)
    back = (await resume(stores, AGENT, KEY, 1, AFTER + 1)).new
    assert await ensure_fresh(stores, AGENT, KEY, FACTS, AFTER + 2, zone=UTC) == (back, None)


async def test_resuming_again_and_again_goes_between_the_two(stores: FileStores) -> None:
    first = await stores.put(KEY, AFTER)
    await stores.say(first, "one")
    second = (await rotate(stores, AGENT, KEY, "new", AFTER)).new
    await stores.say(second, "two")
    for step in range(1, 9):
        rotation = await resume(stores, AGENT, KEY, None, AFTER + step)
        wanted = first if step % 2 else second
        assert rotation.new["sessionId"] == wanted["sessionId"]
        assert len(previous_sessions(rotation.new)) == 1
    assert len(await stores.markers(second)) == 5


async def test_a_session_kept_in_a_file_of_its_own_name_is_found_again(stores: FileStores) -> None:
    path = str(stores.state_dir / "agents/main/sessions/own-name.jsonl")
    old = await stores.put(KEY, AFTER, sessionFile=path)
    await stores.say(old, "hello")
    fresh = (await rotate(stores, AGENT, KEY, "new", AFTER)).new
    assert "sessionFile" not in fresh
    back = (await resume(stores, AGENT, KEY, 1, AFTER)).new
    assert back.get("sessionFile") == path
    assert await stores.heard(back) == ["hello"]


async def test_permissions_of_the_old_session_do_not_come_back(stores: FileStores) -> None:
    await stores.say(await stores.put(KEY, AFTER, elevatedLevel="full", execSecurity="full"), "hello")
    fresh = (await rotate(stores, AGENT, KEY, "new", AFTER)).new
    fresh["execSecurity"] = "deny"
    await stores.sessions.update(AGENT, KEY, lambda _: fresh)
    back = (await resume(stores, AGENT, KEY, 1, AFTER)).new
    assert (back.get("elevatedLevel"), back.get("execSecurity")) == (None, "deny")


async def test_a_session_whose_transcript_is_gone_is_refused_and_nothing_changes(stores: FileStores) -> None:
    old = await stores.put(KEY, AFTER)
    await stores.say(old, "hello")
    fresh = (await rotate(stores, AGENT, KEY, "new", AFTER)).new
    (stores.state_dir / "agents/main/sessions" / f"{old['sessionId']}.jsonl").unlink()
    with pytest.raises(NotResumable, match="gone from the disk"):
        await resume(stores, AGENT, KEY, 1, AFTER)
    assert await stores.sessions.get(AGENT, KEY) == fresh


@pytest.mark.parametrize("known", [False, True])
async def test_a_chat_without_earlier_sessions_says_so(stores: FileStores, known: bool) -> None:
    if known:
        await stores.put(KEY, AFTER)
    with pytest.raises(NotResumable, match="no earlier session here"):
        await resume(stores, AGENT, KEY, None, AFTER)


async def test_sessions_of_another_chat_cannot_be_reached(stores: FileStores) -> None:
    other = await stores.put("agent:main:other", AFTER)
    await stores.say(other, "secret")
    await stores.say(await stores.put(KEY, AFTER), "hello")
    await rotate(stores, AGENT, KEY, "new", AFTER)
    with pytest.raises(NotResumable, match="No earlier session of this chat"):
        await resume(stores, AGENT, KEY, other["sessionId"], AFTER)
