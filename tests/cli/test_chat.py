from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.cli.chat_screen import help_lines

from .conftest import Cli
from .fake_gateway import FakeGateway, Refusal, agent_event, chat_event, chatted, deltas, res

ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])")
ANSWER = "# Title\n\nSome **bold** text.\n\n- one\n- two\n"


class Terminal:
    """A chat on a pseudo-terminal: what a person types and sees."""

    def __init__(self, cli: Cli, *words: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        environ = {**cli.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "openclaw", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.raw = ""

    @property
    def screen(self) -> str:
        return ESCAPES.sub("", self.raw).replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def expect(self, text: str, since: int = 0) -> str:
        """Waits until the text has been shown (after a position of the screen)."""
        deadline = time.monotonic() + 60
        while text not in self.screen[since:]:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise AssertionError(f"{text!r} was never shown:\n{self.screen}")
            try:
                self.raw += os.read(self.master, 65536).decode("utf-8", "replace")
            except OSError:
                break
        assert text in self.screen[since:], self.screen
        return self.screen

    def leave(self) -> int:
        """Ctrl-D until the chat ends: while something is printed, the terminal itself may swallow one."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            self.type("\x04")
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.raw += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        return self.process.wait(10)


@pytest.fixture
def talk(gateway: FakeGateway) -> FakeGateway:
    gateway.replies["chat.view"] = {"sessionKey": "main", "messages": [], "run": None, "waiting": []}
    commands = [{"name": "status", "usage": "", "help": "The session's state."}]
    gateway.replies["chat.commands"] = {"commands": commands}
    gateway.replies["sessions.resolve"] = lambda params: {"ok": True, "key": "agent:main:main", "new": False}
    return gateway


@pytest.fixture
def terminal(cli: Cli, talk: FakeGateway) -> Iterator[Any]:
    opened: list[Terminal] = []

    def open_(*words: str) -> Terminal:
        opened.append(Terminal(cli, *words))
        return opened[-1]

    yield open_
    for item in opened:
        if item.process.poll() is None:
            item.process.send_signal(signal.SIGKILL)
            item.process.wait(10)
        os.close(item.master)


def test_chat_renders_markdown_and_keeps_the_input_history(terminal: Any, talk: FakeGateway, state: Path) -> None:
    talk.streams["chat.send"] = chatted(*[ANSWER[i : i + 3] for i in range(0, len(ANSWER), 3)])
    chat = terminal("chat")
    chat.expect("›")
    chat.type("hello there\r")
    screen = chat.expect("• two")
    assert "Title" in screen
    assert "Some bold text." in screen
    assert "**bold**" not in screen.split("• two")[0].split("Some bold text.")[1]
    [params] = talk.params_of("chat.send")
    assert (params["sessionKey"], params["message"], params["deliver"]) == ("main", "hello there", False)
    assert chat.leave() == 0
    history = state / "chat-history"
    assert "+hello there" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_the_list_of_commands_fits_the_terminal_and_shows_each_usage_whole() -> None:
    long = "/approve <id> allow-once|allow-always|deny"
    told = "What may still be spent; override lets this session go on for today."
    lines = list(help_lines([("/budget [override]", told), (long, "Answer.")], 80))
    assert all(len(line) <= 80 for line in lines)
    assert long in lines and lines[0].startswith("/budget [override]") and lines[1].startswith(" " * 31)


def test_chat_opens_with_the_last_messages(terminal: Any, talk: FakeGateway) -> None:
    talk.replies["chat.view"] = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "what was it"}]},
            {"role": "assistant", "content": [{"type": "toolCall", "name": "read", "arguments": {"path": "a.txt"}}]},
            {"role": "toolResult", "content": [{"type": "text", "text": "raw result"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "It was *this*."}]},
        ]
    }
    chat = terminal("chat", "--session", "work")
    screen = chat.expect("It was this.")
    assert "› what was it" in screen
    assert "⚙ read: a.txt" in screen
    assert "raw result" not in screen
    assert talk.params_of("chat.view")[0] == {"sessionKey": "agent:main:main", "limit": 50}


def test_tool_calls_are_progress_lines_and_errors_are_plain(terminal: Any, talk: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        text = "\n".join(f"line {n}" for n in range(9))
        result = {"content": [{"type": "text", "text": text}]}
        return [
            res({"runId": run, "status": "started"}),
            agent_event(run, "tool", {"phase": "start", "name": "exec", "args": {"command": "seq 9"}}),
            agent_event(run, "tool", {"phase": "result", "name": "exec", "isError": False, "result": result}),
            chat_event(run, "error", errorMessage="the model is overloaded"),
        ]

    talk.streams["chat.send"] = frames
    chat = terminal("chat")
    chat.expect("›")
    chat.type("count\r")
    screen = chat.expect("the model is overloaded")
    assert "⚙ exec: seq 9" in screen
    assert "line 2" in screen
    assert "line 3" not in screen
    assert "… 6 more lines" in screen


def test_ctrl_c_stops_the_running_reply_and_the_chat_goes_on(terminal: Any, talk: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> Iterator[Any]:
        run = params["idempotencyKey"]
        yield res({"runId": run, "status": "started"})
        yield from deltas(run, "Once upon a time\n\nthere was")
        yield lambda: talk.aborted.wait(20)
        yield chat_event(run, "aborted", stopReason="rpc")

    talk.streams["chat.send"] = frames
    chat = terminal("chat")
    chat.expect("›")
    chat.type("tell me a story\r")
    chat.expect("Once upon a time")
    chat.type("\x03")
    chat.expect("stopped")
    assert talk.params_of("chat.abort") == [{"sessionKey": "main"}]
    chat.process.send_signal(signal.SIGINT)
    chat.expect("Ctrl-D leaves the chat.")
    assert chat.leave() == 0


def test_a_reply_from_elsewhere_is_shown(terminal: Any, talk: FakeGateway) -> None:
    chat = terminal("chat", "--session", "x")
    chat.expect("›")
    assert talk.feed_opened.wait(20)
    asked = [{"role": "user", "content": "sent from the phone", "__openclaw": {"id": "e1"}}]
    talk.replies["chat.view"] = {"messages": asked, "asked": "e1"}
    talk.publish("chat", chat_event("other-run", "final", "an answer for the phone")["payload"])
    screen = chat.expect("an answer for the phone")
    assert "› sent from the phone" in screen


def test_several_lines_are_one_message(terminal: Any, talk: FakeGateway) -> None:
    talk.streams["chat.send"] = chatted("ok.")
    chat = terminal("chat")
    chat.expect("›")
    chat.type("first\x1b\rsecond\r")
    chat.expect("ok.")
    assert talk.params_of("chat.send")[0]["message"] == "first\nsecond"


def test_slash_lines_are_ours_or_the_gateways(terminal: Any, talk: FakeGateway) -> None:
    talk.streams["chat.send"] = chatted("Context: 5 %")
    talk.replies["sessions.list"] = {"sessions": [{"key": "agent:main:main", "derivedTitle": "Groceries"}]}
    chat = terminal("chat")
    chat.expect("›")
    chat.type("/help\r")
    chat.expect("stop the running reply")
    chat.type("/sessions\r")
    chat.expect("agent:main:main  Groceries")
    chat.type("/context\r")
    chat.expect("Context: 5 %")
    assert [params["message"] for params in talk.params_of("chat.send")] == ["/context"]


def test_control_codes_of_a_model_never_reach_the_terminal(terminal: Any, talk: FakeGateway) -> None:
    talk.streams["chat.send"] = chatted("before \x1b]0;owned\x07\x1b[2Jafter\n\n", "end")
    chat = terminal("chat")
    chat.expect("›")
    chat.type("x\r")
    chat.expect("after")
    assert "\x1b]0;owned" not in chat.raw


def test_without_a_terminal_each_line_is_answered_in_plain_text(cli: Cli, talk: FakeGateway) -> None:
    talk.streams["chat.send"] = lambda params: chatted("You said ", f"**{params['message']}**")(params)
    done = cli("chat", input="one\n\ntwo\n/exit\nthree\n")
    assert (done.returncode, done.stdout) == (0, "You said **one**\nYou said **two**\n")


def test_without_a_terminal_a_failure_is_in_the_exit_code(cli: Cli, talk: FakeGateway) -> None:
    def refuse(_: dict[str, Any]) -> list[Any]:
        raise Refusal("send blocked by session policy")

    talk.streams["chat.send"] = refuse
    done = cli("chat", input="one\n")
    assert (done.returncode, done.stderr) == (1, "send blocked by session policy\n")


def test_what_is_shown_in_the_end_is_the_final_text(cli: Cli, talk: FakeGateway) -> None:
    talk.streams["chat.send"] = chatted("Hel", final="Hello, world")
    assert cli("chat", input="x\n").stdout == "Hello, world\n"
    talk.streams["chat.send"] = chatted("draft", final="the real reply")
    assert cli("chat", input="x\n").stdout.endswith("\nthe real reply\n")


def test_a_queued_message_is_not_an_empty_reply(terminal: Any, talk: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        return [res({"runId": run, "status": "started"}), chat_event(run, "final", queued=True)]

    talk.streams["chat.send"] = frames
    chat = terminal("chat")
    chat.expect("›")
    chat.type("x\r")
    chat.expect("answered together with another message")


def test_bare_openclaw_says_who_answers_and_opens_the_chat(terminal: Any, talk: FakeGateway) -> None:
    talk.replies["sessions.list"] = {"defaults": {"modelProvider": "mock", "model": "mock-1"}, "sessions": []}
    chat = terminal()
    chat.expect("mock/mock-1 answers.")
    chat.expect("›")
    assert chat.leave() == 0


def test_a_reply_that_came_while_the_connection_was_gone_is_fetched(cli: Cli, talk: FakeGateway) -> None:
    def frames(params: dict[str, Any]) -> Iterator[Any]:
        if len(talk.params_of("chat.send")) > 1:
            yield res({"runId": params["idempotencyKey"], "status": "ok"})
            return
        yield res({"runId": params["idempotencyKey"], "status": "started"})
        raise ConnectionAbortedError

    def view(params: dict[str, Any]) -> dict[str, Any]:
        said = [
            {"role": "assistant", "content": "an older reply", "__openclaw": {"id": "e0"}},
            {"role": "user", "content": "one", "__openclaw": {"id": "e1"}},
            {"role": "assistant", "content": "the reply", "__openclaw": {"id": "e2"}},
            {"role": "user", "content": "two", "__openclaw": {"id": "e3"}},
            {"role": "assistant", "content": "another reply", "__openclaw": {"id": "e4"}},
        ]
        return {"messages": said, "asked": "e1"}

    talk.streams["chat.send"] = frames
    talk.replies["chat.view"] = view
    done = cli("chat", input="one\n")
    first, again = talk.params_of("chat.send")
    assert first == again, "the same message under the same id begins nothing new"
    assert (done.returncode, done.stdout) == (0, "the reply\n")
    assert "attaches to this message again" in done.stderr


def test_a_gateway_that_is_not_there_is_said_at_once(cli: Cli, talk: FakeGateway) -> None:
    done = cli("chat", "--url", "ws://127.0.0.1:1", "--token", "x", input="one\n")
    assert done.returncode == 1
    assert "attaches" not in done.stderr
