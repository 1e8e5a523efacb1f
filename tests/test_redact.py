"""Secrets do not get through; ordinary text does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw import redact as redaction
from openclaw.redact import Redactor, mask, redact

SECRET = "abcdefghij0123456789KLMN"


@pytest.mark.parametrize(
    ("secret", "shown"),
    [("abcdefghijklmnopqr", "abcdef…opqr"), ("abcdefghijklmnopq", "***"), ("x", "***")],
)
def test_mask(secret: str, shown: str) -> None:
    assert mask(secret) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"OPENAI_API_KEY={SECRET}",
        f'export GITHUB_TOKEN="{SECRET}"',
        f"DB_PASSWORD: {SECRET}",
        f"api_key={SECRET}&x=1",
        f"token: {SECRET}",
        f'{{"apiKey": "{SECRET}"}}',
        f'{{"accessToken":"{SECRET}","n":1}}',
        f'"client_secret" : "{SECRET}"',
        f"curl --token {SECRET} x",
        f"curl --api-key={SECRET} x",
        f"Authorization: Bearer {SECRET}",
        f"authorization: Basic {SECRET}",
        f"sent Bearer {SECRET} to x",
        f"key sk-{SECRET} used",
        f"sk-ant-api03-{SECRET}",
        f"ghp_{SECRET}",
        f"github_pat_{SECRET}",
        f"xoxb-{SECRET}",
        f"xapp-{SECRET}",
        f"gsk_{SECRET}",
        f"AIza{SECRET}",
        f"pplx-{SECRET}",
        f"npm_{SECRET}",
        f"bot 123456789:{SECRET}",
        f"https://api.telegram.org/bot123456789:{SECRET}/getMe",
    ],
)
def test_every_known_form_is_masked(text: str) -> None:
    hidden = redact(text)
    assert SECRET not in hidden
    assert "…" in hidden or "***" in hidden


def test_a_private_key_is_removed_whole() -> None:
    text = "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\nxyz\n-----END RSA PRIVATE KEY-----\nafter"
    assert redact(text) == "-----BEGIN RSA PRIVATE KEY-----…redacted…-----END RSA PRIVATE KEY-----\nafter"


@pytest.mark.parametrize(
    "text",
    [
        "sessionKey=agent:main:main runId=1",
        '{"sessionKey":"agent:main:main","maxTokens":8192,"totalTokens": 5}',
        "unauthorized: gateway token mismatch",
        "used 1234 tokens of 200000",
        "the key point is the monkey",
        "12:30:45 and 2026-11-15T18:22:05.123Z",
        "id 550e8400-e29b-41d4-a716-446655440000",
        "",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_own_patterns_replace_the_built_in_ones() -> None:
    own = Redactor([r"/cust-(\d+)/", "internal"])
    assert own("cust-12345 INTERNAL sk-abcdefghijkl") == "cust-*** *** sk-abcdefghijkl"


@given(st.text())
def test_any_text_can_be_redacted_and_redacting_twice_hides_no_less(text: str) -> None:
    assert isinstance(redact(redact(text)), str)


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789", min_size=8, max_size=60))
def test_an_assigned_secret_never_survives(secret: str) -> None:
    hidden = redact(f"MY_API_KEY={secret} --token {secret}")
    assert f"={secret}" not in hidden
    assert f" {secret}" not in hidden


def test_a_known_secret_is_masked_whatever_it_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", {})
    redaction.register(["plain words here", "short"])
    assert redact("it said: plain words here, in short") == "it said: ***, in short"
    redaction.register(f"secret-number-{number}" for number in range(redaction.MAX_KNOWN))
    assert len(redaction._known) == redaction.MAX_KNOWN
    assert redact("secret-number-0 plain words here") == "*** plain words here", "the oldest is forgotten"
