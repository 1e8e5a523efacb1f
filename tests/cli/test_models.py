"""``openclaw models``: fallbacks, the order of credentials, and whether the key lasts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.models.local.test_downloads import CONTENT, hub

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
    assert report["agentDir"] == str(Path(report["auth"]["storePath"]).parent)


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


def test_models_that_run_here_are_listed_and_removed_without_a_gateway(cli: Cli, state: Path) -> None:
    rows = {row["key"]: row for row in json.loads(cli("models", "list", "--local", "--json").stdout)["models"]}
    small = rows["local/qwen3-0.6b"]
    assert (small["available"], small["tools"], small["size"]) == (False, True, 639_446_688)
    assert rows["local/smollm2-135m-instruct"]["tools"] is False
    assert "openclaw models install qwen3-0.6b" in cli("models", "list", "--local").stderr
    assert cli("models", "remove", "qwen3-0.6b").stdout == "Qwen3 0.6B was not installed.\n"
    (state / "models").mkdir()
    with (state / "models" / "Qwen3-0.6B-Q8_0.gguf").open("wb") as file:
        file.truncate(small["size"])
    report = json.loads(cli("models", "status", "--json").stdout)
    assert report["resolvedDefault"] == "local/qwen3-0.6b" and report["gateway"] is None
    assert cli("models", "remove", "local/qwen3-0.6b").stdout == "Qwen3 0.6B is gone from this computer.\n"
    assert list((state / "models").iterdir()) == []
    unknown = cli("models", "set", "local/qwen3-0.6b")
    assert unknown.returncode == 1 and "run `openclaw models install qwen3-0.6b`" in unknown.stderr


def test_a_model_is_fetched_from_a_hub_that_is_asked_for_its_pinned_file(cli: Cli) -> None:
    with hub() as server:
        done = cli("models", "install", "qwen3-0.6b", HF_ENDPOINT=server.url)
        assert done.returncode == 1
        assert f"The server has a file of {len(CONTENT)} bytes under the name of Qwen3 0.6B" in done.stderr
        assert server.asked[0][0].startswith("/Qwen/Qwen3-0.6B-GGUF/resolve/")
    typo = cli("models", "install", "qwen3-0.6")
    assert typo.returncode == 1 and "Did you mean qwen3-0.6b?" in typo.stderr
