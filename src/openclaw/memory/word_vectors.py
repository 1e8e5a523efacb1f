"""Embeddings without a server and without a network: the mean of the vectors of a text's word pieces.

The table of vectors and the tokenizer come with the package ``wordllama`` (the ``memory`` extra). Only its two data
files are read; its code is not imported.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from openclaw.memory.embedder import EmbeddingFailed, Purpose

PACKAGE = "wordllama"
WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
TABLE = "embedding.weight"


def folder() -> Path | None:
    """Where the files are; None when the extra is not installed, or not whole."""
    if any(importlib.util.find_spec(name) is None for name in ("numpy", "tokenizers")):
        return None
    found = importlib.util.find_spec(PACKAGE)
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        if (Path(place) / WEIGHTS).is_file() and (Path(place) / TOKENIZER).is_file():
            return Path(place)
    return None


class WordVectors:
    provider = "local"
    model = "wordllama-256"
    batch_texts = 256
    identity = "local:wordllama-256"

    def __init__(self, place: Path) -> None:
        self._place = place

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        return await asyncio.to_thread(self._embed, list(texts))

    def _embed(self, texts: list[str]) -> list[list[float]]:
        try:
            table, tokenizer = _load(self._place)
            rows = [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise EmbeddingFailed(f"the word vectors in {self._place} cannot be used: {error}") from None
        last = len(table) - 1
        # A text without a single piece still needs a vector: that of the unknown word.
        return [table[[min(piece, last) for piece in row] or [0]].astype("f4").mean(axis=0).tolist() for row in rows]


@lru_cache(maxsize=1)
def _load(place: Path) -> tuple[Any, Any]:
    """Blocking, a tenth of a second; the table is mapped, not copied."""
    numpy, tokenizers = importlib.import_module("numpy"), importlib.import_module("tokenizers")
    weights = place / WEIGHTS
    with weights.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        about = json.loads(file.read(size))[TABLE]
    begin, end = about["data_offsets"]
    if about["dtype"] != "F16" or (end - begin) != 2 * about["shape"][0] * about["shape"][1]:
        raise ValueError(f"{weights.name} holds another kind of table")
    table = numpy.memmap(weights, dtype="<f2", mode="r", offset=8 + size + begin, shape=tuple(about["shape"]))
    tokenizer = tokenizers.Tokenizer.from_file(str(place / TOKENIZER))
    tokenizer.no_padding()
    return table, tokenizer
