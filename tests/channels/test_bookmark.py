"""Bookmarks after a power cut: the copy stands in for a damaged one, and nothing that is no id reaches a platform."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw.channels.base import is_number
from openclaw.channels.bookmark import COPY_EVERY_S, Bookmark, BookmarkFile
from openclaw.channels.discord.channel import is_saved_state
from openclaw.clock import SystemClock
from openclaw.storage.disk_errors import Repairs

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda data: bytes(len(data)),
    "a page of zeros": lambda data: bytes(4096),
    "zeros at the end": lambda data: data[:3].ljust(len(data), b"\0"),
    "empty": lambda data: b"",
    "other bytes": lambda data: b"\xff\xfe\x01" + data,
    "gone": lambda data: b"",
}


async def moved(path: Path, *ids: str) -> None:
    bookmark = Bookmark(BookmarkFile(path, Repairs()), SystemClock())
    await bookmark.load()
    for event_id in ids:
        bookmark.move_to(event_id)
        await bookmark.close()


def age(path: Path, seconds: float) -> None:
    moment = path.stat().st_mtime - seconds
    os.utime(path, (moment, moment))


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("ids", [["1700-1"], ["1700-1", "1700-2", "1700-3"]])
async def test_a_damaged_bookmark_comes_from_its_copy_and_the_owner_is_told(
    tmp_path: Path, ids: list[str], damage: str
) -> None:
    path, repairs = tmp_path / "last-event", Repairs()
    await moved(path, *ids)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    bookmark = Bookmark(BookmarkFile(path, repairs), SystemClock())
    await bookmark.load()
    assert bookmark.last_id in ids and bookmark.moved_at_ms is not None
    (note,) = repairs.take()
    assert "last-event.bak" in note
    bookmark.move_to("1700-9")
    await bookmark.close()
    assert path.read_text() == "1700-9"


async def test_the_copy_is_another_file_and_follows_from_time_to_time(tmp_path: Path) -> None:
    path, copy = tmp_path / "last-event", tmp_path / "last-event.bak"
    await moved(path, "1", "2")
    assert (path.read_text(), copy.read_text()) == ("2", "1")
    age(copy, COPY_EVERY_S + 1)
    await moved(path, "3")
    assert (path.read_text(), copy.read_text()) == ("3", "2")
    assert not path.samefile(copy)
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}


async def test_a_damaged_bookmark_without_a_copy_begins_anew(tmp_path: Path) -> None:
    path, repairs = tmp_path / "last-event", Repairs()
    path.write_bytes(bytes(20))
    bookmark = Bookmark(BookmarkFile(path, repairs), SystemClock())
    await bookmark.load()
    assert (bookmark.last_id, bookmark.moved_at_ms) == ("", None)
    assert "damaged" in repairs.take()[0]


@pytest.mark.parametrize(
    ("is_id", "right", "wrong"), [(is_number, "17", "17x"), (is_saved_state, '{"channels":{"1":"2"}}', '{"channels"')]
)
async def test_a_bookmark_that_is_none_of_its_platform_gives_way_to_the_copy(
    tmp_path: Path, is_id: Callable[[str], bool], right: str, wrong: str
) -> None:
    path = tmp_path / "session"
    await moved(path, right)
    path.write_text(wrong)
    bookmark = Bookmark(BookmarkFile(path, Repairs()), SystemClock(), is_id=is_id)
    await bookmark.load()
    assert bookmark.last_id == right
    bookmark.move_to(wrong)
    assert bookmark.last_id == right
