"""Setting up: which Python is taken. And the measurements, which no other test loads."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FAST, PLAIN, MISSING = "fast", "plain", "missing"


def _python(folder: Path, kind: str) -> Path:
    """One that answers the script's two questions: exit 1 is "built with profiles" or "not fit", 0 the opposite."""
    path = folder / "python3"
    if kind != MISSING:
        folder.mkdir()
        path.write_text(f'#!/bin/sh\ncase "$2" in *optimizations*) exit {int(kind == FAST)};; *) exit 0;; esac\n')
        path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("on_the_path", "systems", "taken"),
    [
        (PLAIN, FAST, "system"),
        (PLAIN, PLAIN, "system"),
        (PLAIN, MISSING, "path"),
        (FAST, FAST, "path"),
        (FAST, MISSING, "path"),
        (MISSING, FAST, "path"),
    ],
)
def test_the_systems_python_is_taken_where_the_one_on_the_path_was_built_without_profiles(
    tmp_path: Path, on_the_path: str, systems: str, taken: str
) -> None:
    mine, system = _python(tmp_path / "mine", on_the_path), _python(tmp_path / "system", systems)
    environment = {"PATH": str(mine.parent), "SYSTEM_PYTHON": str(system)}
    asked = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "python"], env=environment, capture_output=True, text=True, check=True
    )
    assert asked.stdout.strip() == {"system": str(system), "path": "python3"}[taken]


def test_every_measurement_can_be_loaded() -> None:
    names = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    assert len(names) > 20
    for name in names:
        importlib.import_module(f"bench.{name}")
