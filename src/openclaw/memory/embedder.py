"""What turns texts into vectors: one small protocol, and what goes wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

Purpose: TypeAlias = Literal["document", "query"]
"""Some models treat a question differently from the passages it is compared with."""


class EmbeddingFailed(Exception):
    """No vectors could be had; the text says why and holds no secret."""


class Embedder(Protocol):
    provider: str
    model: str
    batch_texts: int
    """Most texts of one call."""

    @property
    def identity(self) -> str:
        """Vectors with the same identity can be compared with each other."""
        ...

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        """One vector for each text, in their order. Raises ``EmbeddingFailed``."""
        ...
