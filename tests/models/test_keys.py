"""Keys: where they come from, what happens when they are missing, and that they never show."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.config.load import build
from openclaw.models.base import Model, ModelError
from openclaw.models.keys import (
    Keys,
    KeySource,
    MissingKey,
    Profile,
    env_names,
    find_source,
    is_local_url,
    read_profiles,
)
from tests.support.clock import HeldClock

CLAUDE = Model(provider="anthropic", id="m", api="anthropic-messages", base_url="https://api.anthropic.com")
HOUSE = Model(provider="my-house", id="m", base_url="https://house.test/v1")
NOW_MS = 1_800_000_000_000


class StillClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def config(key: Any = None, provider: str = "anthropic", **more: Any) -> Any:
    section = {} if key is None else {provider: {"apiKey": key, "baseUrl": "https://x.test"}}
    return build({"models": {"providers": section}, **more})


async def key_of(configured: Any, environ: dict[str, str] | None = None, model: Model = CLAUDE, **more: Any) -> str:
    return await Keys(environ or {}, **more).resolve_key(model, configured)


@pytest.mark.parametrize(
    ("configured", "environ", "expected"),
    [
        ("literal-key", {"ANTHROPIC_API_KEY": "other"}, "literal-key"),
        ("${HOUSE_KEY}", {"HOUSE_KEY": " from-env\n"}, "from-env"),
        ("HOUSE_KEY", {"HOUSE_KEY": "from-env"}, "from-env"),
        ("LOOKS_LIKE_A_NAME", {}, "LOOKS_LIKE_A_NAME"),
        ({"env": "HOUSE_KEY"}, {"HOUSE_KEY": "from-env"}, "from-env"),
        (None, {"ANTHROPIC_API_KEY": "vendor"}, "vendor"),
        (None, {"ANTHROPIC_OAUTH_TOKEN": "oauth", "ANTHROPIC_API_KEY": "vendor"}, "oauth"),
        (None, {"ANTHROPIC_OAUTH_TOKEN": "  ", "ANTHROPIC_API_KEY": "vendor"}, "vendor"),
    ],
)
async def test_a_key_is_taken_from_the_config_then_the_environment(
    configured: Any, environ: dict[str, str], expected: str
) -> None:
    assert await key_of(config(configured), environ) == expected


async def test_a_key_that_is_changed_counts_at_the_next_call() -> None:
    environ = {"NAME_OF_KEY": "first"}
    keys = Keys(environ)
    written, other, named = config("written"), config("other"), config("NAME_OF_KEY")
    for configured, expected in [(written, "written"), (written, "written"), (other, "other"), (written, "written")]:
        assert await keys.resolve_key(CLAUDE, configured) == expected
    assert await keys.resolve_key(CLAUDE, named) == "first"
    environ["NAME_OF_KEY"] = "second"
    assert await keys.resolve_key(CLAUDE, named) == "second"
    del environ["NAME_OF_KEY"]
    assert await keys.resolve_key(CLAUDE, named) == "NAME_OF_KEY"
    environ["NAME_OF_KEY"] = "third"
    assert await keys.resolve_key(CLAUDE, named) == "third"


async def test_a_key_file_is_read_without_its_line_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "key").write_text("file-key\n")
    (tmp_path / "key").chmod(0o600)
    assert await key_of(config({"file": str(tmp_path / "key")})) == "file-key"
    assert not caplog.records


async def test_a_key_file_everyone_can_read_is_used_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text("file-key")
    (tmp_path / "key").chmod(0o644)
    keys = Keys({})
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert await keys.resolve_key(CLAUDE, config({"file": str(tmp_path / "key")})) == "file-key"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "chmod 600" in caplog.text and "file-key" not in caplog.text


def counting_command(tmp_path: Path, output: str = "cmd-key") -> list[str]:
    count = tmp_path / "count"
    script = f"open({str(count)!r},'a').write('x'); print({output!r})"
    return [sys.executable, "-c", script]


async def test_a_command_is_run_once_in_five_minutes_and_again_after(tmp_path: Path) -> None:
    clock = StillClock()
    keys = Keys({}, clock=clock)
    configured = config({"command": counting_command(tmp_path)})
    for seconds, runs in ((0, "x"), (299, "x"), (301, "xx")):
        clock.seconds = seconds
        assert await keys.resolve_key(CLAUDE, configured) == "cmd-key"
        assert (tmp_path / "count").read_text() == runs


async def test_a_command_gets_its_arguments_without_a_shell() -> None:
    command = [sys.executable, "-c", "import sys; print(sys.argv[1].count('$'))", "$HOME;$(id)"]
    assert await key_of(config({"command": command})) == "2"


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        ({"file": "/no/such/key"}, "/no/such/key"),
        ({"command": ["/no/such/program"]}, "/no/such/program"),
        ({"command": [sys.executable, "-c", "import sys; sys.stderr.write('hush'); sys.exit(3)"]}, "code 3"),
        ({"command": [sys.executable, "-c", ""]}, "models.providers.anthropic.apiKey"),
        ({"env": "UNSET_NAME"}, "UNSET_NAME"),
        ("${UNSET_NAME}", "UNSET_NAME"),
    ],
)
async def test_a_secret_that_cannot_be_had_says_which_and_not_what(secret: Any, expected: str) -> None:
    with pytest.raises(MissingKey, match=r"models\.providers\.anthropic\.apiKey") as error:
        await key_of(config(secret))
    assert expected in str(error.value)
    assert "hush" not in str(error.value)
    assert error.value.kind == "auth" and not error.value.retryable


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (CLAUDE, ["ANTHROPIC_API_KEY", "models.providers.anthropic.apiKey"]),
        (HOUSE, ["MY_HOUSE_API_KEY", "models.providers.my-house.apiKey"]),
    ],
)
async def test_a_missing_key_names_the_variable_and_the_config_path(model: Model, names: list[str]) -> None:
    with pytest.raises(MissingKey) as error:
        await key_of(config(), model=model)
    assert all(name in str(error.value) for name in names)


@pytest.mark.parametrize("bad", ["two words", "line\nbreak", "naïve", "tab\tbed"])
async def test_a_key_with_characters_no_key_has_is_refused_without_showing_it(bad: str) -> None:
    with pytest.raises(MissingKey) as error:
        await key_of(config(), {"ANTHROPIC_API_KEY": bad})
    assert bad not in str(error.value) and "ANTHROPIC_API_KEY" in str(error.value)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:11434/v1", True),
        ("http://127.5.5.5/", True),
        ("http://localhost:1234", True),
        ("http://[::1]:8000/v1", True),
        ("http://localhost.evil.test", False),
        ("http://127.0.0.1.evil.test", False),
        ("https://api.anthropic.com", False),
        ("http://10.0.0.5:11434", False),
        ("http://[broken", False),
        ("", False),
    ],
)
async def test_a_server_on_this_machine_needs_no_key(url: str, here: bool) -> None:
    assert is_local_url(url) is here
    model = Model(provider="vllm-here", id="m", base_url=url)
    if here:
        assert await key_of(config(), model=model) == ""
    else:
        with pytest.raises(MissingKey):
            await key_of(config(), model=model)


async def test_a_local_server_with_a_key_gets_it() -> None:
    model = Model(provider="ollama", id="m", base_url="http://127.0.0.1:11434/v1")
    assert await key_of(config(), {"OLLAMA_API_KEY": "k"}, model) == "k"


async def test_the_embedded_model_needs_no_key() -> None:
    assert await key_of(config(), model=Model(provider="local", id="m", api="local")) == ""


def store_profiles(state: Path, profiles: dict[str, Any], agent: str = "main", **more: Any) -> None:
    folder = state / "agents" / agent / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "auth-profiles.json").write_text(json.dumps({"version": 1, "profiles": profiles, **more}))


WORK = {"type": "api_key", "provider": "anthropic", "key": "work-key"}
HOME = {"type": "token", "provider": "anthropic", "token": "home-token"}
OAUTH = {"type": "oauth", "provider": "anthropic", "access": "oauth-access", "refresh": "r", "expires": NOW_MS + 1}
EXPIRED = {**OAUTH, "expires": NOW_MS - 1}


@pytest.mark.parametrize(
    ("profiles", "more", "auth", "expected"),
    [
        ({"anthropic:work": WORK, "anthropic:default": HOME}, {}, {}, "home-token"),
        (
            {"anthropic:work": WORK, "anthropic:default": HOME},
            {"lastGood": {"anthropic": "anthropic:work"}},
            {},
            "work-key",
        ),
        ({"anthropic:work": WORK, "anthropic:default": HOME}, {}, {"anthropic": ["anthropic:work"]}, "work-key"),
        ({"anthropic:default": OAUTH}, {}, {}, "oauth-access"),
        ({"anthropic:default": EXPIRED, "anthropic:work": WORK}, {}, {}, "work-key"),
        (
            {"openai:default": {"type": "api_key", "provider": "openai", "key": "x"}, "anthropic:w": WORK},
            {},
            {},
            "work-key",
        ),
    ],
)
async def test_a_stored_profile_is_used_when_nothing_else_is_given(
    tmp_path: Path, profiles: dict[str, Any], more: dict[str, Any], auth: dict[str, Any], expected: str
) -> None:
    store_profiles(tmp_path, profiles, **more)
    configured = config(auth={"order": auth})
    assert await key_of(configured, state_dir=str(tmp_path), clock=StillClock()) == expected
    assert await key_of(configured, {"ANTHROPIC_API_KEY": "env"}, state_dir=str(tmp_path)) == "env"


async def test_an_agent_uses_its_own_profiles_else_the_main_agents(tmp_path: Path) -> None:
    store_profiles(tmp_path, {"anthropic:default": WORK})
    store_profiles(tmp_path, {"anthropic:default": HOME}, agent="ops")
    keys = Keys({}, state_dir=str(tmp_path))
    assert await keys.resolve_key(CLAUDE, config(), agent_id="ops") == "home-token"
    assert await keys.resolve_key(CLAUDE, config(), agent_id="other") == "work-key"


@pytest.mark.parametrize(
    "content", ["", "not json", "[]", '{"profiles": 3}', '{"profiles": {"a": 1, "b": {"type": "api_key"}}}', "\x00\xff"]
)
def test_a_damaged_profile_file_holds_no_profiles(tmp_path: Path, content: str) -> None:
    (tmp_path / "p.json").write_text(content)
    assert read_profiles(str(tmp_path / "p.json")) == []


def test_a_profile_does_not_show_its_secret() -> None:
    profile = Profile(id="anthropic:default", provider="anthropic", kind="api_key", secret="hush")
    assert "hush" not in repr(profile) + str(profile) + repr([profile])


def test_a_source_says_where_not_what() -> None:
    section = config("literal-key").models.providers["anthropic"]
    assert find_source(CLAUDE, section, {}) == KeySource("config", "")
    assert find_source(CLAUDE, None, {"ANTHROPIC_API_KEY": "hush"}) == KeySource("env", "ANTHROPIC_API_KEY")
    assert find_source(CLAUDE, None, {}) == KeySource("missing", "")


@pytest.mark.parametrize(
    ("provider", "names"),
    [("openai", ("OPENAI_API_KEY",)), ("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY")), ("a.b-c", ("A_B_C_API_KEY",))],
)
def test_each_provider_has_its_variable(provider: str, names: tuple[str, ...]) -> None:
    assert env_names(provider) == names


FIRST = {"type": "api_key", "provider": "anthropic", "key": "first"}
SECOND = {"type": "api_key", "provider": "anthropic", "key": "second"}


async def test_sessions_take_equal_credentials_in_turn_and_keep_theirs(tmp_path: Path) -> None:
    store_profiles(tmp_path, {"anthropic:a": FIRST, "anthropic:b": SECOND})
    clock = HeldClock()
    keys = Keys({}, state_dir=str(tmp_path), clock=clock)
    found: list[str] = []
    for session in ("s1", "s2", "s1", "s3", "s2"):
        clock.advance(1)
        key = await keys.pick(CLAUDE, config(), "main", session)
        keys.cooldowns.succeeded(key.credential, "anthropic", clock.now_ms())
        found.append(f"{session} {key.credential.id[-1]}")
    assert found == ["s1 a", "s2 b", "s1 a", "s3 b", "s2 b"]
    await keys.cooldowns.close()


async def test_a_credential_that_rests_is_passed_over_and_used_if_all_rest(tmp_path: Path) -> None:
    store_profiles(
        tmp_path, {"anthropic:a": FIRST, "anthropic:b": SECOND}, order={"anthropic": ["anthropic:b", "anthropic:a"]}
    )
    clock = HeldClock()
    keys = Keys({}, state_dir=str(tmp_path), clock=clock)
    for expected in ("anthropic:b", "anthropic:a", "anthropic:b"):
        key = await keys.pick(CLAUDE, config(), "main", "s")
        assert key.credential.id == expected
        error = ModelError("no", kind="auth")
        keys.cooldowns.failed(key.credential, error, "anthropic", CLAUDE.ref, config().auth.cooldowns)
        clock.advance(1)
    await keys.cooldowns.close()


async def test_a_key_of_the_environment_gives_way_to_a_stored_one_while_it_rests(tmp_path: Path) -> None:
    store_profiles(tmp_path, {"anthropic:a": FIRST})
    environ = {"ANTHROPIC_API_KEY": "env-key"}
    keys = Keys(environ, state_dir=str(tmp_path), clock=HeldClock())
    key = await keys.pick(CLAUDE, config(), "main")
    assert key.credential.id.startswith("anthropic#env-") and "env-key" not in key.credential.id
    keys.cooldowns.failed(
        key.credential, ModelError("no", kind="billing"), "anthropic", CLAUDE.ref, config().auth.cooldowns
    )
    assert await keys.resolve_key(CLAUDE, config()) == "first"
    environ["ANTHROPIC_API_KEY"] = "a-new-key"
    assert await keys.resolve_key(CLAUDE, config()) == "a-new-key", "another key is another credential"
    await keys.cooldowns.close()


async def test_a_chosen_credential_is_used_even_while_it_rests(tmp_path: Path) -> None:
    store_profiles(tmp_path, {"anthropic:a": FIRST, "anthropic:b": SECOND})
    keys = Keys({"ANTHROPIC_API_KEY": "env"}, state_dir=str(tmp_path), clock=HeldClock())
    model = msgspec.structs.replace(CLAUDE, auth_profile="anthropic:b")
    assert await keys.resolve_key(model, config()) == "second"
    credential = (await keys.pick(model, config(), "main")).credential
    keys.cooldowns.failed(credential, ModelError("no", kind="auth"), "anthropic", CLAUDE.ref, config().auth.cooldowns)
    assert await keys.resolve_key(model, config()) == "second"
    await keys.cooldowns.close()
