"""A key that has no effect yet says so when it is set, and the table of such keys fits the code."""

from __future__ import annotations

import fnmatch
import logging
from pathlib import Path

import pytest

from openclaw.clock import SystemClock
from openclaw.config.load import parse_config
from openclaw.config.store import ConfigStore
from openclaw.config.unsupported import UNSUPPORTED

from .schema_reads import Reads, Schema

READ_OTHERWISE = {
    "$schema": "for editors",
    "meta.*": "notes about the file",
    "wizard.*": "notes about the file",
    "env.vars": "config/load.py, before there is a record",
    "env.[*]": "config/load.py, before there is a record",
    "logging.*": "a protocol in logs.py",
    "auth.order": "getattr in models/keys.py",
    "models.providers.[*].models[[]].cost.*": "an untyped argument in models/catalogue.py",
    "agents.defaults.budget.*": "getattr in the budget's check",
    "agents.list[[]].budget.*": "getattr in the budget's check",
    "agents.list[[]].identity.*": "getattr in gateway/methods/agents.py",
    "tools.exec.*": "converted to ExecSettings as a whole",
    "agents.list[[]].tools.exec.*": "converted to ExecSettings as a whole",
    "session.reset.*": "getattr in sessions/reset.py",
    "session.resetByType.*": "getattr in sessions/reset.py",
    "session.resetByChannel.*": "getattr in sessions/reset.py",
    "gateway.remote.url": "cli/target.py reads the raw file",
    "gateway.remote.token": "cli/target.py reads the raw file",
    "gateway.remote.password": "cli/target.py reads the raw file",
    "gateway.remote.tlsFingerprint": "cli/target.py reads the raw file",
}
"""Key path (a glob) → where a key is read that ``Reads`` cannot see."""


def is_unsupported(key: str) -> bool:
    return any(key == path or key.startswith((f"{path}.", f"{path}[")) for path in UNSUPPORTED)


@pytest.fixture(scope="module")
def reads() -> Reads:
    return Reads(Schema())


def test_every_key_of_the_schema_is_read_or_listed_as_unsupported(reads: Reads) -> None:
    unread = {key.path for key in reads.schema.keys if key not in reads}
    seen_elsewhere = {path for path in unread if any(fnmatch.fnmatchcase(path, glob) for glob in READ_OTHERWISE)}
    forgotten = sorted(path for path in unread - seen_elsewhere if not is_unsupported(path))
    assert forgotten == [], "nothing reads these keys: read them, or list them in config/unsupported.py"


def test_no_listed_key_is_read(reads: Reads) -> None:
    wrong = sorted(key.path for key in reads.schema.keys if key in reads and is_unsupported(key.path))
    assert wrong == [], "these keys are read: take them off config/unsupported.py"


def test_every_listed_path_is_one_of_the_schema() -> None:
    known = [key.path for key in Schema().keys]
    strange = [
        path
        for path in UNSUPPORTED
        if not any(key == path or key.startswith((f"{path}.", f"{path}[")) for key in known)
    ]
    assert strange == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{ hooks: { token: 'x', path: '/hooks' } }", "hooks"),
        ("{ gateway: { tls: { enabled: true } } }", "gateway.tls"),
        ("{ agents: { defaults: { humanDelay: { mode: 'natural' } } } }", "agents.defaults.humanDelay"),
        (
            "{ agents: { list: [{ id: 'a' }, { id: 'b', subagents: { thinking: 'low' } }] } }",
            "agents.list[1].subagents",
        ),
        (
            "{ channels: { signal: { accounts: { a: { reactionLevel: 'ack' } } } } }",
            "channels.signal.accounts.a.reactionLevel",
        ),
    ],
)
def test_setting_an_unsupported_key_is_a_warning_that_names_it(text: str, path: str) -> None:
    snapshot = parse_config("openclaw.json", text, {})
    assert snapshot.valid and not snapshot.mistakes
    (warning,) = snapshot.warnings
    assert (warning.path, warning.line) == (path, 1)
    assert "has no effect yet" in warning.message


def test_null_and_supported_neighbours_give_no_warning() -> None:
    text = "{ hooks: null, cron: { maxConcurrentRuns: 2 }, agents: { defaults: { sandbox: { mode: 'off' } } } }"
    assert parse_config("openclaw.json", text, {}).warnings == []


async def test_the_log_tells_it_at_the_start_and_at_a_reload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "openclaw.json"
    path.write_text('{ gateway: { mode: "local", auth: { token: "t" } }, talk: { voiceId: "v" } }')
    store = ConfigStore(str(path), SystemClock(), {})
    with caplog.at_level(logging.WARNING, "openclaw.config"):
        store.load_or_create()
        assert "talk (line 1): accepted, but it has no effect yet: there is no talk mode yet" in caplog.text
        caplog.clear()
        path.write_text('{ gateway: { mode: "local", auth: { token: "t" } }, canvasHost: { enabled: true } }')
        assert await store.reload()
        assert "canvasHost (line 1): accepted, but it has no effect yet" in caplog.text


def test_the_documentation_lists_every_unsupported_key() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
    missing = [path for path, reason in UNSUPPORTED.items() if f"`{path}`" not in text or reason not in text]
    assert missing == []
