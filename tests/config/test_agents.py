from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.config import agents
from openclaw.config.schema import Config


def config(**values: Any) -> Config:
    return msgspec.convert(values, Config)


@pytest.mark.parametrize(
    ("listed", "default", "ids"),
    [
        ([], "main", ["main"]),
        ([{"id": "a"}, {"id": "b"}], "a", ["a", "b"]),
        ([{"id": "a"}, {"id": "Work Bot", "default": True}], "work-bot", ["a", "work-bot"]),
        ([{"id": "a", "default": True}, {"id": "b", "default": True}], "a", ["a", "b"]),
    ],
)
def test_the_default_agent_is_the_marked_one_else_the_first_else_main(
    listed: Any, default: str, ids: list[str]
) -> None:
    made = config(agents={"list": listed})
    assert agents.default_agent_id(made) == default and agents.agent_ids(made) == ids


def test_an_agent_is_found_whatever_the_spelling() -> None:
    made = config(agents={"list": [{"id": "Work", "name": "W"}]})
    found = agents.agent_config(made, "WORK")
    assert found and found.name == "W" and agents.agent_config(made, "other") is None


@pytest.mark.parametrize(
    ("defaults", "listed", "agent", "expected"),
    [
        ({}, [], "main", "/s/workspace"),
        ({}, [{"id": "a"}, {"id": "b"}], "b", "/s/workspace-b"),
        ({"workspace": "/w"}, [], "main", "/w"),
        ({"workspace": "/w"}, [{"id": "a"}, {"id": "b"}], "a", "/w"),
        ({"workspace": "/w"}, [{"id": "a"}, {"id": "b"}], "b", "/s/workspace-b"),
        ({"workspace": "/w"}, [{"id": "a", "workspace": "/own"}], "a", "/own"),
        ({}, [{"id": "a", "workspace": "~/own"}], "a", str(Path("~/own").expanduser())),
    ],
)
def test_workspaces(defaults: Any, listed: Any, agent: str, expected: str) -> None:
    made = config(agents={"defaults": defaults, "list": listed})
    assert agents.workspace_dir(made, "/s", agent) == Path(expected)


def test_the_main_key_is_honoured() -> None:
    made = config(session={"mainKey": " Home "})
    assert agents.main_session_key(made, "Work Bot") == "agent:work-bot:home"
    assert agents.main_key(config(session={"mainKey": " "})) == "main"


@pytest.mark.parametrize(
    ("default", "own", "primary", "fallbacks"),
    [
        (None, None, None, []),
        ("p/a", None, "p/a", []),
        ({"primary": "p/a", "fallbacks": ["p/b", "p/a", "p/b"]}, None, "p/a", ["p/b"]),
        ({"primary": "p/a", "fallbacks": ["p/b"]}, "p/c", "p/c", ["p/b"]),
        ({"primary": "p/a", "fallbacks": ["p/b"]}, {"primary": "p/c", "fallbacks": []}, "p/c", []),
        ({"primary": "p/a", "fallbacks": ["p/b"]}, {"fallbacks": ["p/d"]}, "p/a", ["p/d"]),
    ],
)
def test_models_of_an_agent(default: Any, own: Any, primary: str | None, fallbacks: list[str]) -> None:
    made = config(agents={"defaults": {"model": default}, "list": [{"id": "x", "model": own}]})
    assert agents.primary_model(made, "x") == primary and agents.fallback_models(made, "x") == fallbacks


def test_aliases_are_looked_up_in_lower_case() -> None:
    made = config(agents={"defaults": {"models": {"p/a": {"alias": "Opus"}, "p/b": {}, "p/c": {"alias": "opus"}}}})
    assert agents.model_aliases(made) == {"opus": "p/a"}


@pytest.mark.parametrize(
    ("written", "expected"), [(None, None), ("Europe/Madrid", "Europe/Madrid"), ("UTC", "UTC"), ("Mars/Base", None)]
)
def test_the_users_zone_is_the_configured_one_or_the_machines(written: str | None, expected: str | None) -> None:
    zone = agents.user_zone(config(agents={"defaults": {"userTimezone": written} if written else {}}))
    assert (str(zone) if zone else None) == expected
