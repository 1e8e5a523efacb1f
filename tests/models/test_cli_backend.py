"""Programs that answer in place of a model API: what they are started with, and what is made of what they print."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.clock import SystemClock
from openclaw.config.schema import Config
from openclaw.config.schema.agents import CliBackend
from openclaw.messages import AssistantMessage, ImageBlock, Message, TextBlock, ToolResultMessage, UserMessage
from openclaw.models.base import Done, ModelError, ModelRequest
from openclaw.models.cli_backend import (
    LONGEST_ARGUMENT,
    CliProvider,
    ProgramAnswer,
    backend_of,
    cli_model,
    program_call,
    prompt_of,
    read_output,
)

PROGRAM = """#!{python}
import json, os, sys, time
calls = os.environ["CALLS"]
given = sys.stdin.read() if "--stdin" in sys.argv else ""
with open(calls, "a") as file:
    seen = {{"args": sys.argv[1:], "stdin": given, "cwd": os.getcwd(), "env": sorted(os.environ)}}
    file.write(json.dumps(seen) + "\\n")
if "--hang" in sys.argv:
    time.sleep(600)
if "--fail" in sys.argv or (os.path.exists(calls + ".lost") and "--resume" in sys.argv):
    print("No conversation found", file=sys.stderr)
    sys.exit(1)
count = len(open(calls).readlines())
print(json.dumps({{"type": "result", "result": "answer %d" % count, "session_id": "own-%d" % count}}))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "agent-program"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls_of(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


def provider_for(program: Path, tmp_path: Path, **settings: Any) -> CliProvider:
    backend = {"command": str(program), "env": {"CALLS": str(tmp_path / "calls")}, **settings}
    config = msgspec.convert({"agents": {"defaults": {"cliBackends": {"mine": backend}}}}, Config)
    return CliProvider(lambda: config, {"PATH": "/usr/bin:/bin", "HIDDEN": "x", "OPENCLAW_TOKEN": "t"}, SystemClock())


def user(text: str) -> UserMessage:
    return UserMessage(content=[TextBlock(text=text)])


def said(text: str) -> AssistantMessage:
    return AssistantMessage(content=[TextBlock(text=text)], api="cli", provider="mine", model="big")


def request(*messages: Message, folder: Path | None = None) -> ModelRequest:
    return ModelRequest(
        model=cli_model("mine", "big", 200_000),
        system="You are a test.",
        turn_facts="It is Tuesday.",
        messages=list(messages),
        session_id="s1",
        workspace=str(folder or ""),
    )


async def ask(provider: CliProvider, asked: ModelRequest) -> str:
    events = [event async for event in provider.stream(asked)]
    assert isinstance(events[-1], Done)
    return events[-1].message.text


async def test_a_program_goes_on_with_its_own_conversation_and_gets_only_what_is_new(
    program: Path, tmp_path: Path
) -> None:
    provider = provider_for(
        program, tmp_path, modelArg="--model", systemPromptArg="--system", resumeArgs=["--resume", "{sessionId}"],
        clearEnv=["HIDDEN"],
    )  # fmt: skip
    assert await ask(provider, request(user("one"), folder=tmp_path)) == "answer 1"
    assert await ask(provider, request(user("one"), said("answer 1"), user("two"), folder=tmp_path)) == "answer 2"
    first, second = calls_of(tmp_path)
    assert first["args"][:3] == ["--model", "big", "--system"] and first["args"][-1] == "one"
    assert "You are a test." in first["args"][3] and "It is Tuesday." in first["args"][3]
    assert first["cwd"] == str(tmp_path) and not {"HIDDEN", "OPENCLAW_TOKEN"} & {*first["env"]}
    assert second["args"] == ["--resume", "own-1", "two"]


@pytest.mark.parametrize("settings", [{}, {"sessionMode": "none", "sessionArg": "--session"}])
async def test_a_program_that_cannot_go_on_gets_the_whole_conversation(
    settings: dict[str, Any], program: Path, tmp_path: Path
) -> None:
    provider = provider_for(program, tmp_path, **settings)
    await ask(provider, request(user("one")))
    await ask(provider, request(user("one"), said("answer 1"), user("two")))
    (text,) = calls_of(tmp_path)[1]["args"]
    assert "[User]: one" in text and text.endswith("two")


async def test_a_conversation_that_took_another_course_begins_anew_with_all_that_was_said(
    program: Path, tmp_path: Path
) -> None:
    provider = provider_for(program, tmp_path, resumeArgs=["--resume", "{sessionId}"])
    await ask(provider, request(user("one")))
    await ask(provider, request(user("another"), said("answer 1"), user("two")))
    (text,) = calls_of(tmp_path)[1]["args"]
    assert "[User]: another" in text and "[Assistant]: answer 1" in text and text.endswith("two")


async def test_a_program_that_forgot_its_conversation_is_asked_again_with_a_new_one(
    program: Path, tmp_path: Path
) -> None:
    provider = provider_for(program, tmp_path, resumeArgs=["--resume", "{sessionId}"])
    await ask(provider, request(user("one")))
    (tmp_path / "calls.lost").touch()
    again = request(user("one"), said("answer 1"), user("two"))
    with pytest.raises(ModelError, match="No conversation found") as failed:
        await ask(provider, again)
    assert failed.value.retryable
    assert await ask(provider, again) == "answer 3"
    assert "[User]: one" in calls_of(tmp_path)[2]["args"][0]


async def test_a_program_that_cannot_be_started_or_fails_is_named(program: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be started"):
        await ask(provider_for(tmp_path / "nowhere", tmp_path), request(user("hi")))
    with pytest.raises(ModelError, match="status 1: No conversation found") as failed:
        await ask(provider_for(program, tmp_path, args=["--fail"]), request(user("hi")))
    assert not failed.value.retryable
    with pytest.raises(ModelError, match=r"cliBackends\.mine\.command"):
        await ask(provider_for(Path(""), tmp_path, command=""), request(user("hi")))


async def test_a_program_ends_with_the_run_that_waits_for_it(program: Path, tmp_path: Path) -> None:
    provider = provider_for(program, tmp_path, args=["--hang"])
    waiting = asyncio.create_task(ask(provider, request(user("hi"))))
    async with asyncio.timeout(30):
        while not (tmp_path / "calls").exists() or not calls_of(tmp_path):
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_long_message_comes_on_the_standard_input(program: Path, tmp_path: Path) -> None:
    provider = provider_for(program, tmp_path, args=["--stdin"])
    await ask(provider, request(user("word " * 40_000)))
    (call,) = calls_of(tmp_path)
    assert call["args"] == ["--stdin"] and len(call["stdin"]) == 200_000 > LONGEST_ARGUMENT


async def test_a_message_that_looks_like_an_option_is_none(program: Path, tmp_path: Path) -> None:
    provider = provider_for(program, tmp_path, args=["--stdin"])
    await ask(provider, request(user("--dangerously-skip-permissions")))
    (call,) = calls_of(tmp_path)
    assert call["args"] == ["--stdin"] and call["stdin"] == "--dangerously-skip-permissions"


@pytest.mark.parametrize(
    ("printed", "form", "answer"),
    [
        ('{"result": "hello", "session_id": "x"}', "json", ProgramAnswer("hello", "x")),
        ('{"message": {"content": [{"text": "a"}, {"text": "b"}]}}', "json", ProgramAnswer("ab")),
        ('{"is_error": true, "result": "limit reached"}', "json", ProgramAnswer("limit reached", failed=True)),
        ("just words", "json", ProgramAnswer("just words")),
        ('{"result": "not looked at"}', "text", ProgramAnswer('{"result": "not looked at"}')),
        (
            '{"type":"thread.started","thread_id":"t"}\n{"type":"item.completed","item":{"type":"agent_message",'
            '"text":"one"}}\nnoise\n{"type":"item.completed","item":{"type":"reasoning","text":"hm"}}',
            "jsonl",
            ProgramAnswer("one", "t"),
        ),
        ("[" * 100_000, "json", ProgramAnswer("[" * 100_000)),
    ],
)
def test_what_a_program_prints_is_read(printed: str, form: str, answer: ProgramAnswer) -> None:
    assert read_output(printed, form, ("session_id", "thread_id")) == answer


def test_settings_replace_what_is_known_of_a_program() -> None:
    config = msgspec.convert({"agents": {"defaults": {"cliBackends": {"claude-cli": {"command": "/x/c"}}}}}, Config)
    backend = backend_of(config, "claude-cli")
    assert backend is not None and backend.command == "/x/c" and backend.session_arg == "--session-id"
    assert backend_of(config, "codex-cli") is not None and backend_of(config, "mock") is None
    call = program_call(backend, request(user("hi")), None)
    place = call.arguments.index("--session-id")
    assert call.session_id == call.arguments[place + 1] and call.argv(backend)[0] == "/x/c"


def test_pictures_are_files_that_the_program_is_told_of(tmp_path: Path) -> None:
    picture = ImageBlock(data="aGk=", mime_type="image/png")
    asked = request(UserMessage(content=[TextBlock(text="see"), picture, picture]))
    for mode, shape in (("repeat", ["-i", "1", "-i", "2", "see"]), ("list", ["-i", "1,2", "see"])):
        backend = CliBackend(command="x", image_arg="-i", image_mode=mode)  # type: ignore[arg-type]
        call = program_call(backend, asked, None)
        call.put_pictures(tmp_path)
        short = [word.replace(f"{tmp_path}/picture-", "").replace(".png", "") for word in call.argv(backend)[1:]]
        assert short == shape and Path(call.picture_paths[0]).read_bytes() == b"hi"


def test_results_of_tools_are_short_in_the_text_of_a_conversation() -> None:
    result = ToolResultMessage(tool_call_id="c", tool_name="read", content=[TextBlock(text="x" * 9000)])
    text = prompt_of([user("read it"), result, said("done"), user("and?")])
    assert len(text) < 3000 and "[Tool result]: xxx" in text and text.endswith("and?")


async def test_a_program_gets_no_secrets_that_only_the_gateway_uses(program: Path, tmp_path: Path) -> None:
    backend = {"command": str(program), "env": {"CALLS": str(tmp_path / "calls"), "SLACK_TEAM": "given"}}
    config = msgspec.convert({"agents": {"defaults": {"cliBackends": {"mine": backend}}}}, Config)
    own = ("TELEGRAM_BOT_TOKEN", "DISCORD_BOT_TOKEN", "SLACK_APP_TOKEN", "WHATSAPP_APP_SECRET", "BRAVE_API_KEY")
    environ = {"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "x", **dict.fromkeys(own, "x")}
    await ask(CliProvider(lambda: config, environ, SystemClock()), request(user("hi")))
    (call,) = calls_of(tmp_path)
    assert not {*own} & {*call["env"]}
    assert {"OPENAI_API_KEY", "SLACK_TEAM"} <= {*call["env"]}


async def test_what_a_program_complains_of_is_short_and_shows_no_key_and_no_marks_for_terminals(tmp_path: Path) -> None:
    path = tmp_path / "bad-program"
    path.write_text(
        f"#!{sys.executable}\nimport json, os\n"
        "text = 'bad key ' + os.environ['MY_TOKEN'] + ' \\x1b]0;x\\x07' + 'y' * 3_000_000 + ' rate limit'\n"
        "print(json.dumps({'result': text, 'is_error': True}))\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(ModelError, match="bad key") as failed:
        await ask(provider_for(path, tmp_path, env={"MY_TOKEN": "plain-words-here"}), request(user("hi")))
    assert len(str(failed.value)) < 1000 and failed.value.kind == "other"
    assert "plain-words-here" not in str(failed.value) and "\x1b" not in str(failed.value)


async def test_a_program_is_not_waited_for_when_something_that_it_started_lives_on(tmp_path: Path) -> None:
    path, pid = tmp_path / "starts-another", tmp_path / "pid"
    path.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\nprint('done')\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    try:
        async with asyncio.timeout(120):
            assert await ask(provider_for(path, tmp_path), request(user("hi"))) == "done"
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_words_of_a_message_are_no_command_of_the_program_and_can_always_be_given_to_it() -> None:
    claude, other = CliBackend(command="/opt/bin/claude"), CliBackend(command="other")
    assert program_call(claude, request(user("update")), None).on_standard_input
    assert not program_call(claude, request(user("update it")), None).on_standard_input
    assert not program_call(other, request(user("update")), None).on_standard_input
    assert program_call(other, request(user("half \ud83d of one")), None).argv(other)[-1] == "half ? of one"
