"""``config`` and ``models`` work on the real file through the real store."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from tests.support.clock import HeldClock
from tests.support.forked_command import run_command
from tests.support.gateway_in_process import InProcessGateway
from tests.support.ports import KeptPort

from .conftest import Cli

COMMENTED = """\
{
  // my Gateway
  gateway: { port: 20001, auth: { mode: "token", token: "secret-token-0123456789" } },
  agents: { list: [{ id: "main", default: true }] },
}
"""


@pytest.fixture
def config(state: Path) -> Path:
    path = state / "openclaw.json"
    path.write_text(COMMENTED)
    return path


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("gateway.port", "20001\n"),
        ("agents.list[0].id", "main\n"),
        ("agents.list[0].default", "true\n"),
        ("gateway.auth.mode", "token\n"),
    ],
)
def test_get_prints_one_value(cli: Cli, config: Path, path: str, shown: str) -> None:
    done = cli("config", "get", path)
    assert (done.returncode, done.stdout) == (0, shown)


def test_get_answers_with_the_default_of_a_key_that_is_not_set(cli: Cli, config: Path) -> None:
    done = cli("config", "get", "agents.defaults.compaction.reserveTokensFloor")
    assert (done.returncode, done.stdout) == (0, "20000\n") and "is the default" in done.stderr
    assert cli("config", "get", "agents.defaults.model", "--json").stdout == "null\n"


def test_get_prints_json_for_objects_and_when_asked(cli: Cli, config: Path) -> None:
    assert json.loads(cli("config", "get", "agents").stdout) == {"list": [{"id": "main", "default": True}]}
    assert cli("config", "get", "gateway.auth.mode", "--json").stdout == '"token"\n'


@pytest.mark.parametrize("words", [("get", "gateway.nope"), ("unset", "gateway.nope"), ("get", "agents.list[7].id")])
def test_a_missing_path_is_named(cli: Cli, config: Path, words: tuple[str, str]) -> None:
    done = cli("config", *words)
    assert (done.returncode, done.stderr) == (1, f"Config path not found: {words[1]}\n")


def test_a_path_that_makes_no_sense_is_explained(cli: Cli, config: Path) -> None:
    done = cli("config", "get", "a..b")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_set_and_unset_keep_the_comments(cli: Cli, config: Path) -> None:
    assert cli("config", "set", "gateway.port", "20002").returncode == 0
    assert cli("config", "set", "agents.defaults.model", "anthropic/claude-sonnet-4-5").returncode == 0
    assert cli("config", "get", "gateway.port").stdout == "20002\n"
    assert cli("config", "get", "agents.defaults.model").stdout == "anthropic/claude-sonnet-4-5\n"
    assert "// my Gateway" in config.read_text()
    assert cli("config", "unset", "agents.defaults.model").returncode == 0
    assert "is the default" in cli("config", "get", "agents.defaults.model").stderr
    assert stat.S_IMODE(config.stat().st_mode) == 0o600


def test_an_invalid_value_changes_nothing(cli: Cli, config: Path) -> None:
    before = config.read_text()
    done = cli("config", "set", "gateway.port", "many")
    assert done.returncode == 1
    assert "gateway.port" in done.stderr
    assert "Traceback" not in done.stderr
    assert config.read_text() == before


def test_get_answers_with_the_default_before_there_is_a_file(cli: Cli, state: Path) -> None:
    done = cli("config", "get", "gateway.port")
    assert (done.returncode, done.stdout) == (0, "18789\n") and not (state / "openclaw.json").exists()


def test_a_file_that_is_broken_already_is_told_so(cli: Cli, config: Path) -> None:
    config.write_text("{ gateway: ")
    assert "is not valid as it is" in cli("config", "set", "gateway.port", "1").stderr


def test_changes_are_told_in_json(cli: Cli, config: Path) -> None:
    refused = cli("config", "set", "gateway.prot", "1")
    assert refused.returncode == 1 and "--force" in refused.stderr and 'did you mean "port"' in refused.stderr
    told = json.loads(cli("config", "set", "gateway.prot", "1", "--force", "--json").stdout)
    assert (told["ok"], told["path"], told["configPath"]) == (True, "gateway.prot", str(config))
    assert "unknown key" in told["warnings"][0]
    assert json.loads(cli("config", "unset", "gateway.prot", "--json").stdout)["ok"] is True
    set_ = json.loads(cli("models", "set", "anthropic/claude-sonnet-4-5", "--json").stdout)
    assert set_["model"] == "anthropic/claude-sonnet-4-5"
    assert json.loads(cli("config", "path", "--json").stdout) == {"path": str(config)}
    assert json.loads(cli("config", "docs", "gateway.port", "--json").stdout)[0]["default"] == 18789
    refused = cli("channels", "remove", "telegram", "--json")
    assert refused.returncode == 1 and "not configured" in json.loads(refused.stdout)["error"]["message"]
    cli("config", "set", "channels.telegram.enabled", "true")
    assert json.loads(cli("channels", "remove", "telegram", "--json").stdout)["deleted"] is False
    assert json.loads(cli("channels", "logout", "telegram", "--json").stdout)["path"] == "channels.telegram"


def test_json_insists_on_json5(cli: Cli, config: Path) -> None:
    assert cli("config", "set", "gateway.bind", "{nope", "--json").returncode == 1
    assert cli("config", "set", "gateway.bind", "'lan'", "--json").returncode == 0
    assert cli("config", "get", "gateway.bind").stdout == "lan\n"


def test_validate_names_key_and_line(cli: Cli, config: Path) -> None:
    assert cli("config", "validate").returncode == 0
    config.write_text(COMMENTED.replace("20001", '"many"'))
    done = cli("config", "validate")
    assert done.returncode == 1
    assert "gateway.port" in done.stdout
    assert "line 3" in done.stdout
    report = json.loads(cli("config", "validate", "--json").stdout)
    assert (report["valid"], report["issues"][0]["path"], report["issues"][0]["line"]) == (False, "gateway.port", 3)


def test_schema_describes_the_keys(cli: Cli) -> None:
    text = cli("config", "schema").stdout
    assert json.loads(text)
    assert "gateway" in text


def test_path_is_where_the_environment_says(cli: Cli, tmp_path: Path) -> None:
    assert cli("config", "path", OPENCLAW_CONFIG_PATH=str(tmp_path / "x.json5")).stdout == f"{tmp_path / 'x.json5'}\n"


MODELS = '[{id: "m1"}, {id: "m2"}, {id: "m3"}]'
PROVIDER = f'{{baseUrl: "http://127.0.0.1:9/v1", api: "openai-completions", apiKey: "k", models: {MODELS}}}'


def test_models_set_keeps_the_fallbacks(cli: Cli, config: Path) -> None:
    assert cli("config", "set", "models.providers.mock", PROVIDER).returncode == 0
    assert cli("config", "set", "agents.defaults.model", '{primary: "mock/m1", fallbacks: ["mock/m3"]}').returncode == 0
    done = cli("models", "set", "mock/m2")
    assert (done.returncode, done.stderr) == (0, "Default model: mock/m2\n")
    model = json.loads(cli("config", "get", "agents.defaults.model").stdout)
    assert model == {"primary": "mock/m2", "fallbacks": ["mock/m3"]}
    report = json.loads(cli("models", "status", "--json").stdout)
    assert (report["resolvedDefault"], report["fallbacks"]) == ("mock/m2", ["mock/m3"])
    assert cli("models", "--plain").stdout == "mock/m2\n"


def test_models_set_refuses_what_is_no_model(cli: Cli, config: Path) -> None:
    done = cli("models", "set", "nonsense-model")
    assert done.returncode == 1
    assert "nonsense-model" in done.stderr
    assert "Traceback" not in done.stderr


def test_set_warns_by_name_of_a_value_without_effect(cli: Cli, config: Path) -> None:
    for _ in range(2):
        done = cli("config", "set", "tools.links.enabled", "true")
        assert done.returncode == 0
        assert "Warning: tools.links" in done.stderr and "links are not read" in done.stderr
    assert "heartbeat" not in cli("config", "set", "gateway.port", "20002").stderr


def test_a_value_that_promises_safety_is_told_everywhere_and_stops_the_start(cli: Cli, config: Path) -> None:
    done = cli("config", "set", "gateway.bind", "custom")
    assert done.returncode == 0 and "gateway.bind" in done.stderr and "does not start" in done.stderr
    validated = cli("config", "validate")
    assert (validated.returncode, "refused gateway.bind" in validated.stdout) == (1, True)
    report = json.loads(cli("config", "validate", "--json").stdout)
    assert not report["valid"] and report["refusals"][0]["path"] == "gateway.bind"
    started = cli("gateway", "run")
    assert started.returncode == 1
    assert "gateway.bind" in started.stderr
    assert "Traceback" not in started.stderr
    assert cli("config", "unset", "gateway.bind").returncode == 0
    assert cli("config", "validate").returncode == 0


def test_a_safety_setting_that_nothing_reads_stops_the_start(cli: Cli, config: Path) -> None:
    entries = "agents: { entries: { main: { denyTools: ['exec'] } } },"
    config.write_text(COMMENTED.replace('agents: { list: [{ id: "main", default: true }] },', entries))
    started = cli("gateway", "run", "--port", "0")
    assert started.returncode == 1 and "Traceback" not in started.stderr
    assert "agents.entries.main.denyTools" in started.stderr
    report = json.loads(cli("config", "validate", "--json").stdout)
    assert not report["valid"] and report["refusals"][0]["path"] == "agents.entries.main.denyTools"
    assert cli("config", "validate").returncode == 1
    diagnosed = cli("doctor")
    assert diagnosed.returncode == 1 and "agents.entries" in diagnosed.stdout


def test_the_start_says_on_the_terminal_and_in_the_log_what_has_no_effect(cli: Cli, config: Path, state: Path) -> None:
    config.write_text(COMMENTED.replace("gateway:", "talk: { voiceId: 'v' }, gateway:"))
    gateway = cli.start("gateway", "run", "--port", "0")
    try:
        assert gateway.stdout is not None and gateway.stderr is not None
        assert any("OpenClaw Gateway" in line for line in gateway.stdout)
    finally:
        gateway.terminate()
        shown = gateway.communicate()[1]
    logged = "".join(path.read_text() for path in (state / "logs").iterdir())
    for place in (shown, logged):
        assert "talk (line" in place and "has no effect yet" in place


async def test_a_running_gateway_has_a_change_when_the_command_ends(tmp_path: Path) -> None:
    # On a clock that stands still the watcher never looks.
    async with InProcessGateway(tmp_path / "state", clock=HeldClock()) as gateway:

        async def openclaw(*words: str) -> str:
            return (await asyncio.to_thread(run_command, words, gateway.env, tmp_path)).stderr

        settings = gateway.gateway.runtime.config
        assert "restarts" not in await openclaw("config", "set", "messages.queue.cap", "7")
        assert settings.current.messages.queue.cap == 7
        assert "restarts" not in await openclaw("config", "unset", "messages.queue.cap")
        assert settings.current.messages.queue.cap != 7
        told = await openclaw("config", "set", "gateway.controlUi.enabled", "false")
        assert "The Gateway restarts by itself in a moment" in told


def test_a_restart_takes_a_changed_port_and_keeps_one_of_the_command_line(cli: Cli, state: Path) -> None:
    del cli.environ["OPENCLAW_GATEWAY_PORT"]
    ports = [KeptPort() for _ in range(3)]
    first, second, third = (port.number for port in ports)
    (state / "openclaw.json").write_text(json.dumps({"gateway": {"port": first, "reload": {"mode": "off"}}}))

    def url(*words: str) -> str:
        return json.loads(cli("gateway", *words, "--json", XDG_RUNTIME_DIR="", DBUS_SESSION_BUS_ADDRESS="").stdout)[
            "url"
        ]

    try:
        assert url("start") == f"ws://127.0.0.1:{first}"
        cli("config", "set", "gateway.port", str(second))
        assert url("restart") == f"ws://127.0.0.1:{second}"
        assert url("restart", "--port", str(third)) == f"ws://127.0.0.1:{third}"
        assert url("restart") == f"ws://127.0.0.1:{third}"
    finally:
        cli("gateway", "stop")
