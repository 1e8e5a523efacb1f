from __future__ import annotations

import base64
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw.cli.command import UserError
from openclaw.cli.message import MAX_CHARS, MAX_IMAGE_BYTES, image_type, with_context

from .conftest import Cli
from .fake_gateway import FakeGateway, Refusal, agent_event, agent_result, chat_event, deltas, res, spoken

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


def test_a_message_goes_to_the_main_session_and_the_reply_is_printed(cli: Cli, gateway: FakeGateway) -> None:
    gateway.streams["agent"] = spoken("¡Hola", ", humano!")
    done = cli("message", "send", "Hola, agente")
    assert (done.returncode, done.stdout, done.stderr) == (0, "¡Hola, humano!\n", "")
    [params] = gateway.params_of("agent")
    assert params["message"] == "Hola, agente"
    assert params["sessionKey"] == "main"
    assert params["deliver"] is False


def test_an_agent_is_named_by_its_id(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["agents.list"] = {"defaultId": "main", "agents": [{"id": "main"}, {"id": "my-agent"}]}
    gateway.streams["agent"] = spoken("ok", key="agent:my-agent:main")
    done = cli("message", "send", "Hola", "--agent", "my-agent", "--json")
    [params] = gateway.params_of("agent")
    assert params["agentId"] == "my-agent"
    assert "sessionKey" not in params
    assert json.loads(done.stdout)["sessionKey"] == "agent:my-agent:main"


def test_a_session_is_found_by_its_name(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.resolve"] = {"ok": True, "key": "agent:main:found", "new": False}
    gateway.streams["agent"] = spoken("ok")
    assert cli("message", "send", "Hola", "--session", "abc123").returncode == 0
    assert gateway.params_of("sessions.resolve") == [{"name": "abc123"}]
    assert gateway.params_of("agent")[0]["sessionKey"] == "agent:main:found"


def test_a_new_name_begins_a_session_and_says_so(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.resolve"] = {"ok": True, "key": "agent:helper:work", "new": True}
    gateway.replies["agents.list"] = {"defaultId": "main", "agents": [{"id": "main"}, {"id": "helper"}]}
    gateway.streams["agent"] = spoken("ok")
    done = cli("message", "send", "Hola", "--session", "work", "--agent", "helper")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "New session agent:helper:work.\n")
    [params] = gateway.params_of("agent")
    assert (params["sessionKey"], params["agentId"]) == ("work", "helper")


def test_a_session_that_the_gateway_refuses_gets_no_message(cli: Cli, gateway: FakeGateway) -> None:
    gone = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"

    def refuse(params: dict[str, Any]) -> None:
        raise Refusal(f"No session found: {params['name']}", details={"code": "SESSION_NOT_FOUND"})

    gateway.replies["sessions.resolve"] = refuse
    done = cli("message", "send", "Hola", "--session", gone)
    assert (done.returncode, done.stderr) == (1, f"No session found: {gone}\n")
    assert gateway.params_of("agent") == []


def test_an_unknown_agent_says_how_to_list_them(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["agents.list"] = {"defaultId": "main", "agents": [{"id": "main"}]}
    done = cli("message", "send", "Hola", "--agent", "ghost")
    assert done.returncode == 1
    assert done.stderr == 'Unknown agent id "ghost". Use "openclaw agents list" to see configured agents.\n'


def test_json_has_run_status_session_reply_and_result(cli: Cli, gateway: FakeGateway) -> None:
    gateway.streams["agent"] = spoken("four")
    done = cli("message", "send", "2+2", "--json")
    report = json.loads(done.stdout)
    assert list(report) == ["runId", "status", "sessionKey", "reply", "result"]
    assert report["runId"] == gateway.params_of("agent")[0]["idempotencyKey"]
    assert (report["status"], report["sessionKey"], report["reply"]) == ("ok", "agent:main:main", "four")
    assert report["result"]["payloads"][0]["text"] == "four"


def test_no_wait_prints_the_accepted_run(cli: Cli, gateway: FakeGateway) -> None:
    released = threading.Event()
    gateway.streams["agent"] = lambda params: [*spoken("late")(params)[:1], lambda: released.wait(20)]
    done = cli("message", "send", "go", "--no-wait")
    released.set()
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "accepted"


@pytest.mark.parametrize(("args", "piped"), [((), "from a pipe\n"), (("-",), "from a pipe\n")])
def test_the_text_may_come_from_a_pipe(cli: Cli, gateway: FakeGateway, args: tuple[str, ...], piped: str) -> None:
    gateway.streams["agent"] = spoken("ok")
    cli("message", "send", *args, input=piped)
    assert gateway.params_of("agent")[0]["message"] == "from a pipe"


@pytest.mark.parametrize("args", [(), ("",), ("  ",), ("--message", "")])
def test_an_empty_message_is_refused(cli: Cli, gateway: FakeGateway, args: tuple[str, ...]) -> None:
    done = cli("message", "send", *args)
    assert done.returncode == 1
    assert done.stderr.startswith("Message text is required")
    assert gateway.calls == []


def test_context_files_reach_the_agent_labelled_with_their_path(cli: Cli, gateway: FakeGateway, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n```\ncode\n```\n")
    (tmp_path / "b.txt").write_text("no newline")
    gateway.streams["agent"] = spoken("ok")
    cli("message", "send", "Read", "--context", "docs/a.md", "--context", str(tmp_path / "b.txt"))
    message = gateway.params_of("agent")[0]["message"]
    assert message == "Read\n\ndocs/a.md:\n````\n# A\n```\ncode\n```\n````\n\nb.txt:\n```\nno newline\n```"


def test_an_image_as_context_becomes_an_attachment(cli: Cli, gateway: FakeGateway, tmp_path: Path) -> None:
    (tmp_path / "shot.png").write_bytes(PNG)
    gateway.streams["agent"] = spoken("ok")
    cli("message", "send", "What is this?", "--context", "shot.png")
    [params] = gateway.params_of("agent")
    [attachment] = params["attachments"]
    assert params["message"] == "What is this?"
    assert (attachment["type"], attachment["mimeType"], attachment["fileName"]) == ("image", "image/png", "shot.png")
    assert base64.b64decode(attachment["content"]) == PNG


def test_a_missing_context_file_sends_nothing(cli: Cli, gateway: FakeGateway) -> None:
    done = cli("message", "send", "Read", "--context", "nope.md")
    assert (done.returncode, done.stderr) == (1, "Context file not found: nope.md\n")
    assert gateway.calls == []


def test_a_message_too_large_for_the_gateway_says_so(cli: Cli, gateway: FakeGateway, tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("ü" * 300_000)
    done = cli("message", "send", "Read", *["--context", "big.txt"] * 2)
    assert done.returncode == 1
    assert "too large" in done.stderr


def _tool_turn(params: dict[str, Any]) -> list[Any]:
    run = params["idempotencyKey"]
    start = {"phase": "start", "name": "exec", "toolCallId": "c", "args": {"command": "echo hi"}}
    end = {"phase": "result", "name": "exec", "toolCallId": "c", "meta": "echo hi", "isError": True}
    return [
        res({"runId": run, "status": "accepted"}),
        *deltas(run, "Let me check."),
        agent_event(run, "tool", start),
        agent_event(run, "tool", end),
        *deltas(run, "It ", "failed."),
        chat_event(run, "final", "It failed."),
        agent_result(run, "Let me check.", "It failed."),
    ]


def test_tool_calls_are_progress_lines_on_stderr(cli: Cli, gateway: FakeGateway) -> None:
    gateway.streams["agent"] = _tool_turn
    done = cli("message", "send", "try")
    assert done.stdout == "Let me check.\nIt failed.\n"
    assert done.stderr == "⚙ exec: echo hi\n✗ exec: echo hi\n"


def test_results_of_tools_that_the_session_shows_are_short_lines_on_stderr(cli: Cli, gateway: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        head = {"name": "exec", "toolCallId": "c"}
        result = {"content": [{"type": "text", "text": "1\n2\n3\n4\n5"}]}
        return [
            res({"runId": run, "status": "accepted"}),
            agent_event(run, "tool", {**head, "phase": "start", "args": {"command": "seq 5"}}),
            agent_event(run, "tool", {**head, "phase": "result", "meta": "seq 5", "isError": False, "result": result}),
            *deltas(run, "Done."),
            chat_event(run, "final", "Done."),
            agent_result(run, "Done."),
        ]

    gateway.streams["agent"] = frames
    done = cli("message", "send", "try")
    assert (done.stdout, done.stderr) == ("Done.\n", "⚙ exec: seq 5\n  1\n  2\n  3\n  … 2 more lines\n")


def test_what_a_stopped_run_has_said_is_printed_once(cli: Cli, gateway: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        start = {"phase": "start", "name": "exec", "toolCallId": "c", "args": {"command": "sleep 9"}}
        return [
            res({"runId": run, "status": "accepted"}),
            *deltas(run, "Wait."),
            agent_event(run, "tool", start),
            chat_event(run, "aborted", stopReason="stop"),
            agent_result(run, "Wait."),
        ]

    gateway.streams["agent"] = frames
    done = cli("message", "send", "try")
    assert (done.returncode, done.stdout) == (1, "Wait.\n")


def test_two_messages_of_one_run_stand_on_lines_of_their_own(cli: Cli, gateway: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        return [
            res({"runId": run, "status": "accepted"}),
            *deltas(run, "First ", "answer."),
            agent_event(run, "assistant", {"text": "Second ", "delta": "Second "}),
            *deltas(run, "answer."),
            chat_event(run, "final", "Second answer."),
            agent_result(run, "First answer.", "Second answer."),
        ]

    gateway.streams["agent"] = frames
    assert cli("message", "send", "try").stdout == "First answer.\nSecond answer.\n"


def test_a_reply_that_was_not_streamed_is_printed_at_the_end(cli: Cli, gateway: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        return [res({"runId": run, "status": "accepted"}), agent_result(run, "Session reset.")]

    gateway.streams["agent"] = frames
    assert cli("message", "send", "/reset").stdout == "Session reset.\n"


def test_a_failed_run_is_told_in_plain_words(cli: Cli, gateway: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        failed = {"type": "res", "id": "1", "ok": False, "error": {"code": "UNAVAILABLE", "message": "no key for x"}}
        return [
            res({"runId": run, "status": "accepted"}),
            chat_event(run, "error", errorMessage="no key for x"),
            {**failed, "payload": {"runId": run, "status": "error", "summary": "no key for x"}},
        ]

    gateway.streams["agent"] = frames
    done = cli("message", "send", "hi")
    assert (done.returncode, done.stderr) == (1, "The agent could not answer: no key for x\n")


def test_ctrl_c_stops_the_run_and_exits_130(cli: Cli, gateway: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        return [
            res({"runId": run, "status": "accepted"}),
            *deltas(run, "Thinking about "),
            lambda: gateway.aborted.wait(20),
        ]

    gateway.streams["agent"] = frames
    process = cli.start("message", "send", "long one")
    assert process.stdout is not None
    assert process.stdout.read(5) == "Think"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    [abort] = gateway.params_of("chat.abort")
    assert abort == {"sessionKey": "agent:main:main", "runId": gateway.params_of("agent")[0]["idempotencyKey"]}


def test_a_gateway_that_dies_in_the_middle_leaves_the_run_id(cli: Cli, gateway: FakeGateway) -> None:
    def cut() -> None:
        raise ConnectionAbortedError

    gateway.streams["agent"] = lambda params: [*spoken("half a ", "reply")(params)[:2], cut]
    done = cli("message", "send", "hi")
    assert done.returncode == 1
    assert done.stdout == "half a \n"
    assert gateway.params_of("agent")[0]["idempotencyKey"] in done.stderr


def test_with_a_target_it_goes_straight_to_the_channel(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["send"] = {"runId": "r", "messageId": "m1", "channel": "signal"}
    done = cli("message", "send", "--target", "+15550001", "--channel", "signal", "-m", "Hi")
    assert (done.returncode, done.stdout) == (0, "Sent through signal: m1\n")
    [params] = gateway.params_of("send")
    assert (params["to"], params["message"], params["channel"]) == ("+15550001", "Hi", "signal")


def test_a_dry_run_sends_nothing(cli: Cli, gateway: FakeGateway) -> None:
    done = cli("message", "send", "--target", "+1", "-m", "Hi", "--dry-run")
    assert json.loads(done.stdout)["params"]["to"] == "+1"
    assert gateway.calls == []


def test_agent_prints_the_payloads(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["agents.list"] = {"defaultId": "main", "agents": [{"id": "main"}]}
    gateway.streams["agent"] = _tool_turn
    done = cli("agent", "--agent", "main", "-m", "hi", "--thinking", "low", "--timeout", "5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Let me check.\nIt failed.\n", "")
    [params] = gateway.params_of("agent")
    assert (params["agentId"], params["thinking"], params["timeout"]) == ("main", "low", 5)


def test_agent_json_is_the_final_payload(cli: Cli, gateway: FakeGateway) -> None:
    gateway.streams["agent"] = spoken("yes")
    gateway.replies["sessions.resolve"] = {"ok": True, "key": "agent:main:abc"}
    report = json.loads(cli("agent", "--session-id", "abc", "-m", "hi", "--json").stdout)
    assert (report["status"], report["summary"]) == ("ok", "completed")


def test_agent_needs_to_know_which_session(cli: Cli, gateway: FakeGateway) -> None:
    done = cli("agent", "-m", "hi")
    assert done.returncode == 1
    assert done.stderr == "Pass --to <E.164>, --session-id, or --agent to choose a session\n"


def test_text_that_is_not_valid_unicode_breaks_nothing(cli: Cli, gateway: FakeGateway) -> None:
    gateway.streams["agent"] = spoken("half \ud83d an emoji ⚙")
    done = cli("message", "send", "odd \udcff bytes", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "half ? an emoji ?\n"
    assert gateway.params_of("agent")[0]["message"] == "odd ? bytes"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"hello", None),
    ],
)
def test_images_are_known_by_their_bytes_not_their_names(data: bytes, kind: str | None) -> None:
    assert image_type(data) == kind


def test_a_long_file_is_cut_with_a_marker(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("é" * (MAX_CHARS + 5))
    message, _ = with_context("x", [str(tmp_path / "a")])
    assert message.count("é") == MAX_CHARS
    assert "cut here" in message


def test_a_huge_file_is_cut_even_inside_a_character(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a" + "😀".encode() * (MAX_CHARS + 100_000))
    message, _ = with_context("x", [str(tmp_path / "a")])
    assert "cut here" in message


@pytest.mark.parametrize("name", ["dir", "binary", "secret"])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match=name):
        with_context("x", [str(tmp_path / name)])


def test_a_huge_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "i.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * MAX_IMAGE_BYTES)
    with pytest.raises(UserError, match="too large"):
        with_context("x", [str(tmp_path / "i.png")])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.text(alphabet="`a\n", max_size=30))
def test_a_file_cannot_end_its_own_fence(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text(text, newline="")
    message, _ = with_context("x", [str(tmp_path / "f")])
    lines = message.split("\n")
    fence = lines[3]
    assert set(fence) == {"`"} and lines[-1] == fence
    assert not any(line.startswith(fence) for line in lines[4:-1])
