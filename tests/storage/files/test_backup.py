"""Backups: of a folder that is being written, kept small, checked, encrypted, and restored elsewhere."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from openclaw.storage.files.backup import PIECE, BackupError, BackupFolder
from openclaw.storage.files.restore import Restored, Settled, restore
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import model_config
from tests.support.model_server import ModelServer


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    sessions = folder / "agents" / "main" / "sessions"
    sessions.mkdir(parents=True)
    (folder / "openclaw.json").write_text("{}")
    (folder / "openclaw.json").chmod(0o600)
    (sessions / "s1.jsonl").write_bytes(os.urandom(PIECE * 2 + 1000))
    (folder / "logs").mkdir()
    (folder / "logs" / "x.log").write_text("not kept")
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def pieces(folder: BackupFolder) -> list[Path]:
    return sorted((folder.folder / "pieces").iterdir())


def test_a_restored_folder_is_the_same_and_private(state: Path, tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path / "backups", create=True)
    backup, _ = folder.create(state, "1")
    assert folder.verify(backup) == []
    elsewhere = tmp_path / "another" / "home"
    assert restore(BackupFolder(tmp_path / "backups"), backup, elsewhere) == Restored(None, Settled())
    kept = {name: data for name, data in content(state).items() if not name.startswith(("logs", "link"))}
    assert content(elsewhere) == kept
    assert (elsewhere.stat().st_mode & 0o777, (elsewhere / "openclaw.json").stat().st_mode & 0o777) == (0o700, 0o600)
    assert {path.stat().st_mode & 0o777 for path in elsewhere.rglob("*") if path.is_dir()} == {0o700}


def test_a_folder_that_cannot_be_read_is_named(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For root no folder is closed, so the refusal is made here.
    real = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("sessions"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    backup, _ = BackupFolder(tmp_path / "backups", create=True).create(state, "1")
    assert backup.skipped == ["agents/main/sessions: Permission denied"]


@pytest.mark.parametrize("name", ["agents/ben", "openclaw.json", "cron"])
def test_a_part_of_the_state_behind_a_link_is_named(state: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    if name == "openclaw.json":
        (state / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    (state / name).symlink_to(elsewhere)
    backup, _ = BackupFolder(tmp_path / "backups", create=True).create(state, "1")
    assert [line.partition(":")[0] for line in backup.skipped] == [name]


def test_a_store_that_is_written_for_the_first_time_meanwhile_is_whole(state: Path, tmp_path: Path) -> None:
    """When the backup begins there is only the journal. It goes into ``sessions.json`` before it is copied."""
    sessions = state / "agents" / "main" / "sessions"
    (sessions / "sessions.journal").write_text("a change")

    def fold(*_: object) -> None:
        if not (sessions / "sessions.json").exists():
            (sessions / "sessions.journal").unlink()
            (sessions / "sessions.json").write_text("the change")
            (sessions / "sessions.journal").touch()

    folder = BackupFolder(tmp_path / "backups", create=True)
    backup, _ = folder.create(state, "1", fold)
    restore(folder, backup, tmp_path / "other")
    assert content(tmp_path / "other")["agents/main/sessions/sessions.json"] == b"the change"


def test_a_second_backup_stores_only_what_was_added(state: Path, tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path / "backups", create=True)
    folder.create(state, "1")
    before = len(pieces(folder))
    with (state / "agents" / "main" / "sessions" / "s1.jsonl").open("ab") as file:
        file.write(b"one more line\n")
    second, added = folder.create(state, "1")
    assert len(pieces(folder)) == before + 1 and added < 10_000
    assert [one.id for one in folder.list()][-1] == second.id


@pytest.mark.parametrize("damage", ["flip", "missing", "cut"])
def test_damage_is_found_and_never_restored(state: Path, tmp_path: Path, damage: str) -> None:
    folder = BackupFolder(tmp_path / "backups", create=True)
    backup, _ = folder.create(state, "1")
    piece = max(pieces(folder), key=lambda path: path.stat().st_size)
    data = piece.read_bytes()
    if damage == "missing":
        piece.unlink()
    else:
        piece.write_bytes(data[: len(data) // 2] + (b"" if damage == "cut" else b"\0\1" + data[len(data) // 2 + 2 :]))
    assert [problem.partition(":")[0] for problem in folder.verify(backup)] == ["agents/main/sessions/s1.jsonl"]
    before = content(state)
    with pytest.raises(BackupError, match="Nothing was changed"):
        restore(folder, backup, state)
    assert content(state) == before


def test_an_encrypted_backup_tells_nothing_without_its_passphrase(state: Path, tmp_path: Path) -> None:
    (state / "openclaw.json").write_text('{ token: "CANARY-CANARY-CANARY" }')
    folder = BackupFolder(tmp_path / "backups", "correct horse", create=True)
    backup, _ = folder.create(state, "1")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "backups").rglob("*") if path.is_file())
    assert b"CANARY" not in stored and b"openclaw.json" not in stored
    for wrong, words in (("", "encrypted"), ("wrong horse", "wrong")):
        with pytest.raises(BackupError, match=words):
            BackupFolder(tmp_path / "backups", wrong)
    restore(BackupFolder(tmp_path / "backups", "correct horse"), backup, tmp_path / "new")
    assert "CANARY" in (tmp_path / "new" / "openclaw.json").read_text()


def test_a_backup_in_place_of_the_encrypted_ones_is_noticed(state: Path, tmp_path: Path) -> None:
    BackupFolder(tmp_path / "backups", create=True).create(state, "1")
    with pytest.raises(BackupError, match="not encrypted"):
        BackupFolder(tmp_path / "backups", "correct horse")


ATTACKS: dict[str, dict[str, Any]] = {
    "above": {"path": "../outside"},
    "absolute": {"path": "/tmp/outside"},
    "itself": {"path": "."},
    "zero byte": {"path": "a\0b"},
    "a file as a folder": {"path": "openclaw.json/inside"},
    "twice": {"path": "openclaw.json"},
    "a piece elsewhere": {"pieces": ["../../../../../../../dev/zero"]},
    "a bomb": {"pieces": [hashlib.sha256(bytes(10)).hexdigest()]},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_backup_changes_nothing(state: Path, tmp_path: Path, attack: str) -> None:
    folder = BackupFolder(tmp_path / "backups", create=True)
    backup, _ = folder.create(state, "1")
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(PIECE * 64 + 1))
    (folder.folder / "pieces" / hashlib.sha256(bytes(10)).hexdigest()).write_bytes(bomb)
    known = next(file for file in backup.files if file.path == "openclaw.json")
    evil = msgspec.structs.replace(known, **{"path": "evil", **ATTACKS[attack]})
    hostile = msgspec.structs.replace(backup, files=[known, evil])
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(BackupError, match="Nothing was changed"):
        restore(folder, hostile, tmp_path / "new")
    assert sorted(path for path in tmp_path.rglob("*")) == before, "nothing is left behind either"


def test_a_backup_does_not_decide_who_may_read(state: Path, tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path / "backups", create=True)
    backup, _ = folder.create(state, "1")
    wide = [msgspec.structs.replace(file, mode=0o6777) for file in backup.files]
    restore(folder, msgspec.structs.replace(backup, files=wide), tmp_path / "new")
    restored = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o7777 for path in restored} == {0o700}


def test_what_could_not_be_stored_is_reported_by_the_exit_codes(state: Path, tmp_path: Path) -> None:
    store = {"agent:main:main": {"sessionId": "lost", "systemSent": True}}
    (state / "agents" / "main" / "sessions" / "sessions.json").write_text(json.dumps(store))
    (tmp_path / "store.json").write_text("{}")
    (state / "openclaw.json").write_text(json.dumps({"session": {"store": str(tmp_path / "store.json")}}))
    env = {**os.environ, "OPENCLAW_STATE_DIR": str(state), "HOME": str(tmp_path), "OPENCLAW_BACKUP_PASSPHRASE": ""}

    def command(*words: str) -> tuple[int, dict[str, Any]]:
        run = [sys.executable, "-m", "openclaw", "backup", *words, "--to", str(tmp_path / "backups"), "--json"]
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, json.loads(done.stdout)

    code, made = command("create")
    assert code == 1
    assert [line.partition(": ")[0] for line in made["skipped"]] == [
        "session agent:main:main",
        str(tmp_path / "store.json"),
    ]
    code, checked = command("verify")
    assert code == 1 and "lost.jsonl is missing" in checked["problems"][0]


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


async def test_a_backup_of_a_busy_gateway_is_whole_and_goes_on_elsewhere(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    env = {"OPENCLAW_BACKUP_PASSPHRASE": ""}

    def command(gateway: ForkedGateway, *words: str) -> dict[str, object]:
        run = [sys.executable, "-m", "openclaw", "backup", *words, "--to", str(tmp_path / "backups"), "--json"]
        done = subprocess.run(run, env=gateway.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    async with ForkedGateway(tmp_path / "state", config, env) as gateway, gateway.client() as client:
        for number in range(5):
            await client.chat(f"before {number} [[reply:answer {number}]]")
        talking = [asyncio.create_task(client.chat(f"meanwhile {n}", session_key=f"s{n}")) for n in range(20)]
        made = await asyncio.to_thread(command, gateway, "create")
        await asyncio.gather(*talking)
    assert made["skipped"] == []
    other = ForkedGateway(tmp_path / "other", None, env)
    assert (await asyncio.to_thread(command, other, "verify"))["ok"] is True
    await asyncio.to_thread(command, other, "restore")
    async with other, other.client() as client:
        history = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
        assert [m["role"] for m in history][:10] == ["user", "assistant"] * 5
        rows = (await client.call("messages.list", {"limit": 100}))["messages"]
        assert {row["state"] for row in rows} <= {"answered", "expired"}
        await client.chat("and on we go")
