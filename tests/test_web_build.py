"""The built page that is committed is what its sources make, it is small, and all its words are translated."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from openclaw.inbound.commands.registry import COMMANDS

ROOT = Path(__file__).parent.parent
UI = ROOT / "ui"
BUILT = ROOT / "src" / "openclaw" / "web"
MOST_BYTES = 150 * 1024
"""What the first load may need, without the font."""


def sources() -> list[Path]:
    return sorted((UI / "src").rglob("*.*"))


def test_the_committed_build_was_made_from_these_sources() -> None:
    names = {"package-lock.json", "build.mjs", *(path.relative_to(UI).as_posix() for path in sources())}
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\0".encode() + (UI / name).read_bytes() + b"\0")
    assert json.loads((BUILT / "build.json").read_text())["sources"] == digest.hexdigest(), "run `make ui`"


def test_a_fresh_build_is_the_committed_one() -> None:
    ready = shutil.which("node") is not None and (UI / "node_modules" / "esbuild").is_dir()
    if not ready and not os.environ.get("OPENCLAW_TEST_REQUIRE_ALL"):
        pytest.skip("needs node and ui/node_modules (make ui)")
    done = subprocess.run(["node", "build.mjs", "--check"], cwd=UI, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_page_is_small() -> None:
    index = (BUILT / "index.html").read_text()
    needed = [BUILT / "index.html", *(BUILT / name for name in re.findall(r'\{\{base\}\}/([^"]+\.(?:js|css))"', index))]
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in needed}
    assert {"app.js", "app.css"} < sizes.keys()
    assert sum(sizes.values()) <= MOST_BYTES, sizes


def test_the_lock_file_names_no_host() -> None:
    assert "resolved" not in (UI / "package-lock.json").read_text()


def test_every_text_of_the_page_has_its_spanish() -> None:
    table = (UI / "src" / "core" / "words.js").read_text().partition("const SPANISH")[2]
    known = {json.loads(f'"{key}"') for key in re.findall(r'^  "((?:[^"\\]|\\.)+)": "', table, re.MULTILINE)}
    used: set[str] = set()
    for path in sources():
        if path.suffix == ".js" and path.name != "words.js":
            used |= {json.loads(f'"{key}"') for key in re.findall(r'\bt\("((?:[^"\\]|\\.)+)"', path.read_text())}
    names = re.findall(r'name: "([^"]+)"', (UI / "src" / "pages" / "index.js").read_text())
    assert sorted((used | set(names)) - known) == [], "these have no row in words.js"
    # A new command of the chat may lack its row for a while.
    assert len({command.help for command in COMMANDS} - known) <= 5
