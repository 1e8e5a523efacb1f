"""What a run was sent is noted in a few names and rebuilt from the transcript."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.agent import request_log
from openclaw.agent.prompt.report import ReportStore
from openclaw.agent.request_log import (
    LARGEST_INLINE,
    MOST_CALLS,
    NotStored,
    RequestLog,
    calls_of,
    read_record,
    rebuild,
)
from openclaw.messages import AssistantMessage, Message, TextBlock, ToolSpec, UserMessage
from openclaw.models.base import Model, ModelRequest
from openclaw.storage.files.disk import FileBlobStore
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.transcripts import Transcript, TranscriptRef
from tests.storage.still_clock import StillClock

TOOL = ToolSpec(name="read", description="Reads.", parameters={"type": "object"})


def said(text: str) -> UserMessage:
    return UserMessage(content=[TextBlock(text=text)], timestamp=1)


def request(messages: list[Message]) -> ModelRequest:
    model = Model(provider="acme", id="m")
    return ModelRequest(model=model, system="Be kind.", system_suffix="Noon.", messages=messages, tools=[TOOL])


async def transcript_of(store: FileTranscriptStore, count: int) -> Transcript:
    transcript = await store.open(TranscriptRef(agent_id="main", session_id="s"))
    assert transcript is not None
    for number in range(count):
        await transcript.append({"type": "message", "message": said(f"words {number}")})
        await transcript.append({"type": "custom", "customType": "note", "data": {}})
    return transcript


async def recorded(log: RequestLog, blobs: FileBlobStore) -> Any:
    """As the ledger gives it back."""
    return msgspec.json.decode(msgspec.json.encode(await log.record(ReportStore(blobs))))


@pytest.fixture
def store(tmp_path: Path) -> FileTranscriptStore:
    return FileTranscriptStore(str(tmp_path), clock=StillClock())


async def test_an_unchanged_conversation_is_one_span_however_long(store: FileTranscriptStore, tmp_path: Path) -> None:
    transcript, blobs = await transcript_of(store, 300), FileBlobStore(str(tmp_path))
    log, messages = RequestLog(), list(transcript.context().messages)
    log.know(transcript.context())
    log.note(request(messages), 7, shortened=0, pruned=0)
    stored = await recorded(log, blobs)
    assert len(msgspec.json.encode(stored)) < 500
    record = await read_record(stored, blobs)
    assert record is not None
    rebuilt = await rebuild(record, transcript, blobs)
    assert [sent.message for sent in rebuilt.messages] == messages
    assert (rebuilt.system, rebuilt.settings.suffix, rebuilt.tools, rebuilt.missing) == (
        "Be kind.",
        "Noon.",
        [TOOL],
        [],
    )
    await store.close()


async def test_what_was_changed_left_out_or_said_meanwhile_is_rebuilt_as_it_was_sent(
    store: FileTranscriptStore, tmp_path: Path
) -> None:
    transcript, blobs = await transcript_of(store, 6), FileBlobStore(str(tmp_path))
    log, first = RequestLog(), list(transcript.context().messages)
    log.know(transcript.context())
    first[1] = said("words 1, shortened")
    del first[3]
    log.note(request(first), 7, shortened=2, pruned=0)
    late = said("said meanwhile")
    log.name(late, await transcript.append({"type": "message", "message": late}))
    second = [*first, late]
    log.note(request(second), 8, shortened=0, pruned=0)
    record = await read_record(await recorded(log, blobs), blobs)
    assert record is not None
    for number, expected in ((1, first), (2, second)):
        rebuilt = await rebuild(record, transcript, blobs, number)
        assert [sent.message for sent in rebuilt.messages] == expected
        assert not rebuilt.missing
        assert [not sent.entry_id for sent in rebuilt.messages][:2] == [False, True]
    await store.close()


async def test_every_call_of_a_long_run_is_rebuilt_exactly_and_costs_a_few_bytes(
    store: FileTranscriptStore, tmp_path: Path
) -> None:
    """The prompt, the output limit and the messages differ from call to call."""
    transcript, blobs = await transcript_of(store, 3), FileBlobStore(str(tmp_path))
    log, messages = RequestLog(), list(transcript.context().messages)
    messages[0] = said("shortened")
    log.know(transcript.context())
    count = 2 * MOST_CALLS + 10
    sent: list[ModelRequest] = []
    for number in range(count):
        late = said(f"step {number}")
        log.name(late, await transcript.append({"type": "message", "message": late}))
        messages = [*messages, late]
        call = msgspec.structs.replace(request(messages), system_suffix=f"Part {number // 50}.")
        log.note(call, number, shortened=0, pruned=0)
        if number % 60 == 7:
            call = msgspec.structs.replace(call, output_room=number)
            log.limit_output(number)
        if log.is_full:
            await log.persist(ReportStore(blobs))
        sent.append(call)
    stored = await recorded(log, blobs)
    assert len(msgspec.json.encode(stored)) < LARGEST_INLINE
    record = await read_record(stored, blobs)
    assert record is not None and record.count == count
    assert sum(path.stat().st_size for path in (tmp_path / "blobs").rglob("*") if path.is_file()) < 200 * count
    for number in (1, 8, 63, 64, 65, 68, 128, 129, count):
        rebuilt = (await rebuild(record, transcript, blobs, number)).request()
        expected = sent[number - 1]
        assert rebuilt is not None and rebuilt.messages == expected.messages
        assert (rebuilt.system_suffix, rebuilt.output_room) == (expected.system_suffix, expected.output_room)
    with pytest.raises(NotStored, match=f"{count} model calls"):
        await rebuild(record, transcript, blobs, count + 1)
    await store.close()


async def test_a_run_without_end_keeps_its_first_and_last_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "MOST_SEGMENTS", 4)
    blobs, log = FileBlobStore(str(tmp_path)), RequestLog()
    count = 9 * MOST_CALLS + 5
    for number in range(count):
        log.note(request([said(f"in call {number // 40}")]), number, shortened=0, pruned=0)
        if log.is_full:
            await log.persist(ReportStore(blobs))
    record = await read_record(await recorded(log, blobs), blobs)
    assert record is not None and record.count == count and len(record.earlier) == 4
    stored = [number async for number, call in calls_of(record, blobs) if call.at == number - 1]
    assert stored == [*range(1, 2 * MOST_CALLS + 1), *range(8 * MOST_CALLS + 1, count + 1)]
    with pytest.raises(NotStored, match="not stored"):
        await rebuild(record, None, blobs, 5 * MOST_CALLS)


async def test_a_record_of_an_older_version_is_read(tmp_path: Path) -> None:
    calls = [{"at": 1, "parts": []}, {"at": 70, "parts": [], "thinking": "high"}]
    old = {"model": "acme/m", "thinking": "off", "system": "", "calls": calls, "left_out": 68}
    blobs = FileBlobStore(str(tmp_path))
    record = await read_record(old, blobs)
    assert record is not None and record.count == 70
    assert (await rebuild(record, None, blobs, 70)).settings.thinking == "high"
    assert (await rebuild(record, None, blobs, 1)).call.at == 1
    with pytest.raises(NotStored):
        await rebuild(record, None, blobs, 2)


async def test_what_is_gone_is_said_to_be_missing(store: FileTranscriptStore, tmp_path: Path) -> None:
    transcript, blobs = await transcript_of(store, 3), FileBlobStore(str(tmp_path))
    log = RequestLog()
    log.know(transcript.context())
    log.note(request(transcript.context().messages), 7, shortened=0, pruned=0)
    record = await read_record(await recorded(log, blobs), blobs)
    assert record is not None
    rebuilt = await rebuild(record, None, FileBlobStore(str(tmp_path / "empty")))
    assert rebuilt.missing == ["the system prompt", "the tools", "3 messages"]
    await store.close()


@pytest.mark.parametrize("stored", [None, {}, {"model": 5}, {"blob": "0" * 64}, "words"])
async def test_runs_that_were_not_noted_have_no_record(stored: Any, tmp_path: Path) -> None:
    assert await read_record(stored, FileBlobStore(str(tmp_path))) is None


async def test_a_run_that_called_no_model_leaves_no_record(tmp_path: Path) -> None:
    assert await RequestLog().record(ReportStore(FileBlobStore(str(tmp_path)))) is None


@pytest.mark.parametrize("seen", [True, False], ids=["an earlier version sent it", "this version does not"])
async def test_a_notice_between_the_messages_is_rebuilt_only_where_it_was_sent(
    store: FileTranscriptStore, tmp_path: Path, seen: bool
) -> None:
    transcript, blobs = await transcript_of(store, 2), FileBlobStore(str(tmp_path))
    card = AssistantMessage(content=[TextBlock(text="a card")], provider="openclaw", model="gateway-injected")
    await transcript.append({"type": "message", "message": card}, entry_id="say-1")
    await transcript.append({"type": "message", "message": said("words 2")})
    log, context = RequestLog(), transcript.context()
    if seen:
        ids = [*context.entry_ids[:2], "say-1", context.entry_ids[2]]
        context = msgspec.structs.replace(
            context, messages=[*context.messages[:2], card, context.messages[2]], entry_ids=ids
        )
    log.know(context)
    log.note(request(context.messages), 7, shortened=0, pruned=0)
    record = await read_record(await recorded(log, blobs), blobs)
    assert record is not None
    rebuilt = await rebuild(record, transcript, blobs)
    assert not rebuilt.missing
    assert [sent.message for sent in rebuilt.messages] == context.messages
    assert len(context.messages) == (4 if seen else 3)
    await store.close()
