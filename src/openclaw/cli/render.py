"""Shows a conversation on a terminal: Markdown by finished blocks, tools as progress lines, errors in plain words."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.text import Text

from openclaw.cli import turn as turns
from openclaw.cli.blocks import BlockSplitter, starts_list
from openclaw.cli.terminal import printable, shorten, wants_color

RESULT_CHARS = 300


class _Heading(Heading):
    """On the left, where the eye is: replies are short, and centred titles look lost in a wide terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements = {**Markdown.elements, "heading_open": _Heading}


class Renderer:
    """Prints to the terminal as it is when it prints, so that a prompt may stand below."""

    def __init__(self) -> None:
        self._splitter = BlockSplitter()
        self._after_block = False
        """The last thing printed was a block of text: the next one needs a blank line between."""
        colour = wants_color()
        # No file is given: the console then takes the sys.stdout of the moment, which the prompt replaces.
        self._console = Console(force_terminal=True, no_color=not colour, highlight=False)

    @property
    def preview(self) -> str:
        """The end of the block that is still arriving."""
        return shorten(printable(self._splitter.pending)[-200:], 60)

    def show(self, kind: str, text: str) -> None:
        if kind == turns.TEXT:
            for block in self._splitter.feed(printable(text)):
                self.markdown(block)
        elif kind == turns.BREAK:
            self.flush()
        elif kind == turns.TOOL:
            self.flush()
            self.line(f"⚙ {text}", "dim")
        elif kind == turns.RESULT:
            for line in turns.short_result(text):
                self.line(f"  {line}", "dim")
        elif kind == turns.FAILED:
            self.line(f"✗ {shorten(printable(text), RESULT_CHARS)}", "red")
        elif kind == turns.NOTE:
            self.line(text, "dim")

    def flush(self) -> None:
        """Prints what is still pending of the current message."""
        self.markdown(self._splitter.finish())

    def drop(self) -> None:
        self._splitter.finish()

    def finish(self, turn: turns.Turn) -> None:
        """The end of a turn: what stands on the screen is the final message, and what went wrong is said."""
        rest = turn.rest()
        if turn.from_gateway:
            self.flush()
            self.plain(rest if rest is not None else turn.final_text or "")
        elif rest is None:
            self.drop()
            self.line("(the final reply differs from what was streamed)", "dim")
            self.markdown(printable(turn.final_text or ""))
        else:
            self.show(turns.TEXT, rest)
            self.flush()
        if turn.state == "aborted":
            self.line("stopped", "yellow")
        elif turn.error:
            self.error(turn.error)
        elif turn.queued:
            self.line("queued behind the current run", "dim")

    def markdown(self, text: str) -> None:
        if not text.strip():
            return
        if self._after_block and not starts_list(text):  # lists bring their own blank line
            self._console.print()
        self._console.print(_Markdown(text, hyperlinks=False, code_theme="ansi_dark"))
        self._after_block = True

    def plain(self, text: str) -> None:
        """Lines as they are: a table or a list of the Gateway's own is not Markdown."""
        if text.strip():
            self._console.print(Text(printable(text).strip("\n")))
            self._after_block = True

    def line(self, text: str, style: str = "") -> None:
        self._console.print(Text(printable(text), style=style))
        self._after_block = False

    def error(self, message: str) -> None:
        self.line(message, "red")

    def history(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            role, text = message.get("role"), turns.message_text(message)
            if role == "user" and text.strip():
                self.user(text)
            elif role == "assistant":
                self._assistant(message)
            elif role == "system" and text:
                self.line(f"— {text} —", "dim")

    def user(self, text: str) -> None:
        self.line(f"› {text}", "bold cyan")

    def _assistant(self, message: dict[str, Any]) -> None:
        if turns.is_from_gateway(message):
            self.plain(turns.message_text(message))
            return
        content = message.get("content")
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if block.get("type") == "text":
                self.markdown(printable(str(block.get("text") or "")))
            elif block.get("type") in ("toolCall", "tool_use"):
                arguments = block.get("arguments", block.get("input"))
                self.line(f"⚙ {turns.tool_line(str(block.get('name')), arguments)}", "dim")
