"""The first run: a person in a terminal, and a script. The vendor is a stand-in on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.models.test_detect import serving, show
from tests.support.model_server import ModelServer, Reply
from tests.support.model_wire import chat_stream
from tests.support.tmux import Tmux, need_tmux

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
def home() -> Iterator[Path]:
    # The path of a terminal's socket must be short.
    with tempfile.TemporaryDirectory(prefix="home") as path:
        yield Path(path)
        end_gateways(path)


def end_gateways(home: str) -> None:
    """A Gateway that a terminal started outlives it, also one that was just being started when the terminal closed."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            of_home = f"HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0")
            if of_home and b"gateway" in (process / "cmdline").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


@pytest.fixture
def env(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    # No user manager of systemd: an empty bus address makes systemctl fail at once.
    hidden = {"DBUS_SESSION_BUS_ADDRESS": "", "XDG_RUNTIME_DIR": "", "OLLAMA_HOST": "http://127.0.0.1:9"}
    return {**kept, **hidden, "HOME": str(home), "OPENCLAW_GATEWAY_PORT": "0", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def vendor_config(home: Path, models: ModelServer) -> Path:
    path = home / ".openclaw" / "openclaw.json"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    gateway = {"mode": "local", "auth": {"mode": "token", "token": "a-token-of-this-test"}}
    path.write_text(
        json.dumps({"gateway": gateway, "models": {"providers": {"anthropic": {"baseUrl": models.base_url}}}})
    )
    return path


async def openclaw(env: dict[str, str], *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "openclaw", *words],
        env=env,
        input=input,
        capture_output=True,
        text=True,
        timeout=120,
    )


def stored_keys(home: Path) -> dict[str, Any]:
    path = home / ".openclaw" / "agents" / "main" / "agent" / "auth-profiles.json"
    if not path.exists():
        return {}
    assert path.stat().st_mode & 0o777 == 0o600
    return json.loads(path.read_text())["profiles"]


async def seen(terminal: Tmux, text: str, times: int) -> None:
    """Waits until a text was printed so often. What is typed before a hidden question is asked would be lost."""
    for _ in range(600):
        if (await terminal.screen(scrolled=True)).count(text) >= times:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{text!r} was not seen {times} times:\n{await terminal.screen(scrolled=True)}")


async def test_a_person_enters_a_key_that_is_tried_and_ends_in_a_chat(
    home: Path, env: dict[str, str], models: ModelServer
) -> None:
    need_tmux()
    vendor_config(home, models)
    try:
        async with Tmux(home, env, "onboard") as terminal:
            await seen(terminal, "Number [1]:", 1)
            assert "1. Enter the key of a provider" in await terminal.screen()
            await terminal.press("Enter")
            await seen(terminal, "Number [1]:", 2)
            await terminal.press("Enter")
            await seen(terminal, "Key for Anthropic (it is not shown):", 1)
            await terminal.type("sk-mistyped")
            await terminal.press("Enter")
            await terminal.shows("It does not work", "2. Choose something else", "Number [2]:")
            assert stored_keys(home) == {}
            await terminal.press("Enter")
            await seen(terminal, "Number [1]:", 3)
            await terminal.press("Enter")
            await seen(terminal, "Number [1]:", 4)
            await terminal.press("Enter")
            await seen(terminal, "Key for Anthropic (it is not shown):", 2)
            models.reply("Hello from the vendor")
            await terminal.type(models.api_key)
            await terminal.press("Enter")
            await terminal.shows("It answers: Hello from the vendor", "Stored as anthropic:default")
            await terminal.shows("Connect a chat platform now")
            await terminal.press("Enter")
            await terminal.shows("/help for help", idle=True)
            await terminal.type("are you there? [[reply:yes, through the Gateway]]")
            await terminal.press("Enter")
            await terminal.shows("yes, through the Gateway", idle=True)
            shown = await terminal.screen(scrolled=True)
            assert "sk-mistyped" not in shown and models.api_key not in shown
        assert stored_keys(home)["anthropic:default"]["key"] == models.api_key
        assert (home / ".openclaw" / "workspace" / "AGENTS.md").exists()
    finally:
        await openclaw(env, "gateway", "stop")


async def test_openclaw_alone_leads_through_the_first_run_and_finds_a_local_server(
    home: Path, env: dict[str, str]
) -> None:
    need_tmux()

    async def answer(request: web.Request) -> web.StreamResponse:
        made = chat_stream(Reply(text="I run right here"), 1, "qwen3:8b", 10)
        whole = b"".join([made.head, *made.tokens, made.tail, made.end])
        return web.Response(body=whole, content_type="text/event-stream")

    tags = {"models": [{"name": "qwen3:8b"}]}
    paths = {"/api/tags": tags, "/api/ps": {"models": []}, "/api/show": show, "/v1/chat/completions": answer}
    async with serving(paths) as url, Tmux(home, {**env, "OLLAMA_HOST": url.removesuffix("/v1")}) as terminal:
        await terminal.shows("Welcome to OpenClaw.", "1. Ollama on this computer: qwen3:8b", "Number [1]:")
        await terminal.type("x")
        await terminal.press("Enter")
        await terminal.shows("Please give a number from 1 to 5.")
        await terminal.press("Enter")
        await terminal.shows("It answers: I run right here")
        await terminal.press("C-c")


async def test_a_person_uses_the_key_of_the_environment_and_has_the_service_installed(
    home: Path, env: dict[str, str], models: ModelServer
) -> None:
    need_tmux()
    vendor_config(home, models)
    # It answers as a systemd that starts nothing: the Gateway is not what is tested here.
    (home / "bin").mkdir()
    (home / "bin" / "systemctl").write_text('#!/bin/sh\necho "$@" >> "$HOME/asked"\n')
    (home / "bin" / "systemctl").chmod(0o755)
    mine = {**env, "PATH": f"{home / 'bin'}:{env['PATH']}", "ANTHROPIC_API_KEY": models.api_key, "NOT_OURS": "x"}
    async with Tmux(home, mine, "onboard", "--skip-channels", "--skip-chat") as terminal:
        await terminal.shows("1. Anthropic: anthropic/", "with the key in", "Number [1]:")
        models.reply("At your service")
        await terminal.press("Enter")
        await terminal.shows("It answers: At your service", "Store this key for the Gateway")
        await terminal.press("Enter")
        await terminal.shows("Stored as anthropic:default", "Start the Gateway whenever you log in? [Y/n]")
        await terminal.press("Enter")
        await terminal.shows("Installed and started", "Waiting for it to answer")
        await terminal.press("C-c")
    asked = (home / "asked").read_text().splitlines()
    assert [line for line in asked if "show-environment" not in line] == [
        "--user daemon-reload",
        "--user enable openclaw-gateway.service",
        "--user restart openclaw-gateway.service",
    ]
    unit = home / ".config" / "systemd" / "user" / "openclaw-gateway.service"
    kept = home / ".openclaw" / "service.env"
    assert f"--env-file {kept}" in unit.read_text() and models.api_key not in unit.read_text()
    assert f"ANTHROPIC_API_KEY={models.api_key}\n" in kept.read_text() and "NOT_OURS" not in kept.read_text()


SCRIPTED = ("onboard", "--non-interactive", "--no-start", "--json")


async def test_a_script_sets_everything_up_and_can_do_so_again(
    home: Path, env: dict[str, str], models: ModelServer
) -> None:
    config = vendor_config(home, models)
    channel = ("--channel", "irc", "--set", "host=irc.example", "--set", "nick=claw")
    words = (*SCRIPTED, "--key-env", "ANTHROPIC_API_KEY", "--workspace", str(home / "work"), *channel)
    with_key = {**env, "ANTHROPIC_API_KEY": models.api_key}
    report = json.loads((await openclaw(with_key, *words)).stdout)
    assert report["ok"] and report["trial"]["ok"] and report["source"] == "env:ANTHROPIC_API_KEY"
    assert report["model"].startswith("anthropic/") and report["workspace"] == str(home / "work")
    assert stored_keys(home)["anthropic:default"]["key"] == models.api_key
    assert json.loads(config.read_text())["channels"]["irc"]["nick"] == "claw"
    rules, written = home / "work" / "AGENTS.md", config.read_text()
    rules.write_text("my own rules")
    again = await openclaw(env, *SCRIPTED)
    assert json.loads(again.stdout)["model"] == report["model"]
    assert rules.read_text() == "my own rules" and config.read_text() == written
    status = json.loads((await openclaw(env, "models", "status", "--json")).stdout)
    assert status["resolvedDefault"] == report["model"]


async def test_a_key_that_does_not_work_changes_nothing(home: Path, env: dict[str, str], models: ModelServer) -> None:
    config = vendor_config(home, models)
    before = config.read_text()
    done = await openclaw(env, *SCRIPTED, "--provider", "anthropic", "--key-stdin", input="sk-wrong\n")
    assert done.returncode == 1
    assert "nothing was changed" in json.loads(done.stdout)["error"]["message"]
    assert "sk-wrong" not in done.stdout + done.stderr
    assert stored_keys(home) == {} and config.read_text() == before


async def test_without_a_terminal_or_a_model_it_says_what_to_give(home: Path, env: dict[str, str]) -> None:
    asks = await openclaw(env, "onboard")
    assert asks.returncode == 1 and "--non-interactive" in asks.stderr
    nothing = await openclaw(env, *SCRIPTED)
    assert nothing.returncode == 1 and "--key-env NAME" in json.loads(nothing.stdout)["error"]["message"]
    unset = await openclaw(env, *SCRIPTED, "--key-env", "NO_SUCH_KEY")
    assert unset.returncode == 1 and "NO_SUCH_KEY is not set here" in unset.stdout
