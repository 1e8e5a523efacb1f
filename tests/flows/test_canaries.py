"""Secrets stay where they belong. A Gateway full of canaries is used in every way; no canary is seen anywhere else.

A canary looks like nothing in particular, so that no pattern finds it by its form. It may be in the configuration and
its copies, in the stores of credentials, and in the requests to the service that it is the secret of.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateway import RequestFailed, WireClient, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Recorded, Reply

WHERE_THEY_BELONG = re.compile(
    r"openclaw\.json(\.bak(\.\d)?|\.last-good)?|agents/main/agent/auth-profiles\.json|devices/paired\.json"
    r"|exec-approvals\.json|key-file"
)
_NAMES = """
    gateway.token gateway.password remote.token key.plain key.env key.file key.command key.header key.model_header
    key.url key.query key.reference telegram.token telegram.url discord.token slack.token slack.app signal.url
    hooks.token talk.key skill.key skill.env env.inline env.vars embedding.key embedding.header otel.header web.key
    tts.key profile.key profile.token profile.access profile.refresh device.token approvals.socket environ.key
    environ.password comment.token account.token mcp.token mcp.argument
"""
CANARIES = {
    name: f"cnry{number:02d}x{name.replace('.', '').replace('_', '')}q7w2e9"
    for number, name in enumerate(_NAMES.split())
}


def canary(name: str) -> str:
    return CANARIES[name]


def configuration(models: ModelServer, folder: Path) -> dict[str, Any]:
    base = model_config(models.base_url, canary("key.plain"))
    mock = base["models"]["providers"]["mock"]
    mock["headers"] = {"X-Gateway-Key": canary("key.header")}
    mock["models"][0]["headers"] = {"X-Model-Key": canary("key.model_header")}
    address = models.base_url.removeprefix("http://")
    url = f"http://user:{canary('key.url')}@{address}"
    others = {
        "by-env": {"apiKey": "${CANARY_KEY}"},
        "by-file": {"apiKey": {"file": str(folder / "key-file")}},
        "by-command": {"apiKey": {"command": ["cat", str(folder / "key-file")]}},
        "by-url": {"apiKey": "x", "baseUrl": url},
        "by-query": {"apiKey": "x", "baseUrl": f"{models.base_url}/?api_key={canary('key.query')}"},
        "by-reference": {"apiKey": "x", "baseUrl": f"http://user:${{CANARY_REFERENCE_TOKEN}}@{address}"},
    }
    for name, provider in others.items():
        model = {"id": "m", "contextWindow": 50_000}
        base["models"]["providers"][name] = {
            "api": mock["api"],
            "baseUrl": models.base_url,
            "models": [model],
            **provider,
        }
    base["gateway"]["auth"] = {
        "mode": "token",
        "token": canary("gateway.token"),
        "password": canary("gateway.password"),
    }
    base["gateway"]["remote"] = {"token": canary("remote.token")}
    base["gateway"]["http"] = {"endpoints": {"chatCompletions": {"enabled": True}}}
    base["agents"]["defaults"]["memorySearch"] = {
        "remote": {"apiKey": canary("embedding.key"), "headers": {"X-Embedding": canary("embedding.header")}}
    }
    return base | {
        "env": {"INLINE_API_KEY": canary("env.inline"), "vars": {"SOME_SECRET": canary("env.vars")}},
        "channels": {
            "telegram": {
                "enabled": False,
                "botToken": canary("telegram.token"),
                "webhookUrl": f"https://u:{canary('telegram.url')}@hook.example/x",
                "accounts": {"two": {"botToken": canary("account.token")}},
            },
            "discord": {"enabled": False, "token": canary("discord.token")},
            "slack": {"enabled": False, "botToken": canary("slack.token"), "appToken": canary("slack.app")},
            "signal": {
                "account": "+15550001",
                "httpUrl": f"http://u:{canary('signal.url')}@127.0.0.1:9",
                "autoStart": False,
            },
        },
        "hooks": {"enabled": False, "token": canary("hooks.token")},
        "talk": {"apiKey": canary("talk.key")},
        "skills": {"entries": {"x": {"apiKey": canary("skill.key"), "env": {"X_API_KEY": canary("skill.env")}}}},
        "diagnostics": {"otel": {"headers": {"auth": canary("otel.header")}}},
        "tools": {"web": {"search": {"apiKey": canary("web.key")}}},
        "messages": {"tts": {"elevenlabs": {"apiKey": canary("tts.key")}}},
        "mcp": {
            "servers": {
                "one": {"env": {"THEIR_TOKEN": canary("mcp.token")}, "args": ["--api-key", canary("mcp.argument")]}
            }
        },
        "commands": {"config": True},
        "logging": {"level": "trace", "consoleLevel": "trace"},
    }


def write_state(state: Path, config: dict[str, Any]) -> None:
    state.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2)
    (state / "openclaw.json").write_text(
        f"// an old token: {canary('comment.token')}\n// token: {canary('comment.token')}\n{text}"
    )
    (state / "key-file").write_text(canary("key.file"))
    profiles = {
        "mock:key": {"type": "api_key", "provider": "mock", "key": canary("profile.key")},
        "mock:token": {"type": "token", "provider": "mock", "token": canary("profile.token")},
        "mock:login": {
            "type": "oauth",
            "provider": "mock",
            "access": canary("profile.access"),
            "refresh": canary("profile.refresh"),
            "expires": 4_000_000_000_000,
        },
    }
    agent = state / "agents" / "main" / "agent"
    agent.mkdir(parents=True)
    (agent / "auth-profiles.json").write_text(json.dumps({"version": 1, "profiles": profiles}))
    socket = {"path": "/nowhere/s", "token": canary("approvals.socket")}
    (state / "exec-approvals.json").write_text(json.dumps({"version": 1, "socket": socket, "agents": {}}))
    rights = {"role": "operator", "scopes": ["operator.read"], "createdAtMs": 1}
    device = {
        "deviceId": "d1",
        "publicKey": "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg",
        "roles": ["operator"],
        "scopes": ["operator.read"],
        "approvedAtMs": 1,
        "tokens": {"operator": {"token": canary("device.token"), **rights}},
    }
    (state / "devices").mkdir()
    (state / "devices" / "paired.json").write_text(json.dumps({"d1": device}))


ENVIRON = {
    "CANARY_KEY": canary("key.env"),
    "CANARY_REFERENCE_TOKEN": canary("key.reference"),
    "OPENAI_API_KEY": canary("environ.key"),
    "OPENCLAW_GATEWAY_PASSWORD": canary("environ.password"),
}


def leaks(text: str) -> set[str]:
    return {name for name, value in CANARIES.items() if value in text}


def leaks_in_files(state: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in [*state.rglob("*"), state.parent / "gateway.err"]:
        name = path.relative_to(state).as_posix() if path.is_relative_to(state) else path.name
        if not path.is_file() or WHERE_THEY_BELONG.fullmatch(name):
            continue
        if seen := leaks(path.read_bytes().decode("latin-1")):
            found[name] = seen
    return found


class Listener:
    """Keeps every answer and event that a client got, as text."""

    def __init__(self) -> None:
        self.heard: dict[str, str] = {}

    def note(self, what: str, answer: Any) -> None:
        self.heard[what] = answer if isinstance(answer, str) else json.dumps(answer)

    def leaks(self) -> dict[str, set[str]]:
        return {what: found for what, text in self.heard.items() if (found := leaks(text))}


async def use(client: WireClient, listener: Listener, models: ModelServer) -> None:
    """Chats, and has everything go wrong that a provider can do wrong with a secret."""
    env = '[[tool:exec {"command":"env; echo $CANARY_KEY $OPENAI_API_KEY"}]][[next]][[reply:done]]'
    listener.note("env", await client.chat(f"environment {env}", "agent:main:env"))
    for command in COMMANDS:
        listener.note(command, await client.chat(command))
    for name in ("mock/mock-1", "by-env/m", "by-file/m", "by-command/m", "by-url/m", "by-query/m", "by-reference/m"):
        session = f"agent:main:{name.partition('/')[0]}"
        await client.chat("/status", session)
        await client.call("sessions.patch", {"key": session, "model": name})
        listener.note(name, await client.chat("hello [[reply:hi]]", session, run_id=f"run-{session}"))
        for status in (400, 401, 500):
            models.answer_with(lambda asked, status=status: _echo(asked, status))
            listener.note(f"{name} {status}", await client.chat("hello", session))
            models.answer_with(None)


def _echo(asked: Recorded, status: int) -> Reply:
    """A vendor that repeats in its error what it was sent."""
    return Reply(status=status, message=f"Incorrect API key provided: {asked.path} {dict(asked.headers)}")


COMMANDS = (
    *("/status", "/whoami", "/context list", "/context json", "/models", "/model status", "/config show", "/help"),
    *("/config show gateway", "/config show channels", "/usage full", "/approve", "/queue"),
)
PARAMETERS: dict[str, dict[str, Any]] = {
    "chat.history": {"sessionKey": "main"},
    "sessions.preview": {"keys": ["agent:main:main"]},
    "sessions.resolve": {"key": "agent:main:main"},
    "sessions.tree": {"key": "agent:main:main"},
    "sessions.export": {"key": "agent:main:main"},
    "sessions.search": {"query": "hello"},
    "sessions.usage.timeseries": {"key": "agent:main:main"},
    "sessions.usage.logs": {"key": "agent:main:main"},
    "messages.get": {"runId": "run-agent:main:by-env"},
    "messages.why": {"runId": "run-agent:main:by-env"},
    "context.get": {"runId": "run-agent:main:by-env"},
    "agents.files.list": {"agentId": "main"},
    "agents.files.get": {"agentId": "main", "name": "AGENTS.md"},
    "config.set": {"raw": "{ gateway: { port: 'many' } }"},
    "config.patch": {"raw": "{ gateway: { port: 'many' } }"},
    "events.replay": {"afterSeq": 0},
    "memory.search": {"query": "hello"},
    "skills.update": {"skillKey": "x", "enabled": True},
    "models.list": {"all": True},
}


async def call_every_method(client: WireClient, listener: Listener, methods: list[str]) -> None:
    for method in sorted(methods):
        for params in ({}, PARAMETERS.get(method, {}), {"nonsense": list(CANARIES)}):
            try:
                listener.note(f"{method} {list(params)}", await client.call(method, params))
            except RequestFailed as failed:
                listener.note(f"{method} {list(params)}", [failed.error, failed.payload])


async def open_every_page(gateway: InProcessGateway, listener: Listener) -> None:
    bearer = {"Authorization": f"Bearer {canary('gateway.token')}"}
    async with aiohttp.ClientSession() as session:
        for path in ("/healthz", "/readyz", "/metrics", "/v1/models", "/", "/nowhere"):
            for headers in ({}, bearer, {"Authorization": "Bearer wrong"}):
                async with session.get(gateway.url + path, headers=headers) as answer:
                    listener.note(f"{path} {list(headers)}", f"{answer.headers} {await answer.text()}")
        body = {"model": "openclaw", "messages": [{"role": "user", "content": "hello"}]}
        async with session.post(f"{gateway.url}/v1/chat/completions", json=body, headers=bearer) as answer:
            listener.note("completion", await answer.text())


CLI: tuple[tuple[str, ...], ...] = (
    ("status", "--json"),
    ("models", "status", "--json"),
    ("doctor", "--json"),
    ("security", "audit", "--deep", "--json"),
    ("why", "run-agent:main:by-env", "--json"),
    ("config", "get", "models", "--json"),
    ("logs", "--plain"),
    ("gateway", "status"),
    ("devices", "list", "--json"),
)


async def run_the_command_line(gateway: InProcessGateway, listener: Listener) -> None:
    for arguments in CLI:
        done = await gateway.command(*arguments)
        assert done.returncode in (0, 1) and len(done.stdout + done.stderr) > 10, arguments
        listener.note(" ".join(arguments), done.stdout + done.stderr)


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    models.any_key = True
    state = tmp_path / "state"
    write_state(state, configuration(models, state))
    async with InProcessGateway(state, env=ENVIRON) as running:
        yield running


async def test_secrets_are_only_where_they_belong(gateway: InProcessGateway, models: ModelServer) -> None:
    listener = Listener()
    async with gateway.client(token=canary("gateway.token")) as client:
        await use(client, listener, models)
        await call_every_method(client, listener, gateway.gateway.methods.advertised())
        listener.note("events", client.events)
    await open_every_page(gateway, listener)
    await run_the_command_line(gateway, listener)
    await gateway.stop()
    sent = {name for name in CANARIES for asked in models.requests if CANARIES[name] in str(asked.headers)}
    assert {"key.plain", "key.header", "key.model_header", "key.env", "key.file"} <= sent, "the canaries are in use"
    assert listener.leaks() == {}
    assert leaks_in_files(gateway.state_dir) == {}


async def test_a_crash_leaves_no_secret_in_the_log(gateway: InProcessGateway) -> None:
    """A bare value in a message, in a field and in the text of an exception, as a library may put it there."""
    known = [name for name in CANARIES if name not in NOT_IN_MEMORY]
    log = logging.getLogger("openclaw.gateway")
    for name in known:
        try:
            raise RuntimeError(f"cannot use <{canary(name)}>")
        except RuntimeError:
            log.exception("failed with %s", canary(name), extra={"fields": {"value": {"nested": canary(name)}}})
    for name in ("key.url", "telegram.url", "signal.url"):
        log.warning("no answer from http://user:%s@example.com/x", canary(name))
    await gateway.stop()
    assert leaks_in_files(gateway.state_dir) == {}
    assert "cannot use <" in gateway.errors_path.read_text(), "the rest of the line is there"


NOT_IN_MEMORY = {
    *("key.file", "key.command", "profile.key", "profile.token", "profile.access", "profile.refresh"),
    *("device.token", "approvals.socket", "comment.token", "key.url", "key.query", "telegram.url", "signal.url"),
}
"""Secrets that nothing has read before they are used, and those that are known as a part of an address only."""
