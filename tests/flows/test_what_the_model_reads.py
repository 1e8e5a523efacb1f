"""The exact text that a model reads of its tool calls in its next request, in a running Gateway."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from openclaw.messages import AssistantMessage, TextBlock, ToolCall, ToolResultMessage, UserMessage
from openclaw.models import google
from openclaw.models.base import Model, ModelRequest
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Recorded, Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Read(NamedTuple):
    """A tool result as a vendor gets it."""

    text: str
    is_error: bool | None
    """None where the protocol cannot say it."""


def results_of(request: Recorded) -> list[Read]:
    """The tool results in a request, in every protocol."""
    body = request.body
    found: list[Read] = []
    for message in body.get("messages") or ():
        if message["role"] == "tool":
            found.append(Read(_text(message["content"]), None))
        blocks = message["content"] if isinstance(message["content"], list) else ()
        found += [
            Read(_text(block["content"]), block.get("is_error", False))
            for block in blocks
            if block["type"] == "tool_result"
        ]
    for item in body.get("input") or ():
        if item.get("type") == "function_call_output":
            found.append(Read(_text(item["output"]), None))
    return found


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") in ("text", "input_text"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessGateway]:
    """One Gateway for all calls. Each test has a session of its own."""
    config = model_config(models.base_url, models.api_key, tools={"loopDetection": {"enabled": False}})
    provider = config["models"]["providers"].pop("mock")
    for name, api in PROTOCOLS.items():
        config["models"]["providers"][name] = {**provider, "api": api}
    config["agents"]["defaults"]["model"] = "anthropic-like/mock-1"
    async with InProcessGateway(tmp_path_factory.mktemp("gateway") / "state", config) as gateway:
        workspace = gateway.state_dir / "workspace"
        workspace.mkdir(exist_ok=True)
        (workspace / "notes.txt").write_text("one\ntwo\nthree\n")
        (workspace / "folder").mkdir()
        yield gateway


PROTOCOLS = {
    "anthropic-like": "anthropic-messages",
    "chat-like": "openai-completions",
    "responses-like": "openai-responses",
}
_sessions = iter(range(10_000))


async def read_of(
    gateway: InProcessGateway, models: ModelServer, *calls: Call, provider: str = "anthropic-like"
) -> list[Read]:
    """What the model reads of these calls in its next request."""
    models.queue(Reply(calls=list(calls)), Reply(text="done"))
    async with gateway.client() as client:
        key = f"agent:main:battery{next(_sessions)}"
        if provider != "anthropic-like":
            await client.chat("hello [[reply:hi]]", key)
            await client.call("sessions.patch", {"key": key, "model": f"{provider}/mock-1"})
        await client.chat("go", key)
    return results_of(models.requests[-1])


def failed(text: str) -> tuple[str, bool]:
    return text, True


def fine(text: str) -> tuple[str, bool]:
    return text, False


EXAMPLE = "\n\nValid arguments, for example: "
CRON_JOB = (
    '{"action": "add", "job": {"name": "Weather", "schedule": {"kind": "cron", "expr": "0 8 * * *", '
    '"tz": "Europe/Berlin"}, "sessionTarget": "isolated", "payload": {"kind": "agentTurn", '
    '"message": "Tell me today\'s weather in Berlin."}}}'
)
SEND = '{"action": "send", "target": "+15551234567", "message": "On my way."}'
ID = "<id of the message>"
LIST_ID = '"jobId": "<id from list>"'


def invalid(tool: str, problem: str, received: dict[str, Any], example: str) -> tuple[str, bool]:
    echo = json.dumps(received, indent=2)
    return failed(
        f'Validation failed for tool "{tool}":\n  - {problem}\n\nReceived arguments:\n{echo}{EXAMPLE}{example}'
    )


BATTERY: list[tuple[str, dict[str, Any] | str, tuple[str, bool]]] = [
    # Commands
    ("exec", {"command": "echo out; echo err >&2; echo more"}, fine("out\nerr\nmore")),
    ("exec", {"command": "true"}, fine("(no output)")),
    ("exec", {"command": "printf 'a\\n\\n\\tb \"c\" \\\\n'"}, fine('a\n\n\tb "c" \\n')),
    ("exec", {"command": "echo out; echo err >&2; exit 3"}, failed("out\nerr\n\nCommand exited with code 3")),
    ("exec", {"command": "exit 4"}, failed("Command exited with code 4")),
    ("exec", {"command": "echo x; kill -9 $$"}, failed("x\n\nCommand aborted by signal SIGKILL")),
    ("exec", {"command": "kill -TERM $$"}, failed("Command aborted by signal SIGTERM")),
    ("exec", {"command": "echo x; sleep 60", "timeout": 0.5}, failed("x\n\nCommand timed out after 0.5 seconds")),
    ("exec", {"command": "cat"}, fine("(no output)")),
    ("exec", {"command": "read answer || echo no input"}, fine("no input")),
    ("exec", {"cmd": "echo alias"}, fine("alias")),
    (
        "exec",
        {"command": "ls nowhere"},
        failed("ls: cannot access 'nowhere': No such file or directory\n\nCommand exited with code 2"),
    ),
    (
        "exec",
        {"command": " "},
        failed(f'Missing required parameter: command (command or cmd){EXAMPLE}{{"command": "<command>"}}'),
    ),
    (
        "exec",
        {},
        invalid(
            "exec", "command: Missing required parameter: command (command or cmd)", {}, '{"command": "<command>"}'
        ),
    ),
    (
        "exec",
        {"command": "true", "timeout": "soon"},
        invalid("exec", "timeout: must be number", {"command": "true", "timeout": "soon"}, '{"command": "<command>"}'),
    ),
    ("exec", {"command": "a\0b"}, failed("The command holds a NUL character")),
    # Background commands
    ("process", {"action": "list"}, fine("No running or recent sessions.")),
    ("process", {"action": "poll"}, failed("sessionId is required for this action.")),
    ("process", {"action": "poll", "sessionId": "calm-reef"}, failed("No session found for calm-reef")),
    (
        "process",
        {"action": "dance"},
        failed("Unknown action dance; use list, poll, log, write, send-keys, submit, paste, kill, clear, remove"),
    ),
    ("process", {}, invalid("process", "action: action required", {}, '{"action": "<action>"}')),
    # Tools that do not exist
    ("nope", {}, failed("Tool nope not found. Available tools: ")),
    ("reed", {"path": "notes.txt"}, failed("Tool reed not found. Did you mean read?")),
    ("bash", {"command": "ls"}, failed("Tool bash not found. Did you mean exec?")),
    (
        "webfetch",
        {"url": "https://example.com"},
        failed("Tool webfetch not found. Did you mean web_fetch or web_search?"),
    ),
    ("sessions_histroy", {}, failed("Tool sessions_histroy not found. Did you mean sessions_history")),
    ("write_file", {"path": "x", "content": "y"}, failed("Tool write_file not found. Did you mean write")),
    # Files
    (
        "write",
        {"path": "new.txt"},
        invalid(
            "write", "content: content required", {"path": "new.txt"}, '{"path": "<path>", "content": "<content>"}'
        ),
    ),
    ("write", {"path": "", "content": "x"}, failed("Missing required parameter: path (path or file_path)" + EXAMPLE)),
    (
        "read",
        {},
        invalid("read", "path: Missing required parameter: path (path or file_path)", {}, '{"path": "<path>"}'),
    ),
    ("read", {"path": "/etc/passwd"}, failed("path leaves the workspace: /etc/passwd")),
    (
        "read",
        {"path": "notes.txt", "limit": "many"},
        invalid("read", "limit: must be integer", {"path": "notes.txt", "limit": "many"}, '{"path": "<path>"}'),
    ),
    # Scheduled jobs
    (
        "cron",
        {},
        failed(
            'Validation failed for tool "cron":\n  - action: action required\n\nReceived arguments:\n{}'
            + EXAMPLE
            + CRON_JOB
        ),
    ),
    ("cron", {"action": "add"}, failed("job required" + EXAMPLE + CRON_JOB)),
    (
        "cron",
        {"action": "remove"},
        failed("jobId required (id works too)" + EXAMPLE + '{"action": "remove", ' + LIST_ID + "}"),
    ),
    ("cron", {"action": "run", "jobId": "none"}, failed("unknown cron job id: none")),
    (
        "cron",
        {"action": "wake"},
        failed("text required" + EXAMPLE + '{"action": "wake", "text": "Check the build again.", "mode": "now"}'),
    ),
    ("cron", {"action": "list"}, fine('{\n  "jobs": []\n}')),
    # Messages
    ("message", {"action": "poll"}, failed('unknown action "poll"; known: send, reply, react, edit, delete')),
    (
        "message",
        {"action": "send", "message": "x"},
        failed("target required: this run belongs to no conversation on a channel"),
    ),
    (
        "message",
        {"action": "edit", "message": "x"},
        failed(
            "messageId required: which message to edit"
            + EXAMPLE
            + '{"action": "edit", "messageId": "'
            + ID
            + '", "message": "The new text."}'
        ),
    ),
    (
        "message",
        {"action": "react", "messageId": "1"},
        failed("emoji required, also to take a reaction back" + EXAMPLE),
    ),
    (
        "message",
        {},
        failed(
            'Validation failed for tool "message":\n  - action: action required\n\nReceived arguments:\n{}'
            + EXAMPLE
            + SEND
        ),
    ),
    # Sessions
    (
        "sessions_spawn",
        {},
        invalid(
            "sessions_spawn",
            "task: task required",
            {},
            '{"task": "Read docs/faq.md and list what is out of date, with line numbers."}',
        ),
    ),
    (
        "sessions_spawn",
        {"task": "x", "agentId": "nobody"},
        failed("agentId is not allowed for sessions_spawn"),
    ),
    ("sessions_spawn", {"task": "x", "model": "no/such"}, failed("Unknown model")),
    ("sessions_history", {"sessionKey": "agent:main:nowhere"}, failed("No session found: agent:main:nowhere")),
    ("sessions_history", {}, failed("sessionKey required" + EXAMPLE + '{"sessionKey": "main", "limit": 20}')),
    ("sessions_send", {"message": "x"}, failed("Either sessionKey or label is required")),
    ("sessions_send", {"sessionKey": "nowhere", "message": "x"}, failed("No session found: nowhere")),
    # The web
    ("web_fetch", {"url": "http://127.0.0.1:9/"}, failed("http://127.0.0.1:9/ was not fetched: ")),
    ("web_fetch", {"url": " "}, failed("url required" + EXAMPLE + '{"url": "<url>"}')),
    (
        "web_search",
        {"query": "weather"},
        failed("web_search needs a key of the Brave Search API: set "),
    ),
    (
        "web_search",
        {"query": "x", "count": 99},
        invalid("web_search", "count: must be <= 10", {"query": "x", "count": 99}, '{"query": "<query>"}'),
    ),
    # Memory
    (
        "memory_get",
        {"path": "AGENTS.md"},
        failed("AGENTS.md is not a memory file that can be read here; use MEMORY.md or memory/….md"),
    ),
    ("memory_get", {"path": "memory/2020-01-01.md"}, failed("The memory file memory/2020-01-01.md does not exist yet")),
    ("memory_search", {}, invalid("memory_search", "query: query required", {}, '{"query": "<query>"}')),
]
"""A call, and the text that the model reads of it. A failed text without a full stop at its end may go on."""


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"), BATTERY, ids=[f"{n}-{row[0]}" for n, row in enumerate(BATTERY)]
)
async def test_the_model_reads(
    gateway: InProcessGateway,
    models: ModelServer,
    tool: str,
    arguments: dict[str, Any],
    expected: tuple[str, bool],
) -> None:
    (result,) = await read_of(gateway, models, Call(tool, arguments))
    text, is_error = expected
    assert result.is_error is is_error
    assert result.text.startswith(text) if is_error else result.text == text
    # No failure is JSON that a model would have to decode.
    assert not (is_error and result.text.lstrip().startswith(("{", "[")))
    assert '\\"' not in result.text.partition("Received arguments:")[0] and "\\n" not in result.text.replace(
        '"c" \\n', ""
    )


@pytest.mark.parametrize("provider", PROTOCOLS)
async def test_every_protocol_shows_the_same_text(
    gateway: InProcessGateway, models: ModelServer, provider: str
) -> None:
    calls = [
        Call("exec", {"command": "printf 'a \"b\"\\n\\tc\\n'; exit 3"}),
        Call("read", {"path": "notes.txt", "limit": 1}),
        Call("exec", {"command": "echo fine"}),
        Call("bash", {"command": "ls"}),
        Call("read", {}),
    ]
    results = await read_of(gateway, models, *calls, provider=provider)
    can_say = provider == "anthropic-like"
    assert [result.is_error for result in results] == ([True, False, False, True, True] if can_say else [None] * 5)
    texts = [result.text for result in results]
    assert texts[0] == 'a "b"\n\tc\n\nCommand exited with code 3'
    assert texts[1].startswith("one\n")
    assert texts[2] == "fine"
    assert texts[3] == "Tool bash not found. Did you mean exec?"
    assert texts[4].endswith('Valid arguments, for example: {"path": "<path>"}')


async def test_a_long_output_has_both_ends_and_a_file_that_read_opens(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    (result,) = await read_of(gateway, models, Call("exec", {"command": "seq 1 50000"}))
    head, path, tail = re.split(r"\n\[Output cut: 288894 bytes in all.* All of it is in (\S+)\]\n", result.text)
    assert (len(head), tail.endswith("\n49999\n50000")) == (6000, True) and 23_990 <= len(tail) <= 24_000
    assert Path(path).read_bytes() == b"".join(b"%d\n" % number for number in range(1, 50_001))
    (page,) = await read_of(gateway, models, Call("read", {"path": path, "offset": 20_000, "limit": 2}))
    assert page.text.startswith("20000\n20001\n") and not page.is_error


async def test_a_command_in_the_background_shows_what_it_printed_and_its_end(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    start = Call("exec", {"command": "echo begun; read word; echo got $word; exit 5", "yieldMs": 1500, "stdin": True})
    models.queue(Reply(calls=[start]), Reply(text="done"))
    async with gateway.client() as client:
        await client.chat("go", "agent:main:background")
        (begun,) = results_of(models.requests[-1])
        slug = re.findall(r"session ([\w-]+)", begun.text)[0]
        assert begun.text.endswith("\n\nOutput so far:\nbegun") and not begun.is_error
        write = Call("process", {"action": "write", "sessionId": slug, "data": "cats\n"})
        models.queue(Reply(calls=[write]), Reply(text="done"))
        await client.chat("write", "agent:main:background")
        poll = Call("process", {"action": "poll", "sessionId": slug, "timeout": 30_000})
        models.queue(Reply(calls=[poll]), Reply(text="done"))
        await client.chat("poll", "agent:main:background")
    ended = results_of(models.requests[-1])[-1]
    assert ended == Read("begun\ngot cats\n\nProcess exited with code 5.", True)


async def test_schemas_have_only_what_is_the_models_business(gateway: InProcessGateway, models: ModelServer) -> None:
    await read_of(gateway, models, Call("exec", {"command": "true"}))
    offered = {tool["name"]: tool["input_schema"]["properties"] for tool in models.requests[-1].body["tools"]}
    names = {name for properties in offered.values() for name in properties}
    assert not names & {"gatewayUrl", "gatewayToken"}
    assert not offered["exec"].keys() & {"security", "ask"}


async def test_a_call_that_repeats_itself_is_named_and_then_stopped(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        models.queue(*(Reply(calls=[Call("exec", {"command": "echo same"})]) for _ in range(6)))
        ending = await client.chat("go")
        texts = [result.text for result in results_of(models.requests[-1])]
        assert texts[:2] == ["same", "same"]
        assert all(text.startswith("same\n[This call has given the same result ") for text in texts[2:])
        assert ending["state"] == "error"
        assert ending["errorMessage"].startswith("Stopped: the agent called exec 6 times with the same arguments")
        # The conversation goes on.
        models.queue(Reply(text="I will try another way."))
        assert (await client.chat("try something else"))["state"] == "final"


async def test_googles_protocol_says_that_a_result_is_a_failure() -> None:
    calls = [ToolCall(id="c1", name="exec", arguments={}), ToolCall(id="c2", name="exec", arguments={})]
    bad = ToolResultMessage(
        tool_call_id="c1", tool_name="exec", content=[TextBlock(text="x\n\nCommand exited with code 3")], is_error=True
    )
    good = ToolResultMessage(tool_call_id="c2", tool_name="exec", content=[TextBlock(text="x")])
    model = Model(provider="google", id="gemini-2.5-pro", api="google-generative-ai")
    messages = [UserMessage(content="go"), AssistantMessage(content=[*calls], stop_reason="toolUse"), bad, good]
    body = google.build_body(ModelRequest(model=model, system="", messages=messages))
    parts = [part for content in body["contents"] for part in content["parts"] if "functionResponse" in part]
    assert [part["functionResponse"]["response"] for part in parts] == [
        {"error": "x\n\nCommand exited with code 3"},
        {"output": "x"},
    ]
