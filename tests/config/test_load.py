from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw.config.channels import heartbeat_visibility
from openclaw.config.load import Snapshot, parse_config, read_config
from openclaw.config.schema import Config
from openclaw.config.schema.base import SecretRef

Read = Callable[..., Snapshot]
EXISTING = Path(__file__).parent / "existing.json5"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_read(text: str | bytes, **environ: str) -> Snapshot:
        path = tmp_path / "openclaw.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_config(str(path), environ)

    return write_and_read


def test_a_missing_file_means_defaults(tmp_path: Path) -> None:
    snapshot = read_config(str(tmp_path / "openclaw.json"), {})
    assert (snapshot.exists, snapshot.valid, snapshot.raw, snapshot.hash) == (False, True, None, None)
    assert snapshot.config == Config()


def test_defaults_are_the_documented_ones() -> None:
    config = Config()
    assert (config.gateway.port, config.gateway.bind) == (18789, "loopback")
    assert config.agents.defaults.timeout_seconds == 600
    assert config.agents.defaults.compaction.reserve_tokens_floor == 20_000
    assert config.agents.defaults.compaction.memory_flush.soft_threshold_tokens == 4000
    assert (config.compaction.reserve_tokens, config.compaction.keep_recent_tokens) == (16_384, 20_000)
    assert (config.retry.max_retries, config.retry.base_delay_ms, config.retry.max_delay_ms) == (3, 2000, 60_000)
    assert config.session.agent_to_agent.max_ping_pong_turns == 5
    assert (config.messages.queue.mode, config.messages.queue.cap, config.messages.queue.drop) == (
        "collect",
        20,
        "summarize",
    )
    assert config.session.reset_triggers == ["/new", "/reset"]


def test_an_existing_configuration_opens_with_no_word_but_of_what_has_no_effect_yet() -> None:
    snapshot = read_config(str(EXISTING), {})
    others = [warning for warning in snapshot.warnings if "has no effect yet" not in warning.message]
    assert snapshot.issues == [] and others == snapshot.refusals == []
    assert snapshot.config.agents.defaults.sandbox.mode == "non-main"
    config = snapshot.config
    assert config.channels.telegram and config.channels.telegram.bot_token == "123:telegram-secret"
    assert config.broadcast.peers == {"120363@g.us": ["main", "work"]}
    assert config.env.inline == {"OPENROUTER_API_KEY": "sk-or-1"}
    assert config.channels.signal and config.channels.signal.allow_from == ["+1555", "uuid:abc", 491234]


def test_json5_is_understood(read: Read) -> None:
    snapshot = read("\ufeff// hi\r\n{ gateway: { port: 0x4A, /* x */ bind: 'lan', }, 'ui': {}, }\r\n")
    assert snapshot.valid and snapshot.config.gateway.port == 74 and snapshot.config.gateway.bind == "lan"


@pytest.mark.parametrize(
    ("text", "path", "line", "words"),
    [
        ('{\n gateway: {\n  port: "x" } }', "gateway.port", 3, "whole number from 1 to 65535"),
        ("{ gateway: { port: 70000 } }", "gateway.port", 1, "got 70000"),
        ("{ gateway: { port: 1.5 } }", "gateway.port", 1, "got 1.5"),
        ("{ gateway: [] }", "gateway", 1, "expected an object, got a list"),
        ('{\n\n gateway: { bind: "wan" } }', "gateway.bind", 3, '"loopback" or "lan"'),
        ('{ agents: { list: [\n { id: "a" },\n { name: "b" } ] } }', "agents.list[1].id", 3, "required"),
        ('{ agents: { list: [{ id: "" }] } }', "agents.list[0].id", 1, "not empty"),
        ('{ agents: { list: [{ name: 1 },\n{ id: "a" },\n { id: "A" }] } }', "agents.list[2].id", 3, "already"),
        ("{ agents: { defaults: { model: 5 } } }", "agents.defaults.model", 1, "text or an object"),
        (
            "{ session: { agentToAgent: { maxPingPongTurns: 6 } } }",
            "session.agentToAgent.maxPingPongTurns",
            1,
            "0 to 5",
        ),
        ("{ session: { reset: { atHour: 24 } } }", "session.reset.atHour", 1, "0 to 23"),
        (
            '{ models: { providers: { "a.b": { models: [{}] } } } }',
            'models.providers."a.b".models[0].id',
            1,
            "required",
        ),
        (
            '{ models: { providers: { p: { apiKey: { env: "A", file: "b" } } } } }',
            "models.providers.p.apiKey",
            1,
            "exactly one",
        ),
        (
            '{ session: { sendPolicy: { rules: [{ action: "deny", match: { chatType: "roum" } }] } } }',
            "session.sendPolicy.rules[0].match.chatType",
            1,
            '"room"',
        ),
        ('{ agents: { defaults: { heartbeat: { every: "soon" } } } }', "agents.defaults.heartbeat.every", 1, "30m"),
        (
            '{ agents: { defaults: { heartbeat: { activeHours: { end: "25:00" } } } } }',
            "agents.defaults.heartbeat.activeHours.end",
            1,
            "HH:MM",
        ),
        ('{ channels: { signal: { dmPolicy: "open" } } }', "channels.signal.dmPolicy", 1, '"*"'),
        (
            '{ channels: { telegram: { accounts: { x: { dmPolicy: "open" } } } } }',
            "channels.telegram.accounts.x.dmPolicy",
            1,
            '"*"',
        ),
        ('{ channels: { discord: { dm: { policy: "open" } } } }', "channels.discord.dm.policy", 1, '"*"'),
        ('{ tools: { allow: ["a"], alsoAllow: ["b"] } }', "tools.alsoAllow", 1, "exclude"),
        ("{ hooks: { enabled: true } }", "hooks.token", 1, "need a token"),
        ('{ hooks: { path: "/" } }', "hooks.path", 1, "cannot be"),
        ('{ gateway: { tailscale: { mode: "funnel" } } }', "gateway.tailscale.mode", 1, "password"),
        ("{ channels: { telegram: 5 } }", "channels.telegram", 1, "expected an object"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(read: Read, text: str, path: str, line: int, words: str) -> None:
    snapshot = read(text)
    assert not snapshot.valid
    found = {issue.path: issue for issue in snapshot.issues}
    assert path in found and found[path].line == line and words in found[path].message


def test_all_faults_are_named_at_once_and_the_rest_still_means_something(read: Read) -> None:
    snapshot = read('{ gateway: { port: "x", bind: 1 }, cron: 5, session: { mainKey: "work" } }')
    assert [issue.path for issue in snapshot.issues] == ["gateway.port", "gateway.bind", "cron"]
    assert snapshot.config.session.main_key == "work" and snapshot.config.gateway.port == 18789


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("{ gatway: {} }", "gatway", '"gateway"'),
        ('{ gateway: { auth: { tokn: "x" } } }', "gateway.auth.tokn", '"token"'),
        ("{ agents: { defaults: { timeout_seconds: 5 } } }", "agents.defaults.timeout_seconds", '"timeoutSeconds"'),
        ("{ zzzzqqqq: 1 }", "zzzzqqqq", "unknown key"),
        ("{ agent: {} }", "agent", "agents.defaults"),
        ("{ channels: { telegrm: {} } }", "channels.telegrm", '"telegram"'),
        ("{ ui: {}, ui: {} }", "ui", "twice"),
        (
            '{ bindings: [{ agentId: "b", match: { channel: "x" } }], agents: { list: [{ id: "a" }] } }',
            "bindings[0].agentId",
            '"b"',
        ),
        ('{ agents: { list: [{ id: "a", default: true }, { id: "b", default: true }] } }', "agents.list", "first"),
    ],
)
def test_a_doubtful_key_is_a_warning_that_helps(read: Read, text: str, path: str, words: str) -> None:
    snapshot = read(text)
    assert snapshot.valid and [warning.path for warning in snapshot.warnings] == [path]
    assert words in snapshot.warnings[0].message and snapshot.warnings[0].line == 1


def test_null_means_the_default(read: Read) -> None:
    snapshot = read("{ gateway: { port: null, auth: null }, agents: null }")
    assert snapshot.valid and snapshot.config == Config()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("{\n a: 1\n b: 2 }", 3, 'expected ","'),
        ("{\n", 2, "end of the file"),
        ('{\n a: "x\n}', 2, "closing quote"),
        ("{ a: tru }", 1, "not valid JSON5"),
        ("/* never closed", 1, "never closed"),
        ("[]", 1, "must be an object"),
        ("{} {}", 1, "after the end"),
        ("{a:" * 100, 1, "levels deep"),
        ("[" * 100_000, 1, "levels deep"),
    ],
)
def test_broken_syntax_is_explained_with_its_line(read: Read, text: str, line: int, words: str) -> None:
    snapshot = read(text)
    assert not snapshot.valid and snapshot.issues[0].line == line and words in snapshot.issues[0].message


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\x01", b"\x89PNG\r\n\x1a\n\x00", b"{a: '\xc3\x28'}"])
def test_a_file_that_is_not_text_is_refused(read: Read, data: bytes) -> None:
    snapshot = read(data)
    assert not snapshot.valid and snapshot.exists and snapshot.issues


def test_a_gigantic_file_is_refused_without_being_parsed(read: Read) -> None:
    assert "larger than" in read(b" " * (4 * 1024 * 1024 + 1)).issues[0].message


def test_an_empty_file_is_a_warning_only(read: Read) -> None:
    snapshot = read(" \n ")
    assert snapshot.valid and "empty" in snapshot.warnings[0].message


def test_a_directory_in_place_of_the_file_is_an_issue(tmp_path: Path) -> None:
    assert not read_config(str(tmp_path), {}).valid


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.text(alphabet="{}[]:,'\"/*\\ \nab$1"), st.binary().map(lambda b: b.decode("latin1"))))
def test_no_text_can_make_reading_fail(tmp_path: Path, text: str) -> None:
    snapshot = parse_config(str(tmp_path / "openclaw.json"), text, {})
    assert snapshot.valid or snapshot.issues


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "agents",
                    "list",
                    "defaults",
                    "id",
                    "channels",
                    "signal",
                    "heartbeat",
                    "tools",
                    "exec",
                    "accounts",
                    "env",
                    "vars",
                    "models",
                    "providers",
                    "$include",
                    "bindings",
                    "gateway",
                    "auth",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=15,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["agents", "channels", "models", "env", "tools", "bindings", "$include", "gateway"]), JSON
    )
)
def test_no_values_can_make_reading_fail(tmp_path: Path, values: dict[str, object]) -> None:
    import pyjson5

    snapshot = parse_config(str(tmp_path / "openclaw.json"), pyjson5.dumps(values), {})
    assert snapshot.valid or snapshot.issues


# Environment


def test_environment_variables_are_put_in(read: Read) -> None:
    text = '{ gateway: { auth: { token: "${MY_TOKEN}" }, remote: { url: "ws://${HOST}:${PORT}" } } }'
    snapshot = read(text, MY_TOKEN="s3cret", HOST="h", PORT="1")
    assert snapshot.config.gateway.auth.token == "s3cret" and snapshot.config.gateway.remote.url == "ws://h:1"
    assert snapshot.parsed["gateway"]["auth"]["token"] == "${MY_TOKEN}"


def test_a_doubled_dollar_and_lower_case_stay_as_they_are(read: Read) -> None:
    snapshot = read('{ ui: { assistant: { name: "$${NAME} ${name} $NAME ${}" } } }')
    assert snapshot.config.ui.assistant.name == "${NAME} ${name} $NAME ${}"


@pytest.mark.parametrize("environ", [{}, {"MY_TOKEN": ""}])
def test_a_missing_variable_is_named_with_its_place(read: Read, environ: dict[str, str]) -> None:
    snapshot = read('{ gateway: { auth: {\n token: "${MY_TOKEN}" } } }', **environ)
    assert [(issue.path, issue.line) for issue in snapshot.issues] == [("gateway.auth.token", 2)]
    assert "MY_TOKEN" in snapshot.issues[0].message


def test_variables_of_the_configuration_count_but_the_real_environment_wins(read: Read) -> None:
    text = '{ env: { A: "own", vars: { B: "own" } }, ui: { assistant: { name: "${A}", avatar: "${B}" } } }'
    assert read(text).config.ui.assistant.name == "own"
    assert read(text, B="real").config.ui.assistant.avatar == "real"


def test_a_secret_can_be_a_reference(read: Read) -> None:
    snapshot = read('{ models: { providers: { p: { apiKey: { env: "KEY" } } } } }')
    assert snapshot.config.models.providers["p"].api_key == SecretRef(env="KEY")


# Inheritance


def test_an_agent_inherits_key_by_key(read: Read) -> None:
    snapshot = read("""{
      agents: {
        defaults: { heartbeat: { every: "10m", target: "none" }, humanDelay: { mode: "custom", minMs: 1 } },
        list: [
          { id: "a", heartbeat: { every: "1h" }, humanDelay: { maxMs: 9 }, tools: { exec: { ask: "off" } } },
          { id: "b" },
        ],
      },
      tools: { exec: { timeoutSec: 7 } },
    }""")
    a, b = snapshot.config.agents.list
    assert a.heartbeat and (a.heartbeat.every, a.heartbeat.target) == ("1h", "none")
    assert a.human_delay and (a.human_delay.mode, a.human_delay.min_ms, a.human_delay.max_ms) == ("custom", 1, 9)
    assert a.tools.exec and (a.tools.exec.ask, a.tools.exec.timeout_sec) == ("off", 7)
    assert b.heartbeat is None


def test_a_signal_account_inherits_from_the_channel(read: Read) -> None:
    snapshot = read(
        '{ channels: { defaults: { groupPolicy: "open" }, signal: { httpPort: 9000, name: "base",'
        ' accounts: { two: { account: "+2" }, three: { groupPolicy: "disabled" } } } } }'
    )
    signal = snapshot.config.channels.signal
    assert signal and signal.group_policy == "open"
    assert (signal.accounts["two"].http_port, signal.accounts["two"].name) == (9000, None)
    assert (signal.accounts["two"].group_policy, signal.accounts["three"].group_policy) == ("open", "disabled")


@pytest.mark.parametrize(
    ("channel", "shared", "own", "unused"),
    [
        ("telegram", {"tokenFile": "/base"}, {"botToken": "1:own"}, "token_file"),
        ("telegram", {"botToken": "1:base"}, {"tokenFile": "/own"}, "bot_token"),
        ("matrix", {"accessToken": "base"}, {"userId": "@two:x", "password": "own"}, "access_token"),
    ],
)
def test_an_account_with_a_credential_of_its_own_inherits_no_other(
    read: Read, channel: str, shared: dict[str, str], own: dict[str, str], unused: str
) -> None:
    section = {**shared, "allowFrom": ["1"], "accounts": {"two": own, "three": {}}}
    accounts = getattr(read(json.dumps({"channels": {channel: section}})).config.channels, channel).accounts
    assert getattr(accounts["two"], unused) is None and accounts["two"].allow_from == ["1"]
    assert getattr(accounts["three"], unused) is not None


def test_how_heartbeats_show_is_inherited_key_by_key(read: Read) -> None:
    snapshot = read("""{ channels: {
      defaults: { heartbeat: { useIndicator: false } },
      signal: { heartbeat: { showOk: true }, accounts: { two: { heartbeat: { showAlerts: false } }, three: {} } },
      telegram: { accounts: { two: { heartbeat: { showOk: true } } } },
    } }""")
    shown = [
        heartbeat_visibility(snapshot.config, *account)
        for account in [("signal", "two"), ("signal", "three"), ("signal", None), ("telegram", "two"), ("irc", None)]
    ]
    assert [(one.show_ok, one.show_alerts, one.use_indicator) for one in shown] == [
        (True, False, False),
        (True, True, False),
        (True, True, False),
        (True, True, False),
        (False, True, False),
    ]


def read_files(folder: Path, **files: str) -> Snapshot:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".json5")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_config(str(folder / "main.json5"), {})


def test_an_included_file_stands_where_it_is_named(tmp_path: Path) -> None:
    snapshot = read_files(tmp_path, main='{ agents: { $include: "agents.json5" } }', agents='{ list: [{ id: "a" }] }')
    assert snapshot.valid and snapshot.config.agents.list[0].id == "a"
    assert snapshot.includes == [str(tmp_path / "agents.json5")]
    assert snapshot.parsed == {"agents": {"$include": "agents.json5"}}


def test_later_files_and_then_the_keys_beside_win(tmp_path: Path) -> None:
    snapshot = read_files(
        tmp_path,
        main='{ $include: ["one.json5", "sub/two.json5"], gateway: { port: 3 } }',
        one='{ gateway: { port: 1, bind: "lan" }, session: { mainKey: "one" } }',
        sub__two='{ gateway: { port: 2 }, session: { $include: "./three.json5" } }',
        sub__three='{ mainKey: "three" }',
    )
    config = snapshot.config
    assert snapshot.valid and (config.gateway.port, config.gateway.bind, config.session.main_key) == (3, "lan", "three")


def test_lists_of_several_files_are_joined(tmp_path: Path) -> None:
    snapshot = read_files(
        tmp_path,
        main='{ $include: ["one.json5", "two.json5"] }',
        one='{ agents: { list: [{ id: "a" }] } }',
        two='{ agents: { list: [{ id: "b" }] } }',
    )
    assert [agent.id for agent in snapshot.config.agents.list] == ["a", "b"]


def test_a_whole_list_can_be_included(tmp_path: Path) -> None:
    snapshot = read_files(
        tmp_path, main='{ bindings: { $include: "b.json5" } }', b='[{ agentId: "a", match: { channel: "x" } }]'
    )
    assert snapshot.valid and snapshot.config.bindings[0].agent_id == "a"


def test_a_fault_in_an_included_file_is_placed_there(tmp_path: Path) -> None:
    snapshot = read_files(tmp_path, main='{ gateway: { $include: "g.json5" } }', g='{\n\n port: "x" }')
    (issue,) = snapshot.issues
    assert (issue.path, issue.line, issue.file) == ("gateway.port", 3, str(tmp_path / "g.json5"))
    assert "g.json5:3" in str(issue)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"main": '{ $include: "main.json5" }'}, "includes itself"),
        ({"main": '{ $include: "a.json5" }', "a": '{ ui: { $include: "main.json5" } }'}, "includes itself"),
        ({"main": '{ $include: "gone.json5" }'}, "does not exist"),
        ({"main": '{ $include: "../outside.json5" }'}, "outside the folder"),
        ({"main": '{ $include: "/etc/passwd" }'}, "outside the folder"),
        ({"main": '{ $include: "bad.json5" }', "bad": "{ a: "}, "bad.json5:1"),
        ({"main": "{ $include: 5 }"}, "name of a file"),
        ({"main": '{ $include: "x\\u0000y" }'}, ""),
        ({"main": '{ $include: "list.json5", ui: {} }', "list": "[]"}, "must hold an object"),
        ({"main": '{ $include: "list.json5" }', "list": "[]"}, "must hold an object"),
    ],
)
def test_an_include_that_cannot_be_is_an_issue(tmp_path: Path, files: dict[str, str], words: str) -> None:
    snapshot = read_files(tmp_path, **files)
    assert not snapshot.valid and words in snapshot.issues[0].message
    assert "$include" in snapshot.issues[0].path


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.json5").write_text("{ port: 1 }")
    folder = tmp_path / "config"
    folder.mkdir()
    os.symlink(tmp_path / "secret.json5", folder / "link.json5")
    snapshot = read_files(folder, main='{ gateway: { $include: "link.json5" } }')
    assert "outside the folder" in snapshot.issues[0].message


def test_includes_nest_ten_levels_and_no_more(tmp_path: Path) -> None:
    def chain(length: int) -> Snapshot:
        files = {f"f{number}": f'{{ $include: "f{number + 1}.json5" }}' for number in range(1, length)}
        return read_files(
            tmp_path, main='{ $include: "f1.json5" }', **files, **{f"f{length}": "{ gateway: { port: 9 } }"}
        )

    assert chain(10).config.gateway.port == 9
    assert "levels deep" in chain(11).issues[0].message
