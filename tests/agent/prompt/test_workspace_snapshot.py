"""What the disk holds for a prompt is read once, and again as soon as it has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from openclaw.agent.prompt.workspace_snapshot import (
    LOOK_AGAIN_S,
    Audience,
    WorkspaceSnapshot,
    WorkspaceSnapshots,
)
from openclaw.config.schema import Config
from openclaw.storage.files.disk import FileDocuments
from tests.agent.scripted import HeldClock

PRIVATE = Audience(200_000, True, False)
SKILL = "---\nname: {name}\ndescription: does {name}\n---\nText.\n"


class SkillFolder:
    def __init__(self, folder: Path) -> None:
        self.state, self.workspace = folder / "state", folder / "workspace"
        self.workspace.mkdir()
        self.configure()
        self.clock = HeldClock()
        self.snapshots = WorkspaceSnapshots(str(self.state), self.clock, FileDocuments(self.state))

    def configure(self, **defaults: object) -> None:
        given = {"skipBootstrap": True, "workspace": str(self.workspace), **defaults}
        self.config = msgspec.convert({"agents": {"defaults": given}}, Config)

    async def look(self, audience: Audience = PRIVATE) -> WorkspaceSnapshot:
        return await self.snapshots.of("main", self.config, self.workspace, audience)

    def write(self, name: str, text: str) -> None:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def place(tmp_path: Path) -> SkillFolder:
    return SkillFolder(tmp_path)


def files(snapshot: WorkspaceSnapshot) -> dict[str, str]:
    return {file.name: file.text for file in snapshot.files}


def skills(snapshot: WorkspaceSnapshot) -> set[str]:
    return {skill.name for skill in snapshot.skills.skills}


async def test_nothing_is_read_again_while_nothing_changes(place: SkillFolder) -> None:
    place.write("AGENTS.md", "be kind")
    assert await place.look() is await place.look()


CHANGES: list[tuple[str, Callable[[SkillFolder], None], Callable[[WorkspaceSnapshot, SkillFolder], bool]]] = [
    ("a file is edited", lambda p: p.write("SOUL.md", "calm"), lambda g, p: files(g)["SOUL.md"] == "calm"),
    ("a file is removed", lambda p: (p.workspace / "USER.md").unlink(), lambda g, p: files(g)["USER.md"] == ""),
    (
        "memory appears",
        lambda p: p.write("MEMORY.md", "likes tea"),
        lambda g, p: files(g).get("MEMORY.md") == "likes tea",
    ),
    (
        "a skill is added",
        lambda p: p.write("skills/knit/SKILL.md", SKILL.format(name="knit")),
        lambda g, p: "knit" in skills(g),
    ),
    (
        "a skill is added to a group",
        lambda p: p.write("skills/crafts/sew/SKILL.md", SKILL.format(name="sew")),
        lambda g, p: "sew" in skills(g),
    ),
    (
        "a skill is changed",
        lambda p: p.write("skills/crafts/weave/SKILL.md", SKILL.format(name="loom")),
        lambda g, p: "loom" in skills(g) and "weave" not in skills(g),
    ),
    ("a repository begins", lambda p: (p.workspace / ".git").mkdir(), lambda g, p: g.repo_root == str(p.workspace)),
]


@pytest.mark.parametrize(("what", "change", "seen"), CHANGES, ids=[what for what, _, _ in CHANGES])
async def test_a_change_is_seen_by_the_next_turn(
    place: SkillFolder,
    what: str,
    change: Callable[[SkillFolder], None],
    seen: Callable[[WorkspaceSnapshot, SkillFolder], bool],
) -> None:
    place.write("SOUL.md", "lively")
    place.write("USER.md", "Ada")
    place.write("skills/crafts/weave/SKILL.md", SKILL.format(name="weave"))
    before = await place.look()
    assert not seen(before, place)
    change(place)
    assert seen(await place.look(), place)


async def test_a_program_that_a_skill_needs_is_noticed_when_it_is_installed(
    place: SkillFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    needs = '---\nname: pull\ndescription: pulls\nmetadata: {"openclaw": {"requires": {"bins": ["tug"]}}}\n---\n'
    place.write("skills/pull/SKILL.md", needs)
    assert "pull" not in skills(await place.look())
    (programs / "tug").write_text("#!/bin/sh\n")
    os.chmod(programs / "tug", 0o755)
    await place.clock.sleep(LOOK_AGAIN_S)
    assert "pull" in skills(await place.look())


async def test_groups_and_private_chats_are_kept_apart(place: SkillFolder) -> None:
    place.write("MEMORY.md", "likes tea")
    assert "MEMORY.md" in files(await place.look())
    assert "MEMORY.md" not in files(await place.look(Audience(200_000, False, False)))
    assert set(files(await place.look(Audience(200_000, False, True)))) == {"AGENTS.md", "TOOLS.md"}


async def test_a_new_configuration_is_looked_at_anew(place: SkillFolder) -> None:
    place.write("AGENTS.md", "x" * 5000)
    assert len(files(await place.look())["AGENTS.md"]) == 5000
    place.configure(bootstrapMaxChars=2000)
    assert len(files(await place.look())["AGENTS.md"]) < 5000


async def test_a_workspace_whose_files_were_all_deleted_does_not_get_them_again(place: SkillFolder) -> None:
    place.configure(skipBootstrap=False)
    await place.look()
    assert (place.workspace / "AGENTS.md").exists()
    for path in place.workspace.glob("*.md"):
        path.unlink()
    assert files(await place.look())["AGENTS.md"] == ""
    assert not list(place.workspace.glob("*.md"))
