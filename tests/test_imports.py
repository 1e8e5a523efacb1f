"""Imports go along the flow of a message, or down to plain records; never back up. A Gateway loads what it needs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import many_nodes, parsed

SOURCE = Path(__file__).parent.parent / "src" / "openclaw"
RECORDS = {
    *(
        "clock",
        "code_spans",
        "device_keys",
        "events",
        "file_types",
        "findings",
        "untrusted_text",
        "http_body",
        "json_text",
        "messages",
        "net",
    ),
    *(
        "path_opener",
        "paths",
        "patterns",
        "pictures",
        "printable",
        "program",
        "public_fetch",
        "python_packages",
        "redact",
    ),
    *("protocol", "rights", "text", "url_text", "variables", "worker_thread"),
}
ALLOWED: dict[str, set[str]] = {
    "config": RECORDS,
    "sessions": RECORDS | {"config", "storage"},
    "storage": RECORDS | {"config", "sessions"},
    "cluster": RECORDS | {"config", "storage"},
    "models": RECORDS | {"config"},
    "memory": RECORDS | {"config", "models", "storage"},
    "questions": RECORDS | {"storage"},
    "tools": RECORDS | {"config", "models", "storage", "memory", "questions"},
    "outbound": RECORDS | {"cluster", "config", "storage", "sessions"},
    "agent": RECORDS
    | {"cluster", "extensions", "config", "storage", "sessions", "models", "memory", "tools", "outbound", "questions"},
    "runs": RECORDS | {"cluster", "config", "storage", "sessions", "models", "agent", "outbound"},
    "inbound": RECORDS
    | {
        "questions",
        "cluster",
        "extensions",
        "config",
        "storage",
        "sessions",
        "models",
        "tools",
        "agent",
        "runs",
        "outbound",
        "routing",
    },
    "channels": RECORDS | {"cluster", "config", "inbound", "outbound", "storage", "sessions"},
    "scheduler": RECORDS
    | {"cluster", "config", "storage", "sessions", "models", "runs", "inbound", "agent", "tools", "outbound"},
    "teamwork": RECORDS
    | {"cluster", "config", "storage", "sessions", "models", "runs", "inbound", "agent", "tools", "outbound"},
    "mcp": RECORDS | {"config", "tools", "outbound", "questions"},
    "extensions": RECORDS | {"config", "tools", "models", "channels", "storage"},
    "node": RECORDS | {"config", "storage", "tools"},
    "skills": set(),
    "protocol": RECORDS,
    "security": RECORDS | {"config", "storage", "tools"},
    "migration": RECORDS | {"config", "storage", "sessions", "scheduler", "tools"},
    "cli": RECORDS
    | {
        "migration",
        "agent",
        "channels",
        "config",
        "models",
        "gateway",
        "storage",
        "security",
        "tools",
        "mcp",
        "extensions",
        "node",
    },
}
ALLOWED["gateway"] = RECORDS | {"routing"} | set(ALLOWED) - {"skills", "cli", "migration", "security", "node"}


@cache
@many_nodes()
def imported_packages(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "openclaw":
            names = [f"openclaw.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("openclaw.")}
    return found


@pytest.mark.parametrize(
    "package", sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py")))
)
def test_a_package_imports_only_what_comes_after_it_in_the_flow(package: str) -> None:
    allowed = ALLOWED[package] | {package}
    strays = {
        f"{path.relative_to(SOURCE)} imports {sorted(imported_packages(path) - allowed - {'__version__'})}"
        for path in (SOURCE / package).rglob("*.py")
        if imported_packages(path) - allowed - {"__version__"}
    }
    assert not strays


@pytest.mark.parametrize("module", sorted(RECORDS))
def test_plain_records_import_only_each_other(module: str) -> None:
    path = SOURCE / f"{module}.py"
    if path.exists():
        assert imported_packages(path) <= RECORDS


def test_only_the_commands_that_start_it_or_stand_in_for_it_import_the_gateway() -> None:
    importers = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if "gateway" in imported_packages(path)
    }
    assert {path for path in importers if not path.startswith("gateway/")} == {"cli/gateway.py", "cli/offline.py"}


def test_only_commands_that_work_without_a_gateway_read_the_stores() -> None:
    importers = {path.name for path in (SOURCE / "cli").rglob("*.py") if "storage" in imported_packages(path)}
    offline = {"backup.py", "doctor.py", "installation.py", "migrate.py", "offline.py", "sessions.py", "storage.py"}
    assert importers == offline


def test_no_class_name_means_two_things() -> None:
    """Private classes are known to one file only and may share a name."""
    homes: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
            homes.setdefault(name, []).append(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


RUN_ONCE = """
import asyncio, sys
from pathlib import Path
import openclaw.channels.slack, openclaw.gateway.main
assert "asyncpg" not in sys.modules, "the driver of PostgreSQL, which the support of the tests loads"
from tests.support.gateway_in_process import gateway_parts
from tests.support.scripted_model import ScriptedModel
from tests.support.submit import submit

async def main():
    model = ScriptedModel("fine")
    async with gateway_parts(Path(sys.argv[1]), model) as gateway:
        await submit(gateway, "hi", "run-1")
        await gateway.runs.index.wait("run-1", 60)
    assert model.requests

asyncio.run(main())
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules of a process in which a Gateway with files and without channels has answered a message."""
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [sys.executable, "-c", RUN_ONCE, str(home / "state")],
        cwd=SOURCE.parents[1],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "package",
    [
        *("mcp", "anyio", "httpx2", "pydantic"),
        *("slack_sdk", "nio", "openclaw.channels.irc", "openclaw.channels.matrix"),
    ],
)
def test_a_gateway_loads_nothing_of_what_it_is_not_asked_for(loaded: list[str], package: str) -> None:
    assert "openclaw.gateway.assemble" in loaded
    assert not [name for name in loaded if name == package or name.startswith(f"{package}.")]
