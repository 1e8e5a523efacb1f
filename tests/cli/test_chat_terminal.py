"""The chat as a person sees it: a real terminal, a real Gateway, a scripted model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply
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
        await terminal.shows("›")
        await terminal.type("begin")
        await terminal.press("Enter")
        await terminal.shows("› begin", "The **first** words", "writing…", without=("of it",))
        hold.set()
        screen = await terminal.shows("The first words of it.", "The end.", without=("**", "writing…"))
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
        await terminal.shows("›")
        await terminal.type("number one")
        await terminal.press("Enter")
        await terminal.shows("working", "writing…")
        await terminal.type("number two")
        await terminal.press("Enter")
        await terminal.shows("› number one", "working", "writing…", "⋯ waits: number two", without=("› number two",))
        hold.set()
        screen = await terminal.shows(
            "on one", "› number two", "that was two", without=("waits", "thinking", "writing")
        )
        places = [screen.index(text) for text in ("› number one", "working on one", "› number two", "that was two")]
        assert places == sorted(places)


async def test_after_a_restart_the_chat_shows_the_reply_to_its_own_message(
    gateway: InProcessGateway, models: ModelServer, folder: Path
) -> None:
    never = asyncio.Event()
    models.queue(held("half ", "a reply", hold=never, after=1), Reply(text="the whole reply"))
    async with Tmux(folder, gateway.env, "chat") as terminal:
        await terminal.shows("›")
        await terminal.type("go on")
        await terminal.press("Enter")
        await terminal.shows("half", "writing…")
        await gateway.stop()
        await terminal.shows("The connection to the Gateway broke", "waiting for the Gateway…")
        await gateway.start()
        screen = await terminal.shows("the whole reply", without=("waiting for the Gateway",))
        assert screen.count("› go on") == 1
        assert screen.count("the whole reply") == 1
