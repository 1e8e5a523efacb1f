"""Workspace files in the prompt."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.prompt.workspace_files import BOOTSTRAP_FILES, prepare_workspace, repo_root, template
from openclaw.agent.prompt.workspace_snapshot import (
    WorkspaceSnapshots,
    effective_max_chars,
    load_bootstrap,
    truncate_middle,
)
from openclaw.storage.files.disk import FileDocuments
from tests.agent.scripted import HeldClock


def test_files_come_in_their_fixed_order_and_the_first_run_file_is_not_missed(tmp_path: Path) -> None:
    files = load_bootstrap(tmp_path, 100)
    assert [file.name for file in files] == list(BOOTSTRAP_FILES)
    assert (files[-1].missing, files[-1].text) == (False, "")
    (tmp_path / "BOOTSTRAP.md").write_text("hello")
    assert load_bootstrap(tmp_path, 100)[-1].text == "hello"


def test_a_missing_file_adds_nothing_to_the_prompt(tmp_path: Path) -> None:
    file = load_bootstrap(tmp_path, 100)[0]
    assert (file.missing, file.raw_chars) == (True, 0)
    assert file.text == ""


def test_text_is_trimmed_on_the_right_and_a_blank_file_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("  rules \n\n more \n\n")
    (tmp_path / "SOUL.md").write_text(" \n\n")
    agents, soul = load_bootstrap(tmp_path, 100)[:2]
    assert (agents.text, agents.raw_chars) == ("  rules \n\n more", 15)
    assert (soul.missing, soul.text) == (False, "")


@pytest.mark.parametrize("name", ["MEMORY.md", "memory.md"])
def test_long_term_memory_is_for_private_chats_only(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("she moved to Lisbon")
    assert load_bootstrap(tmp_path, 100)[-1].name == name
    assert all(file.name != name for file in load_bootstrap(tmp_path, 100, private=False))


def test_two_names_of_one_memory_file_count_once(tmp_path: Path) -> None:
    (tmp_path / "MEMORY.md").write_text("x")
    os.symlink("MEMORY.md", tmp_path / "memory.md")
    assert [file.name for file in load_bootstrap(tmp_path, 100) if "mem" in file.name.lower()] == ["MEMORY.md"]


def test_sub_agents_get_the_instructions_and_tool_notes_only(tmp_path: Path) -> None:
    (tmp_path / "MEMORY.md").write_text("x")
    assert [file.name for file in load_bootstrap(tmp_path, 100, subagent=True)] == ["AGENTS.md", "TOOLS.md"]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "AGENTS.md"
    path.write_text("old")
    assert load_bootstrap(tmp_path, 100)[0].text == "old"
    path.write_text("newer")
    assert load_bootstrap(tmp_path, 100)[0].text == "newer"


def test_a_pipe_in_place_of_a_file_does_not_hang_the_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "AGENTS.md")
    file = load_bootstrap(tmp_path, 100)[0]
    assert not file.missing and "is not a regular file" in file.unread


def test_a_long_file_keeps_its_head_and_tail_with_the_known_markers() -> None:
    cut = truncate_middle("x" * 54210, "TOOLS.md", 20000)
    assert len(cut) == 18108
    assert "\n\n[...truncated, read TOOLS.md for full content...]\n" in cut
    assert "\n…(truncated TOOLS.md: kept 14000+4000 chars of 54210)…\n\n" in cut
    short = truncate_middle("a" * 100, "F.md", 50)
    assert (len(short) - len(short.lstrip("a")), len(short) - len(short.rstrip("a"))) == (35, 10)


@given(st.text(min_size=61, max_size=400), st.integers(min_value=10, max_value=60))
def test_what_is_kept_is_the_beginning_and_the_end(text: str, limit: int) -> None:
    cut = truncate_middle(text, "F.md", limit)
    head, tail = limit * 70 // 100, limit * 20 // 100
    assert cut.startswith(text[:head] + "\n\n[...truncated")
    assert cut.endswith("\n\n" + text[len(text) - tail :])


def test_a_cut_file_is_warned_about_once_per_version_and_the_lost_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "AGENTS.md"
    path.write_text("\n".join(f"rule {number}" for number in range(100)))
    snapshots = WorkspaceSnapshots(str(tmp_path), HeldClock(), FileDocuments(tmp_path))
    [warning] = snapshots.new_warnings(load_bootstrap(tmp_path, 200))
    assert "AGENTS.md" in warning and "first 140 and the last 40" in warning and "lines 19 to 95" in warning
    assert snapshots.new_warnings(load_bootstrap(tmp_path, 200)) == []
    path.write_text("\n".join(f"rule {number}" for number in range(101)))
    assert len(snapshots.new_warnings(load_bootstrap(tmp_path, 200))) == 1


@pytest.mark.parametrize(
    ("limit", "window", "expected"),
    [
        (20_000, 200_000, 20_000),
        (20_000, 32_000, 20_000),
        (20_000, 8192, 5461),
        (20_000, 500, 1000),
        (500, 500, 500),
        (50, 200_000, 50),
    ],
)
def test_small_windows_get_less_of_each_file(limit: int, window: int, expected: int) -> None:
    assert effective_max_chars(limit, window) == expected


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".git"}


def test_a_brand_new_workspace_gets_its_files_for_the_owner_only(tmp_path: Path) -> None:
    workspace = tmp_path / "a" / "workspace"
    prepare_workspace(workspace, seed=True)
    assert names(workspace) == set(BOOTSTRAP_FILES)
    assert stat.S_IMODE(workspace.stat().st_mode) == 0o700
    assert {stat.S_IMODE((workspace / name).stat().st_mode) for name in BOOTSTRAP_FILES} == {0o600}


def test_a_workspace_somebody_lives_in_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "USER.md").write_text("me")
    prepare_workspace(tmp_path, seed=True)
    assert names(tmp_path) == {"USER.md"}


def test_skip_bootstrap_makes_only_the_folder(tmp_path: Path) -> None:
    prepare_workspace(tmp_path / "w", seed=False)
    assert list((tmp_path / "w").iterdir()) == []


def test_a_folder_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    prepare_workspace(tmp_path / "w", seed=False)
    (tmp_path / "w").rmdir()
    prepare_workspace(tmp_path / "w", seed=False)
    assert (tmp_path / "w").is_dir()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_an_empty_workspace_becomes_a_repository_and_one_with_files_does_not(tmp_path: Path) -> None:
    prepare_workspace(tmp_path / "empty", seed=True)
    assert repo_root(tmp_path / "empty") == str(tmp_path / "empty")
    assert subprocess.run(["git", "status", "-s"], cwd=tmp_path / "empty", capture_output=True).returncode == 0
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.c").touch()
    prepare_workspace(tmp_path / "project", seed=True)
    assert not (tmp_path / "project" / ".git").exists()


def test_without_git_the_workspace_is_seeded_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    prepare_workspace(tmp_path / "w", seed=True)
    assert names(tmp_path / "w") == set(BOOTSTRAP_FILES)


def test_the_repository_root_is_the_configured_one_or_the_nearest_above(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert repo_root(inner) == str(tmp_path)
    assert repo_root(inner, "/elsewhere") == "/elsewhere"


@pytest.mark.parametrize("name", BOOTSTRAP_FILES)
def test_templates_are_short(name: str) -> None:
    assert 0 < len(template(name)) < 2500
