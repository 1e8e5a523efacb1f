"""``openclaw models``: fallbacks, the order of credentials, and whether the key lasts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from .conftest import Cli

MODELS = '[{id: "m1"}, {id: "m2"}, {id: "m3"}]'
PROVIDER = f'{{baseUrl: "http://127.0.0.1:9/v1", api: "openai-completions", apiKey: "k", models: {MODELS}}}'


def test_models_fallbacks_are_listed_added_removed_and_cleared(cli: Cli) -> None:
    assert cli("config", "set", "models.providers.mock", PROVIDER).returncode == 0
    assert cli("models", "set", "mock/m1").returncode == 0
    for key, command in (("model", "fallbacks"), ("imageModel", "image-fallbacks")):
        assert cli("models", command, "add", "mock/m2").stderr == "Fallbacks: mock/m2\n"
        assert cli("models", command, "add", "m3").stderr == "Fallbacks: mock/m2, mock/m3\n"
        assert cli("models", command, "remove", "mock/m2").returncode == 0
        assert cli("models", command, "list").stdout == "mock/m3\n"
        setting = json.loads(cli("config", "get", f"agents.defaults.{key}").stdout)
        assert setting == {**({"primary": "mock/m1"} if key == "model" else {}), "fallbacks": ["mock/m3"]}
        assert cli("models", command, "clear").stderr == "Fallbacks: none\n"
    unknown = cli("models", "fallbacks", "remove", "mock/m1")
    assert unknown.returncode == 1 and "not among the fallbacks" in unknown.stderr
    assert cli("models", "set-image", "mock/m2").stderr == "Image model: mock/m2\n"
    report = json.loads(cli("models", "status", "--json").stdout)
    assert (report["imageModel"], report["imageFallbacks"], report["auth"]["unusableProfiles"]) == ("mock/m2", [], [])


def test_models_auth_order_is_kept_in_the_file_of_the_credentials(cli: Cli, state: Path) -> None:
    path = state / "agents" / "main" / "agent" / "auth-profiles.json"
    path.parent.mkdir(parents=True)
    key = {"type": "api_key", "provider": "anthropic", "key": "secret"}
    stored = {"version": 1, "profiles": {"anthropic:a": key, "anthropic:b": key}, "theirs": 1}
    path.write_text(json.dumps(stored))
    order = ("models", "auth", "order")
    assert cli(*order, "get", "--provider", "anthropic").stdout == "No order is set.\n"
    refused = cli(*order, "set", "--provider", "anthropic", "anthropic:c")
    assert refused.returncode == 1 and "Stored: anthropic:a, anthropic:b" in refused.stderr
    assert cli(*order, "set", "--provider", "anthropic", "anthropic:b", "anthropic:a").returncode == 0
    assert cli(*order, "get", "--provider", "anthropic").stdout == "anthropic:b\nanthropic:a\n"
    assert json.loads(path.read_text()) == {**stored, "order": {"anthropic": ["anthropic:b", "anthropic:a"]}}
    assert path.stat().st_mode & 0o777 == 0o600
    assert cli(*order, "clear", "--provider", "anthropic").returncode == 0
    assert json.loads(path.read_text())["order"] == {}


@pytest.mark.parametrize(("expires_in_s", "code"), [(None, 1), (-60, 1), (3600, 2), (10 * 86_400, 0)])
def test_models_status_check_says_whether_the_key_lasts(
    cli: Cli, state: Path, expires_in_s: int | None, code: int
) -> None:
    if expires_in_s is not None:
        path = state / "agents" / "main" / "agent" / "auth-profiles.json"
        path.parent.mkdir(parents=True)
        expires = int((time.time() + expires_in_s) * 1000)
        profile = {"type": "oauth", "provider": "anthropic", "access": "secret", "expires": expires}
        path.write_text(json.dumps({"version": 1, "profiles": {"anthropic:a": profile}}))
    assert cli("config", "set", "agents.defaults.model", "anthropic/claude-sonnet-4-5").returncode == 0
    assert cli("models", "status", "--check").returncode == code
