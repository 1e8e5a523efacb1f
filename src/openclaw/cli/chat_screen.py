"""The chat on a terminal: an input line that stays usable while replies are printed above it."""

from __future__ import annotations

import asyncio
import os
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from openclaw import paths
from openclaw.cli.chat import LEAVE, Conversation, entry_of, foreign_reply
from openclaw.cli.client import Exchange, GatewayClient
from openclaw.cli.command import UserError
from openclaw.cli.markdown_printer import MarkdownPrinter
from openclaw.cli.turn_stream import READ_FOR_ONE, Turn, message_text, recent
from openclaw.text import printable, shortened

if TYPE_CHECKING:
    from openclaw.cli.answers import ConversationAnswer, StreamFrame

MAX_HISTORY_BYTES = 1_000_000
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
RECONNECT_S = 2.0
MOST_WAITING_SHOWN = 5
USAGE_COLUMN = 30
PRINTING_S = 30
"""How long the end of a reply may take to be printed, at most."""
KEYS = """\
Enter           send; Alt-Enter (or Esc, then Enter) starts a new line
Tab             complete a command; Ctrl-R finds an earlier line
Ctrl-C          stop the running reply; otherwise empty the line (Up brings it back)
Ctrl-D, /exit   leave; the Gateway goes on"""
OWN_COMMANDS = {
    "/help": "this list",
    "/sessions": "list the sessions",
    "/session KEY": "switch to another session",
    "/abort": "stop the running reply",
    "/exit": "leave; the Gateway goes on",
}
"""What the chat does itself. The Gateway names its own commands."""


class Sent:
    """A message of this chat that has no end yet."""

    def __init__(self, text: str, turn: Turn, earlier: list[Sent]) -> None:
        self.text = text
        self.turn = turn
        self.earlier = earlier
        """What had no end when this was sent."""
        self.ended = threading.Event()
        self.renderer = MarkdownPrinter()
        self.began = time.monotonic()
        self.printed = False
        """Whether the message stands above the input line. Until then it stands beside it, as one that waits."""


class ChatScreen:
    """The prompt and the threads that print replies. One lock keeps their lines from being mixed."""

    def __init__(self, conversation: Conversation, history: int) -> None:
        self._conversation = conversation
        self._history = history
        self._print_lock = threading.RLock()
        self._plain = MarkdownPrinter()
        self._sent: dict[int, Sent] = {}
        """The messages without an end yet, in the order of sending."""
        self._listener: _Listener | None = None
        self._commands = _Commands(conversation.client)
        self._prompt: PromptSession[str] = PromptSession(
            history=FileHistory(_history_file()),
            multiline=True,
            key_bindings=self._keys(),
            prompt_continuation="  ",
            refresh_interval=0.2,
            # What was typed is printed with its place in the conversation; the status lines above it go.
            erase_when_done=True,
            completer=self._commands,
            complete_while_typing=Condition(lambda: self._prompt.default_buffer.text.startswith("/")),
            reserve_space_for_menu=6,
        )

    def run(self) -> int:
        asyncio.run(self._loop())
        return 0

    async def _loop(self) -> None:
        with patch_stdout(raw=True):
            self._open()
            self._try(self._commands.load)
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
        self._plain.line(f"session {self._conversation.key} · /help for help", "dim")
        try:
            view = self._conversation.view(self._history * READ_FOR_ONE)
        except UserError as error:
            self._plain.error(str(error))
        else:
            messages = [one for one in view.get("messages") or [] if isinstance(one, dict)]
            self._plain.history(recent(messages, self._history))
            self._under_way(view, {entry_of(one) for one in messages})
        self._listener = _Listener(self._conversation, self._foreign)

    def _under_way(self, view: ConversationAnswer, listed: set[str]) -> None:
        """Tells what the session is busy with. The replies come through the feed."""
        run = view.get("run") or {}
        said = run.get("said") or {}
        if (text := said.get("text")) and said.get("id") not in listed:
            self._plain.user(text)
        if run:
            self._plain.line("a reply is being written; it appears here", "dim")
        for waiting in view.get("waiting") or []:
            self._plain.line(f"⋯ waits: {shortened(str(waiting.get('text') or ''), 60)}", "dim")

    def _message(self) -> FormattedText:
        """Return the text before the cursor: arriving reply, status line, waiting messages and prompt mark."""
        size = self._prompt.output.get_size()
        sent = list(self._sent.values())
        running = [one for one in sent if one.printed and not one.turn.waiting]
        waiting = [one for one in sent if one not in running]
        grey, lines = "fg:ansibrightblack", FormattedText()
        if running:
            now = running[-1]
            room = (
                size.rows - 4 - min(len(waiting), MOST_WAITING_SHOWN + 1) - self._prompt.default_buffer.text.count("\n")
            )
            lines += [("", f"{line}\n") for line in now.renderer.unfinished(size.columns - 1, room)]
            seconds = int(time.monotonic() - now.began)
            spinner = FRAMES[int(time.monotonic() * 8) % len(FRAMES)]
            lines.append((grey, f"{spinner} {printable(now.turn.doing)} {seconds}s · Ctrl-C stops\n"))
        for one in waiting[:MOST_WAITING_SHOWN]:
            lines.append((grey, f"⋯ waits: {printable(shortened(one.text, max(20, size.columns - 12)))}\n"))
        if len(waiting) > MOST_WAITING_SHOWN:
            lines.append((grey, f"⋯ and {len(waiting) - MOST_WAITING_SHOWN} more\n"))
        lines.append(("bold", "› "))
        return lines

    def _command(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if word in ("/help", "/abort", "/sessions", "/session"):
            with self._print_lock:
                self._plain.user(text)
        if text == "/help":
            self._in_thread(self._help)
        elif text == "/abort":
            self._in_thread(self._abort)
        elif text == "/sessions":
            self._in_thread(self._list_sessions)
        elif word == "/session" and rest.strip():
            self._try(lambda: self._conversation.switch(rest.strip()))
            self._open()
        else:
            turn, updates = self._conversation.send(text)
            sent = Sent(text, turn, list(self._sent.values()))
            if not self._sent:
                self._show_sent(sent)
            self._sent[id(sent)] = sent
            self._in_thread(lambda: self._turn(sent, updates))

    def _show_sent(self, sent: Sent) -> None:
        if not sent.printed:
            if sent.turn.waited and not sent.turn.queued:
                # Its run began after the earlier ones had ended; their threads may still be printing.
                for one in sent.earlier:
                    one.ended.wait(PRINTING_S)
            sent.earlier = []
            sent.printed, sent.began = True, time.monotonic()
            with self._print_lock:
                sent.renderer.user(sent.text)

    def _turn(self, sent: Sent, updates: Iterator[tuple[str, str]]) -> None:
        turn, renderer = sent.turn, sent.renderer
        try:
            for kind, shown in updates:
                if not turn.waiting:
                    self._show_sent(sent)
                with self._print_lock:
                    renderer.show(kind, shown)
                self._prompt.app.invalidate()
            self._show_sent(sent)
            with self._print_lock:
                renderer.finish(turn)
        except UserError as error:
            self._show_sent(sent)
            with self._print_lock:
                renderer.end_line()
                renderer.error(str(error))
                if turn.accepted is None and not turn.attached_again:
                    renderer.line("The message was not accepted. Up brings it back.", "dim")
        finally:
            self._sent.pop(id(sent), None)
            sent.ended.set()
            self._prompt.app.invalidate()

    def _help(self) -> None:
        self._commands.load()
        with self._print_lock:
            self._plain.plain(KEYS)
            columns = self._prompt.output.get_size().columns
            self._plain.plain("\n".join(help_lines(self._commands.listed(), columns)))

    def _abort(self) -> None:
        if not self._conversation.abort():
            self._say("nothing is running")

    def _list_sessions(self) -> None:
        listed = self._conversation.client.call("sessions.list", {"limit": 20, "includeDerivedTitles": True})
        for row in listed.get("sessions") or []:
            title = row.get("label") or row.get("derivedTitle") or row.get("displayName") or ""
            self._say(f"{row.get('key')}  {shortened(str(title), 60)}")

    def _foreign(self, frame: StreamFrame) -> None:
        """Prints a reply that this chat did not ask for, below the message that it answers if a person wrote one."""
        found = foreign_reply(self._conversation, frame)
        if found is None:
            return
        run_id, reply = found
        view = self._conversation.view(20, run_id)
        asked = [
            one
            for one in view.get("messages") or []
            if one.get("role") == "user" and entry_of(one) == view.get("asked")
        ]
        with self._print_lock:
            if asked:
                self._plain.line("— from elsewhere —", "dim")
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
        # While an earlier line is looked for with Ctrl-R, these keys belong to the search.
        typing = has_focus(DEFAULT_BUFFER)

        @keys.add("enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        # While a reply is printed, Ctrl-C comes as a signal. It must not end the chat.
        @keys.add("c-c", filter=typing)
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            buffer = self._prompt.default_buffer
            if self._sent:
                self._in_thread(self._abort)
            elif buffer.text:
                buffer.reset(append_to_history=True)
                # Otherwise the history is only read with the next drawing, and an Up before it finds nothing.
                buffer.load_history_if_not_yet_loaded()
            else:
                self._say("Ctrl-D leaves the chat.")

        return keys


def help_lines(commands: list[tuple[str, str]], columns: int) -> Iterator[str]:
    """The commands in two columns. A usage that is too long for the first has a line of its own, whole."""
    for usage, help in commands:
        if len(usage) > USAGE_COLUMN:
            yield usage
            usage = ""
        first, rest = f"{usage:<{USAGE_COLUMN}} ", " " * (USAGE_COLUMN + 1)
        yield from textwrap.wrap(help, max(columns, 50), initial_indent=first, subsequent_indent=rest)


class _Commands(Completer):
    """The commands that may be written in this chat: its own and the Gateway's."""

    def __init__(self, client: GatewayClient) -> None:
        self._client = client
        self._known: dict[str, str] = dict(OWN_COMMANDS)

    def load(self) -> None:
        rows = self._client.call("chat.commands").get("commands") or []
        theirs = {f"/{row.get('name')} {row.get('usage') or ''}".strip(): str(row.get("help") or "") for row in rows}
        own = {usage.split()[0] for usage in OWN_COMMANDS}
        self._known = {**OWN_COMMANDS, **{usage: help for usage, help in theirs.items() if usage.split()[0] not in own}}

    def listed(self) -> list[tuple[str, str]]:
        return sorted(self._known.items())

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or " " in text or "\n" in text:
            return
        for usage, help in self.listed():
            name = usage.split()[0]
            if name.startswith(text):
                yield Completion(printable(name), -len(text), display_meta=printable(shortened(help, 60)))


class _Listener:
    """Reads the session's events in a thread and reconnects after each interruption, until it is closed."""

    def __init__(self, conversation: Conversation, heard: Callable[[StreamFrame], None]) -> None:
        self._client: GatewayClient = conversation.client
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
