import asyncio
import errno
import json
import os
import resource
import stat
import threading
from contextlib import contextmanager

import pytest

from openclaw.storage.disk_errors import Repairs
from openclaw.storage.documents import SharedDocument
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


@contextmanager
def no_larger_than(size):
    """The kernel takes a write up to this size of the file, and refuses the next one with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


LINES = b"".join(b"line %d\n" % number for number in range(10))


@pytest.mark.parametrize("taken", [1, 7, 8, 40, len(LINES) - 1])
def test_an_append_that_the_disk_takes_in_part_leaves_nothing_and_is_not_there_twice_later(tmp_path, taken):
    file = AppendFile(tmp_path / "f", Disk())
    file.append(b"before\n")
    with no_larger_than(7 + taken), pytest.raises(OSError):
        file.append(LINES)
    assert (tmp_path / "f").read_bytes() == b"before\n"
    assert file.append(LINES) == 7
    assert (tmp_path / "f").read_bytes() == b"before\n" + LINES


def test_a_part_that_could_not_be_removed_is_removed_before_the_next_append(tmp_path, monkeypatch):
    file = AppendFile(tmp_path / "f", Disk())
    file.append(b"before\n")

    def refuse(fd, size):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken, no_larger_than(20):
        broken.setattr(disk.os, "ftruncate", refuse)
        for _ in range(2):
            with pytest.raises(OSError):
                file.append(LINES)
    assert (tmp_path / "f").read_bytes() != b"before\n"
    assert file.append(LINES) == 7
    assert (tmp_path / "f").read_bytes() == b"before\n" + LINES


def test_a_part_is_left_alone_once_somebody_else_has_written_after_it(tmp_path, monkeypatch):
    file = AppendFile(tmp_path / "f", Disk())
    file.append(b"before\n")
    with monkeypatch.context() as broken, no_larger_than(20), pytest.raises(OSError):
        broken.setattr(disk.os, "ftruncate", lambda fd, size: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        file.append(LINES)
    with (tmp_path / "f").open("ab") as other:
        other.write(b"\ntheirs\n")
    file.append(b"after\n")
    assert (tmp_path / "f").read_bytes().endswith(b"\ntheirs\nafter\n")


@pytest.mark.parametrize("state", ["open", "closed", "renamed"])
async def test_after_a_failed_sync_the_data_is_written_again(tmp_path, monkeypatch, state):
    """The kernel counts pages that it could not write as clean: the next sync succeeds without them."""
    shared, path = Disk(), tmp_path / "f"
    file = AppendFile(path, shared)
    file.append(b"durable\n")
    await file.sync()
    file.append(b"one\n")
    file.append(b"two\n")

    def lose(fd):
        with path.open("r+b") as pages:
            pages.seek(8)
            pages.write(bytes(8))
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(disk, "_sync_data", lose)
        with pytest.raises(OSError):
            await file.sync()
    assert not file.is_durable
    assert path.read_bytes() == b"durable\n" + bytes(8)
    file.append(b"three\n")
    if state == "closed":
        file.close()
    elif state == "renamed":
        path = path.rename(tmp_path / "older")
        (tmp_path / "f").write_bytes(b"a newer file\n")
    await file.sync()
    assert path.read_bytes() == b"durable\none\ntwo\nthree\n"
    await shared.close()


async def test_a_line_whose_sync_failed_is_not_there_twice(tmp_path, monkeypatch):
    documents = disk.FileDocuments(tmp_path)
    await documents.append("runs/a.jsonl", b"1", most_bytes=1000, most_lines=10)
    with monkeypatch.context() as broken:
        broken.setattr(disk.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError):
            await documents.append("runs/a.jsonl", b"2", most_bytes=1000, most_lines=10)
    with no_larger_than(3), pytest.raises(OSError):
        await documents.append("runs/a.jsonl", b"2", most_bytes=1000, most_lines=10)
    await documents.append("runs/a.jsonl", b"2", most_bytes=1000, most_lines=10)
    assert (tmp_path / "runs/a.jsonl").read_bytes() == b"1\n2\n"


DAMAGE = {
    "zeros": lambda data: bytes(len(data)),
    "zeros at the end": lambda data: data[: len(data) // 2].ljust(len(data), b"\0"),
    "empty": lambda data: b"",
    "only a newline": lambda data: b"\n",
    "cut": lambda data: data[: len(data) // 2],
}


def counted(documents, damaged):
    return SharedDocument(
        documents, "a/count.json", dict, json.loads, lambda v: json.dumps(v).encode(), damaged=damaged
    )


@pytest.mark.parametrize("damaged", ["aside", "drop", "refuse"])
@pytest.mark.parametrize("writes", [1, 3])
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_document_that_a_power_cut_damaged_comes_from_its_backup_copy(tmp_path, damage, writes, damaged):
    path, repairs = tmp_path / "a" / "count.json", Repairs()
    for number in range(writes):
        await counted(disk.FileDocuments(tmp_path), damaged).change(lambda value, n=number: value.update({str(n): n}))
    before = path.read_bytes()
    path.write_bytes(DAMAGE[damage](before))
    documents = disk.FileDocuments(tmp_path, repairs)
    found = counted(documents, damaged)
    assert await found.current() == {str(n): n for n in range(writes)}
    assert path.read_bytes() == before
    (note,) = repairs.take()
    assert "count.json was damaged" in note and "count.json.corrupt" in note
    await found.change(lambda value: value.update(more=1))
    assert (await counted(documents, damaged).current())["more"] == 1
    assert await documents.list("a/") == ["a/count.json", "a/count.json.corrupt"]


@pytest.mark.parametrize(("damaged", "outcome"), [("aside", {}), ("refuse", None), ("drop", {"a": 1})])
async def test_a_backup_copy_does_not_undo_what_a_person_edited(tmp_path, damaged, outcome):
    """Somebody takes a device off the list and forgets a comma: the copy would bring the device back."""
    await counted(disk.FileDocuments(tmp_path), damaged).change(lambda value: value.update(a=1))
    (tmp_path / "a" / "count.json").write_bytes(b'{"b": 2,,}')
    found = counted(disk.FileDocuments(tmp_path), damaged)
    if outcome is None:
        with pytest.raises(ValueError):
            await found.current()
    else:
        assert await found.current() == outcome


async def test_a_document_that_was_removed_does_not_come_back_from_its_copy(tmp_path):
    documents = disk.FileDocuments(tmp_path)
    await counted(documents, "drop").change(lambda value: value.update(a=1))
    await documents.remove("a/count.json")
    assert list((tmp_path / "a").iterdir()) == []


async def test_a_damaged_document_and_a_damaged_copy_are_no_crash(tmp_path):
    await counted(disk.FileDocuments(tmp_path), "drop").change(lambda value: value.update(a=1))
    for path in (tmp_path / "a").iterdir():
        path.write_bytes(bytes(100))
    assert await counted(disk.FileDocuments(tmp_path), "drop").current() == {}
    assert await counted(disk.FileDocuments(tmp_path), "aside").current() == {}
