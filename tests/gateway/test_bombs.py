"""Resource bombs against every entry point: each is refused with a reason, and the Gateway goes on for the others.

A new endpoint or decoder without a rule in these tables fails here.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import openclaw
from openclaw.gateway.http import common, control_ui, webhooks
from openclaw.gateway.http.rpc import MAX_BODY_BYTES
from openclaw.json_text import MAX_DEPTH, is_deep, may_be_deep
from openclaw.models.http import parse_arguments
from tests.gateway.support import TOKEN, Running, running_gateway
from tests.support.sources import many_nodes, parsed

TAKES_A_BODY = {
    ("POST", "/v1/chat/completions"): 20 * 1024 * 1024,
    ("POST", "/v1/responses"): 20 * 1024 * 1024,
    ("POST", "/tools/invoke"): 2 * 1024 * 1024,
    ("POST", "/__openclaw__/rpc"): MAX_BODY_BYTES,
}
"""The endpoints that read a body, and the most bytes that they read."""
TAKES_NO_BODY = {
    ("GET", "/healthz"),
    ("HEAD", "/healthz"),
    ("GET", "/readyz"),
    ("HEAD", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/*"),
    ("GET", "/__openclaw__/events"),
}
NAMED_BY_CONFIG = {
    ("*", webhooks.base_path): "reads hooks.maxBodyBytes; tests/scheduler tries its bodies",
    ("*", control_ui.base_path): "reads no body",
}
SIGN_IN = ("POST", "/__openclaw__/sign-in")
"""Reads 1 KB from anybody. Whatever is wrong with it is a wrong ticket."""
HTTP_ON = {"gateway": {"http": {"endpoints": {"chatCompletions": {"enabled": True}, "responses": {"enabled": True}}}}}
DEEP = "[" * 5000 + "]" * 5000
DEEPER_THAN_ALLOWED = "[" * (MAX_DEPTH + 10) + "]" * (MAX_DEPTH + 10)
HANGS_A_REDACTOR = 'token"' + "a" * 200 + "!"


async def test_every_endpoint_has_a_rule_about_its_body(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as running:
        assert {(verb, path) for verb, path, *_ in running.server.routes} == {
            *TAKES_A_BODY,
            *TAKES_NO_BODY,
            *NAMED_BY_CONFIG,
            SIGN_IN,
        }


def head(verb: str, path: str, *more: str, token: str | None = TOKEN) -> bytes:
    auth = [f"Authorization: Bearer {token}"] if token else []
    lines = [f"{verb} {path.rstrip('*')} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *auth, *more]
    return "\r\n".join([*lines, "", ""]).encode()


async def exchange(running: Running, request: bytes, endless: bytes = b"") -> tuple[int, bytes]:
    """Sends the request, then ``endless`` again and again until there is an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    try:
        async with asyncio.timeout(60):
            writer.write(request)
            answering = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
            while endless and not answering.done():
                with contextlib.suppress(ConnectionError, RuntimeError):
                    writer.write(endless)
                    await writer.drain()
                await asyncio.sleep(0)
            answer = await answering
    finally:
        writer.transport.abort()
    return int(answer.split()[1]), answer


async def assert_alive(running: Running) -> None:
    status, answer = await running.rpc("health")
    assert status == 200 and answer["ok"]


BODIES = {
    "announced gigabyte": ("Content-Length: 1000000000", b"", {400, 413}),
    "packed": ("Content-Encoding: gzip\r\nContent-Length: {size}", gzip.compress(bytes(10_000_000)), {415}),
    "nested": ("Content-Length: {size}", f'{{"a": {DEEP}}}'.encode(), {400}),
    "nested where it is taken": ("Content-Length: {size}", f'{{"messages": {DEEP}, "input": {DEEP}}}'.encode(), {400}),
    "only brackets": ("Content-Length: {size}", b"[" * 200_000, {400}),
    "a property that hung the redactor": ("Content-Length: {size}", json.dumps({HANGS_A_REDACTOR: 1}).encode(), {400}),
    "many properties": ("Content-Length: {size}", json.dumps({str(n): n for n in range(20_000)}).encode(), {400}),
    "a number without end": ("Content-Length: {size}", b'{"a": ' + b"9" * 100_000 + b"}", {400}),
    "half surrogates": ("Content-Length: {size}", b'{"a": "' + b"\\ud800" * 10_000 + b'"}', {400}),
    "bytes that are no text": ("Content-Length: {size}", b"\xff\xfe" * 10_000, {400}),
}


@pytest.mark.parametrize("bomb", BODIES)
async def test_a_body_that_is_a_bomb_is_refused_with_a_reason(tmp_path: Path, bomb: str) -> None:
    header, body, statuses = BODIES[bomb]
    async with running_gateway(tmp_path, config=HTTP_ON) as running:
        for verb, path in TAKES_A_BODY:
            status, _ = await exchange(running, head(verb, path, header.format(size=len(body))) + body)
            assert status in statuses, (path, status)
            stranger = head(verb, path, header.format(size=len(body)), token=None)
            assert (await exchange(running, stranger + body))[0] == 401
        stranger = head(*SIGN_IN, header.format(size=len(body)), token=None)
        assert (await exchange(running, stranger + body))[0] in (401, 429)
        await assert_alive(running)


async def test_a_body_without_end_is_read_up_to_the_limit_only(tmp_path: Path) -> None:
    chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
    async with running_gateway(tmp_path, config=HTTP_ON) as running:
        for verb, path in TAKES_A_BODY:
            chunked = head(verb, path, "Transfer-Encoding: chunked")
            assert (await exchange(running, chunked, chunk))[0] in (400, 413)
            assert (await exchange(running, head(verb, path, "Transfer-Encoding: chunked", token=None), chunk))[
                0
            ] == 401
        await assert_alive(running)


async def test_a_body_that_does_not_arrive_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "BODY_S", 0.05)
    async with running_gateway(tmp_path, config=HTTP_ON) as running:
        for verb, path in TAKES_A_BODY:
            assert (await exchange(running, head(verb, path, "Content-Length: 100") + b'{"a"'))[0] == 408
        await assert_alive(running)


@pytest.mark.parametrize(("verb", "path"), sorted(TAKES_NO_BODY))
async def test_endpoints_without_a_body_do_not_wait_for_one(tmp_path: Path, verb: str, path: str) -> None:
    async with running_gateway(tmp_path, config=HTTP_ON, services=False) as running:
        running.gateway.ready = False
        for token in (None, "wrong"):
            request = head(verb, path, "Content-Length: 1000000000", token=token)
            assert (await exchange(running, request))[0] in (200, 401, 404, 503)


HEADS = {
    "a long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "many fields": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    "a long field": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
    "no HTTP": b"\x16\x03\x01" * 1000,
    "two lengths": b"POST /__openclaw__/rpc HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "an odd length": b"POST /__openclaw__/rpc HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n{}",
    "length and chunks": (
        b"POST /tools/invoke HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
}


@pytest.mark.parametrize("bomb", HEADS)
async def test_a_head_that_is_a_bomb_is_refused(tmp_path: Path, bomb: str) -> None:
    async with running_gateway(tmp_path) as running:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert (await exchange(running, HEADS[bomb]))[0] in (400, 401, 403, 404, 431)
        await assert_alive(running)


FIRST_FRAMES = {
    "a property that hung the redactor": json.dumps(
        {"type": "req", "id": "1", "method": "connect", "params": {HANGS_A_REDACTOR: 1}}
    ),
    "the same as an id": json.dumps({"type": "req", "id": HANGS_A_REDACTOR, "method": HANGS_A_REDACTOR}),
    "nested": '{"type":"req","id":"1","method":"connect","params":' + DEEP + "}",
    "nested below the engine's limit": '{"type":"req","id":"1","method":"connect","params":'
    + DEEPER_THAN_ALLOWED
    + "}",
    "nested beside the parameters": '{"type":"req","id":"1","method":"connect","x":' + DEEPER_THAN_ALLOWED + "}",
    "only brackets": "[" * 60_000,
    "many properties": json.dumps(
        {"type": "req", "id": "1", "method": "connect", "params": dict.fromkeys(map(str, range(5000)))}
    ),
    "a number without end": '{"type":"req","id":"1","method":"connect","params":{"minProtocol":' + "9" * 50_000 + "}}",
    "half surrogates": '{"type":"req","id":"1","method":"connect","params":{"locale":"' + "\\ud800" * 8000 + '"}}',
}


@pytest.mark.parametrize("bomb", FIRST_FRAMES)
async def test_a_first_frame_that_is_a_bomb_ends_only_its_own_connection(
    tmp_path: Path, bomb: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_gateway(tmp_path) as running:
        async with running.socket() as socket:
            await socket.send(FIRST_FRAMES[bomb])
            await socket.closed()
        await assert_alive(running)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR and "regular" not in record.msg]


async def test_every_method_refuses_parameters_that_are_bombs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bombs = [
        DEEPER_THAN_ALLOWED,
        '{"a":' + DEEPER_THAN_ALLOWED + "}",
        json.dumps({HANGS_A_REDACTOR: [1]}),
        json.dumps({str(n): [n] for n in range(1000)}),
    ]
    async with running_gateway(tmp_path) as running, running.client() as client:
        for name in sorted(running.gateway.methods._methods):
            for number, bomb in enumerate(bombs):
                await client.send(f'{{"type":"req","id":"{name}{number}","method":"{name}","params":{bomb}}}')
                answer = await client.answer(f"{name}{number}")
                code = "" if answer["ok"] else answer["error"]["code"]
                # A method of free parameters may ignore what it does not know.
                assert code == "INVALID_REQUEST" or (number > 1 and code in ("", "UNAVAILABLE")), (name, number, answer)
        await client.send(f'{{"type":"req","id":"1","method":"health","params":{DEEP}}}')  # It counts as no JSON.
        assert (await client.call("health"))["ok"]
    assert not [record for record in caplog.records if record.getMessage().startswith("method ")]


@pytest.mark.parametrize("field", ["limit", "offset", "activeMinutes"])
async def test_numbers_that_no_counter_holds_are_refused(tmp_path: Path, field: str) -> None:
    async with running_gateway(tmp_path) as running, running.client() as client:
        for number in (2**63, 2**64, 10**40):
            answer = await client.call("sessions.list", {field: number})
            assert answer["error"]["code"] == "INVALID_REQUEST", answer


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, False),
        ("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), True),
        ("[" + "[]," * 1000 + "{}]", False),
        ('{"a":' * (MAX_DEPTH + 2) + "1" + "}" * (MAX_DEPTH + 2), True),
    ],
)
def test_depth_is_counted_not_brackets(text: str, deep: bool) -> None:
    assert (may_be_deep(text) and is_deep(json.loads(text))) is deep
    assert (may_be_deep(text.encode()) and is_deep(json.loads(text))) is deep


@pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 900, 100_000])
def test_a_model_cannot_call_a_tool_with_arguments_nested_too_deeply(depth: int) -> None:
    assert parse_arguments('{"a":' + "[" * depth + "]" * depth + "}") is None


DECODERS = {"json.loads", "json.load", "msgspec.json.decode", "pyjson5.decode", "pyjson5.loads"}
OWN_FILES = {
    "agent/prompt/report.py": "its own blobs",
    "agent/prompt/workspace_snapshot.py": "its own file",
    "agent/recorder.py": "the ledger",
    "inbound/gate.py": "the ledger",
    "inbound/names.py": "its own file",
    "storage/files/restore.py": "its own files and the ledger, in records without open parts",
    "agent/request_log.py": "its own blobs",
    "cli/approvals.py": "a file that the owner names",
    "channels/discord/channel.py": "its own file",
    "config/reference.py": "a file of the package",
    "channels/discord/connection.py": "a record without open parts",
    "channels/matrix/channel.py": "its own file",
    "channels/telegram/sending.py": "its own file",
    "cli/browser.py": "an argument that the owner typed",
    "cli/nodes.py": "an argument that the owner typed",
    "cluster/membership.py": "its own rows",
    "cluster/links.py": "a node that proved itself",
    "extensions/points.py": "its own file",
    "gateway/nodes.py": "its own file",
    "node/host.py": "its own file",
    "storage/files/backup.py": "its own files, whose content is known by its hash",
    "tools/browser/tab.py": "64 KB of a browser that the owner named",
    "cli/client.py": "answers of the owner's Gateway",
    "cli/doctor.py": "the lock",
    "gateway/offline.py": "an answer made in the same process",
    "storage/postgres/ledger.py": "the ledger",
    "storage/postgres/session_store.py": "the session store",
    "cli/config.py": "an argument that the owner typed",
    "cli/gateway.py": "an argument that the owner typed",
    "cli/logs.py": "log lines, which the Gateway wrote flat",
    "cli/gateway_target.py": "the owner's configuration and the lock",
    "config/edit.py": "text that the parser with a limit has read",
    "config/load.py": "pyjson5 counts the depth itself",
    "config/keypath.py": "one quoted string",
    "gateway/auth/devices.py": "its own file",
    "gateway/http/openai_run.py": "transcripts, bounded when they were written",
    "gateway/http/rpc.py": "an answer made in the same process",
    "gateway/main.py": "the lock",
    "gateway/cluster/remote.py": "its own document",
    "gateway/restart.py": "its own file",
    "gateway/session_views.py": "transcripts, bounded when they were written",
    "inbound/commands/session.py": "pyjson5 counts the depth itself",
    "inbound/pairing.py": "its own file",
    "json_text.py": "parts that were encoded in the same process",
    "memory/embedders.py": "the header of a model file",
    "migration/move_in.py": "a folder that the owner names",
    "models/anthropic.py": "a message that was encoded in the same process",
    "models/keys.py": "its own file",
    "models/local/provider.py": "its own worker process",
    "models/local/worker.py": "its own parent process",
    "agent/skill_packages.py": "its own file",
    "agent/skills.py": "pyjson5 counts the depth itself",
    "security/access_checks.py": "the Gateway's own files",
    "security/gateway_checks.py": "answers of the owner's Gateway",
    "storage/faults.py": "the environment of a test",
    "storage/sql_ledger.py": "the ledger",
    "teamwork/session_tools.py": "transcripts, bounded when they were written",
    "tools/document_text.py": "main catches whatever reading a document raises",
    "tools/documents.py": "its own worker process, read as a flat record",
    "tools/match_lines.py": "its own parent process",
    "tools/search.py": "its own worker process, read as a flat record",
    "tools/exec/approvals.py": "its own files",
    "cli/sandbox.py": "the session store",
    "scheduler/heartbeat.py": "its own file",
    "scheduler/hooks.py": "its own file",
    "scheduler/jobs.py": "its own files",
    "scheduler/turns.py": "the ledger",
    "sessions/system_events.py": "its own file",
    "storage/files/ledger.py": "the ledger",
    "tools/sandbox/boundary.py": "its own file",
}
"""Files with a decoder that does not expect deep nesting, and whose JSON it reads."""


@many_nodes()
def test_every_decoder_that_meets_foreign_json_expects_deep_nesting() -> None:
    source = Path(openclaw.__file__).parent
    unguarded = {str(path.relative_to(source)) for path in source.rglob("*.py") if _unguarded(path)}
    assert unguarded - set(OWN_FILES) == set(), "catch RecursionError, or say whose JSON is read"


def _unguarded(path: Path) -> list[int]:
    text = path.read_text()
    if not any(word in text for word in ("Decoder", "decode", "json.load", "pyjson5")):
        return []
    tree = parsed(path)
    made = {
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for node in (ast.walk(tree) if "Decoder" in text else ())
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value and "json.Decoder(" in ast.unparse(node.value)
    }
    names = DECODERS | made | {f"{name}.decode" for name in made} | {"decode_event", "raw_line.decode"}
    last = {name.rpartition(".")[2] for name in names}
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in last
        and ast.unparse(node.func) in names
    ]
    if not calls:
        return []
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return [node.lineno for node in calls if not _is_guarded(node, parents)]


def _is_guarded(node: Any, parents: dict[Any, Any]) -> bool:
    while node in parents:
        above = parents[node]
        if isinstance(above, ast.Try) and node in above.body:
            caught = " ".join(ast.unparse(handler.type) if handler.type else "Exception" for handler in above.handlers)
            if "RecursionError" in caught or "Exception" in caught.split():
                return True
        if isinstance(above, ast.With) and "RecursionError" in ast.unparse(above.items[0]):
            return True
        node = above
    return False
