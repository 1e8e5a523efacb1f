"""sessions.json and its journal cut, flipped and padded at every byte: what was acknowledged is there all the same."""

import random
import shutil
from pathlib import Path

import pytest

from openclaw.storage.files import disk, store_file
from openclaw.storage.files.session_store import FileSessionStore
from tests.storage.still_clock import StillClock

FOLDER = Path("agents/main/sessions")
NAMES = ["agent:main:one", "agent:main:two", "agent:main:três"]


OLD = "agent:main:old"
"""In both snapshots, and in no journal since."""


@pytest.fixture
async def sound(tmp_path: Path) -> Path:
    """A folder with two snapshots' worth of history: the snapshot, the one before, and changes after both."""
    kept = tmp_path / "kept"
    for life in range(3):
        store = await FileSessionStore.open(str(tmp_path / "sound"), clock=StillClock(), agent_ids=["main"])
        for name in NAMES if life else [OLD, *NAMES]:
            entry = {"sessionId": f"{name[-3:]}{life}", "updatedAt": 1_794_766_939_494 + life}
            await store.update("main", name, lambda e, new=entry: new)
        if life == 2:
            shutil.copytree(tmp_path / "sound" / FOLDER, kept)
        await store.close()
    return kept


EXPECTED = {OLD: "old0", **{name: f"{name[-3:]}2" for name in NAMES}}


class Damage:
    """The folder again and again with one file changed, and what is read from it."""

    def __init__(self, sound: Path, name: str) -> None:
        self.sound, self.name = sound, name
        self.whole = (sound / name).read_bytes()
        self._case = sound.with_name("case")

    def recovered(self, data: bytes) -> dict[str, str]:
        shutil.rmtree(self._case, ignore_errors=True)
        shutil.copytree(self.sound, self._case)
        (self._case / self.name).write_bytes(data)
        found = store_file.Journal(self._case / "sessions.json", disk.Disk()).recover(StillClock()).values
        return {key: value.get("sessionId") for key, value in found.items() if isinstance(value, dict)}

    def aside(self) -> list[bytes]:
        return [path.read_bytes() for path in self._case.glob("sessions.json.corrupt-*")]


def test_the_folder_is_as_described(sound: Path) -> None:
    assert {path.name for path in sound.iterdir()} >= {"sessions.json", "sessions.json.bak", "sessions.journal"}
    assert Damage(sound, "sessions.json").recovered((sound / "sessions.json").read_bytes()) == EXPECTED


def test_sessions_json_cut_at_every_byte_loses_nothing_and_is_kept_aside(sound: Path) -> None:
    damage = Damage(sound, "sessions.json")
    for cut in range(len(damage.whole)):
        assert damage.recovered(damage.whole[:cut]) == EXPECTED, f"cut at {cut}"
        assert damage.aside() in ([], [damage.whole[:cut]])


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 4096, b"\0" * 7 + b"\n", b"}", b"garbage"])
def test_a_tail_that_does_not_belong_to_sessions_json_loses_nothing(sound: Path, tail: bytes) -> None:
    damage = Damage(sound, "sessions.json")
    assert damage.recovered(damage.whole + tail) == EXPECTED


def test_a_sessions_json_of_nothing_but_nuls_loses_nothing(sound: Path) -> None:
    damage = Damage(sound, "sessions.json")
    assert damage.recovered(b"\0" * len(damage.whole)) == EXPECTED


def test_a_byte_flipped_anywhere_in_sessions_json_costs_at_most_the_entry_it_hit(sound: Path) -> None:
    damage, chance = Damage(sound, "sessions.json"), random.Random(3)
    for place in range(len(damage.whole)):
        data = bytearray(damage.whole)
        data[place] ^= 1 << chance.randrange(8)
        found = damage.recovered(bytes(data))
        # What can still be read may have been changed by hand: a letter of a key or a value makes another one.
        assert {key: found.get(key) for key in NAMES} == {key: EXPECTED[key] for key in NAMES}, f"byte {place}"
        assert len(found) <= len(EXPECTED) + 1, f"byte {place}"


def test_a_byte_flipped_anywhere_in_the_journal_costs_at_most_the_lines_it_touched(sound: Path) -> None:
    damage, chance = Damage(sound, "sessions.journal"), random.Random(4)
    before = {name: f"{name[-3:]}1" for name in NAMES}
    for place in range(len(damage.whole)):
        data = bytearray(damage.whole)
        data[place] ^= 1 << chance.randrange(8)
        found = damage.recovered(bytes(data))
        touched = [name for name in NAMES if found.get(name) != EXPECTED[name]]
        assert len(touched) <= 2, f"byte {place}"
        ours = {name: found[name] for name in touched if found.get(name) == before[name]}
        changed = [name for name in touched if name not in ours]
        assert len(changed) <= 1, f"byte {place}: {found}"


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 4096, b"\0" * 7 + b"\n", b'[99,"agent:ma', b"garbage\n"])
def test_a_tail_that_does_not_belong_to_the_journal_loses_nothing(sound: Path, tail: bytes) -> None:
    damage = Damage(sound, "sessions.journal")
    assert damage.recovered(damage.whole + tail) == EXPECTED
