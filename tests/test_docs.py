"""What the architecture page names exists: a walk that leads to no door is worse than none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "src" / "openclaw"

FILES = sorted(set(re.findall(r"`((?:[\w<>]+/)*\w+\.py)`", PAGE)))
STEPS = re.findall(r"^\|(?: \d+ \|)? `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("path", FILES)
def test_every_file_named_on_the_architecture_page_exists(path: str) -> None:
    assert (PACKAGE / path).is_file() or (ROOT / path).is_file(), path


@pytest.mark.parametrize(("path", "name"), STEPS)
def test_every_step_of_the_walk_is_a_function_or_class_of_its_file(path: str, name: str) -> None:
    names: set[str] = set()
    for node in ast.parse((PACKAGE / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if hasattr(part, "name")}
    assert name in names, f"{path} has no {name}"
