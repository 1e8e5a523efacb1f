"""``config.*`` over the wire."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.config.load import parse_source
from openclaw.gateway.restart import Restart
from tests.gateway.support import TOKEN, Running, running_gateway
from tests.support.clock import HeldClock

SENTINEL = "__OPENCLAW_REDACTED__"
PROVIDER = {
    "baseUrl": "http://127.0.0.1:9/v1",
    "apiKey": "sk-very-secret-value-123456",
    "models": [{"id": "m", "name": "M", "contextWindow": 1000, "maxTokens": 321}],
}


async def payload(running: Running, method: str, params: Any = None) -> dict[str, Any]:
    _, answer = await running.rpc(method, params)
    assert answer["ok"], answer
    return answer["payload"]


async def error(running: Running, method: str, params: Any) -> dict[str, Any]:
    _, answer = await running.rpc(method, params)
    assert not answer["ok"], answer
    return answer["error"]


async def test_get_shows_everything_but_the_secrets(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, config={"models": {"providers": {"p": PROVIDER}}}) as running:
        shown = await payload(running, "config.get")
        assert list(shown) == [
            *("path", "exists", "raw", "parsed", "valid", "config", "hash", "issues", "warnings", "legacyIssues")
        ]
        assert TOKEN not in json.dumps(shown)
        assert "very-secret" not in json.dumps(shown)
        assert shown["parsed"]["gateway"]["auth"]["token"] == SENTINEL
        assert shown["parsed"]["models"]["providers"]["p"]["models"][0]["maxTokens"] == 321
        assert shown["config"]["models"]["providers"]["p"]["models"][0]["maxTokens"] == 321
        assert "port" not in shown["config"]["gateway"], "defaults are in the schema; a form would write them"


async def test_a_token_survives_a_get_and_set_round_trip(running: Running) -> None:
    shown = await payload(running, "config.get")
    answer = await payload(running, "config.set", {"raw": shown["raw"], "baseHash": shown["hash"]})
    assert answer["ok"] is True
    assert running.gateway.runtime.config.current.gateway.auth.token == TOKEN
    assert (await running.rpc("health"))[0] == 200


async def test_set_needs_the_hash_of_what_was_read(running: Running) -> None:
    raw = (await payload(running, "config.get"))["raw"]
    assert (await error(running, "config.set", {"raw": raw}))["message"].startswith("config base hash required; ")
    stale = {"raw": raw, "baseHash": "0" * 64}
    assert (await error(running, "config.set", stale))["message"].startswith("config changed since last load; ")


@pytest.mark.parametrize(
    ("raw", "path"),
    [('{"gateway":{"port":"many"}}', "gateway.port"), ("{oops", ""), ("[]", "")],
)
async def test_what_is_not_valid_is_refused_with_its_issues(running: Running, raw: str, path: str) -> None:
    before = Path(running.gateway.runtime.config.path).read_text()
    base = (await payload(running, "config.get"))["hash"]
    refused = await error(running, "config.set", {"raw": raw, "baseHash": base})
    assert refused["message"] == "invalid config"
    assert refused["details"]["issues"][0]["path"] == path
    assert Path(running.gateway.runtime.config.path).read_text() == before


NEWER_AGENTS = {"work": {"tools": {"exec": {"guard": {"rules": [{"askFirst": True}]}}}}}


@pytest.mark.parametrize("method", ["config.set", "config.patch", "config.apply"])
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"agents": {"entries": NEWER_AGENTS}}, "agents.entries.work.tools.exec.guard"),
        ({"tools": {"exec": {"guard": {"rules": [{"askFirst": True}]}}}}, "tools.exec.guard"),
        ({"channels": {"telegram": {"dm_policy": "pairing"}}}, "channels.telegram.dm_policy"),
    ],
)
async def test_no_method_writes_an_unknown_safety_setting(
    running: Running, method: str, change: dict[str, Any], path: str
) -> None:
    file = Path(running.gateway.runtime.config.path)
    before, shown = file.read_text(), await payload(running, "config.get")
    raw = change if method == "config.patch" else {**shown["parsed"], **change}
    refused = await error(running, method, {"raw": json.dumps(raw), "baseHash": shown["hash"]})
    (issue,) = refused["details"]["issues"]
    assert issue["path"] == path and "nothing would enforce it" in issue["message"]
    assert file.read_text() == before


@pytest.mark.parametrize("method", ["config.set", "config.patch", "config.apply"])
async def test_an_unknown_key_that_promises_nothing_is_written(running: Running, method: str) -> None:
    shown = await payload(running, "config.get")
    change = {"ui": {"colourOfTomorrow": {"name": "blue"}}}
    raw = change if method == "config.patch" else {**shown["parsed"], **change}
    assert (await payload(running, method, {"raw": json.dumps(raw), "baseHash": shown["hash"]}))["ok"]
    assert any("ui.colourOfTomorrow" in str(warning) for warning in running.gateway.runtime.config.snapshot.warnings)


async def test_a_sentinel_where_no_secret_is_stored_is_refused(running: Running) -> None:
    base = (await payload(running, "config.get"))["hash"]
    patch = {"raw": json.dumps({"gateway": {"remote": {"token": SENTINEL}}}), "baseHash": base}
    assert (await error(running, "config.patch", patch))["message"] == "invalid config"


async def test_a_patch_of_a_live_section_takes_effect_without_a_restart(running: Running) -> None:
    base = (await payload(running, "config.get"))["hash"]
    raw = json.dumps({"agents": {"defaults": {"timeoutSeconds": 77}}})
    answer = await payload(running, "config.patch", {"raw": raw, "baseHash": base})
    assert running.gateway.runtime.config.current.agents.defaults.timeout_seconds == 77
    assert set(answer["restart"]) == {"ok", "pid", "signal", "delayMs", "reason", "mode"}
    assert (answer["restart"]["mode"], answer["restart"]["delayMs"]) == ("hot", 0)
    assert not running.gateway.restart.requested.is_set()
    assert TOKEN in Path(running.gateway.runtime.config.path).read_text()


async def test_a_patch_merges_and_null_deletes(running: Running) -> None:
    for raw in ({"ui": {"assistant": {"name": "Ada", "avatar": "X"}}}, {"ui": {"assistant": {"avatar": None}}}):
        base = (await payload(running, "config.get"))["hash"]
        await payload(running, "config.patch", {"raw": json.dumps(raw), "baseHash": base})
    stored = (await payload(running, "config.get"))["parsed"]
    assert stored["ui"] == {"assistant": {"name": "Ada"}}
    assert (await error(running, "config.patch", {"raw": "[1]"}))["message"] == "config.patch raw must be an object"


async def test_new_models_are_offered_after_a_patch(running: Running) -> None:
    base = (await payload(running, "config.get"))["hash"]
    raw = json.dumps({"models": {"providers": {"p": PROVIDER}}})
    await payload(running, "config.patch", {"raw": raw, "baseHash": base})
    models = (await payload(running, "models.list"))["models"]
    assert {"id": "m", "provider": "p"}.items() <= models[0].items()


async def test_a_patch_of_the_gateway_section_schedules_a_restart_and_leaves_a_note(tmp_path: Path) -> None:
    clock = HeldClock()
    async with running_gateway(tmp_path, clock=clock) as running:
        base = (await payload(running, "config.get"))["hash"]
        change = {"raw": "{gateway:{port:19999}}", "baseHash": base, "note": "new port", "restartDelayMs": 500}
        answer = await payload(running, "config.patch", change)
        assert (answer["restart"]["mode"], answer["restart"]["delayMs"]) == ("emit", 500)
        assert answer["sentinel"]["payload"]["kind"] == "config-patch"
        assert not running.gateway.restart.requested.is_set()
        while not running.gateway.restart.requested.is_set():
            clock.advance(1)
            await running.rpc("health")
    async with running_gateway(tmp_path) as again:
        assert again.gateway.runtime.notes.peek("agent:main:main") == ["new port"]
        assert await Restart(str(tmp_path), clock).take_note() is None


async def test_the_schema_describes_every_section(running: Running) -> None:
    answer = await payload(running, "config.schema")
    assert "gateway" in answer["schema"]["properties"]
    assert answer["uiHints"]["gateway.auth.token"]["sensitive"] is True
    assert {"version", "generatedAt"} <= set(answer)


async def test_the_settings_are_described_in_spanish_where_that_is_asked(running: Running) -> None:
    english, spanish = [await payload(running, "config.schema", {"language": one}) for one in ("en", "es")]
    port, hint = spanish["schema"]["properties"]["gateway"]["properties"]["port"], spanish["uiHints"]["gateway.port"]
    assert port["description"] == hint["help"] == "Puerto del servidor WebSocket y HTTP."
    assert hint["label"] == english["uiHints"]["gateway.port"]["label"]
    helps = {path: hint["help"] for path, hint in english["uiHints"].items() if hint.get("help")}
    left = [path for path, help in helps.items() if spanish["uiHints"][path]["help"] == help and " " in help]
    # A new setting may lack its row in descriptions.es.json for a while.
    assert len(left) < 0.05 * len(helps), left[:20]


FORM = """{
  // The owner's file.
  gateway: { mode: "local", auth: { mode: "token", token: "THE_TOKEN" } },
  agents: {
    defaults: { model: "p/m", timeoutSeconds: 60 }, // a minute
    list: [{ id: "main", name: "Ada" }, { id: "work", model: "p/m" }],
  },
  models: { providers: { p: { baseUrl: "http://127.0.0.1:9/v1", apiKey: "${THE_KEY}", models: [{ id: "m" }] } } },
  env: { THE_KEY: "sk-from-the-environment" },
  $include: "more.json5",
}
""".replace("THE_TOKEN", TOKEN)


@pytest.fixture
async def form(tmp_path: Path) -> AsyncIterator[Running]:
    """A Gateway whose file has comments, a variable, a secret and an include."""
    (tmp_path / "more.json5").write_text("{ ui: { assistant: { name: 'Ada', avatar: 'A1' } } }")
    (tmp_path / "openclaw.json").write_text(FORM)
    async with running_gateway(tmp_path, config=None) as running:
        yield running


def as_form_saves(config: Any) -> str:
    return json.dumps(config, indent=2) + "\n"


@pytest.mark.parametrize("method", ["config.set", "config.apply"])
@pytest.mark.parametrize("shown_as", ["config", "parsed", "raw"])
async def test_saving_what_was_shown_changes_nothing(form: Running, method: str, shown_as: str) -> None:
    shown = await payload(form, "config.get")
    assert "sk-from-the-environment" not in json.dumps(shown)
    assert shown["config"]["ui"]["assistant"]["avatar"] == "A1"
    raw = shown["raw"] if shown_as == "raw" else as_form_saves(shown[shown_as])
    answer = await payload(form, method, {"raw": raw, "baseHash": shown["hash"]})
    assert Path(form.gateway.runtime.config.path).read_text() == FORM
    assert answer["config"] == shown["config"]
    assert (await payload(form, "config.get"))["hash"] == shown["hash"]


async def test_a_form_writes_only_what_was_changed_in_it(form: Running) -> None:
    shown = await payload(form, "config.get")
    config = shown["config"]
    assert config["agents"]["defaults"]["model"] == {"primary": "p/m"}, "a form cannot change a bare name"
    config["agents"]["defaults"]["timeoutSeconds"] = 90
    config["agents"]["defaults"]["model"]["fallbacks"] = ["p/other"]
    config["agents"]["list"][1]["name"] = "Work"
    config["ui"]["assistant"]["name"] = "Bea"
    await payload(form, "config.set", {"raw": as_form_saves(config), "baseHash": shown["hash"]})
    text = Path(form.gateway.runtime.config.path).read_text()
    stored = parse_source(text)[0]
    wanted = parse_source(FORM)[0]
    wanted["agents"]["defaults"] |= {"timeoutSeconds": 90, "model": {"primary": "p/m", "fallbacks": ["p/other"]}}
    wanted["agents"]["list"][1]["name"] = "Work"
    wanted["ui"] = {"assistant": {"name": "Bea"}}
    assert stored == wanted
    assert "// The owner's file." in text and "// a minute" in text
    current = form.gateway.runtime.config.current
    assert (current.ui.assistant.name, current.ui.assistant.avatar) == ("Bea", "A1")


async def test_what_a_form_removes_is_gone(form: Running) -> None:
    shown = await payload(form, "config.get")
    del shown["config"]["agents"]["list"]
    del shown["config"]["agents"]["defaults"]["timeoutSeconds"]
    await payload(form, "config.set", {"raw": as_form_saves(shown["config"]), "baseHash": shown["hash"]})
    stored = parse_source(Path(form.gateway.runtime.config.path).read_text())[0]
    assert stored["agents"] == {"defaults": {"model": "p/m"}}
    assert stored["$include"] == "more.json5"


async def test_text_with_its_own_comments_takes_the_place_of_the_file(form: Running) -> None:
    raw = "// Written by hand.\n" + FORM.replace("// The owner's file.", "// Mine.").replace("60", "61")
    base = (await payload(form, "config.get"))["hash"]
    await payload(form, "config.set", {"raw": raw, "baseHash": base})
    assert Path(form.gateway.runtime.config.path).read_text() == raw


@pytest.mark.parametrize("layout", [{"indent": 4}, {"indent": 2}, {}], ids=["wide", "form", "compact"])
async def test_a_form_leaves_the_layout_of_a_plain_file_alone(tmp_path: Path, layout: Any) -> None:
    path = tmp_path / "openclaw.json"
    given = {"gateway": {"mode": "local", "auth": {"mode": "token", "token": TOKEN}}, "ui": {"seamColor": "#fff"}}
    path.write_text(json.dumps(given, **layout))
    async with running_gateway(tmp_path) as running:
        shown = await payload(running, "config.get")
        for text in (as_form_saves(shown["config"]), json.dumps(shown["config"])):
            await payload(running, "config.set", {"raw": text, "baseHash": shown["hash"]})
            assert path.read_text() == json.dumps(given, **layout)
        shown["config"]["ui"]["seamColor"] = "#000"
        await payload(running, "config.set", {"raw": as_form_saves(shown["config"]), "baseHash": shown["hash"]})
        assert path.read_text() == json.dumps(given, **layout).replace("#fff", "#000")
