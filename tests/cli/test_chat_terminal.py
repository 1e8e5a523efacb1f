"""The chat as a person sees it: a real terminal, a real Gateway, a scripted model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.forked_command import run_command
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.tmux import Tmux, need_tmux


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    need_tmux()
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    queue = {"mode": "followup", "debounceMs": 0}
    config = model_config(models.base_url, models.api_key, messages={"queue": queue})
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        yield gateway


@pytest.fixture
def folder() -> Iterator[Path]:
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="chat") as path:
        yield Path(path)


def held(*pieces: str, hold: asyncio.Event, after: int) -> Reply:
    """A reply in these pieces that waits after so many of them."""
    return Reply(text="".join(pieces), pieces=list(pieces), hold=hold, hold_after=after)


async def test_words_appear_as_they_come_and_settle_as_markdown(
    gateway: InProcessGateway, models: ModelServer, folder: Path
) -> None:
    hold = asyncio.Event()
    models.queue(held("The **first** ", "words ", "of it.\n\nThe end.", hold=hold, after=2))
    async with Tmux(folder, gateway.env, "chat") as terminal:
        await terminal.shows(idle=True)
        await terminal.type("begin")
        await terminal.press("Enter")
        await terminal.shows("› begin", "The **first** words", "writing…", without=("of it",))
        hold.set()
        screen = await terminal.shows("The first words of it.", "The end.", without=("**",), idle=True)
        assert screen.count("The end.") == 1
        assert screen.index("› begin") < screen.index("The first words") < screen.index("The end.")


async def test_message_send_writes_words_as_they_come(
    gateway: InProcessGateway, models: ModelServer, folder: Path
) -> None:
    hold = asyncio.Event()
    long = " ".join(f"word{number}" for number in range(40))
    models.queue(held(f"One\n\nThe **{long}** ", "words ", "of it.\n", hold=hold, after=2))
    async with Tmux(folder, gateway.env, "message", "send", "begin") as terminal:
        await terminal.shows("The **word0", "word39** words", without=("of it",))
        hold.set()
        screen = await terminal.shows("The word0", "words of it.", without=("**",))
        assert screen.count("word0") == 1
        assert screen.count("One") == 1


async def test_the_running_and_the_waiting_message_are_seen_at_once(
    gateway: InProcessGateway, models: ModelServer, folder: Path
) -> None:
    hold = asyncio.Event()
    models.queue(held("working ", "on one", hold=hold, after=1), Reply(text="that was two"))
    async with Tmux(folder, gateway.env, "tui") as terminal:
        await terminal.shows(idle=True)
        await terminal.type("number one")
        await terminal.press("Enter")
        await terminal.shows("working", "writing…")
        await terminal.type("number two")
        await terminal.press("Enter")
        await terminal.shows("› number one", "working", "writing…", "⋯ waits: number two", without=("› number two",))
        hold.set()
        screen = await terminal.shows("on one", "› number two", "that was two", idle=True)
        places = [screen.index(text) for text in ("› number one", "working on one", "› number two", "that was two")]
        assert places == sorted(places)


async def test_after_a_restart_the_chat_shows_the_reply_to_its_own_message(
    gateway: InProcessGateway, models: ModelServer, folder: Path
) -> None:
    never = asyncio.Event()
    models.queue(held("half ", "a reply", hold=never, after=1), Reply(text="the whole reply"))
    async with Tmux(folder, gateway.env, "chat") as terminal:
        await terminal.shows(idle=True)
        await terminal.type("go on")
        await terminal.press("Enter")
        await terminal.shows("half", "writing…")
        await gateway.stop()
        await terminal.shows("The connection to the Gateway broke", "waiting for the Gateway…")
        await gateway.start()
        screen = await terminal.shows("the whole reply", idle=True)
        assert screen.count("› go on") == 1
        assert screen.count("the whole reply") == 1


async def test_after_a_restart_the_chat_no_longer_waits_for_the_gateway_and_what_waited_still_waits(
    gateway: InProcessGateway, models: ModelServer, folder: Path
) -> None:
    never, hold = asyncio.Event(), asyncio.Event()
    models.queue(
        held("half ", "a reply", hold=never, after=1),
        held("anew ", "and whole", hold=hold, after=1),
        Reply(text="that was two"),
    )
    async with Tmux(folder, gateway.env, "chat") as terminal:
        await terminal.shows(idle=True)
        await terminal.type("number one")
        await terminal.press("Enter")
        await terminal.shows("half", "writing…")
        await terminal.type("number two")
        await terminal.press("Enter")
        await terminal.shows("⋯ waits: number two")
        await gateway.stop()
        await terminal.shows("waiting for the Gateway…", "⋯ waits: number two", without=("› number two",))
        await gateway.start()
        await terminal.shows(
            "Ctrl-C stops", "⋯ waits: number two", without=("› number two", "waiting for the Gateway…")
        )
        hold.set()
        screen = await terminal.shows("anew and whole", "that was two", idle=True)
        places = [screen.index(text) for text in ("› number one", "anew and whole", "› number two", "that was two")]
        assert places == sorted(places) and screen.count("The connection to the Gateway broke") == 1


async def test_a_message_to_a_gateway_that_died_starts_one(
    gateway: InProcessGateway, models: ModelServer, folder: Path
) -> None:
    models.queue(Reply(text="here again"))
    env = {**gateway.env, "OPENCLAW_GATEWAY_PORT": str(gateway.port)}
    async with Tmux(folder, env, "chat") as terminal:
        await terminal.shows(idle=True)
        await gateway.stop()
        try:
            await terminal.type("are you there?")
            await terminal.press("Enter")
            await terminal.shows("› are you there?", "No Gateway is running", "starting one", "here again", idle=True)
        finally:
            await asyncio.to_thread(run_command, ("gateway", "stop"), env, folder)


async def test_no_key_swallows_a_line(gateway: InProcessGateway, models: ModelServer, folder: Path) -> None:
    hold = asyncio.Event()
    models.queue(Reply(text="done with it"), held("busy ", "now", hold=hold, after=1))
    async with Tmux(folder, gateway.env, "chat") as terminal:
        await terminal.shows(idle=True)
        await terminal.type("find me again")
        await terminal.press("Enter")
        await terminal.shows("done with it", idle=True)
        await terminal.type("a thought")
        await terminal.shows("› a thought")
        await terminal.press("C-c")
        await terminal.shows("done with it", without=("a thought",), idle=True)
        await terminal.press("Up")
        await terminal.shows("› a thought")
        await terminal.press("C-r")
        await terminal.type("find me")
        await terminal.shows("› find me again", "I-search backward: find me")
        await terminal.press("Enter")  # The line that was found stands in the input; nothing is sent yet.
        await terminal.shows("done with it\n› find me again", without=("I-search",))
        assert len(models.requests) == 1
        await terminal.press("Enter")
        await terminal.shows("busy", "writing…")
        await terminal.type("half a line")
        await terminal.press("C-c")
        await terminal.shows("stopped", "› half a line", without=("Ctrl-C stops",))
        hold.set()


async def test_commands_are_completed_and_listed(gateway: InProcessGateway, folder: Path) -> None:
    async with Tmux(folder, gateway.env, "chat") as terminal:
        await terminal.shows(idle=True)
        await terminal.type("/stat")
        await terminal.shows("› /stat", "/status ")
        await terminal.press("Tab")
        await terminal.shows("› /status")
        await terminal.press("C-c")
        await terminal.type("/help")
        await terminal.press("Enter")
        lines = ""
        for _ in range(600):
            lines = await terminal.screen(scrolled=True)
            if "/whoami" in lines:
                break
            await asyncio.sleep(0.1)
        assert "Ctrl-D, /exit" in lines
        for command in ("/status", "/compact", "/session KEY", "/stop"):
            assert f"\n{command}" in lines


async def test_a_retry_is_told_while_it_lasts_and_a_failed_tool_shows_its_error(
    gateway: InProcessGateway, models: ModelServer, folder: Path
) -> None:
    hold = asyncio.Event()
    models.queue(
        Reply(status=529, message="Overloaded"),
        held("fine ", "now", hold=hold, after=1),
        Reply(calls=[Call("read", {"path": "no-such-file.txt"})]),
        Reply(text="I could not read it"),
    )
    async with Tmux(folder, gateway.env, "chat") as terminal:
        await terminal.shows(idle=True)
        await terminal.type("hello")
        await terminal.press("Enter")
        await terminal.shows("trying again", "(attempt 2)", "fine", "writing…")
        hold.set()
        await terminal.shows("fine now", idle=True)
        await terminal.type("read it")
        await terminal.press("Enter")
        screen = await terminal.shows("I could not read it", idle=True)
        assert "⚙ read: no-such-file.txt" in screen
        [failure] = [line for line in screen.splitlines() if line.startswith("✗ read: ")]
        assert "no-such-file.txt" in failure or "No such file" in failure or "ENOENT" in failure


async def test_a_reopened_chat_shows_failures_and_no_prompt_that_nobody_wrote(
    gateway: InProcessGateway, models: ModelServer, folder: Path
) -> None:
    # A malformed request is tried once more in a plainer form.
    models.queue(*(Reply(status=400, message="nonsense") for _ in range(2)), Reply(text="a fresh start"))
    async with Tmux(folder, gateway.env, "chat") as terminal:
        await terminal.shows(idle=True)
        await terminal.type("will fail")
        await terminal.press("Enter")
        await terminal.shows("nonsense", idle=True)
        await models.wait_until_idle()
    async with Tmux(folder, gateway.env, "chat") as terminal:
        await terminal.shows("› will fail", "nonsense", idle=True)
        await terminal.type("/new")
        await terminal.press("Enter")
        screen = await terminal.shows("› /new", "a fresh start", idle=True)
        assert "from elsewhere" not in screen
        assert [line for line in screen.splitlines() if line.startswith("›")] == ["› will fail", "› /new", "›"]


async def test_a_new_name_begins_a_session_that_the_list_shows_whole(
    gateway: InProcessGateway, models: ModelServer, tmp_path: Path
) -> None:
    (tmp_path / "notes.md").write_text("water the beans\n")
    models.queue(Reply(text="looks good"), Reply(text="still good"))
    sent = await gateway.command(
        "message", "send", "review", "--context", str(tmp_path / "notes.md"), "--session", "work"
    )
    assert (sent.returncode, sent.stdout) == (0, "looks good\n")
    assert "New session agent:main:work." in sent.stderr
    again = await gateway.command("message", "send", "and now?", "--session", "agent:main:work")
    assert (again.stdout, again.stderr) == ("still good\n", "")
    listed = await gateway.command("sessions")
    assert any(line.endswith(" agent:main:work") for line in listed.stdout.splitlines())
    assert max(map(len, listed.stdout.splitlines()[2:])) <= 80
    shown = await gateway.command("sessions", "show", "work")
    assert "Session agent:main:work" in shown.stdout and "  looks good" in shown.stdout
    assert (await gateway.command("sessions", "rename", "work", "Garden")).returncode == 0
    deleted = await gateway.command("sessions", "delete", "Garden", "--yes")
    assert deleted.stdout.startswith("agent:main:work deleted")
    assert "agent:main:work" not in (await gateway.command("sessions")).stdout
