"""The skills that come with OpenClaw: their headers are read, and the commands in their text work as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw.agent.skills import SkillFolder, bundled_dir, find_skills

LIBRARY = find_skills([SkillFolder("bundled", bundled_dir())])
SKILLS = {skill.name: skill for skill in LIBRARY.skills}


def blocks(name: str) -> list[str]:
    return re.findall(r"(?ms)^```sh\n(.*?)^```$", Path(SKILLS[name].path).read_text())


@pytest.fixture
def ran(tmp_path: Path) -> Callable[[str, int], str]:
    """Runs one block of a skill in a folder of its own, and returns what it printed."""

    def run(name: str, number: int) -> str:
        skill = SKILLS[name]
        if missing := [one for one in skill.needs.bins if shutil.which(one) is None]:
            pytest.skip(f"{missing} not installed")
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
        names = {
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@b.c",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@b.c",
        }
        done = subprocess.run(
            ["sh", "-ec", blocks(name)[number]],
            cwd=tmp_path,
            env={**env, **names},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_every_bundled_skill_can_be_read() -> None:
    assert LIBRARY.problems == []
    assert len(SKILLS) >= 8
    assert {
        "git",
        "summarise-page",
        "pdf",
        "spreadsheet",
        "calendar-file",
        "weather",
        "system-status",
        "backup",
    } <= set(SKILLS)
    assert all(len(skill.description) <= 200 for skill in LIBRARY.skills)


def test_git(ran: Callable[[str, int], str], tmp_path: Path) -> None:
    subprocess.run(["git", "-c", "init.defaultBranch=main", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "a.txt").write_text("one\n")
    assert "1 file changed" in ran("git", 1)
    (tmp_path / "a.txt").write_text("two\n")
    looked = ran("git", 0)
    assert " M a.txt" in looked and "Say in one line" in looked
    (tmp_path / "a.txt").write_text("one\n")
    assert "Already up to date." in ran("git", 2)


def test_summarise_page(ran: Callable[[str, int], str], tmp_path: Path) -> None:
    page = "<style>p{}</style><nav>Menu</nav><h1>Title</h1><p>One &amp; two<br>three</p><script>x()</script>"
    (tmp_path / "page.html").write_text(page)
    assert ran("summarise-page", 0) == "Title\nOne & two\nthree\n"


def test_spreadsheet(ran: Callable[[str, int], str], tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("category,amount\nfood,10.5\nrent,700\nfood,4.25\n")
    rows = [line.split() for line in ran("spreadsheet", 0).splitlines()]
    assert rows[0] == ["category", "rows", "total"] and rows[2:] == [["rent", "1", "700.0"], ["food", "2", "14.75"]]
    ran("spreadsheet", 1)
    assert (tmp_path / "big.csv").read_text().split() == ["category,amount", "food,10.5", "rent,700"]


def test_pdf(ran: Callable[[str, int], str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Grüße (50 €)\n" + "line\n" * 70)
    assert ran("pdf", 0) == "notes.pdf: 2 pages\n"
    data = (tmp_path / "notes.pdf").read_bytes()
    assert data.startswith(b"%PDF-1.4") and "Grüße \\(50 €\\)".encode("cp1252") in data
    start = int(data.rsplit(b"startxref\n", 1)[1].split()[0])
    assert data[start:].startswith(b"xref\n0 8\n")
    offsets = [int(line[:10]) for line in data[start:].split(b"\n")[3:10]]
    assert [data[offset:].split(b" ")[0] for offset in offsets] == [b"%d" % number for number in range(1, 8)]


def test_calendar_file(ran: Callable[[str, int], str], tmp_path: Path) -> None:
    assert ran("calendar-file", 0) == "dentist.ics: Thursday, 05 March 2026, 14:30 Europe/Berlin\n"
    text = (tmp_path / "dentist.ics").read_bytes()
    assert b"DTSTART:20260305T133000Z\r\nDTEND:20260305T141500Z\r\n" in text and text.count(b"\n") == text.count(
        b"\r\n"
    )
    assert ran("calendar-file", 1) == "20260305T133000Z | 20260305T141500Z | Dentist | Main Street 5 | \n"


def test_system_status(ran: Callable[[str, int], str]) -> None:
    shown = ran("system-status", 0)
    assert "load average" in shown and "Filesystem" in shown and "%" in shown


def test_backup(ran: Callable[[str, int], str], tmp_path: Path) -> None:
    (tmp_path / "documents" / "deep").mkdir(parents=True)
    (tmp_path / "documents" / "deep" / "a.txt").write_text("one")
    assert ran("backup", 0).startswith("verified: copies/documents-")
    assert ran("backup", 1) == "same\n"


def test_weather_asks_services_without_a_key() -> None:
    text = Path(SKILLS["weather"].path).read_text()
    assert "wttr.in" in text and "api.open-meteo.com" in text and "key=" not in text.replace("no key", "")
