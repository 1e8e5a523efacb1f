"""``openclaw update`` and ``openclaw uninstall``: against a package index on loopback, and in a home of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from openclaw.cli.installation import (
    InstalledFrom,
    commits_behind,
    has_upstream,
    install_extra,
    install_method,
    installed_from,
    same_program,
    update_commands,
)
from tests.support.tmux import Tmux, need_tmux

from .conftest import Cli

NEWER = "9999.1.0"


@pytest.mark.parametrize(
    ("prefix", "method"),
    [
        ("/home/a/.local/share/pipx/venvs/openclaw", "pipx"),
        ("/home/a/.local/share/uv/tools/openclaw", "uv"),
        ("/home/a/venv", "pip"),
        ("/usr", "pip"),
    ],
)
def test_how_it_was_installed_is_found_out(tmp_path: Path, prefix: str, method: str) -> None:
    package = tmp_path / "src" / "openclaw"
    assert install_method(prefix, str(package)) == method
    (tmp_path / ".git").mkdir()
    assert install_method(prefix, str(package)) == "git"


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (None, ("", "", "")),
        ("[]", ("", "", "")),
        ("{", ("", "", "")),
        ('{"url": "file:///my%20code", "dir_info": {}}', ("/my code", "", "")),
        ('{"url": "file:///a/b.whl", "archive_info": {}}', ("", "", "file:///a/b.whl")),
        ('{"url": "https://host/x.git", "vcs_info": {"vcs": "git"}}', ("", "git+https://host/x.git", "")),
    ],
)
def test_where_it_came_from_is_read_from_the_installers_record(record: str | None, found: tuple[str, str, str]) -> None:
    source = installed_from(record)
    assert (source.folder, source.repository, source.file) == found


@pytest.mark.parametrize("method", ["pipx", "uv", "pip"])
def test_what_came_from_an_index_is_updated_by_its_tool(method: str) -> None:
    (words,) = update_commands(method, "python", "checkout", InstalledFrom())
    assert words[0] == ("python" if method == "pip" else method) and words[-1] == "openclaw" and "upgrade" in str(words)


def test_what_came_from_a_folder_is_never_taken_from_an_index(tmp_path: Path) -> None:
    for method in ("pipx", "uv", "pip"):
        (words,) = update_commands(method, "python", "checkout", InstalledFrom(folder=str(tmp_path)))
        assert str(tmp_path) in words and "install" in words


def test_a_dry_run_says_the_commands_and_runs_none(cli: Cli, tmp_path: Path) -> None:
    # Without git nobody can tell whether there is something newer.
    report = json.loads(cli("update", "--dry-run", "--json", "--method", "git", PATH=str(tmp_path)).stdout)
    assert report["newer"] is None
    assert [step.split()[0] for step in report["steps"]] == ["git", "make"]
    assert report["dryRun"] is True and report["method"] == "git"


def _git(folder: Path, *words: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, "-C", str(folder), *words], check=True, capture_output=True, timeout=60)


def test_a_checkout_knows_how_far_it_is_behind(tmp_path: Path) -> None:
    origin, mine = tmp_path / "origin", tmp_path / "mine"
    origin.mkdir()
    _git(origin, "init", "-q", "-b", "main")
    _git(origin, "commit", "-q", "--allow-empty", "-m", "one")
    assert not has_upstream(str(origin))
    subprocess.run(["git", "clone", "-q", str(origin), str(mine)], check=True, capture_output=True, timeout=60)
    assert has_upstream(str(mine)) and commits_behind(str(mine)) == 0
    _git(origin, "commit", "-q", "--allow-empty", "-m", "two")
    assert commits_behind(str(mine)) == 1


def test_two_copies_of_the_program_are_compared_by_what_they_hold(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "cli").mkdir(parents=True)
        (folder / "cli" / "main.py").write_text("x = 1")
    (one / "__pycache__").mkdir()
    (one / "__pycache__" / "main.pyc").write_text("made")
    assert same_program(str(one), str(other))
    (other / "cli" / "main.py").write_text("x = 2")
    assert not same_program(str(one), str(other))


def test_extras_are_listed_and_an_unknown_one_is_named(cli: Cli) -> None:
    listed = {row["name"]: row for row in json.loads(cli("extras", "--json").stdout)["extras"]}
    assert listed["telegram"]["libraries"] == ["python-telegram-bot>=21"] and {"mcp", "postgres"} <= listed.keys()
    refused = cli("extras", "add", "nope")
    assert refused.returncode == 1 and "There are: " in refused.stderr and "telegram" in refused.stderr
    there = json.loads(cli("extras", "add", "telegram", "--json").stdout)
    assert there == {"ok": True, "name": "telegram", "added": False}, "the tests have every library"


def test_an_extra_is_installed_where_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[list[str]] = []

    def ran(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        run.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", ran)
    install_extra("mcp")
    assert run[0][0] == sys.executable and "--require-hashes" in run[0] and "--no-deps" in run[0]
    lock = Path(run[0][run[0].index("-r") + 1])
    assert re.search(r"^mcp==\S+ ", lock.read_text(), re.MULTILINE) and "openclaw" not in lock.read_text()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index on loopback that has a newer version."""
    root = tmp_path / "index"
    folder = root / "simple" / "openclaw"
    folder.mkdir(parents=True)
    info = f"openclaw-{NEWER}.dist-info"
    wheel = folder / f"openclaw-{NEWER}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("openclaw/__init__.py", f'__version__ = "{NEWER}"\n')
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: openclaw\nVersion: {NEWER}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    server.server_close()


def test_an_update_installs_the_newest_version(cli: Cli, index: str, tmp_path: Path) -> None:
    # pip installs into a folder of the test, and asks no other index.
    target = tmp_path / "installed"
    pip = {"PIP_INDEX_URL": index, "PIP_TARGET": str(target), "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_CACHE_DIR": "1"}
    by_name = tmp_path / "by-name" / "openclaw-0.0.1.dist-info"
    by_name.mkdir(parents=True)
    (by_name / "METADATA").write_text("Metadata-Version: 2.1\nName: openclaw\nVersion: 0.0.1\n")
    pip["PYTHONPATH"] = f"{by_name.parent}:{cli.environ['PYTHONPATH']}"
    refused = cli("update", "--method", "pip", **pip)
    assert refused.returncode == 2 and "--yes" in refused.stderr and not target.exists()
    assert f"The newest version is {NEWER}." in refused.stdout
    done = cli("update", "--method", "pip", "--yes", "--json", **pip)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["newer"] is True
    assert NEWER in (target / "openclaw" / "__init__.py").read_text()


def test_a_failed_update_is_told_and_nothing_else_is_done(cli: Cli, tmp_path: Path) -> None:
    done = cli("update", "--method", "git", "--force", "--yes", "--json", PATH=str(tmp_path))
    told = json.loads(done.stdout)
    assert done.returncode == 1 and "git cannot be run" in told["error"]["message"]


def _fill(state: Path) -> None:
    (state / "openclaw.json").write_text("{}")
    (state / "workspace").mkdir()
    (state / "workspace" / "notes.md").write_text("mine")
    (state / "agents").mkdir()


def test_uninstalling_removes_the_service_and_keeps_the_conversations(cli: Cli, state: Path, tmp_path: Path) -> None:
    _fill(state)
    unit = tmp_path / ".config" / "systemd" / "user" / "openclaw-gateway.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n")
    shown = cli("uninstall", "--dry-run", "--method", "git")
    assert str(unit) in shown.stdout and f"Kept: {state}" in shown.stdout and unit.exists()
    done = cli("uninstall", "--yes", "--method", "git", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert not unit.exists() and (state / "openclaw.json").exists()
    assert any("delete" in step and "yourself" in step for step in json.loads(done.stdout)["steps"])


def test_state_and_workspace_are_deleted_when_asked_for_and_backed_up_first(
    cli: Cli, state: Path, tmp_path: Path
) -> None:
    _fill(state)
    assert cli("uninstall", "--state", "--yes").returncode == 0
    assert not (state / "openclaw.json").exists() and (state / "workspace" / "notes.md").read_text() == "mine"
    backups = Path(f"{state}-backups")
    none = cli("backup", "list", "--to", str(tmp_path / "none"), "--json")
    assert (none.returncode, json.loads(none.stdout)["backups"]) == (0, [])
    assert json.loads(cli("backup", "list", "--json").stdout)["backups"]
    (state / "openclaw.json").write_text("{}")
    assert cli("uninstall", "--all", "--yes", "--no-backup", "--method", "git").returncode == 0
    assert not state.exists() and backups.exists()


def test_nothing_is_deleted_after_a_backup_with_a_hole(cli: Cli, state: Path) -> None:
    _fill(state)
    sessions = state / "agents" / "main" / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "sessions.json").write_text('{"agent:main:main": {"sessionId": "lost", "systemSent": true}}')
    done = cli("uninstall", "--state", "--yes")
    assert done.returncode == 1 and "lost.jsonl is missing" in done.stderr
    assert (state / "openclaw.json").exists()


def test_a_folder_that_is_no_state_folder_is_not_deleted(cli: Cli, state: Path, tmp_path: Path) -> None:
    (state / "letters.txt").write_text("mine")
    done = cli("uninstall", "--state", "--yes")
    assert done.returncode == 1 and "does not look like a state folder" in done.stderr
    (tmp_path / "agents").mkdir()
    done = cli("uninstall", "--all", "--yes", OPENCLAW_STATE_DIR=str(tmp_path))
    assert done.returncode == 1 and (state / "letters.txt").exists()


async def test_a_person_is_asked_before_anything_is_removed(tmp_path: Path) -> None:
    need_tmux()
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    _fill(state)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OPENCLAW_STATE_DIR": str(state)}
    async with Tmux(tmp_path, env, "uninstall", "--state") as terminal:
        await terminal.shows("Make a backup first? [Y/n]")
        await terminal.press("Enter")
        await terminal.shows("Do it? [y/N]")
        await terminal.press("Enter")
        await terminal.shows("Nothing was done.")
    assert (state / "openclaw.json").exists()
