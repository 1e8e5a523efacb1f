from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyjson5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.config.schema.base import SecretRef
from openclaw.config.secrets import (
    SENTINEL,
    SecretUnavailable,
    redact_raw,
    redacted,
    resolve_secret,
    restored,
)
from openclaw.config.validate import ConfigInvalid


def test_a_secret_is_fetched_from_where_it_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    command = [sys.executable, "-c", "print('from-command')"]
    assert resolve_secret("plain", {}) == "plain"
    assert resolve_secret(None, {}) is None
    assert resolve_secret(SecretRef(env="KEY"), {"KEY": "from-env"}) == "from-env"
    assert resolve_secret(SecretRef(file=str(file)), {}) == "from-file"
    assert resolve_secret(SecretRef(command=command), {}) == "from-command"


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (SecretRef(env="NO_SUCH"), "NO_SUCH is not set"),
        (SecretRef(file="/no/such/file"), "cannot read"),
        (SecretRef(command=["/no/such/program"]), "cannot be run"),
        (SecretRef(command=[sys.executable, "-c", "raise SystemExit(3)"]), "code 3"),
        (SecretRef(command=[sys.executable, "-c", ""]), "gave nothing"),
    ],
)
def test_a_secret_that_cannot_be_fetched_says_why(secret: SecretRef, words: str) -> None:
    with pytest.raises(SecretUnavailable, match=words):
        resolve_secret(secret, {}, "models.providers.x.apiKey")


EXISTING = (Path(__file__).parent / "existing.json5").read_text()
SECRETS = """
    sk-or-1 gsk-2 LITELLM_KEY g-key brave-key el-key hook-secret-hook-secret push-secret 123:telegram-secret
    discord-secret xoxb-1 xapp-1 talk-key gateway-token-gateway-token remote-token skill-key skill-env
"""


def test_no_secret_is_left_in_values_or_text() -> None:
    parsed = pyjson5.decode(EXISTING)
    values, text = json.dumps(redacted(parsed)), redact_raw(EXISTING, parsed)
    for secret in SECRETS.split():
        assert f'"{secret}"' not in values and secret not in text
    assert pyjson5.decode(text) == redacted(parsed)


def test_what_is_not_secret_is_left_alone() -> None:
    parsed = pyjson5.decode(EXISTING)
    shown = redacted(parsed)
    assert shown["models"]["providers"]["custom-proxy"]["models"][0]["maxTokens"] == 32000
    assert shown["agents"]["defaults"]["compaction"] == parsed["agents"]["defaults"]["compaction"]
    assert shown["auth"] == parsed["auth"] and shown["session"] == parsed["session"]
    assert shown["gateway"]["auth"]["mode"] == "token"


@pytest.mark.parametrize("value", ["${GATEWAY_TOKEN}", ""])
def test_a_reference_is_no_secret(value: str) -> None:
    assert redacted({"gateway": {"auth": {"token": value}}}) == {"gateway": {"auth": {"token": value}}}


def test_a_secret_of_one_letter_does_not_shred_the_text() -> None:
    raw = '{ gateway: { auth: { token: "a" } }, ui: { seamColor: "#aaaaaa" } } // a'
    assert redact_raw(raw, pyjson5.decode(raw)) == raw.replace('"a"', f'"{SENTINEL}"')


def test_a_long_secret_is_hidden_in_comments_but_keys_and_values_stay() -> None:
    raw = '// was telegram\n{ gateway: { auth: { token: "telegram" } }, channels: { telegram: { name: "telegram" } } }'
    shown = redact_raw(raw, pyjson5.decode(raw))
    assert shown.startswith(f"// was {SENTINEL}\n") and pyjson5.decode(shown)["channels"] == {
        "telegram": {"name": "telegram"}
    }


def test_text_that_cannot_be_parsed_shows_no_secret_either() -> None:
    assert "hunter2" not in redact_raw('{ gateway: { auth: { password: "hunter2", "botToken": \'hunter2', {})


@pytest.mark.parametrize(
    "text",
    [
        '{ gateway: { auth: { token: "hunter2", token: "new" } } }',
        '{ gateway: { auth: { token: "hunter2" } }, ui: {}, gateway: { port: 1 } }',
        '{ env: { SOME_KEY: "sk-hunter2-0123456789" }, env: {} }',
    ],
)
def test_a_secret_under_a_key_that_is_written_twice_is_hidden(text: str) -> None:
    shown = redact_raw(text, pyjson5.decode(text))
    assert "hunter2" not in shown
    assert pyjson5.decode(shown) == redacted(pyjson5.decode(text))


def test_sentinels_come_back_as_what_they_stood_for() -> None:
    parsed = pyjson5.decode(EXISTING)
    assert restored(redacted(parsed), parsed) == parsed


def test_items_of_a_list_are_matched_by_id() -> None:
    stored = {"list": [{"id": "a", "key": "1"}, {"id": "b", "key": "2"}]}
    incoming = {"list": [{"id": "b", "key": SENTINEL}, {"id": "a", "key": SENTINEL}]}
    assert restored(incoming, stored) == {"list": [{"id": "b", "key": "2"}, {"id": "a", "key": "1"}]}


@pytest.mark.parametrize("stored", [{}, {"gateway": {}}, {"gateway": {"auth": {"token": 5}}}, {"gateway": "x"}])
def test_a_sentinel_where_nothing_is_stored_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid, match=r"gateway\.auth\.token"):
        restored({"gateway": {"auth": {"token": SENTINEL}}}, stored)


@given(st.text(min_size=1), st.text(max_size=20))
def test_any_secret_is_hidden_and_comes_back(secret: str, other: str) -> None:
    parsed = {"channels": {"x": {"botToken": secret, "name": other}}, "gateway": {"auth": {"password": secret}}}
    raw = "// note\n" + json.dumps(parsed)
    shown = pyjson5.decode(redact_raw(raw, parsed))
    assert shown == redacted(parsed)
    assert restored(shown, parsed) == parsed


def test_a_value_that_a_secret_variable_is_put_into_is_hidden_whatever_its_key() -> None:
    written = {"ui": {"assistant": {"name": "a ${MY_TOKEN} b", "avatar": "${AVATAR}"}}, "x": ["$${MY_TOKEN}"]}
    resolved = {"ui": {"assistant": {"name": "a canary b", "avatar": "A"}}, "x": ["${MY_TOKEN}"]}
    shown = redacted(resolved, written)
    assert shown == {"ui": {"assistant": {"name": SENTINEL, "avatar": "A"}}, "x": ["${MY_TOKEN}"]}


def test_old_secrets_in_comments_are_masked() -> None:
    text = '// token: old-secret-1\n{ /* "apiKey": "old-secret-2" */ gateway: { port: 1 } } // port 18789'
    shown = redact_raw(text, pyjson5.decode(text))
    assert "old-secret" not in shown and "// port 18789" in shown


@pytest.mark.parametrize(
    ("values", "hidden"),
    [
        ({"env": {"GITHUB_PAT": "x1"}}, True),
        ({"env": {"THING": "ghp_abcdefghij0123456789"}}, True),
        ({"env": {"COMPAT": "x1"}}, False),
        ({"mcp": {"servers": {"a": {"args": ["--api-key", "x1"]}}}}, True),
        ({"mcp": {"servers": {"a": {"args": ["--api-key=x1"]}}}}, True),
        ({"mcp": {"servers": {"a": {"args": ["--verbose", "x1"]}}}}, False),
        ({"mcp": {"servers": {"a": {"args": ["-H", "Authorization: Bearer x1"]}}}}, True),
        ({"channels": {"x": {"cookie": "x1"}}}, True),
        ({"channels": {"x": {"note": "sk-abcdefghij0123456789"}}}, True),
        ({"agents": {"defaults": {"compaction": {"customInstructions": "Keep the token: x1 in mind"}}}}, False),
    ],
)
def test_secrets_are_known_by_name_by_form_and_by_the_option_before_them(values: dict[str, Any], hidden: bool) -> None:
    shown = json.dumps(redacted(values))
    assert (SENTINEL in shown) is hidden
    assert pyjson5.decode(redact_raw(json.dumps(values), values)) == redacted(values)


def test_a_file_that_cannot_be_parsed_hides_what_looks_like_a_secret() -> None:
    shown = redact_raw('{ gateway: { auth: { token: "x1" } }, note: "sk-abcdefghij0123456789", }}', {})
    assert "x1" not in shown and "sk-abcdefghij" not in shown
