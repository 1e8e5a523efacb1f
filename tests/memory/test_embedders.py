"""Embeddings made on this machine: from word vectors, and from a model file in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.memory import embedders
from openclaw.memory.embedders import EmbeddingFailed, GgufEmbedder
from openclaw.memory.index import similarities, vectors_of
from openclaw.models.local.install import install_local

NOTES = ["The database runs on SQLite now", "Ada drinks green tea in the morning", "The car is at the garage"]


@pytest.mark.skipif(embedders.word_vectors_folder() is None, reason="needs the memory extra")
async def test_word_vectors_know_what_is_alike() -> None:
    place = embedders.word_vectors_folder()
    assert place is not None
    embedder = embedders.WordVectors(place)
    notes = await vectors_of(embedder, NOTES, "document")
    for question, best in (("where is the data stored", 0), ("a hot drink", 1), ("my vehicle needs repair", 2)):
        near = similarities((await vectors_of(embedder, [question], "query"))[0], notes)
        assert near.index(max(near)) == best
    assert len((await vectors_of(embedder, [""], "document"))[0]) == 256 * 4


@pytest.mark.local_model
async def test_a_model_file_gives_vectors_and_its_process_ends_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("CONTEXT", "LONGEST_TEXT"):  # An eighth: a text that fills the whole window takes ten seconds.
        monkeypatch.setattr(embedders, limit, getattr(embedders, limit) // 8)
    weights = install_local(state_dir=str(Path.home() / ".cache" / "openclaw-tests"))
    embedder = GgufEmbedder(Path(weights))
    try:
        same, other = await vectors_of(embedder, [NOTES[0], NOTES[1]], "document")
        (again,) = await vectors_of(embedder, [NOTES[0]], "query")
        near, far = similarities(again, [same, other])
        assert near > 0.999 > far and embedder.running
        assert len(await vectors_of(embedder, ["x" * 10_000], "document")) == 1
    finally:
        await embedder.close()
    assert not embedder.running


async def test_a_file_that_is_no_model_or_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingFailed, match="model file not found"):
        await GgufEmbedder(tmp_path / "none.gguf").embed(["a"], "query")
