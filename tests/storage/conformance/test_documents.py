"""Small named documents: compare and set, lines, listing, and what two Gateways see of each other."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from openclaw.storage.documents import DocumentChanged, DocumentStore, SharedDocument
from tests.storage.conformance.stores import Stores

PATIENCE_S = 60


def counter(documents: DocumentStore, name: str = "devices/count.json", damaged: str = "aside") -> SharedDocument[dict]:
    def encode(value: dict[str, int]) -> bytes:
        return json.dumps(value).encode()

    return SharedDocument(documents, name, dict, json.loads, encode, damaged=damaged)  # type: ignore[arg-type]


async def test_a_document_is_kept_byte_for_byte(stores: Stores) -> None:
    data = b'{"a": "\xc3\xa4"}\n\x00\xff'
    assert await stores.documents.get("cron/jobs.json") is None
    assert await stores.documents.version("cron/jobs.json") is None
    version = await stores.documents.put("cron/jobs.json", data, None)
    await stores.reopen()
    found = await stores.documents.get("cron/jobs.json")
    assert found is not None and found[:2] == (data, version) and found.at_ms > 1_600_000_000_000
    assert await stores.documents.version("cron/jobs.json") == version


async def test_only_who_has_seen_the_present_version_replaces_it(documents: DocumentStore) -> None:
    first = await documents.put("a.json", b"1", None)
    with pytest.raises(DocumentChanged):
        await documents.put("a.json", b"2", None)
    second = await documents.put("a.json", b"22", first)
    assert second != first
    with pytest.raises(DocumentChanged):
        await documents.put("a.json", b"3", first)
    assert (await documents.get("a.json") or (b"",))[0] == b"22"


async def test_a_document_that_was_removed_is_made_anew(documents: DocumentStore) -> None:
    first = await documents.put("a.json", b"1", None)
    await documents.remove("a.json")
    await documents.remove("a.json")
    assert await documents.get("a.json") is None
    with pytest.raises(DocumentChanged):
        await documents.put("a.json", b"2", first)
    await documents.put("a.json", b"2", None)
    with pytest.raises(DocumentChanged):
        await documents.put("a.json", b"3", first)


async def test_names_are_listed_by_their_beginning_and_in_order(documents: DocumentStore) -> None:
    for name in ("b/2.json", "b/10.json", "b/c/1.json", "bb.json", "a.json"):
        await documents.put(name, b"{}", None)
    assert await documents.list("b/") == ["b/10.json", "b/2.json", "b/c/1.json"]
    assert await documents.list("b/1") == ["b/10.json"] and await documents.list("nothing/") == []


async def test_lines_are_appended_and_the_oldest_go(documents: DocumentStore) -> None:
    for number in range(10):
        await documents.append("cron/runs/x.jsonl", b"line %d" % number, most_bytes=60, most_lines=3)
    found = await documents.get("cron/runs/x.jsonl")
    assert found is not None and found.data.endswith(b"line 8\nline 9\n") and len(found.data) <= 60


async def test_a_damaged_document_is_set_aside_and_begins_anew(
    documents: DocumentStore, caplog: pytest.LogCaptureFixture
) -> None:
    await documents.put("devices/count.json", b"{", None)
    shared = counter(documents)
    with caplog.at_level(logging.WARNING):
        assert await shared.current() == {}
    assert "cannot be read" in caplog.text
    await shared.change(lambda value: value.update(a=1))
    assert (await documents.get("devices/count.json.corrupt") or (b"",))[0] == b"{"
    assert (await documents.get("devices/count.json") or (b"",))[0] == b'{"a": 1}'


async def test_a_damaged_document_that_is_refused_stays_as_it_is(documents: DocumentStore) -> None:
    await documents.put("devices/count.json", b"{", None)
    shared = counter(documents, damaged="refuse")
    with pytest.raises(ValueError):
        await shared.current()
    with pytest.raises(ValueError):
        await shared.change(lambda value: value.update(a=1))
    assert (await documents.get("devices/count.json") or (b"",))[0] == b"{"


async def test_changes_of_two_gateways_are_all_kept(stores: Stores) -> None:
    here, there = counter(stores.documents), counter(stores.other_documents())

    async def count(shared: SharedDocument[dict[str, int]], name: str) -> None:
        for _ in range(8):
            await shared.change(lambda value: value.update({name: value.get(name, 0) + 1}))

    await asyncio.gather(count(here, "here"), count(there, "there"))
    assert await here.current() == await there.current() == {"here": 8, "there": 8}


async def test_an_edit_that_changes_nothing_or_fails_writes_nothing(documents: DocumentStore) -> None:
    shared = counter(documents)
    await shared.change(lambda value: value.update(a=1))
    before = await documents.version(shared.name)
    assert await shared.change(lambda value: value.get("a")) == 1

    def fail(value: dict[str, int]) -> None:
        value["a"] = 2
        raise LookupError

    with pytest.raises(LookupError):
        await shared.change(fail)
    assert shared.value == {"a": 1} and await documents.version(shared.name) == before
    assert await counter(documents, "other.json").change(lambda value: value.get("a")) is None
    assert await documents.get("other.json") is None


@pytest.mark.parametrize("stores", ["postgres"], indirect=True)
async def test_a_gateway_hears_what_another_has_changed(stores: Stores) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    ready = asyncio.Event()

    def changed(name: str) -> None:
        heard.put_nowait(name) if name else ready.set()

    end = stores.documents.watch(changed)
    await asyncio.wait_for(ready.wait(), PATIENCE_S)
    await stores.documents.put("own.json", b"1", None)
    await stores.other_documents().put("theirs.json", b"1", None)
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == "theirs.json"
    end()
