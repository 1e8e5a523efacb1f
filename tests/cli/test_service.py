"""Starting and stopping a Gateway process. The process is the stand-in, run through the same command line."""

from __future__ import annotations

import argparse
import json
import os
import plistlib
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw.cli import installation, service
from openclaw.cli.service import read_env, use_env

from .conftest import ROOT, Cli
from .fake_gateway import FakeGateway

LAUNCHER = """\
import sys
# `python -m openclaw gateway run` is replaced by the stand-in; every other command is the real one.
if sys.argv[1:3] == ["gateway", "run"]:
    from tests.cli.fake_gateway import main
    main()
else:
    from openclaw.cli.main import main
    sys.exit(main())
"""


@pytest.fixture
def cli(environ: dict[str, str], tmp_path: Path) -> Iterator[Cli]:
    """The real command, in an environment where ``openclaw.__main__`` can become the stand-in Gateway."""
    shadow = tmp_path / "shadow" / "openclaw"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text(
        f"__path__.append({str(ROOT / 'src' / 'openclaw')!r})\n" + (ROOT / "src/openclaw/__init__.py").read_text()
    )
    (shadow / "__main__.py").write_text(LAUNCHER)
    # No user manager of systemd: an empty bus address makes systemctl fail at once.
    hidden = {"PYTHONPATH": f"{tmp_path / 'shadow'}:{ROOT}", "DBUS_SESSION_BUS_ADDRESS": "", "XDG_RUNTIME_DIR": ""}
    command = Cli({**environ, **hidden}, tmp_path)
    yield command
    command("gateway", "stop")


def test_sending_a_message_starts_a_gateway_when_none_runs(cli: Cli, state: Path) -> None:
    done = cli("message", "send", "hello")
    assert (done.returncode, done.stdout) == (0, "started and answered\n")
    assert "starting one" in done.stderr
    again = cli("message", "send", "hello")
    assert (again.stdout, again.stderr) == ("started and answered\n", "")
    assert stat.S_IMODE((state / "logs" / "gateway-console.log").stat().st_mode) == 0o600


def test_two_commands_at_once_share_one_gateway(cli: Cli) -> None:
    both = [cli.start("message", "send", text, FAKE_GATEWAY_SLOW="0.5") for text in ("one", "two")]
    assert [process.communicate(timeout=60)[0] for process in both] == ["started and answered\n"] * 2
    assert [process.returncode for process in both] == [0, 0]


def test_start_status_stop_and_their_exit_codes(cli: Cli) -> None:
    assert cli("gateway", "status").returncode == 1
    started = json.loads(cli("gateway", "start", "--json").stdout)
    assert started["started"] is True
    os.kill(started["pid"], 0)
    again = json.loads(cli("gateway", "start", "--json").stdout)
    assert (again["started"], again["pid"]) == (False, started["pid"])
    done = cli("gateway", "status", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["service"]["runtime"]["pid"] == started["pid"]
    assert report["rpc"]["ok"] is True
    assert set(report) == {"service", "config", "gateway", "port", "rpc", "extraServices"}
    stopped = json.loads(cli("gateway", "stop", "--json").stdout)
    assert (stopped["stopped"], stopped["pid"]) == (True, started["pid"])
    assert json.loads(cli("gateway", "stop", "--json").stdout)["stopped"] is False


def test_restart_gives_a_new_process(cli: Cli) -> None:
    first = json.loads(cli("gateway", "start", "--json").stdout)["pid"]
    second = json.loads(cli("gateway", "restart", "--json").stdout)["pid"]
    assert first != second
    assert cli("gateway", "status").returncode == 0


def test_force_stops_the_gateway_that_runs_and_takes_its_port(cli: Cli) -> None:
    first = json.loads(cli("gateway", "start", "--json").stdout)
    port = first["url"].rpartition(":")[2]
    # The launcher of these tests replaces `gateway run` only; `gateway --force` is the real Gateway.
    process = cli.start("gateway", "--force", "--port", port)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"OpenClaw Gateway: http://127.0.0.1:{port}\n"
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert f"Stopped the Gateway that was running (process {first['pid']}).\n" in said


def test_force_does_not_touch_a_stranger_on_the_port(cli: Cli, gateway: FakeGateway) -> None:
    done = cli("gateway", "--force", "--port", str(gateway.port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Port {gateway.port} is taken by a process that is not the Gateway of ")


def test_remote_mode_starts_no_gateway_unless_that_is_allowed(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text('{gateway: {mode: "remote"}}')
    refused = cli("gateway", "--port", "0")
    assert refused.returncode == 1
    assert "gateway.mode is `remote`" in refused.stderr
    process = cli.start("gateway", "--port", "0", "--allow-unconfigured")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("OpenClaw Gateway: http://127.0.0.1:")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_gateway_that_cannot_start_shows_its_last_words(cli: Cli) -> None:
    done = cli("gateway", "start", FAKE_GATEWAY_FAILS="1")
    assert done.returncode == 1
    assert "exit code 3" in done.stderr
    assert "the disk is full" in done.stderr


def test_a_recycled_process_id_is_never_signalled(cli: Cli, state: Path) -> None:
    """The lock file names a living process, but nobody holds the lock: it is not a Gateway."""
    (state / "gateway.lock").write_text(json.dumps({"pid": os.getpid(), "port": 1}))
    assert json.loads(cli("gateway", "stop", "--json").stdout) == {"ok": True, "stopped": False, "pid": None}


def test_install_writes_a_private_unit_and_says_what_to_run(cli: Cli, tmp_path: Path, state: Path) -> None:
    done = cli("gateway", "install", "--port", "20123", "--json")
    report = json.loads(done.stdout)
    unit = tmp_path / ".config/systemd/user/openclaw-gateway.service"
    assert report["path"] == str(unit)
    text = unit.read_text()
    env = state / "service.env"
    assert f"ExecStart={sys.executable} -m openclaw gateway run --port 20123 --env-file {env}\n" in text
    assert f"Environment=OPENCLAW_STATE_DIR={state}\n" in text
    assert stat.S_IMODE(unit.stat().st_mode) == 0o600
    if not report["enabled"]:
        assert any("enable openclaw-gateway" in command for command in report["run"])
    assert cli("gateway", "install").returncode == 1
    unit.write_text(text.replace(sys.executable, "/usr/bin/python-of-yesterday"))
    (unit.parent / "openclaw-gateway-work.service").write_text("")
    audit = json.loads(cli("gateway", "status", "--json").stdout)
    assert audit["service"]["configAudit"]["ok"] is False
    assert audit["extraServices"] == ["openclaw-gateway-work.service"]
    assert json.loads(cli("gateway", "uninstall", "--json").stdout)["removed"] is True
    assert not unit.exists() and not env.exists()


def test_the_service_has_the_keys_that_the_gateway_needs_and_no_others(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text('{channels: {irc: {password: "${IRC_SECRET}"}}}')
    secrets = {"ANTHROPIC_API_KEY": "sk-a", "TELEGRAM_BOT_TOKEN": "1:t", "IRC_SECRET": "i=1 #x", "AWS_SECRET": "no"}
    report = json.loads(cli("gateway", "install", "--json", **secrets).stdout)
    env = state / "service.env"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    kept = read_env(str(env))
    assert (kept["ANTHROPIC_API_KEY"], kept["TELEGRAM_BOT_TOKEN"], kept["IRC_SECRET"]) == ("sk-a", "1:t", "i=1 #x")
    assert "AWS_SECRET" not in kept and sorted(report["variables"]) == sorted(kept)
    assert not any(secret in (Path(report["path"]).read_text()) for secret in ("sk-a", "1:t"))
    environ = {"PATH": "/bin", "ANTHROPIC_API_KEY": "newer"}
    use_env(str(env), environ)
    assert environ["ANTHROPIC_API_KEY"] == "newer" and environ["TELEGRAM_BOT_TOKEN"] == "1:t"


def test_the_agent_of_launchd_starts_the_gateway_again_only_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in service.KEPT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENCLAW_GATEWAY_PORT", "19001")
    found = plistlib.loads(service.plist_text("gateway", ["--env-file", "/x/service.env"]))
    assert found["ProgramArguments"][1:] == ["-m", "openclaw", "gateway", "run", "--env-file", "/x/service.env"]
    assert found["KeepAlive"] == {"SuccessfulExit": False} and found["RunAtLoad"] is True
    assert found["EnvironmentVariables"] == {"OPENCLAW_GATEWAY_PORT": "19001"}
    # What launchd.plist(5) knows, and which type each must have. launchd ignores a file with a wrong one.
    types = {"Label": str, "ProgramArguments": list, "EnvironmentVariables": dict, "RunAtLoad": bool}
    types |= {"KeepAlive": dict, "Umask": int, "StandardOutPath": str, "StandardErrorPath": str}
    assert {name: type(value) for name, value in found.items()} == types
    assert found["Label"] == "ai.openclaw.gateway" and os.path.isabs(found["ProgramArguments"][0])
    assert os.path.isabs(found["StandardOutPath"]) and all(isinstance(one, str) for one in found["ProgramArguments"])


def test_on_a_mac_the_service_is_an_agent_of_launchd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(service, "launchctl", lambda *words: asked.append(words))
    report = service.put_in_place("gateway", [], force=False)
    path = tmp_path / "Library" / "LaunchAgents" / "ai.openclaw.gateway.plist"
    assert report["path"] == str(path) and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [words[0] for words in asked] == ["bootout", "bootstrap"]
    assert report["enabled"] is False and report["run"] == [f"launchctl bootstrap gui/{os.getuid()} {path}"]
    assert service.is_installed() and service.service_file() == str(path)
    removal = argparse.Namespace(service=True, app=False, state=False, workspace=False, all=False, no_backup=False)
    removal.__dict__ |= {"dry_run": True, "yes": False, "method": "git", "json": True}
    assert installation.uninstall(removal) == 0
    assert f"remove the service {path}" in capsys.readouterr().out
    assert service.can_install() and not service.manages_gateway()
    assert service.remove() == str(path) and not service.is_installed()


def test_a_gateway_of_systemd_is_stopped_by_systemd_and_told_as_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(service, "manages_gateway", lambda: True)
    monkeypatch.setattr(service, "running_pid", lambda: None if asked else 4242)
    monkeypatch.setattr(service, "must", lambda *words: asked.append(words))
    monkeypatch.setattr(service, "_lock_is_held", lambda: not asked)
    assert service.stop() == 4242
    assert asked == [("stop", service.unit_name())]


def test_a_node_is_installed_as_a_service_without_its_secret(cli: Cli, tmp_path: Path, state: Path) -> None:
    unit = tmp_path / ".config/systemd/user/openclaw-node.service"
    assert json.loads(cli("node", "status", "--json").stdout)["service"] == {"label": unit.name, "installed": False}
    done = cli("node", "install", "--host", "gateway.lan", "--display-name", "attic", "--token", "hush-hush-1234")
    assert done.returncode == 0 and str(unit) in done.stdout
    assert "openclaw node run" in done.stderr  # Nobody has let it in yet.
    text = unit.read_text()
    assert f"ExecStart={sys.executable} -m openclaw node run\n" in text and "hush" not in text
    assert f"Environment=OPENCLAW_STATE_DIR={state}\n" in text
    assert stat.S_IMODE(unit.stat().st_mode) == 0o600
    kept = (state / "node.json").read_text()
    assert "ws://gateway.lan:18789" in kept and "hush" not in kept
    assert cli("node", "install", "--host", "gateway.lan").returncode == 1
    report = json.loads(cli("node", "status", "--json").stdout)
    assert report["service"]["installed"] is True and report["displayName"] == "attic"
    assert json.loads(cli("node", "uninstall", "--json").stdout)["removed"] is True
    assert not unit.exists()


def test_unit_quotes_what_systemd_would_read_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", '/home/a b/100%/"x"')
    monkeypatch.setattr("sys.executable", "/opt/$x/python")
    text = service.unit_text("gateway", [])
    assert 'Environment="OPENCLAW_STATE_DIR=/home/a b/100%%/\\"x\\""\n' in text
    assert "ExecStart=/opt/$$x/python -m openclaw" in text
