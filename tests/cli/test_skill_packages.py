"""``openclaw skills add``, ``update`` and ``remove``, with folders, zip files and a git repository."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from .conftest import Cli

HEADER = """---
name: invoices
description: Make invoices.
metadata: {openclaw: {requires: {bins: [pandoc], env: [BILLING_KEY]}}}
---
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"{HEADER}Run scripts/make.sh.\n")
    (folder / "scripts" / "make.sh").write_text("#!/bin/sh\necho made\n")
    return folder


def installed(state: Path) -> dict[str, str]:
    folder = state / "skills" / "invoices"
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def zipped(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as target:
        for path in sorted(folder.rglob("*")):
            target.write(path, f"invoices-1.0/{path.relative_to(folder)}")
    return archive


def git(folder: Path, *arguments: str) -> str:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *own, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def committed(folder: Path) -> str:
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")
    return git(folder, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize("kind", ["folder", "zip", "git"])
def test_a_skill_is_shown_then_added_and_removed(
    cli: Cli, state: Path, source: Path, tmp_path: Path, kind: str
) -> None:
    commit, address = "", str(source)
    if kind == "zip":
        address = str(zipped(source, tmp_path / "skill.zip"))
    if kind == "git":
        commit, address = committed(source), f"file://{source}"
    done = cli("skills", "add", address, "--yes", "--json", GIT_ALLOW_PROTOCOL="file")
    assert done.returncode == 0, done.stderr
    assert "invoices: Make invoices." in done.stderr
    assert "It has programs that the agent can run: scripts/make.sh" in done.stderr
    assert "It uses: pandoc" in done.stderr and "It wants variables: BILLING_KEY" in done.stderr
    report = json.loads(done.stdout)
    assert (report["name"], report["state"], report["revision"], report["files"]) == ("invoices", "added", commit, 2)
    assert report["sha256"] in done.stderr
    assert installed(state) == {
        "SKILL.md": f"{HEADER}Run scripts/make.sh.\n",
        "scripts/make.sh": "#!/bin/sh\necho made\n",
    }
    assert not list((state / "skills").glob("*/.git")) and not list((state / "skills").glob(".invoices-*"))
    assert cli("skills", "remove", "invoices", "--yes").stdout == "Removed invoices.\n"
    assert not (state / "skills" / "invoices").exists()
    assert json.loads((state / "skills" / ".installed.json").read_text()) == {}


def test_nothing_is_added_without_a_yes(cli: Cli, state: Path, source: Path) -> None:
    done = cli("skills", "add", str(source))
    assert done.returncode == 1 and "`--yes` agrees" in done.stderr
    assert not (state / "skills" / "invoices").exists()


def test_the_hash_pins_the_files(cli: Cli, state: Path, source: Path) -> None:
    digest = json.loads(cli("skills", "add", str(source), "--yes", "--json").stdout)["sha256"]
    cli("skills", "remove", "invoices", "--yes")
    assert cli("skills", "add", str(source), "--yes", "--sha256", digest).returncode == 0
    cli("skills", "remove", "invoices", "--yes")
    (source / "scripts" / "make.sh").write_text("#!/bin/sh\necho evil\n")
    done = cli("skills", "add", str(source), "--yes", "--sha256", digest)
    assert done.returncode == 1 and "Nothing was added" in done.stderr
    assert not (state / "skills" / "invoices").exists()


def test_an_update_shows_what_changed(cli: Cli, state: Path, source: Path) -> None:
    assert cli("skills", "add", str(source), "--yes").returncode == 0
    assert cli("skills", "update", "--yes").stdout == "Updated 0 of 1 skills.\n"
    (source / "scripts" / "make.sh").unlink()
    (source / "notes.md").write_text("x")
    (source / "SKILL.md").write_text(f"{HEADER}New text.\n")
    refused = cli("skills", "update")
    assert refused.returncode == 1 and "scripts/make.sh" in installed(state)
    done = cli("skills", "update", "invoices", "--yes")
    assert done.stdout == "Updated 1 of 1 skills.\n"
    for line in ("Files added: notes.md", "Files changed: SKILL.md", "Files removed: scripts/make.sh"):
        assert line in done.stderr
    assert installed(state) == {"SKILL.md": f"{HEADER}New text.\n", "notes.md": "x"}


def test_a_skill_that_was_edited_here_is_not_replaced_by_accident(cli: Cli, state: Path, source: Path) -> None:
    cli("skills", "add", str(source), "--yes")
    own = state / "skills" / "invoices" / "SKILL.md"
    own.write_text(f"{HEADER}My own text.\n")
    assert "was changed on this machine" in cli("skills", "update", "--yes").stderr
    assert "My own text." in own.read_text()
    assert cli("skills", "update", "--yes", "--force").returncode == 0
    assert "My own text." not in own.read_text()


def test_a_folder_of_the_person_is_never_replaced(cli: Cli, state: Path, source: Path) -> None:
    own = state / "skills" / "invoices"
    own.mkdir(parents=True)
    (own / "SKILL.md").write_text("mine")
    done = cli("skills", "add", str(source), "--yes")
    assert done.returncode == 1 and "Move it away" in done.stderr
    assert (own / "SKILL.md").read_text() == "mine"


def _link(folder: Path) -> None:
    (folder / "leak").symlink_to("/etc/passwd")


def _folder_link(folder: Path) -> None:
    (folder / "leak").symlink_to("/etc")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _many(folder: Path) -> None:
    for number in range(501):
        (folder / str(number)).touch()


def _no_header(folder: Path) -> None:
    (folder / "SKILL.md").write_text("no header")


def _name_outside(folder: Path) -> None:
    (folder / "SKILL.md").write_text("---\nname: ../../evil\ndescription: x\n---\n")


@pytest.mark.parametrize("spoil", [_link, _folder_link, _pipe, _many, _no_header, _name_outside])
def test_a_folder_that_is_no_honest_skill_is_refused(cli: Cli, state: Path, source: Path, spoil: object) -> None:
    spoil(source)  # type: ignore[operator]
    done = cli("skills", "add", str(source), "--yes")
    assert done.returncode == 1 and "was not added" in done.stderr and "Traceback" not in done.stderr
    assert not [path for path in state.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a\\..\\evil"])
def test_a_zip_file_writes_nothing_outside_of_its_folder(cli: Cli, tmp_path: Path, name: str) -> None:
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("SKILL.md", HEADER)
        target.writestr(name, "x")
    done = cli("skills", "add", str(archive), "--yes")
    assert done.returncode == 1 and "outside of its folder" in done.stderr


def test_links_and_bombs_in_a_zip_file_are_refused(cli: Cli, tmp_path: Path) -> None:
    link = zipfile.ZipInfo("leak")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as target:
        target.writestr("SKILL.md", HEADER)
        target.writestr(link, "/etc/passwd")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("SKILL.md", HEADER)
        target.writestr("zeros", bytes(21_000_000))
    assert "not a file" in cli("skills", "add", str(tmp_path / "link.zip"), "--yes").stderr
    assert "too large" in cli("skills", "add", str(tmp_path / "bomb.zip"), "--yes").stderr


def test_an_address_is_never_an_option_of_git(cli: Cli, tmp_path: Path) -> None:
    for address in ("--upload-pack=touch x", "ext::sh -c touch% x", "https://127.0.0.1:9/x.git#--upload-pack=x"):
        assert cli("skills", "add", address, "--yes").returncode == 1
    assert not (tmp_path / "x").exists()


def test_an_unknown_name_is_answered_with_the_nearest(cli: Cli, source: Path) -> None:
    cli("skills", "add", str(source), "--yes")
    assert "Did you mean invoices?" in cli("skills", "remove", "invoice", "--yes").stderr
