"""Printers × escapes: nothing that comes from outside can control the terminal, whichever command prints it.

Every command of the registry runs against a real Gateway whose every answer is poisoned: each text in it carries
control characters. A new command without a case here fails.
"""

from __future__ import annotations

import ast
import asyncio
import io
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from openclaw.cli import client as clients
from openclaw.cli.command import Action, UserError
from openclaw.cli.logs import _text as log_text  # pyright: ignore[reportPrivateUsage]
from openclaw.cli.logs import parse_line
from openclaw.cli.main import TABLE, find_command, main
from openclaw.cli.markdown_printer import MarkdownPrinter
from openclaw.cli.terminal import Guard, guarded, paint, print_json
from openclaw.gateway.logs import console_line
from openclaw.text import printable, printable_json
from openclaw.tools.browser.tool import Performed
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

CLI = Path(__file__).parents[2] / "src" / "openclaw" / "cli"
ESCAPES = (
    "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b]8;;http://evil\x1b\\link\x1b]52;c;Y2xpcA==\x07\x9b31m\x9d0;x\x9c\x7f\x08\x0d\x00"
    "\u202egnp.exe\u2066\u2069\u200b\u200e\ufeff\u2028\U000e0041\ufdd1"
)
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufdd0-\ufdef\U000e0000-\U000e007f]"
)
KEPT = {
    "state",
    "status",
    "kind",
    "type",
    "role",
    "level",
    "outcome",
    "event",
    "stream",
    "phase",
    "hash",
    "time",
    "wire",
}
"""What a command branches on. Everything else is a text that it shows."""

CASES: dict[str, list[list[str]]] = {
    "chat": [["chat"]],
    "message send": [["message", "send", "hi"], ["message", "send", "hi", "--json"]],
    "agent": [["agent", "--message", "hi"], ["agent", "--message", "hi", "--json"]],
    "gateway start": [["gateway", "start"]],
    "gateway status": [["gateway", "status"], ["gateway", "status", "--json"]],
    "gateway call": [["gateway", "call", "sessions.list"], ["gateway", "call", f"x{ESCAPES}"]],
    "gateway health": [["gateway", "health"], ["gateway", "health", "--json"]],
    "gateway usage-cost": [["gateway", "usage-cost"], ["gateway", "usage-cost", "--json"]],
    "sessions list": [["sessions"], ["sessions", "--json"]],
    "sessions show": [["sessions", "show", "main"], ["sessions", "show", "main", "--json"]],
    "sessions rename": [["sessions", "rename", "main", f"x{ESCAPES}"], ["sessions", "rename", f"x{ESCAPES}", "y"]],
    "sessions delete": [["sessions", "delete", f"x{ESCAPES}", "--yes"], ["sessions", "delete", "main", "--yes"]],
    "sessions archived": [["sessions", "archived", "main"], ["sessions", "archived", "main", "--json"]],
    "sessions resume": [["sessions", "resume", "main"], ["sessions", "resume", "main", "--json"]],
    "sessions search": [["sessions", "search", "hi"], ["sessions", "search", "hi", "--json"]],
    "sessions export": [["sessions", "export", "main"]],
    "sessions import": [["sessions", "import", "--from", f"/nowhere{ESCAPES}"]],
    "sessions archive": [["sessions", "archive", "--after-days", "30"]],
    "why": [["why"], ["why", "--json"], ["why", "--session", "main"]],
    "context": [["context"], ["context", "--json"], ["context", "--wire"], ["context", "--search", "hi"]],
    "status": [["status"], ["status", "--json"]],
    "health": [["health"], ["health", "--json"]],
    "doctor": [["doctor"], ["doctor", "--json"]],
    "agents list": [["agents", "list"], ["agents", "list", "--json"]],
    "agents add": [["agents", "add", f"W{ESCAPES}"]],
    "agents delete": [["agents", "delete", f"w{ESCAPES}"]],
    "agents bind": [["agents", "bind", "main", f"x{ESCAPES}"]],
    "models list": [["models", "list"], ["models", "list", "--json"]],
    "models status": [["models", "status"], ["models", "status", "--json"]],
    "models set": [["models", "set", f"no/{ESCAPES}"]],
    "models set-image": [["models", "set-image", f"no/{ESCAPES}"]],
    "models fallbacks": [["models", "fallbacks", "list"], ["models", "fallbacks", "add", f"a/{ESCAPES}"]],
    "models image-fallbacks": [["models", "image-fallbacks", "list"]],
    "models auth": [["models", "auth", "order", "get", "--provider", f"x{ESCAPES}"]],
    "models install": [["models", "install", f"x{ESCAPES}"]],
    "memory status": [["memory", "status"], ["memory", "status", "--json"]],
    "memory index": [["memory", "index"]],
    "memory search": [["memory", "search", "shed"], ["memory", "search", "shed", "--json"]],
    "skills list": [["skills", "list"], ["skills", "list", "--json"]],
    "skills info": [["skills", "info", "weather"], ["skills", "info", f"x{ESCAPES}"]],
    "skills check": [["skills", "check"]],
    "skills add": [["skills", "add", f"/nowhere{ESCAPES}", "--yes"]],
    "skills update": [["skills", "update", f"x{ESCAPES}", "--yes"]],
    "skills remove": [["skills", "remove", f"x{ESCAPES}"]],
    "questions list": [["questions", "list"], ["questions", "list", "--json"]],
    "questions answer": [["questions", "answer", f"x{ESCAPES}", "yes"]],
    "export": [["export", "--for", "2026.9", "--to", f"/nowhere{ESCAPES}/x"]],
    "migrate": [["migrate", "--from", f"/nowhere{ESCAPES}"]],
    "config get": [["config", "get", "ui.assistant.name"], ["config", "get", "ui"], ["config", "get", f"x{ESCAPES}"]],
    "config set": [["config", "set", "ui.assistant.name", f"x{ESCAPES}"], ["config", "set", f"x{ESCAPES}", "1"]],
    "config unset": [["config", "unset", f"x{ESCAPES}"]],
    "config validate": [["config", "validate"], ["config", "validate", "--json"]],
    "config schema": [["config", "schema"]],
    "config docs": [["config", "docs", f"x{ESCAPES}"]],
    "config path": [["config", "path"]],
    "channels add": [["channels", "add", "irc", "--set", f"host=x{ESCAPES}", "--set", "nick=y"]],
    "channels remove": [["channels", "remove", f"x{ESCAPES}"]],
    "channels login": [["channels", "login", f"x{ESCAPES}"]],
    "channels logout": [["channels", "logout", f"x{ESCAPES}"]],
    "channels list": [["channels", "list"], ["channels", "list", "--json"]],
    "channels status": [["channels", "status"], ["channels", "status", "--json"]],
    "channels capabilities": [["channels", "capabilities"], ["channels", "capabilities", "--json"]],
    "devices list": [["devices", "list"], ["devices", "list", "--json"]],
    "devices approve": [["devices", "approve", f"x{ESCAPES}"]],
    "devices reject": [["devices", "reject", f"x{ESCAPES}"]],
    "devices rotate": [["devices", "rotate", "--device", f"x{ESCAPES}", "--role", "operator"]],
    "devices revoke": [["devices", "revoke", "--device", f"x{ESCAPES}", "--role", "operator"]],
    "devices remove": [["devices", "remove", f"x{ESCAPES}"]],
    "nodes list": [["nodes", "list"], ["nodes", "list", "--json"]],
    "nodes status": [["nodes", "status"]],
    "nodes describe": [["nodes", "describe", "--node", f"x{ESCAPES}"]],
    "nodes pending": [["nodes", "pending"], ["nodes", "pending", "--json"]],
    "nodes approve": [["nodes", "approve", f"x{ESCAPES}"]],
    "nodes reject": [["nodes", "reject", f"x{ESCAPES}"]],
    "nodes rename": [["nodes", "rename", "--node", f"x{ESCAPES}", "--name", f"x{ESCAPES}"]],
    "nodes invoke": [["nodes", "invoke", "--node", f"x{ESCAPES}", "--command", f"x{ESCAPES}"]],
    "nodes run": [["nodes", "run", "--node", f"x{ESCAPES}", "--", f"x{ESCAPES}"]],
    "node status": [["node", "status"], ["node", "status", "--json"]],
    "pairing list": [["pairing", "list", "signal"], ["pairing", "list", "signal", "--json"]],
    "pairing approve": [["pairing", "approve", "signal", f"x{ESCAPES}"]],
    "cluster status": [["cluster", "status"], ["cluster", "status", "--json"]],
    "outbox list": [["outbox", "list"], ["outbox", "list", "--json"]],
    "outbox retry": [["outbox", "retry", "1"]],
    "outbox drop": [["outbox", "drop", "--all"]],
    "backup create": [["backup", "create"], ["backup", "create", "--json"]],
    "backup list": [["backup", "list", "--to", f"/nowhere{ESCAPES}"]],
    "backup verify": [["backup", "verify", f"x{ESCAPES}"]],
    "backup restore": [["backup", "restore", f"x{ESCAPES}"]],
    "storage migrate": [["storage", "migrate", "--to", f"x{ESCAPES}"]],
    "approvals get": [["approvals", "get"], ["approvals", "get", "--json"]],
    "approvals set": [["approvals", "set", "--file", f"/nowhere{ESCAPES}"]],
    "approvals allowlist": [["approvals", "allowlist", "add", f"/bin/{ESCAPES}"]],
    "logs": [["logs"], ["logs", "--json"]],
    "dashboard": [["dashboard", "--no-open"], ["dashboard", "--no-open", "--json"]],
    "extras list": [["extras"], ["extras", "--json"]],
    "extras add": [["extras", "add", f"x{ESCAPES}"], ["extras", "add", f"x{ESCAPES}", "--json"]],
    "update": [["update", "--dry-run"], ["update", "--dry-run", "--json"]],
    "uninstall": [["uninstall", "--dry-run"], ["uninstall", "--all", "--dry-run", "--json"]],
    "models remove": [["models", "remove", f"x{ESCAPES}"]],
    "onboard": [["onboard", "--non-interactive", "--key-env", f"x{ESCAPES}"]],
    "completion": [["completion", "bash"]],
    "cron list": [["cron", "list"], ["cron", "list", "--json"]],
    "cron status": [["cron", "status"], ["cron", "status", "--json"]],
    "cron runs": [["cron", "runs", f"x{ESCAPES}"]],
    "cron add": [["cron", "add", "--name", f"x{ESCAPES}", "--at", "20m", "--system-event", "hi"]],
    "cron create": [["cron", "create", "--name", "x", "--cron", f"x{ESCAPES}", "--message", "hi"]],
    "cron edit": [["cron", "edit", f"x{ESCAPES}", "--name", "y"]],
    "cron remove": [["cron", "remove", f"x{ESCAPES}"]],
    "cron rm": [["cron", "rm", f"x{ESCAPES}"]],
    "cron enable": [["cron", "enable", f"x{ESCAPES}"]],
    "cron disable": [["cron", "disable", f"x{ESCAPES}"]],
    "cron run": [["cron", "run", f"x{ESCAPES}"]],
    "system event": [["system", "event", "--text", f"x{ESCAPES}"]],
    "system heartbeat": [["system", "heartbeat", "last"], ["system", "heartbeat", "last", "--json"]],
    "system presence": [["system", "presence"], ["system", "presence", "--json"]],
    "sandbox explain": [["sandbox", "explain"], ["sandbox", "explain", "--json"]],
    "sandbox list": [["sandbox", "list"], ["sandbox", "list", "--json"]],
    "sandbox recreate": [["sandbox", "recreate", "--session", f"x{ESCAPES}", "--force"]],
    "plugins list": [["plugins", "list"], ["plugins", "list", "--json"]],
    "plugins info": [["plugins", "info", f"x{ESCAPES}"]],
    **{
        f"browser {name}": [["browser", name, *words], ["browser", name, *words, "--json"]]
        for name, words in {
            **{key: [] for key in ("status", "start", "stop", "profiles", "tabs", "snapshot", "pdf", "console")},
            **{key: [f"x{ESCAPES}"] for key in ("open", "navigate", "focus", "close", "click", "hover", "press")},
            **{key: ["e1", f"x{ESCAPES}"] for key in ("type", "drag", "select")},
            "fill": ["--fields", f"[{ESCAPES}"],
            "wait": ["--text", "x"],
            "evaluate": ["--fn", "() => 1"],
            "resize": ["800", "600"],
            "upload": ["a.txt"],
            "dialog": ["--accept"],
            "screenshot": [],
        }.items()
    },
    "mcp list": [["mcp", "list"], ["mcp", "list", "--json"]],
    "mcp status": [["mcp", "status"]],
    "mcp test": [["mcp", "test", f"x{ESCAPES}"]],
    "security audit": [["security", "audit"], ["security", "audit", "--json"]],
}
"""What is run of each command. A command that stops, installs or serves shows nothing that an answer holds."""
NOT_RUN = {"gateway run", "gateway stop", "gateway restart", "gateway install", "gateway uninstall"}
NOT_RUN |= {"mcp serve", "node run", "node install", "node uninstall"}


def commands() -> Iterator[str]:
    for name, _, _ in TABLE:
        command = find_command(name)
        assert command is not None
        if isinstance(command, Action):
            yield name
        else:
            yield from (f"{name} {action}" for action in command.actions)


def test_every_command_has_a_case() -> None:
    assert set(commands()) == set(CASES) | NOT_RUN


def poisoned(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: poisoned(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, name) for item in value]
    return f"{value}{ESCAPES}" if isinstance(value, str) and name not in KEPT else value


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    config = model_config(models.base_url, models.api_key, ui={"assistant": {"name": f"Molty{ESCAPES}"}})
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        with patch.object(gateway.gateway.browser_tool, "perform", pretend_to_browse):
            yield gateway


async def pretend_to_browse(arguments: dict[str, Any], context: Any) -> Performed:
    """Everything that an action of the browser can tell, without a browser."""
    tab = {"targetId": "5F", "title": "Order", "url": "https://example.org/", "type": "page"}
    row = {"name": "openclaw", "running": True, "isDefault": True, "isRemote": True}
    node = {"ref": "ax1", "role": "button", "name": "Send", "depth": 1}
    message = {"type": "log", "text": "hi", "location": "https://example.org/:1"}
    told: dict[str, Any] = {**tab, "profile": "openclaw", "running": True, "tabs": [tab], "profiles": [row]}
    told |= {"nodes": [node], "messages": [message], "result": ["x"], "path": "browser/a.png", "pageError": "gone"}
    return Performed({**told, "detectError": "none", "cdpUrl": "ws://far/"}, page="- button", foreign=True)


def poison_the_client(monkeypatch: pytest.MonkeyPatch, *, refuse: bool) -> None:
    call, stream = clients.GatewayClient.call, clients.GatewayClient.stream

    def poisoned_call(self: clients.GatewayClient, *args: Any, **kwargs: Any) -> Any:
        if refuse:
            raise UserError(f"refused {ESCAPES} see http://me:hunter2secret@h/?token=tokenvalue77")
        return poisoned(call(self, *args, **kwargs))

    def poisoned_stream(self: clients.GatewayClient, *args: Any, **kwargs: Any) -> Iterator[Any]:
        if refuse:
            raise UserError(f"refused {ESCAPES}")
        yield from (poisoned(frame) for frame in stream(self, *args, **kwargs))

    monkeypatch.setattr(clients.GatewayClient, "call", poisoned_call)
    monkeypatch.setattr(clients.GatewayClient, "stream", poisoned_stream)


async def shown(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    await asyncio.to_thread(main, args)
    out, err = capsys.readouterr()
    return out + err


@pytest.mark.parametrize("refuse", [False, True], ids=["answered", "refused"])
async def test_no_command_prints_what_a_terminal_obeys(
    gateway: InProcessGateway,
    models: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refuse: bool,
) -> None:
    models.reply(f"reply {ESCAPES} & more")
    await asyncio.to_thread(main, ["message", "send", f"hi {ESCAPES} there"])
    capsys.readouterr()
    poison_the_client(monkeypatch, refuse=refuse)
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    wrong: dict[str, str] = {}
    escaped = 0
    for command, cases in CASES.items():
        for args in cases:
            output = await shown(args, capsys)
            if found := UNSAFE.search(output):
                wrong[" ".join(args)[:40]] = f"{found[0]!r} in {output[max(0, found.start() - 40) : found.end()]!r}"
            if "unexpected" in output and "SystemExit" not in output:
                wrong[command] = output[:300]
            escaped += "\\u001b" in output
            assert "hunter2secret" not in output and "tokenvalue77" not in output
    assert not wrong
    assert refuse or escaped > 8, "--json keeps the characters, escaped"


def test_json_means_the_same_and_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": ESCAPES, "\x9b": ["\u202e"]})
    output = capsys.readouterr().out
    assert not UNSAFE.search(output) and json.loads(output) == {"name": ESCAPES, "\x9b": ["\u202e"]}
    assert json.loads(printable_json(json.dumps(ESCAPES, ensure_ascii=False))) == ESCAPES


@pytest.mark.parametrize(
    "text",
    [
        f"plain {ESCAPES}", f"`code {ESCAPES}`", f"```sh{ESCAPES}\nls {ESCAPES}\n```",
        f"[link{ESCAPES}](http://x/{ESCAPES})", f"| a{ESCAPES} | b |\n|---|---|\n| 1 | {ESCAPES} |",
        "&#27;]0;title&#7; &#x9b;31m &#8238; &#x202E; &lrm;&ZeroWidthSpace;",
        f"# Heading {ESCAPES}", f"- item {ESCAPES}", f"![picture{ESCAPES}](http://x)", "<b>&#27;[2J</b>",
    ],
)  # fmt: skip
def test_a_reply_on_a_terminal_has_only_our_own_colours(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich's own codes are colours and nothing else."""
    monkeypatch.setenv("NO_COLOR", "1")
    renderer = MarkdownPrinter()
    renderer.markdown(text)
    renderer.show("text", f"{text}\n\n")
    renderer.end_line()
    renderer.line(text)
    renderer.plain(text)
    renderer.error(text)
    renderer.history([{"role": "user", "content": text}, {"role": "assistant", "content": text}])
    output = re.sub("\x1b\\[(?:[0-9]{1,3};){0,4}[0-9]{1,3}m", "", capsys.readouterr().out)
    assert not UNSAFE.search(output), repr(output)


def test_a_foreign_colour_does_not_pass_and_ours_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        written = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            self.written += text

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal: Any = Terminal()
    guard: Any = Guard(terminal)
    guard.write(f"{paint(printable(f'title{ESCAPES}'), 'bold', guard)}\x1b[31mnot red\n")
    assert terminal.written.startswith("\x1b[1mtitle") and terminal.written.count("\x1b") == 2
    guard.writelines(["a\x07", "b\n"])
    assert terminal.written.endswith("ab\n")


def test_the_guard_is_gone_after_the_command() -> None:
    before = (sys.stdout, sys.stderr)
    with guarded():
        assert isinstance(sys.stdout, Guard)
    assert (sys.stdout, sys.stderr) == before


def test_no_command_goes_around_the_guard() -> None:
    """Nothing in the command line writes bytes, opens the terminal itself or reaches below the guard."""
    around: set[str] = set()
    for path in CLI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in (
                "buffer",
                "__stdout__",
                "__stderr__",
                "rich_proxied_file",
            ):
                around.add(f"{path.name} {node.attr}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.write", "Console"):
                around.add(f"{path.name} {ast.unparse(node.func)}")
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "/dev/tty" in node.value:
                around.add(f"{path.name} /dev/tty")
    assert around == {"terminal.py rich_proxied_file", "markdown_printer.py Console"}


def test_a_line_of_the_gateways_own_log_is_one_harmless_line() -> None:
    import logging

    record = logging.LogRecord("openclaw.x", logging.INFO, "", 0, f"from {ESCAPES}\nforged line", None, None)
    line = console_line(record)
    assert not UNSAFE.search(line) and "\n" not in line


def test_an_unreachable_gateway_is_reported_without_the_password(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with patch.dict(os.environ, {"OPENCLAW_STATE_DIR": str(tmp_path)}):
        main(["status", "--url", f"ws://me:hunter2secret@h/?token=tokenvalue77{ESCAPES}"])
    output = "".join(capsys.readouterr())
    assert output and "hunter2secret" not in output and "tokenvalue77" not in output and not UNSAFE.search(output)


async def test_a_stranger_cannot_make_a_row_of_the_list_that_the_owner_approves_from(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = "Eve)\nABCD2345  signal  +15550000001 (Owner)  since now"
    pending = {"requestId": "r", "displayName": forged, "platform": forged, "role": "operator"}
    request = {"id": "+222", "code": "WXYZ6789", "channel": "signal", "createdAt": "now", "meta": {"name": forged}}
    answers = {"pairing.list": {"requests": [request]}, "device.pair.list": {"pending": [pending]}}
    monkeypatch.setattr(clients.GatewayClient, "call", lambda self, method, *_: answers[method])
    for args in (["pairing", "list", "signal"], ["devices", "list"]):
        assert not [line for line in (await shown(args, capsys)).splitlines() if line.lstrip().startswith("ABCD2345")]


async def test_no_name_in_a_list_makes_a_line_of_its_own(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model names jobs and writes skills, a server of tools and a page choose their own words."""
    forged = "Eve\nABCD2345  forged\x85ABCD2345  forged\u2028ABCD2345  forged"
    job = {"id": "1", "name": forged, "schedule": {"kind": "cron", "expr": "* * * * *", "tz": forged}}
    skill = {"eligible": True, "name": forged, "emoji": "", "description": forged, "filePath": "f", "source": "s"}
    server: dict[str, Any] = {"name": "s", "version": forged, "state": "failed", "sessions": "all", "ask": "off"}
    server |= {"transport": "stdio", "problem": forged, "tools": [{"name": forged}], "leftOut": [forged]}
    account = {"accountId": "default", "enabled": True, "configured": True, "lastError": forged}
    answers = {
        "cron.list": {"jobs": [job]},
        "skills.status": {"skills": [skill]},
        "mcp.status": {"servers": [server]},
        "system-presence": [{"host": forged, "ts": 1}],
        "browser.request": {"messages": [{"type": "log", "text": forged}]},
        "channels.status": {"channelAccounts": {"irc": [account]}, "channelLabels": {}, "channelOrder": ["irc"]},
        "status": {},
        "health": {"channels": {"irc": {"configured": True, "lastError": forged}}},
        "node.describe": {"displayName": forged},
        "node.list": {"nodes": [{"nodeId": "n", "displayName": forged, "commands": [forged]}]},
    }
    monkeypatch.setattr(clients.GatewayClient, "call", lambda self, method, *_: answers[method])
    for words in (
        "cron list",
        "skills list",
        "mcp status",
        "system presence",
        "browser console",
        "channels status",
        "status",
        "nodes describe --node n",
        "nodes list",
    ):
        output = await shown(words.split(), capsys)
        assert "ABCD2345" in output, (words, output)
        assert not [line for line in output.splitlines() if line.lstrip().startswith("ABCD2345")], (words, output)


def test_a_line_break_in_a_log_message_makes_no_second_line() -> None:
    line = parse_line(json.dumps({"time": "now", "level": "info", "message": "from Eve\n2026 info all is well"}))
    assert line is not None and "\n" not in log_text(line)
