"""The folders of sandboxes: what a new one holds, and which ones are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.clock import SystemClock
from openclaw.config.schema.agents import SandboxPrune
from openclaw.tools.sandbox.boundary import Boundary, copy_skills, list_sandboxes, prune, remove_sandbox, use_folder
from openclaw.tools.sandbox.launch import (
    BadLimit,
    SandboxPlan,
    bind_mounts,
    control_group,
    engine_argv,
    limits_of,
    make_plan,
)

from .support import KEY, config_with

HOUR = 3_600_000
NOW = 1_800_000_000_000


def made(state: Path, key: str = KEY, **sandbox: object) -> tuple[SandboxPlan, Boundary]:
    plan = make_plan(config_with({"scope": "session", **sandbox}), state, "main", key, [("main", key)])
    plan.workspace.mkdir(parents=True, exist_ok=True)
    return plan, Boundary(plan, [], SandboxPrune(), SystemClock())


def test_a_new_one_holds_copies_of_the_instructions_and_of_skills_and_of_nothing_else(tmp_path: Path) -> None:
    plan, boundary = made(tmp_path)
    for name in ("AGENTS.md", "SOUL.md", "MEMORY.md", "notes.txt"):
        (plan.workspace / name).write_text(name)
    (plan.workspace / "skills" / "bake").mkdir(parents=True)
    (plan.workspace / "skills" / "bake" / "SKILL.md").write_text("bake")
    (plan.workspace / "skills" / "bake" / "leak").symlink_to("/etc/passwd")
    use_folder(plan, boundary.opener, NOW)
    copy_skills(plan, boundary.opener, ["skills/bake"])
    assert {path.name for path in plan.folder.rglob("*") if path.is_file()} == {"AGENTS.md", "SOUL.md", "SKILL.md"}
    (plan.folder / "AGENTS.md").write_text("changed inside")
    (plan.workspace / "skills" / "bake" / "SKILL.md").write_text("bake more")
    use_folder(plan, boundary.opener, NOW + 1)
    copy_skills(plan, boundary.opener, ["skills/bake"])
    assert (plan.folder / "AGENTS.md").read_text() == "changed inside"
    assert (plan.folder / "skills" / "bake" / "SKILL.md").read_text() == "bake more"
    assert plan.folder.stat().st_mode & 0o077 == 0


def test_links_that_the_sandbox_planted_are_not_written_through(tmp_path: Path) -> None:
    plan, boundary = made(tmp_path)
    (plan.workspace / "skills" / "bake").mkdir(parents=True)
    (plan.workspace / "skills" / "bake" / "SKILL.md").write_text("bake")
    (tmp_path / "precious").mkdir()
    plan.folder.mkdir(parents=True)
    (plan.folder / "skills").symlink_to(tmp_path / "precious")
    copy_skills(plan, boundary.opener, ["skills/bake"])
    assert list((tmp_path / "precious").iterdir()) == []


@pytest.mark.parametrize(
    ("idle_hours", "age_hours", "work", "removed"),
    [
        (23, 23, False, False),
        (25, 25, False, True),
        (25, 25, True, False),
        (2, 200, False, True),
        (0, 200, False, False),
    ],
)
def test_unused_sandboxes_are_removed_unless_they_hold_work(
    tmp_path: Path, idle_hours: int, age_hours: int, work: bool, removed: bool
) -> None:
    import os

    plan, boundary = made(tmp_path)
    (plan.workspace / "AGENTS.md").write_text("x")
    use_folder(plan, boundary.opener, NOW - age_hours * HOUR)
    os.utime(plan.folder / "AGENTS.md", ((NOW - age_hours * HOUR) / 1000,) * 2)
    use_folder(plan, boundary.opener, NOW - idle_hours * HOUR)
    if work:
        (plan.folder / "result.txt").write_text("hours of work")
    assert bool(prune(plan.root, SandboxPrune(), NOW)) is removed
    assert plan.folder.exists() is not removed and bool(list_sandboxes(plan.root)) is not removed
    assert prune(plan.root, SandboxPrune(idle_hours=0, max_age_days=0), NOW + 10_000 * HOUR) == []


def test_removing_one_leaves_what_its_links_lead_to(tmp_path: Path) -> None:
    plan, boundary = made(tmp_path)
    use_folder(plan, boundary.opener, NOW)
    (plan.folder / "out").symlink_to(plan.workspace)
    (plan.workspace / "kept").write_text("x")
    (record,) = list_sandboxes(plan.root)
    remove_sandbox(record)
    assert (plan.workspace / "kept").exists() and list_sandboxes(plan.root) == []


@pytest.mark.parametrize(
    ("sandbox", "why"),
    [
        ({"docker": {"network": "bridge"}}, '"none" or "host"'),
        ({"docker": {"memory": "much"}}, "docker.memory"),
        ({"docker": {"ulimits": {"nofile": "x"}}}, "ulimits.nofile"),
        ({"docker": {"ulimits": {"strange": 1}}}, "ulimits.strange"),
        ({"docker": {"workdir": "/"}}, "docker.workdir"),
        ({"docker": {"binds": ["/usr"]}}, "not of the form"),
        ({"docker": {"binds": ["/usr:/proc/x:ro"]}}, "used by the sandbox itself"),
        ({"docker": {"binds": ["{state}:/x:ro"]}}, "Gateway's own files"),
        ({"docker": {"binds": ["{state}/..:/x:ro"]}}, "holds the Gateway's state folder"),
        ({"docker": {"binds": ["/nowhere-at-all:/x:ro"]}}, "does not exist"),
    ],
)
async def test_settings_that_cannot_be_carried_out_refuse_the_run(
    tmp_path: Path, sandbox: dict[str, dict[str, object]], why: str
) -> None:
    docker = dict(sandbox["docker"])
    if isinstance(binds := docker.get("binds"), list):
        docker["binds"] = [str(bind).replace("{state}", str(tmp_path / "state")) for bind in binds]  # type: ignore[reportUnknownVariableType]
    (tmp_path / "state").mkdir()
    _, boundary = made(tmp_path / "state", docker=docker)
    refusal = await boundary.refusal() or ""
    assert why in refusal and refusal.startswith("This session must run in a sandbox, and none can be made: ")


async def test_a_workspace_around_the_state_folder_is_refused(tmp_path: Path) -> None:
    values = config_with({"workspaceAccess": "rw"})
    plan = make_plan(values, tmp_path / "workspace" / "state", "main", KEY, [("main", KEY)])
    import msgspec

    plan = msgspec.structs.replace(plan, workspace=tmp_path)
    boundary = Boundary(plan, [], SandboxPrune(), SystemClock())
    assert "holds the Gateway's state folder" in (await boundary.refusal() or "")


def test_a_container_gets_the_same_folders_and_limits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    docker = {"pidsLimit": 9, "memory": "512m", "cpus": 1.5, "binds": [f"{tmp_path}/data:/data:ro"], "env": {"A": "b"}}
    plan, boundary = made(tmp_path / "state", backend="docker", workspaceAccess="ro", docker=docker)
    argv = engine_argv(boundary.parts, ["sh", "-c", "true"], "/workspace", plan.docker.env, 30, terminal=False)
    words = " ".join(argv)
    for part in (
        "docker run --rm --init -i",
        f"-v {plan.folder}:/workspace:rw -v {plan.workspace}:/agent:ro",
        f"-v {tmp_path}/data:/data:ro",
        "--network none",
        "--read-only",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        f"--memory {512 * 1024**2} --pids-limit 9 --cpus 1.5",
        "-e A=b openclaw-sandbox:bookworm-slim timeout -s KILL 30 sh -c true",
    ):
        assert part in words
    assert [mount.place for mount in bind_mounts(plan)] == ["/data"]


def test_limits_are_read_as_the_original_writes_them() -> None:
    settings = config_with({"docker": {"memory": "1.5g", "ulimits": {"nofile": {"soft": 10, "hard": 20}, "cpu": "5"}}})
    limits = limits_of(settings.agents.defaults.sandbox.docker)
    assert (limits.memory, limits.each["nofile"], limits.each["cpu"]) == (1610612736, "10:20", "5")
    with pytest.raises(BadLimit):
        limits_of(config_with({"docker": {"cpus": 0}}).agents.defaults.sandbox.docker)


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_are_made_where_that_is_possible(tmp_path: Path, version: int) -> None:
    docker = config_with({"docker": {"memory": "1g", "pidsLimit": 7, "cpus": 0.5}}).agents.defaults.sandbox.docker
    limits = limits_of(docker)
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    group = control_group("name", limits, tmp_path)
    assert group.counts == {"memory", "pids", "cpu"}
    written = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert written["pids.max"] == "7" and str(1024**3) in written.values()
    assert "50000 100000" in written.values() or written["cpu.cfs_quota_us"] == "50000"
    assert all(Path(join).parent.name == "name" for join in group.joins) and group.joins
    (tmp_path / "blocked").write_text("not a folder")
    assert not control_group("name", limits, tmp_path / "blocked").counts
