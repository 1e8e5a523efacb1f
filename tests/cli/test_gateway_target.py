from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.cli import gateway_target
from openclaw.cli.command import UserError
from openclaw.config.load import read_config
from openclaw.gateway.auth.authorise import shared_secret


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("OPENCLAW_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path))
    return tmp_path


def configure(home: Path, text: str) -> None:
    (home / "openclaw.json").write_text(text)


def test_without_any_configuration_it_is_the_usual_port_on_loopback() -> None:
    target = gateway_target.resolve()
    assert (target.url, target.secret, target.local) == ("ws://127.0.0.1:18789", "", True)


def test_port_and_token_come_from_the_configuration(home: Path) -> None:
    configure(home, "{ gateway: { port: 20001, auth: { token: 'abc' }, }, } // end")
    target = gateway_target.resolve()
    assert (target.port, target.secret, target.secret_source) == (20001, "abc", "gateway.auth.token")


def test_the_environment_wins_over_the_configuration(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(home, '{"gateway": {"port": 20001, "auth": {"token": "file"}}}')
    monkeypatch.setenv("OPENCLAW_GATEWAY_TOKEN", "env")
    monkeypatch.setenv("OPENCLAW_GATEWAY_PORT", "20002")
    target = gateway_target.resolve()
    assert (target.port, target.secret) == (20002, "env")
    assert gateway_target.resolve(token="flag").secret == "flag"


def test_the_running_gateway_tells_its_real_port(home: Path) -> None:
    configure(home, '{"gateway": {"port": 20001}}')
    (home / "gateway.lock").write_text(json.dumps({"pid": os.getpid(), "port": 34567}))
    assert gateway_target.resolve().port == 34567
    (home / "gateway.lock").write_text(json.dumps({"pid": 2**22 + 1, "port": 34567}))
    assert gateway_target.resolve().port == 20001


@pytest.mark.parametrize("lock", ["", "nonsense", "[]", '{"pid": "x"}', "{}"])
def test_a_broken_lock_file_is_no_gateway(home: Path, lock: str) -> None:
    (home / "gateway.lock").write_text(lock)
    assert gateway_target.resolve().port == 18789


def test_password_mode_prefers_the_password(home: Path) -> None:
    configure(home, '{"gateway": {"auth": {"mode": "password", "token": "t", "password": "p"}}}')
    assert gateway_target.resolve().secret == "p"


@pytest.mark.parametrize("mode", [None, "token", "password"])
@pytest.mark.parametrize("stored", [{"token": "t"}, {"password": "p"}, {"token": "t", "password": "p"}])
@pytest.mark.parametrize("variable", [None, "OPENCLAW_GATEWAY_TOKEN", "OPENCLAW_GATEWAY_PASSWORD"])
def test_the_secret_is_the_one_that_the_gateway_compares(
    home: Path, monkeypatch: pytest.MonkeyPatch, mode: str | None, stored: dict[str, str], variable: str | None
) -> None:
    kind = (variable or "").rpartition("_")[2].lower()
    if variable is not None:
        monkeypatch.setenv(variable, f"{stored.get(kind, 'e')}\n")
    auth = {**stored, **({"mode": mode} if mode else {})}
    configure(home, json.dumps({"gateway": {"auth": auth}}))
    gateway = shared_secret(read_config(str(home / "openclaw.json"), os.environ).config, os.environ)
    assert not gateway.value or gateway_target.resolve().secret == gateway.value


def test_a_secret_may_name_an_environment_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(home, '{"gateway": {"auth": {"token": "${MY_TOKEN}"}}}')
    monkeypatch.setenv("MY_TOKEN", "from-env")
    assert gateway_target.resolve().secret == "from-env"


def test_remote_mode_uses_the_remote_address_and_its_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(
        home,
        '{"gateway": {"mode": "remote", "auth": {"token": "local"},'
        ' "remote": {"url": "wss://gw.example:8443/x", "token": "far"}}}',
    )
    monkeypatch.setenv("OPENCLAW_GATEWAY_TOKEN", "env")
    target = gateway_target.resolve()
    assert (target.url, target.secret, target.local) == ("wss://gw.example:8443", "far", False)
    assert "Bind:" not in target.describe()


def test_remote_mode_without_an_address_says_so(home: Path) -> None:
    configure(home, '{"gateway": {"mode": "remote"}}')
    target = gateway_target.resolve()
    assert target.misconfigured
    assert "gateway.remote.url is not set" in target.describe()


def test_an_explicit_address_never_gets_our_own_secret(home: Path) -> None:
    configure(home, '{"gateway": {"auth": {"token": "mine"}}}')
    with pytest.raises(UserError, match="gateway url override requires explicit credentials"):
        gateway_target.resolve("ws://elsewhere:1")
    assert gateway_target.resolve("ws://elsewhere:1", token="theirs").secret == "theirs"


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("ws://h:1", "h", 1, False),
        ("http://h", "h", 80, False),
        ("wss://h", "h", 443, True),
        ("https://h:9/path", "h", 9, True),
        ("ws://[::1]:18789", "::1", 18789, False),
    ],
)
def test_addresses(url: str, host: str, port: int, tls: bool) -> None:
    target = gateway_target.resolve(url, token="t")
    assert (target.host, target.port, target.tls) == (host, port, tls)


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "ws://", "ws://h:port"])
def test_bad_addresses_are_refused_clearly(url: str) -> None:
    if url:
        with pytest.raises(UserError, match="Not a Gateway address"):
            gateway_target.resolve(url, token="t")


def test_a_broken_configuration_says_what_to_do(home: Path) -> None:
    configure(home, "{ gateway: ")
    with pytest.raises(UserError, match="openclaw config validate"):
        gateway_target.resolve()


def test_failure_block_names_target_source_config_and_bind(home: Path) -> None:
    block = gateway_target.resolve().describe().splitlines()
    assert [line.split(":")[0] for line in block] == ["Gateway target", "Source", "Config", "Bind"]
    assert str(home / "openclaw.json") in block[2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_every_json_value_is_read_as_it_is(value: object) -> None:
    assert gateway_target.loose_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "{a: 1, /* c */ b: 'x', }",
        "{'it\\'s': \"// not a comment\", list: [1, 2, ], // yes\n}",
        '{ "a:b": "c, }", d: "e: f" }',
        "{a: +1, b: .5, c: 0x10, d: Infinity}",
        "{multi: 'a\\\nb'}",
        "{url: 'http://x/y', $include: './z.json5'}",
    ],
)
def test_json5_is_read_as_the_full_parser_reads_it(text: str) -> None:
    import pyjson5

    assert gateway_target.loose_json(text) == pyjson5.decode(text)


@pytest.mark.parametrize(
    "text",
    [
        "{$include: './g.json5'}",
        "{gateway: {$include: './inner.json5'}, ui: {}}",
        "{$include: './g.json5', gateway: {bind: 'loopback'}}",
        "{gateway: {port: 20009, auth: {$include: './auth.json5'}}}",
    ],
)
def test_an_included_file_may_hold_the_gateway_part(home: Path, text: str) -> None:
    (home / "g.json5").write_text("{gateway: {port: 20009, auth: {token: 'included'}}}")
    (home / "auth.json5").write_text("{token: 'included'}")
    (home / "inner.json5").write_text("{port: 20009, auth: {token: 'included'}}")
    configure(home, text)
    target = gateway_target.resolve()
    assert (target.port, target.secret) == (20009, "included")


@pytest.mark.parametrize(
    ("profile", "command"),
    [("", "openclaw gateway start"), ("default", "openclaw gateway start"), ("dev", "openclaw --dev gateway start")],
)
def test_the_command_that_starts_a_gateway(monkeypatch: pytest.MonkeyPatch, profile: str, command: str) -> None:
    monkeypatch.setenv("OPENCLAW_PROFILE", profile)
    assert gateway_target.start_command() == command
