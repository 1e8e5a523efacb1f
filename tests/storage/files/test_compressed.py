"""Old transcripts take less space and open, list and resume as before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw.messages import TextBlock, UserMessage
from openclaw.storage.files import transcript_index
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.transcripts import TranscriptRef
from tests.storage.still_clock import StillClock

REF = TranscriptRef(agent_id="main", session_id="old-one")
LONG_AGO = 1_000_000_000
SOON = (LONG_AGO + 1) * 1000


def store_at(tmp_path: Path) -> FileTranscriptStore:
    return FileTranscriptStore(str(tmp_path), clock=StillClock())


async def say(store: FileTranscriptStore, text: str, ref: TranscriptRef = REF) -> Path:
    transcript = await store.open(ref)
    assert transcript is not None
    await transcript.append({"type": "message", "message": UserMessage(content=[TextBlock(text=text)])})
    await transcript.sync()
    return Path(transcript.path)


async def old_transcript(tmp_path: Path, lines: int = 50) -> tuple[Path, bytes]:
    store = store_at(tmp_path)
    for number in range(lines):
        path = await say(store, f"line {number} " + "word " * 100)
    await store.close()
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path, path.read_bytes()


async def test_an_old_transcript_is_compressed_and_its_end_is_still_read(tmp_path: Path) -> None:
    path, _ = await old_transcript(tmp_path)
    store = store_at(tmp_path)
    before = await store.tail(REF, 3)
    done = await store.compress(["main"], SOON)
    compressed = transcript_index.compressed_name(path)
    assert (done.files, done.problems) == (1, []) and done.bytes_after * 5 < done.bytes_before
    assert not path.exists() and compressed.stat().st_mode & 0o777 == 0o600
    assert await store.tail(REF, 3) == before and len(before) == 3
    assert await store.locate(REF) == str(compressed)
    assert not path.exists(), "looking does not unpack"
    await store.close()


async def test_what_is_left_is_counted_and_compressed_by_the_next_call(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    folder = Path(store.folder("main"))
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.jsonl").write_text("{}\n")
        os.utime(folder / f"{number}.jsonl", (LONG_AGO, LONG_AGO))
    pieces = [await store.compress(["main"], SOON, most=2) for _ in range(3)]
    assert [(piece.files, piece.left) for piece in pieces] == [(2, 3), (2, 1), (1, 0)]


async def test_a_compressed_transcript_goes_on_where_it_ended(tmp_path: Path) -> None:
    path, content = await old_transcript(tmp_path)
    store = store_at(tmp_path)
    await store.compress(["main"], SOON)
    opened = await asyncio.gather(*(store.open(REF, create=False) for _ in range(5)))
    assert opened[0] is not None and all(one is opened[0] for one in opened)
    assert path.read_bytes() == content and not transcript_index.compressed_name(path).exists()
    assert len(opened[0].context().messages) == 50
    await say(store, "and on")
    assert path.read_bytes().startswith(content) and len(opened[0].context().messages) == 51
    await store.close()


async def test_what_is_in_use_or_young_stays_as_it_is(tmp_path: Path) -> None:
    path, _ = await old_transcript(tmp_path)
    store = store_at(tmp_path)
    held = await store.open(REF)
    assert (await store.compress(["main"], SOON)).files == 0
    assert held is not None
    del held
    assert (await store.compress(["main"], (LONG_AGO - 1) * 1000)).files == 0
    assert (await store.compress(["main"], SOON)).files == 1, "once nobody holds it"
    assert not path.exists()
    await store.close()


async def test_opening_while_it_is_being_compressed_waits_and_finds_everything(tmp_path: Path) -> None:
    _, content = await old_transcript(tmp_path)
    store = store_at(tmp_path)
    packing = asyncio.create_task(store.compress(["main"], SOON))
    opened, _ = await asyncio.gather(store.open(REF), packing)
    assert opened is not None and len(opened.context().messages) == 50
    assert Path(opened.path).read_bytes() == content
    await store.close()


async def test_where_a_crash_left_both_forms_the_plain_one_counts(tmp_path: Path) -> None:
    path, content = await old_transcript(tmp_path)
    transcript_index.compress_file(path)
    compressed = transcript_index.compressed_name(path)
    path.write_bytes(content + content.splitlines()[-1].replace(b'"id":"', b'"id":"x') + b"\n")
    os.utime(path, (LONG_AGO, LONG_AGO))
    longer = path.read_bytes()
    store = store_at(tmp_path)
    assert (await store.compress(["main"], SOON)).files == 1
    assert transcript_index.decompress_file(compressed).read_bytes() == longer
    await store.close()


async def test_a_file_written_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content = await old_transcript(tmp_path)
    decompressed_blocks = transcript_index.decompressed_blocks

    def written_meanwhile(compressed: Path) -> Iterator[bytes]:
        with path.open("ab") as file:
            file.write(b"{}\n")
        return decompressed_blocks(compressed)

    monkeypatch.setattr(transcript_index, "decompressed_blocks", written_meanwhile)
    with pytest.raises(transcript_index.ChangedMeanwhile):
        transcript_index.compress_file(path)
    assert path.read_bytes().startswith(content)
    assert [name for name in os.listdir(path.parent) if "zst" in name or "tmp" in name] == []


async def test_a_damaged_compressed_file_says_so_and_is_kept(tmp_path: Path) -> None:
    path, _ = await old_transcript(tmp_path)
    transcript_index.compress_file(path)
    compressed = transcript_index.compressed_name(path)
    compressed.write_bytes(compressed.read_bytes()[:-20])
    kept = compressed.read_bytes()
    store = store_at(tmp_path)
    with pytest.raises(OSError, match="damaged"):
        await store.open(REF)
    assert compressed.read_bytes() == kept and not path.exists()
    await store.close()


async def test_deleting_a_compressed_session_sets_its_file_aside(tmp_path: Path) -> None:
    path, _ = await old_transcript(tmp_path)
    transcript_index.compress_file(path)
    store = store_at(tmp_path)
    (archived,) = await store.archive(REF, "deleted")
    assert ".jsonl.deleted." in archived and archived.endswith(".zst")
    assert await store.locate(REF) is None and Path(archived).exists()
    await store.close()


def test_only_transcripts_and_what_was_set_aside_of_them_are_compressed(tmp_path: Path) -> None:
    names = ["a.jsonl", "a.jsonl.deleted.2026-01-01T00-00-00.000Z", "a.jsonl.zst", "sessions.json", "b.jsonl.1.ab.tmp"]
    names += ["a.jsonl.deleted.2026-01-01T00-00-00.000Z.zst", "sessions.journal"]
    for name in names:
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "sessions.json")
    assert sorted(path.name for path in transcript_index.old_files(tmp_path, SOON)) == names[:2]
