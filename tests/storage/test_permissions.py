"""The state folder belongs to its owner alone."""

from __future__ import annotations

import os
from pathlib import Path

from openclaw.storage.files.check import narrow


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_was_wider_is_narrowed_and_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for name in ("agents/main/sessions", "skills/one", "workspace/bin"):
        (state / name).mkdir(parents=True)
    files = {
        "openclaw.json": 0o600,
        "agents/main/sessions/sessions.json": 0o600,
        "skills/one/run.sh": 0o700,
        "workspace/bin/tool": 0o777,
    }
    for name in files:
        (state / name).write_text("x")
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    (state / "link").symlink_to(outside)
    for place in (state, *state.rglob("*")):
        if not place.is_symlink():
            place.chmod(0o777)
    narrowed = narrow(str(state))
    assert {name: mode(state / name) for name in files} == files
    folders = [path for path in (state, *state.rglob("*")) if path.is_dir() and path.name != "bin"]
    assert {mode(folder) for folder in folders} == {0o700}
    assert mode(outside) == 0o644
    assert str(narrowed).startswith(f"{state} (0777), ")
    assert "more" in str(narrowed)
    again = narrow(str(state))
    assert (again.count, again.changes, again.failed) == (0, [], [])


def test_a_pipe_in_the_folder_does_not_stop_the_walk(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o666)
    (tmp_path / "pipe").chmod(0o666)
    narrow(str(tmp_path))
    assert mode(tmp_path / "pipe") == 0o600, "nobody else"
