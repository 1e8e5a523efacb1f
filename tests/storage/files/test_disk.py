import asyncio
import os
import stat
import threading

import pytest

from openclaw.storage.files import disk
from openclaw.storage.files.disk import AppendFile, Disk, FileBlobStore, atomic_replace


async def test_waiters_that_come_together_share_one_sync(tmp_path, monkeypatch):
    calls = []
    real = disk._sync_data
    monkeypatch.setattr(disk, "_sync_data", lambda fd: (calls.append(fd), real(fd)))
    shared = Disk()
    file = AppendFile(tmp_path / "f", shared)

    async def write(number):
        file.append(b"%d\n" % number)
        await file.sync()

    await asyncio.gather(*(write(number) for number in range(50)))
    assert 1 <= len(calls) < 25
    calls.clear()
    await file.sync()
    assert calls == []
    await shared.close()


async def test_files_are_synced_beside_each_other(tmp_path, monkeypatch):
    together = threading.Barrier(4, timeout=60)
    monkeypatch.setattr(disk, "_sync_data", lambda fd: together.wait())
    shared = Disk()
    files = [AppendFile(tmp_path / str(number), shared) for number in range(4)]
    for file in files:
        file.append(b"x\n")
    await asyncio.gather(*(file.sync() for file in files))
    assert all(file.is_durable for file in files)
    await shared.close()


async def test_failed_sync_is_told_to_whoever_waits_and_the_thread_goes_on(tmp_path, monkeypatch):
    shared = Disk()
    good, bad = AppendFile(tmp_path / "good", shared), AppendFile(tmp_path / "bad", shared)
    good.append(b"x\n")
    bad.append(b"x\n")
    real = disk._sync_data

    def flaky(fd):
        if fd == bad._fd:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(disk, "_sync_data", flaky)
    results = await asyncio.gather(bad.sync(), good.sync(), return_exceptions=True)
    assert isinstance(results[0], OSError) and results[1] is None
    monkeypatch.undo()
    await bad.sync()
    await shared.close()
    with pytest.raises(RuntimeError, match="closed"):
        bad.append(b"y\n")
        await bad.sync()


async def test_file_given_back_before_its_sync_is_still_synced(tmp_path):
    shared = Disk()
    file = AppendFile(tmp_path / "f", shared)
    file.append(b"x\n")
    file.close()
    await file.sync()
    file.append(b"y\n")
    assert (tmp_path / "f").read_bytes() == b"x\ny\n"
    await shared.close()


@pytest.mark.parametrize("first", ["made early", "written first"])
async def test_file_made_early_is_the_one_that_is_written(tmp_path, first, monkeypatch):
    opened, real = [], os.open
    monkeypatch.setattr(disk.os, "open", lambda *args, **how: opened.append(real(*args, **how)) or opened[-1])
    file = AppendFile(tmp_path / "deep" / "f", Disk())
    if first == "made early":
        file.open_early()
        assert (tmp_path / "deep" / "f").read_bytes() == b""
    file.append(b"x\n")
    if first == "written first":
        file.open_early()
    file.append(b"y\n")
    monkeypatch.undo()
    assert (tmp_path / "deep" / "f").read_bytes() == b"x\ny\n"
    assert stat.S_IMODE((tmp_path / "deep" / "f").stat().st_mode) == 0o600
    for fd in opened[1:]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    file.close()


def test_file_that_cannot_be_made_early_is_told_of_when_it_is_written(tmp_path):
    (tmp_path / "f").mkdir()
    file = AppendFile(tmp_path / "f", Disk())
    file.open_early()
    with pytest.raises(IsADirectoryError):
        file.append(b"x\n")


def test_replacing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "file"
    atomic_replace(path, b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setattr(disk.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        atomic_replace(path, b"two")
    monkeypatch.undo()
    assert path.read_bytes() == b"one"
    assert os.listdir(path.parent) == ["file"]


async def test_blobs_are_stored_once_and_checked_when_read(tmp_path):
    blobs = FileBlobStore(str(tmp_path))
    one, two = await blobs.put(b"data"), await blobs.put(b"data")
    assert one == two and len(list((tmp_path / "blobs").iterdir())) == 1
    assert await blobs.get(one) == b"data"
    assert stat.S_IMODE((tmp_path / "blobs" / one).stat().st_mode) == 0o600
    (tmp_path / "blobs" / one).write_bytes(b"DATA")
    assert await blobs.get(one) is None
    assert await blobs.get("0" * 64) is None
    assert await blobs.get("../../etc/passwd") is None


async def test_files_made_together_share_the_sync_of_their_folder(tmp_path, monkeypatch):
    synced, real = [], disk.sync_dir
    monkeypatch.setattr(disk, "sync_dir", lambda path: (real(path), synced.append(path)))
    shared, folder = Disk(), tmp_path / "made"
    files = [AppendFile(folder / f"{number}.jsonl", shared) for number in range(10)]
    for file in files:
        shared.make(file)
    async with asyncio.timeout(60):
        while not synced:
            await asyncio.sleep(0.001)
    await shared.close()
    monkeypatch.setattr(disk, "sync_dir", synced.append)
    for file in files:
        file.append(b"a line\n")
        assert file.sync_now() is None
    assert synced == [folder], "no file needs a sync of its own"
    files[0].path.unlink()
    files[0].append(b"begun anew\n")
    assert files[0].sync_now() is None
    assert synced == [folder] * 2, "a file that was made again has a new name in the folder"
