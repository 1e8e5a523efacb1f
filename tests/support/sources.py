"""For tests that read the whole source of the package as trees."""

from __future__ import annotations

import ast
import gc
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@contextmanager
def many_nodes() -> Generator[None]:
    """No search for garbage meanwhile: a tree has none, and a look at a million nodes takes longer than making them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file. It is kept for the other tests that read the package; nobody may change it."""
    return ast.parse(path.read_text())
