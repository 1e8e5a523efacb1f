from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from openclaw.clock import SystemClock
from openclaw.messages import TextBlock
from openclaw.tools.base import ToolContext, ToolError, ToolResult
from openclaw.tools.exec.settings import ExecSettings
from openclaw.tools.exec.tool import ExecTool
from openclaw.tools.process import (
    MAX_FINISHED,
    MAX_RUNNING,
    ProcessRegistry,
    ProcessSession,
    ProcessTool,
    UnknownKey,
    encode_hex,
    encode_key,
    encode_paste,
    slice_lines,
)

SCOPE = "main|agent:main:main"
"""The scope of the fixture ``context``."""


class Bench:
    """The two tools side by side, as an agent has them."""

    def __init__(self, processes: ProcessRegistry, context: ToolContext) -> None:
        self.processes = processes
        self.context = context
        self._exec = ExecTool(ExecSettings(), processes)
        self._process = ProcessTool(processes)

    async def start(self, command: str, **arguments: Any) -> str:
        result = await self._exec.run({"command": command, "background": True, **arguments}, self.context)
        return result.details["sessionId"]

    def session(self, slug: str) -> ProcessSession:
        session = self.processes.get(self.context.process_scope, slug)
        assert session is not None
        return session

    async def finished(self, command: str) -> str:
        slug = await self.start(command)
        async with asyncio.timeout(60):
            await self.session(slug).ended.wait()
        return slug

    async def do(self, action: str, slug: str | None = None, **arguments: Any) -> ToolResult:
        return await self._process.run({"action": action, "sessionId": slug, **arguments}, self.context)

    async def text(self, action: str, slug: str | None = None, **arguments: Any) -> str:
        return text_of(await self.do(action, slug, **arguments))

    async def printed(self, slug: str, words: str) -> None:
        async with asyncio.timeout(60):
            while words not in self.session(slug).output.text():
                await asyncio.sleep(0.01)


@pytest.fixture
def bench(processes: ProcessRegistry, context: ToolContext) -> Bench:
    return Bench(processes, context)


def text_of(result: ToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextBlock)
    return block.text


async def test_polling_gives_what_is_new_until_the_end(bench: Bench) -> None:
    slug = await bench.start("echo one; read x; echo two $x; read y")
    await bench.printed(slug, "one")
    assert await bench.text("poll", slug) == "one\n\nProcess still running (0s)."
    assert await bench.text("poll", slug) == "(no new output)\n\nProcess still running (0s)."
    assert await bench.text("write", slug, data="cats\n") == f"Wrote 5 bytes to session {slug}."
    await bench.printed(slug, "two cats")
    result = await bench.do("poll", slug)
    assert text_of(result) == "two cats\n\nProcess still running (0s)."
    assert result.details["status"] == "running"
    await bench.do("write", slug, data="\n")
    result = await bench.do("poll", slug, timeout=10_000)
    assert text_of(result) == "one\ntwo cats\n\nProcess exited with code 0."
    assert (result.details["status"], result.details["exitCode"]) == ("completed", 0)


async def test_the_log_is_cut_by_lines(bench: Bench) -> None:
    slug = await bench.finished("printf 'one\\ntwo\\nthree\\n'")
    result = await bench.do("log", slug, limit=2)
    assert (text_of(result), result.details["totalLines"]) == ("two\nthree", 3)
    assert await bench.text("log", slug, offset=1, limit=1) == "two"
    assert await bench.text("log", slug, offset=1) == "two\nthree"
    assert await bench.text("log", slug) == "one\ntwo\nthree"
    long = await bench.finished("seq 1 500")
    assert (await bench.text("log", long)).startswith("[Last 200 of 500 lines; use offset and limit for others]\n301\n")


def test_log_slices() -> None:
    lines = ["a", "b", "c"]
    assert slice_lines(lines, None, 0) == []
    assert slice_lines(lines, -5, 1) == ["a"]
    assert slice_lines(lines, 9, 1) == []


async def test_the_list_shows_newest_first_and_only_ones_own_session(bench: Bench) -> None:
    assert await bench.text("list") == "No running or recent sessions."
    done = await bench.finished("exit 3")
    running = await bench.start("sleep   60")
    rows = (await bench.text("list")).split("\n")
    assert sorted(rows) == sorted([f"{running} running   0s :: sleep 60", f"{done} failed    0s :: exit 3"])
    for elsewhere in ({"agent_id": "other"}, {"session_key": "agent:main:signal:group:g1"}):
        stranger = Bench(bench.processes, msgspec.structs.replace(bench.context, **elsewhere))
        assert await stranger.text("list") == "No running or recent sessions."
        for action in ("poll", "kill", "write", "log", "remove", "send-keys", "submit", "paste", "clear"):
            result = await stranger.do(action, running)
            assert (text_of(result), result.details["status"]) == (f"No session found for {running}", "failed")
    assert not bench.session(running).ended.is_set()


async def test_mistakes_are_results_not_exceptions(bench: Bench) -> None:
    done = await bench.finished("true")
    for action, slug, arguments, words in (
        ("dance", done, {}, "Unknown action dance"),
        ("poll", None, {}, "sessionId is required"),
        ("poll", "no-such", {}, "No session found for no-such"),
        ("write", done, {"data": "x"}, "is not running"),
        ("kill", done, {}, "is not running"),
        ("send-keys", done, {}, "Nothing to send"),
        ("send-keys", done, {"keys": ["C-Nothing"]}, "not a known key"),
        ("paste", done, {}, "Nothing to paste"),
    ):
        result = await bench.do(action, slug, **arguments)
        assert words in text_of(result)
        assert result.details["status"] == "failed"
        assert result.failed


async def test_input_can_be_closed(bench: Bench) -> None:
    slug = await bench.start("cat; echo ended")
    assert await bench.text("write", slug, data="abc", eof=True) == f"Wrote 3 bytes to session {slug} (input closed)."
    assert await bench.text("poll", slug, timeout=10_000) == "abcended\n\nProcess exited with code 0."


async def test_input_larger_than_a_pipe_arrives_whole(bench: Bench) -> None:
    slug = await bench.start("wc -c")
    await bench.do("write", slug, data="x" * 300_000, eof=True)
    assert await bench.text("poll", slug, timeout=10_000) == "300000\n\nProcess exited with code 0."


async def test_a_terminal_program_can_be_driven_with_keys(bench: Bench) -> None:
    slug = await bench.start("stty -echo; echo ready; read line; echo got:$line; cat > /dev/null", pty=True)
    await bench.printed(slug, "ready")
    assert await bench.text("paste", slug, text="hello", bracketed=False) == f"Pasted 5 characters to session {slug}."
    assert await bench.text("submit", slug) == f"Submitted session {slug} (sent CR)."
    await bench.printed(slug, "got:hello")
    assert await bench.text("send-keys", slug, keys=["C-c"]) == f"Sent 1 bytes to session {slug}."
    result = await bench.do("poll", slug, timeout=10_000)
    assert text_of(result).endswith("Process exited with signal SIGINT.") or "code 130" in text_of(result)


async def test_hex_and_literal_reach_the_program(bench: Bench) -> None:
    slug = await bench.start("stty -echo; echo ready; read line; echo got:$line", pty=True)
    await bench.printed(slug, "ready")
    await bench.do("send-keys", slug, literal="a", hex=["62", "0x0d"])
    assert "got:ab" in await bench.text("poll", slug, timeout=10_000)


async def test_killing_is_no_news_and_clearing_forgets(bench: Bench) -> None:
    notices: list[str] = []
    bench.context = msgspec.structs.replace(bench.context, notify=notices.append)
    slug = await bench.start("sleep 60")
    assert "still running" in await bench.text("clear", slug)
    assert await bench.text("kill", slug) == f"Killed session {slug}."
    assert (await bench.text("poll", slug)).endswith("Process exited with signal SIGTERM.")
    assert await bench.text("clear", slug) == f"Cleared session {slug}."
    assert await bench.text("poll", slug) == f"No session found for {slug}"
    other = await bench.start("sleep 60")
    assert await bench.text("remove", other) == f"Removed session {other}."
    assert await bench.text("list") == "No running or recent sessions."
    assert notices == []


async def test_a_background_command_still_has_its_timeout(bench: Bench) -> None:
    slug = await bench.start("sleep 60", timeout=0.1)
    assert (await bench.text("poll", slug, timeout=10_000)).endswith("Process timed out after 0.1 seconds.")


async def test_a_program_that_does_not_read_is_given_up(bench: Bench) -> None:
    class Impatient(SystemClock):
        """Every look at the clock is a minute later."""

        now = 0.0

        def monotonic(self) -> float:
            self.now += 60
            return self.now

    slug = await bench.start("sleep 60")
    bench.session(slug).process._clock = Impatient()
    result = await bench.do("write", slug, data="x" * 500_000)
    assert "does not read its input" in text_of(result)
    bench.session(slug).process._clock = SystemClock()


class Calendar(SystemClock):
    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_finished_commands_are_forgotten_after_a_while_and_never_pile_up(context: ToolContext) -> None:
    clock = Calendar()
    processes = ProcessRegistry(clock=clock, cleanup_ms=60_000)
    bench = Bench(processes, context)
    slug = await bench.finished("true")
    clock.ahead_ms = 59_000
    assert processes.get(SCOPE, slug)
    clock.ahead_ms = 62_000
    assert processes.get(SCOPE, slug) is None
    for _ in range(MAX_FINISHED + 3):
        await bench.finished("true")
    assert len(processes.list(SCOPE)) == MAX_FINISHED
    await processes.close()


async def test_too_many_commands_at_once_are_refused(bench: Bench) -> None:
    await asyncio.gather(*(bench.start("sleep 60") for _ in range(MAX_RUNNING)))
    with pytest.raises(ToolError, match=f"{MAX_RUNNING} commands are running already"):
        await bench.start("true")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("Enter", b"\r"),
        ("C-c", b"\x03"),
        ("^d", b"\x04"),
        ("c-[", b"\x1b"),
        ("C-Space", b"\0"),
        ("M-x", b"\x1bx"),
        ("C-M-c", b"\x1b\x03"),
        ("S-Tab", b"\x1b[Z"),
        ("Up", b"\x1b[A"),
        ("C-Up", b"\x1b[1;5A"),
        ("S-Delete", b"\x1b[3;2~"),
        ("F1", b"\x1bOP"),
        ("F12", b"\x1b[24~"),
        ("hello", b"hello"),
        ("é", "é".encode()),
    ],
)
def test_keys_are_sent_as_a_terminal_sends_them(key: str, expected: bytes) -> None:
    assert encode_key(key) == expected


@pytest.mark.parametrize("key", ["C-Nothing", "C-é", "^1"])
def test_keys_nobody_has_are_refused(key: str) -> None:
    with pytest.raises(UnknownKey):
        encode_key(key)


def test_bytes_can_be_given_in_hexadecimal() -> None:
    assert encode_hex("0x1b") + encode_hex("0d0A") == b"\x1b\r\n"
    with pytest.raises(UnknownKey):
        encode_hex("zz")


def test_pasted_text_cannot_leave_its_brackets() -> None:
    assert encode_paste("a\x1b[201~rm", bracketed=True) == b"\x1b[200~arm\x1b[201~"
    assert encode_paste("a", bracketed=False) == b"a"
