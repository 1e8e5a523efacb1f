"""A terminal of its own for a program under test, in tmux: what a person types, and what they see."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from types import TracebackType

import pytest

WAIT_S = 60


def need_tmux() -> None:
    """Skips the test where there is no tmux. With ``OPENCLAW_TEST_REQUIRE_ALL`` it fails instead."""
    if shutil.which("tmux") is None:
        if os.environ.get("OPENCLAW_TEST_REQUIRE_ALL"):
            raise AssertionError("tmux is missing")
        pytest.skip("tmux is not installed")


class Tmux:
    """``async with Tmux(folder, env, "chat") as terminal`` runs ``openclaw chat`` in a window of 80 × 30.

    ``colours``: the program may use them.
    """

    def __init__(self, folder: Path, env: dict[str, str], *words: str, colours: bool = False) -> None:
        # Each has a server of its own. One on the path of an earlier server could meet it while it ends.
        self._socket = folder / f"{uuid.uuid4().hex[:8]}.sock"
        self._env = {**env, "TERM": "xterm-256color", "NO_COLOR": "1", "PYTHONUTF8": "1"}
        self._env.pop("TMUX", None)
        if colours:
            del self._env["NO_COLOR"]
        self._words = words

    async def __aenter__(self) -> Tmux:
        # The window stays open after the program, so that its last words can still be read.
        command = ["sh", "-c", '"$@"; exec cat', "sh", sys.executable, "-m", "openclaw", *self._words]
        await self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "30", *command)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tmux("kill-server", check=False)

    async def type(self, text: str) -> None:
        await self._tmux("send-keys", "-l", text)

    async def press(self, *keys: str) -> None:
        """Keys by their names in tmux, such as ``Enter`` or ``C-c``."""
        await self._tmux("send-keys", *keys)

    async def screen(self, *, scrolled: bool = False, coloured: bool = False) -> str:
        """The screen as it is now; ``scrolled`` has the lines above it too, ``coloured`` the codes of its colours."""
        return await self._tmux(
            "capture-pane", "-p", *(("-S", "-") if scrolled else ()), *(("-e",) if coloured else ())
        )

    async def shows(self, *texts: str, without: tuple[str, ...] = (), idle: bool = False) -> str:
        """Waits until the screen has all these texts at once, and none of the others.

        ``idle``: the chat's empty input line is there too, and nothing runs or waits. While lines are printed above
        it, the input line is not on the screen for a moment.
        """
        screen = ""
        busy = ("Ctrl-C stops", "⋯ waits") if idle else ()
        for _ in range(WAIT_S * 10):
            screen = await self.screen()
            ready = not idle or screen.rstrip().splitlines()[-1:] == ["›"]
            if (
                ready
                and all(text in screen for text in texts)
                and not any(text in screen for text in (*without, *busy))
            ):
                return screen
            await asyncio.sleep(0.1)
        raise AssertionError(f"never shown: {texts} without {without}, idle {idle}\n{screen}")

    async def _tmux(self, *words: str, check: bool = True) -> str:
        done = await asyncio.to_thread(
            subprocess.run,
            ["tmux", "-u", "-S", str(self._socket), *words],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout
