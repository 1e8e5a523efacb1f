"""The agent's folder on its first day, and after."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from openclaw.agent.bootstrap import BOOTSTRAP_FILES
from openclaw.agent.workspace import ready_workspace, repo_root, template


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".git"}


def test_a_brand_new_workspace_gets_its_files_for_the_owner_only(tmp_path: Path) -> None:
    workspace = tmp_path / "a" / "workspace"
    ready_workspace(workspace, seed=True)
    assert names(workspace) == set(BOOTSTRAP_FILES)
    assert stat.S_IMODE(workspace.stat().st_mode) == 0o700
    assert {stat.S_IMODE((workspace / name).stat().st_mode) for name in BOOTSTRAP_FILES} == {0o600}


def test_a_workspace_somebody_lives_in_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "USER.md").write_text("me")
    ready_workspace(tmp_path, seed=True)
    assert names(tmp_path) == {"USER.md"}


def test_skip_bootstrap_makes_only_the_folder(tmp_path: Path) -> None:
    ready_workspace(tmp_path / "w", seed=False)
    assert list((tmp_path / "w").iterdir()) == []


def test_a_folder_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    ready_workspace(tmp_path / "w", seed=False)
    (tmp_path / "w").rmdir()
    ready_workspace(tmp_path / "w", seed=False)
    assert (tmp_path / "w").is_dir()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_an_empty_workspace_becomes_a_repository_and_one_with_files_does_not(tmp_path: Path) -> None:
    ready_workspace(tmp_path / "empty", seed=True)
    assert repo_root(tmp_path / "empty") == str(tmp_path / "empty")
    assert subprocess.run(["git", "status", "-s"], cwd=tmp_path / "empty", capture_output=True).returncode == 0
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.c").touch()
    ready_workspace(tmp_path / "project", seed=True)
    assert not (tmp_path / "project" / ".git").exists()


def test_without_git_the_workspace_is_seeded_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    ready_workspace(tmp_path / "w", seed=True)
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
