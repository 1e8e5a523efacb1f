"""The chat on a terminal: an input line that stays usable while replies are printed above it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from openclaw import paths
from openclaw.cli.chat import LEAVE, Conversation, foreign_reply
from openclaw.cli.client import Client, Exchange
from openclaw.cli.command import UserError
from openclaw.cli.render import Renderer
from openclaw.cli.turn import message_text
from openclaw.text import shortened

MAX_HISTORY_BYTES = 1_000_000
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
RECONNECT_S = 2.0
HELP = """\
Enter           send; Alt-Enter (or Esc, then Enter) starts a new line
Ctrl-C          stop the running reply
Ctrl-D, /exit   leave; the Gateway goes on
/new            begin afresh: a new session under the same key
/session KEY    switch to another session; /sessions lists them
/abort          stop the running reply
Other lines that begin with / go to the Gateway as they are, for example /status."""


class Screen:
    """The prompt and the threads that print replies. One lock keeps their lines from being mixed."""

    def __init__(self, conversation: Conversation, history: int) -> None:
        self._conversation = conversation
        self._history = history
        self._print_lock = threading.RLock()
        self._plain = Renderer()
        self._busy: dict[int, tuple[Renderer, float]] = {}
        self._listener: _Listener | None = None
        self._prompt: PromptSession[str] = PromptSession(
            history=FileHistory(_history_file()),
            multiline=True,
            key_bindings=self._keys(),
            prompt_continuation="  ",
            refresh_interval=0.2,
        )

    def run(self) -> int:
        asyncio.run(self._loop())
        return 0

    async def _loop(self) -> None:
        with patch_stdout(raw=True):
            self._open()
            try:
                while True:
                    text = (await self._prompt.prompt_async(self._message)).strip()
                    if text in LEAVE:
                        return
                    if text:
                        self._command(text)
            except EOFError:
                return
            finally:
                if self._listener is not None:
                    self._listener.close()

    def _open(self) -> None:
        """Shows the session and its last messages, and listens to its events."""
        if self._listener is not None:
            self._listener.close()
        try:
            messages = self._conversation.history(self._history) if self._history else []
        except UserError as error:
            messages = []
            self._plain.error(str(error))
        self._plain.line(f"session {self._conversation.key} · /help for help", "dim")
        self._plain.history(messages)
        self._listener = _Listener(self._conversation, self._foreign)

    def _message(self) -> FormattedText:
        running = list(self._busy.values())
        if not running:
            return FormattedText([("bold", "› ")])
        renderer, began = running[-1]
        seconds = int(time.monotonic() - began)
        spinner = FRAMES[int(time.monotonic() * 8) % len(FRAMES)]
        status = f"{spinner} {renderer.preview or 'thinking…'} {seconds}s\n"
        return FormattedText([("fg:ansibrightblack", status), ("bold", "› ")])

    def _command(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if text == "/help":
            self._plain.line(HELP)
        elif text == "/abort":
            self._in_thread(self._abort)
        elif text == "/sessions":
            self._in_thread(self._list_sessions)
        elif word == "/session" and rest.strip():
            self._try(lambda: self._conversation.switch(rest.strip()))
            self._open()
        else:
            self._in_thread(lambda: self._turn(text))

    def _turn(self, text: str) -> None:
        renderer = Renderer()
        turn, updates = self._conversation.send(text)
        mark = id(turn)
        self._busy[mark] = (renderer, time.monotonic())
        try:
            for kind, shown in updates:
                with self._print_lock:
                    renderer.show(kind, shown)
            with self._print_lock:
                renderer.finish(turn)
        except UserError as error:
            with self._print_lock:
                renderer.end_line()
                renderer.error(str(error))
        finally:
            self._busy.pop(mark, None)

    def _abort(self) -> None:
        if not self._conversation.abort():
            self._say("nothing is running")

    def _list_sessions(self) -> None:
        listed = self._conversation.client.call("sessions.list", {"limit": 20, "includeDerivedTitles": True})
        for row in listed.get("sessions") or []:
            title = row.get("label") or row.get("derivedTitle") or row.get("displayName") or ""
            self._say(f"{row.get('key')}  {shortened(str(title), 60)}")

    def _foreign(self, frame: dict[str, Any]) -> None:
        """Prints a reply to a message that was sent from elsewhere, with that message above it."""
        reply = foreign_reply(self._conversation, frame)
        if reply is None:
            return
        asked = [m for m in self._conversation.history(6) if m.get("role") == "user"]
        with self._print_lock:
            self._plain.line("— from elsewhere —", "dim")
            if asked:
                self._plain.user(shortened(message_text(asked[-1]), 300))
            self._plain.markdown(reply)

    def _say(self, text: str) -> None:
        with self._print_lock:
            self._plain.line(text, "dim")

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except UserError as error:
            with self._print_lock:
                self._plain.error(str(error))

    def _in_thread(self, work: Callable[[], None]) -> None:
        # A daemon thread does not keep the chat open; the Gateway finishes the reply and keeps it.
        threading.Thread(target=self._try, args=(work,), daemon=True).start()

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        # While a reply is printed, Ctrl-C comes as a signal. It must not end the chat.
        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            if self._busy:
                self._in_thread(self._abort)
            elif event.current_buffer.text:
                event.current_buffer.reset()
            else:
                self._say("Ctrl-D leaves the chat.")

        return keys


class _Listener:
    """Reads the session's events in a thread and reconnects after each interruption, until it is closed."""

    def __init__(self, conversation: Conversation, heard: Callable[[dict[str, Any]], None]) -> None:
        self._client: Client = conversation.client
        self._key = conversation.key
        self._heard = heard
        self._closed = threading.Event()
        self._exchange: Exchange | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        last: tuple[int, str] | None = None
        while not self._closed.is_set():
            try:
                self._exchange, frames = self._client.events(self._key, last)
                epoch = self._exchange.headers.get("x-openclaw-epoch", "")
                if last is None or last[1] != epoch:
                    # The feed has this session's events only, so the events before it opened need not be asked for.
                    last = int(self._exchange.headers.get("x-openclaw-seq", 0)) if last is None else 0, epoch
                for frame in frames:
                    if self._closed.is_set():
                        return
                    last = max(last[0], int(frame.get("seq") or 0)), epoch
                    self._heard(frame)
            except UserError:
                # The Gateway restarts or is gone. Sending a message reports that; listening tries again.
                pass
            self._closed.wait(RECONNECT_S)

    def close(self) -> None:
        self._closed.set()
        if self._exchange is not None:
            self._exchange.close()


def _history_file() -> str:
    """Returns the path of the private file of past input. Its older half is dropped when it is too large."""
    path = os.path.join(paths.make_private_dir(paths.state_dir()), "chat-history")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with open(descriptor, "r+b") as file:
        if os.fstat(descriptor).st_size > MAX_HISTORY_BYTES:
            file.seek(-MAX_HISTORY_BYTES // 2, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.write(kept[kept.find(b"\n# ") + 1 :])
            file.truncate()
    return path
