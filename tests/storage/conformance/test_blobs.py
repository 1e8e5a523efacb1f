"""Blobs: each content once, under its SHA-256."""

from __future__ import annotations

import hashlib


async def test_a_blob_is_kept_once_and_found_after_a_restart(stores, blobs):
    for data in (b"", b"\x00\xff" * 70_000):
        digest = await blobs.put(data)
        assert digest == hashlib.sha256(data).hexdigest() == await blobs.put(data)
        assert await blobs.get(digest) == data
    await stores.reopen()
    assert await stores.blobs.get(digest) == data


async def test_an_unknown_or_odd_name_is_no_blob(blobs):
    for name in ("0" * 64, "../../etc/passwd", ""):
        assert await blobs.get(name) is None
