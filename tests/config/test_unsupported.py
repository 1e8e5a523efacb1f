"""A setting that has no effect says so when it is made, one that promises safety stops the start, and the tables fit
the code."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from openclaw.clock import SystemClock
from openclaw.config.load import parse_config, read_config
from openclaw.config.store import ConfigInvalid, ConfigStore
from openclaw.config.unsupported import SAFETY, UNSUPPORTED, UNSUPPORTED_VALUES

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
    "channels.telegram.*topics.*": "group_settings in inbound/access.py, which reads groups and topics alike",
    "channels.discord.*maxLinesPerMessage": "getattr in outbound/chunking.py",
    "channels.*.accounts.*": "accounts of a section, in channels/base.py; the section itself has the same keys",
    "channels.*.defaultAccount": "channels/base.py, of whichever section it is",
    "channels.matrix.homeserver": "credentials of an account, by ConfiguredKind.value in channels/base.py",
    "channels.matrix.userId": "credentials of an account, by ConfiguredKind.value in channels/base.py",
    "channels.telegram.*draftChunk.*": "one of two records in gateway/channels.py",
    "session.reset.*": "getattr in sessions/reset.py",
    "session.resetByType.*": "getattr in sessions/reset.py",
    "session.resetByChannel.*": "getattr in sessions/reset.py",
    "gateway.remote.url": "cli/gateway_target.py reads the raw file",
    "gateway.remote.token": "cli/gateway_target.py reads the raw file",
    "gateway.remote.password": "cli/gateway_target.py reads the raw file",
    "gateway.remote.tlsFingerprint": "cli/gateway_target.py reads the raw file",
}
"""Key path (a glob) → where a key is read that ``Reads`` cannot see."""


def is_unsupported(key: str, *tables: Iterable[str]) -> bool:
    paths = [path for table in tables for path in table]
    return any(key == path or key.startswith((f"{path}.", f"{path}[")) for path in paths)


@pytest.fixture(scope="module")
def reads() -> Reads:
    return Reads(Schema())


def test_every_key_of_the_schema_is_read_or_listed_as_unsupported(reads: Reads) -> None:
    unread = {key.path for key in reads.schema.keys if key not in reads}
    seen_elsewhere = {path for path in unread if any(fnmatch.fnmatchcase(path, glob) for glob in READ_OTHERWISE)}
    forgotten = sorted(path for path in unread - seen_elsewhere if not is_unsupported(path, UNSUPPORTED, SAFETY))
    assert forgotten == [], "nothing reads these keys: read them, or list them in config/unsupported.py"


def test_no_listed_key_is_read(reads: Reads) -> None:
    wrong = sorted(key.path for key in reads.schema.keys if key in reads and is_unsupported(key.path, UNSUPPORTED))
    assert wrong == [], "these keys are read: take them off config/unsupported.py"


def test_every_listed_path_is_one_of_the_schema() -> None:
    known = [key.path for key in Schema().keys]
    strange = [
        path
        for path in {**UNSUPPORTED, **UNSUPPORTED_VALUES, **SAFETY}
        if not any(key == path or key.startswith((f"{path}.", f"{path}[")) for key in known)
    ]
    assert strange == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{ hooks: { internal: { enabled: true } } }", "hooks.internal"),
        ("{ cron: { webhook: 'https://example.org/' } }", "cron.webhook"),
        ("{ models: { providers: { p: { api: 'bedrock-converse-stream' } } } }", "models.providers.p.api"),
        ("{ gateway: { nodes: { browser: { node: 'attic' } } } }", "gateway.nodes.browser"),
        ("{ channels: { telegram: { retry: { attempts: 2 } } } }", "channels.telegram.retry"),
        (
            "{ agents: { defaults: { models: { 'a/b': { streaming: false } } } } }",
            "agents.defaults.models.a/b.streaming",
        ),
        (
            "{ agents: { defaults: { cliBackends: { a: { systemPromptMode: 'replace' } } } } }",
            "agents.defaults.cliBackends.a.systemPromptMode",
        ),
        (
            "{ agents: { list: [{ id: 'a' }, { id: 'b', tools: { loopDetection: { historySize: 30 } } }] } }",
            "agents.list[1].tools.loopDetection.historySize",
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
    text = "{ hooks: null, agents: { defaults: { sandbox: { mode: 'off' } } }, tools: { exec: { host: 'gateway' } } }"
    assert parse_config("openclaw.json", text, {}).warnings == []


@pytest.mark.parametrize(
    "text",
    [
        "{ agents: { defaults: { heartbeat: { every: '0m' } } } }",
        "{ cron: { enabled: false, store: 'x' } }",
        "{ gateway: { tailscale: { mode: 'off' } } }",
        "{ browser: { enabled: false }, commands: { bash: false } }",
        "{ channels: { telegram: { enabled: false, botToken: 't' } } }",
        "{ channels: { signal: { enabled: false, groups: { '*': { tools: {} } } } } }",
    ],
)
def test_switching_off_what_there_is_not_gives_no_warning(text: str) -> None:
    assert parse_config("openclaw.json", text, {}).warnings == []


SAFETY_VALUES = [
    ("{ gateway: { auth: { mode: 'none' } } }", "gateway.auth.mode"),
    ("{ gateway: { auth: { mode: 'trusted-proxy' } } }", "gateway.auth.mode"),
    ("{ gateway: { bind: 'custom' } }", "gateway.bind"),
    ("{ gateway: { tools: { allow: ['message'] } } }", "gateway.tools.allow"),
    ("{ tools: { media: { audio: { scope: { default: 'deny' } } } } }", "tools.media.audio.scope"),
    ("{ channels: { telegram: { actions: { sendMessage: false } } } }", "channels.telegram.actions.sendMessage"),
    ("{ approvals: { exec: { ask: 'always' } } }", "approvals.exec.ask"),
    ("{ gateway: { bind: 'custom', customBindHost: ' ' } }", "gateway.bind"),
    ("{ channels: { signal: { groups: { g: { tools: { deny: ['exec'] } } } } } }", "channels.signal.groups.g.tools"),
    (
        "{ channels: { signal: { accounts: { a: { groups: { g: { toolsBySender: { x: { deny: ['a'] } } } } } } } } }",
        "channels.signal.accounts.a.groups.g.toolsBySender",
    ),
]


@pytest.mark.parametrize(("text", "path"), SAFETY_VALUES)
def test_a_value_that_promises_safety_nothing_gives_is_refused_by_name_and_with_a_way_out(text: str, path: str) -> None:
    snapshot = parse_config("openclaw.json", text, {})
    assert snapshot.valid
    (refusal,) = snapshot.refusals
    assert (refusal.path, refusal.line) == (path, 1) and refusal in snapshot.warnings
    assert "does not start with this value" in refusal.message
    assert "set " in refusal.message or "remove it" in refusal.message


UNKNOWN_SAFETY = [
    ("{ agents: { entries: { main: { denyTools: ['exec'] } } } }", "agents.entries.main.denyTools"),
    ("{ agents: { list: [{ id: 'a' }], entries: { b: { ownerOnly: true } } } }", "agents.entries.b.ownerOnly"),
    ("{ toolPolicy: { exec: { security: 'deny' } } }", "toolPolicy"),
    ("{ agents: { defaults: { sandboxing: { mode: 'all' } } } }", "agents.defaults.sandboxing"),
    ("{ agents: { list: [{ id: 'a' }, { id: 'b', denyTools: ['exec'] }] } }", "agents.list[1].denyTools"),
    ("{ agents: { list: [{ id: 'a', guard: { rules: [{ ask: 'always' }] } }] } }", "agents.list[0].guard"),
    ("{ channels: { signal: { dm: { allow_from: ['+1'] } } } }", "channels.signal.dm.allow_from"),
    ("{ channels: { signal: { accounts: { a: { DMPolicy: 'pairing' } } } } }", "channels.signal.accounts.a.DMPolicy"),
    ("{ channels: { telegram: { accounts: { a: { ownerOnly: true } } } } }", "channels.telegram.accounts.a.ownerOnly"),
    ("{ telegram: { allowFrom: ['1'] } }", "telegram"),
    ("{ tools: { elevatedMode: 'off' } }", "tools.elevatedMode"),
    ("{ tools: { exec: { 'exec-ask': 'always' } } }", "tools.exec.exec-ask"),
    ("{ tools: { denny: ['exec'] } }", "tools.denny"),
    ("{ plugins: { entries: { x: { access: { allowlist: ['a'] } } } } }", "plugins.entries.x.access"),
    ("{ gateway: { authorization: { required: true } } }", "gateway.authorization"),
    ("{ gateway: { http: { policy: 'deny' } } }", "gateway.http.policy"),
    ("{ agents: { defaults: { sandbox: { modus: 'all' } } } }", "agents.defaults.sandbox.modus"),
    ("{ agents: { defaults: { sandbox: { docker: { netwrk: 'none' } } } } }", "agents.defaults.sandbox.docker.netwrk"),
]


@pytest.mark.parametrize(("text", "path"), UNKNOWN_SAFETY)
def test_an_unknown_key_that_reads_like_a_safety_setting_is_refused_by_name(text: str, path: str) -> None:
    snapshot = parse_config("openclaw.json", text, {})
    assert snapshot.valid
    (refusal,) = snapshot.refusals
    assert (refusal.path, refusal.line) == (path, 1) and refusal in snapshot.warnings
    assert "unknown key" in refusal.message and "does not start" in refusal.message


@pytest.mark.parametrize(
    "text",
    [
        "{ zzzzqqqq: 1 }",
        "{ ui: { colour: 'red', authors: ['Ana'], tasks: 3 } }",
        "{ agents: { list: [{ id: 'a', mood: { basket: true } }] } }",
        "{ messages: { autoCorrect: { mask: true } } }",
        "{ wizard: { securityAcknowledgedAt: 'x' }, meta: { author: 'x', authKind: 'y' } }",
        "{ auth: { colour: 1 } }",
    ],
)
def test_a_harmless_unknown_key_is_only_a_warning(text: str) -> None:
    snapshot = parse_config("openclaw.json", text, {})
    assert snapshot.valid and snapshot.refusals == []
    assert all("unknown key, ignored" in warning.message for warning in snapshot.warnings) and snapshot.warnings


def test_a_safety_setting_that_a_second_key_of_that_name_would_hide_is_refused() -> None:
    (refusal,) = parse_config("openclaw.json", "{ tools: { deny: ['exec'] }, tools: { fs: {} } }", {}).refusals
    assert refusal.path == "tools" and "written twice" in refusal.message
    assert parse_config("openclaw.json", "{ ui: { assistant: {} }, ui: {} }", {}).refusals == []


def test_an_unknown_safety_setting_in_an_included_file_is_refused_there(tmp_path: Path) -> None:
    (tmp_path / "agents.json5").write_text("{\n entries: { main: { sandbox: { modus: '${MODE}' } } } }")
    main = tmp_path / "openclaw.json"
    main.write_text("{ agents: { $include: './agents.json5' } }")
    (refusal,) = read_config(str(main), {"MODE": "all"}).refusals
    assert (refusal.path, refusal.line) == ("agents.entries.main.sandbox.modus", 2)
    assert refusal.file and refusal.file.endswith("agents.json5")


async def test_a_running_gateway_does_not_take_an_unknown_safety_setting_over(tmp_path: Path) -> None:
    path = tmp_path / "openclaw.json"
    path.write_text('{ gateway: { auth: { token: "t" }, port: 20001 } }')
    store = ConfigStore(str(path), SystemClock(), {})
    store.load_or_create()
    patch = {"agents": {"entries": {"main": {"tools": {"denied": ["exec"]}}}}}
    with pytest.raises(ConfigInvalid, match=r"agents\.entries\.main\.tools\.denied"):
        store.merge_patch(patch, store.snapshot.hash)
    with pytest.raises(ConfigInvalid, match=r"tools\.denied"):
        store.write_raw('{ tools: { denied: ["exec"] } }', store.snapshot.hash)
    path.write_text('{ gateway: { auth: { token: "t" }, port: 20002 }, agents: { entries: { main: { denyAll: 1 } } } }')
    assert not await store.reload()
    assert store.current.gateway.port == 20001 and not store.refusals


async def test_a_running_gateway_does_not_take_such_a_value_over(tmp_path: Path) -> None:
    path = tmp_path / "openclaw.json"
    path.write_text('{ gateway: { auth: { token: "t" }, port: 20001 } }')
    store = ConfigStore(str(path), SystemClock(), {})
    store.load_or_create()
    with pytest.raises(ConfigInvalid, match=r"gateway\.auth\.mode"):
        store.merge_patch({"gateway": {"auth": {"mode": "none"}}}, store.snapshot.hash)
    path.write_text('{ gateway: { auth: { token: "t", mode: "none" }, port: 20002 } }')
    assert not await store.reload()
    assert store.current.gateway.port == 20001 and not store.refusals


async def test_the_log_tells_it_at_the_start_and_at_a_reload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "openclaw.json"
    path.write_text('{ gateway: { mode: "local", auth: { token: "t" } }, talk: { voiceId: "v" } }')
    store = ConfigStore(str(path), SystemClock(), {})
    with caplog.at_level(logging.WARNING, "openclaw.config"):
        store.load_or_create()
        store.log_warnings()
        assert "talk (line 1): accepted, but it has no effect yet: there is no talk mode yet" in caplog.text
        caplog.clear()
        path.write_text('{ gateway: { mode: "local", auth: { token: "t" } }, canvasHost: { enabled: true } }')
        assert await store.reload()
        assert "canvasHost (line 1): accepted, but it has no effect yet" in caplog.text
