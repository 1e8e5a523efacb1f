"""For tests that read the whole source of the package as trees."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def many_nodes() -> Generator[None]:
    """No search for garbage meanwhile: a tree has none, and a look at a million nodes takes longer than making them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
