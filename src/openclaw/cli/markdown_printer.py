"""Shows a conversation on a terminal: words as they come, Markdown when a block is finished, tool calls as lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.control import Control
from rich.markdown import Heading, Markdown
from rich.segment import ControlType
from rich.text import Text

from openclaw.cli import turn_stream
from openclaw.cli.terminal import wants_color
from openclaw.text import failure_text, printable, shortened

if TYPE_CHECKING:
    from openclaw.cli.answers import MessageAnswer

_FENCE = re.compile(r"(`{3,}|~{3,})(.*)", re.DOTALL)
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
RESULT_CHARS = 300
EARLIER_CHARS = 2000
"""How much of a message of a person is shown when an earlier conversation is opened."""
UNFINISHED_LINES = 200
UNFINISHED_CHARS = 20_000
"""The part of an unfinished block that stays in sight. A terminal shows less."""


class BlockSplitter:
    """Cuts arriving Markdown into blocks that can be printed for good.

    The blocks, joined, are the text. A fence, a list or a table is never cut in two. ``feed`` returns the blocks
    that are complete, ``finish`` the rest.
    """

    def __init__(self) -> None:
        self._line = ""
        self._block: list[str] = []
        self._fence: str | None = None
        self._list = False
        self._blank = False
        """The last complete line of the block is blank."""

    def feed(self, delta: str) -> list[str]:
        finished: list[str] = []
        self._line += delta
        while (end := self._line.find("\n")) >= 0:
            line, self._line = self._line[: end + 1], self._line[end + 1 :]
            self._take(line, finished)
        return finished

    def finish(self) -> str:
        """Returns the text that was not handed out yet, and makes the splitter as new."""
        rest = "".join(self._block) + self._line
        self._line, self._fence = "", None
        self._cut([])
        return rest

    @property
    def pending(self) -> str:
        """The end of the block that is not complete yet."""
        lines = "".join(self._block[-UNFINISHED_LINES:]) + self._line[-UNFINISHED_CHARS:]
        return lines[-UNFINISHED_CHARS:]

    def _take(self, line: str, finished: list[str]) -> None:
        if self._fence is not None:
            self._block.append(line)
            text = line.strip()
            if len(text) >= len(self._fence) and set(text) == {self._fence[0]}:
                self._fence = None
                if not self._list:
                    self._cut(finished)
            return
        if not line.strip():
            self._block.append(line)
            self._blank = True
            # A list may go on after a blank line. Any other block with text in it ends here.
            if not self._list and self._has_text():
                self._cut(finished)
            return
        starts_list = _ITEM.match(line) is not None
        if self._list and self._blank and not starts_list and line[0] not in " \t":
            self._cut(finished)
        fence = _opens(line, in_list=self._list or starts_list)
        if not self._list and (_HEADING.match(line) or starts_list or fence) and self._has_text():
            self._cut(finished)
        self._block.append(line)
        self._blank = False
        self._list = self._list or starts_list
        self._fence = fence
        if not self._list and fence is None and _HEADING.match(line):
            self._cut(finished)

    def _has_text(self) -> bool:
        return any(line.strip() for line in self._block)

    def _cut(self, finished: list[str]) -> None:
        if self._block:
            finished.append("".join(self._block))
        self._block, self._list, self._blank = [], False, False


def _opens(line: str, *, in_list: bool) -> str | None:
    """Returns the fence that a line opens. In a list the fence may be indented or follow the item's mark."""
    text = line
    if in_list:
        while (item := _ITEM.match(text)) and item.end() > 0:
            text = text[item.end() :]
        text = text.lstrip(" \t")
    else:
        text = text.lstrip(" ")
        if len(line) - len(text) > 3:
            return None
    match = _FENCE.match(text)
    if match is None or (match[1][0] == "`" and "`" in match[2]):
        return None
    return match[1]


class _Heading(Heading):
    """A heading on the left; rich centres it, which looks lost in a wide terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str) -> None:
        super().__init__(printable(text), hyperlinks=False, code_theme="ansi_dark")
        # "&#27;" is only text until Markdown is parsed, and a control character after that.
        tokens = list(self.parsed)
        while tokens:
            token = tokens.pop()
            token.content, token.info = printable(token.content), printable(token.info)
            token.attrs = {name: printable(str(value)) for name, value in token.attrs.items()}
            tokens += token.children or ()


class MarkdownPrinter:
    """Prints a conversation: each block of a reply for good once it is finished.

    ``in_place`` writes the words of an unfinished block as they come, and replaces them by the finished block. A chat
    leaves it off and shows ``unfinished`` beside its input line.
    """

    def __init__(self, *, in_place: bool = False) -> None:
        self._splitter = BlockSplitter()
        self._in_place = in_place
        self._drawn = 0
        """How many lines of the unfinished block stand on the terminal."""
        self._after_block = False
        """Whether a block of text was printed last; the next block then needs a blank line before it."""
        # Without a file the console uses the current sys.stdout, which the prompt replaces.
        self._console = Console(force_terminal=True, no_color=not wants_color(), highlight=False)

    def unfinished(self, width: int, rows: int) -> list[str]:
        """The last lines of the block that is not complete yet, as the model writes them."""
        text = printable(self._splitter.pending).strip("\n")
        if not text or rows < 1:
            return []
        lines = Text(text).wrap(self._console, max(1, width), tab_size=4)
        return [line.plain for line in lines][-rows:]

    def show(self, kind: str, text: str) -> None:
        if kind == turn_stream.TEXT:
            with self._console:
                for block in self._splitter.feed(printable(text)):
                    self.markdown(block)
                if self._in_place:
                    self._draw()
        elif kind == turn_stream.BREAK:
            self.end_line()
        elif kind == turn_stream.VOID:
            self.begin_again()
        elif kind == turn_stream.TOOL:
            self.end_line()
            self.line(f"⚙ {text}", "dim")
        elif kind == turn_stream.RESULT:
            for line in turn_stream.short_result(text):
                self.line(f"  {line}", "dim")
        elif kind == turn_stream.FAILED:
            self.line(f"✗ {shortened(printable(text), RESULT_CHARS)}", "red")
        elif kind == turn_stream.NOTE:
            self.line(text, "dim")

    def _draw(self) -> None:
        """Write the unfinished block again. One column stays free, so that the terminal itself never wraps a line."""
        lines = self.unfinished(self._console.width - 1, self._console.height - 2)
        self._erase()
        if lines:
            before = [""] if self._after_block else []
            self._console.print(Text("\n".join([*before, *lines])), end="")
            self._drawn = len(before) + len(lines)

    def _erase(self) -> None:
        if self._drawn:
            line_above = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
            this_line = (ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
            self._console.control(Control(*this_line, *(line_above * (self._drawn - 1))))
            self._drawn = 0

    def _print(self, shown: RenderableType) -> None:
        self._erase()
        self._console.print(shown)

    def end_line(self) -> None:
        """Prints the rest of the current message."""
        with self._console:
            self._erase()
            self.markdown(self._splitter.finish())

    def begin_again(self) -> None:
        """Forgets the unfinished block, because its message comes once more."""
        self._splitter.finish()
        self._erase()

    def finish(self, turn: turn_stream.Turn) -> None:
        """Ends a turn: prints what is missing of the final message, and the error if there was one."""
        rest = turn.rest()
        if turn.from_gateway:
            self.end_line()
            self.plain(rest if rest is not None else turn.final_text or "")
        elif rest is None:
            self.begin_again()
            if not turn.attached_again:
                self.line("(the final reply differs from what was streamed)", "dim")
            self.markdown(turn.final_text or "")
        else:
            self.show(turn_stream.TEXT, rest)
            self.end_line()
        if turn.state == "aborted":
            self.line("stopped", "yellow")
        elif turn.error:
            self.error(turn.error)
        elif turn.queued:
            self.line("answered together with another message", "dim")

    def markdown(self, text: str) -> None:
        if not text.strip():
            return
        # A list brings its own blank line.
        if self._after_block and not _ITEM.match(text.lstrip("\r\n")):
            self._print("")
        self._print(_Markdown(text))
        self._after_block = True

    def plain(self, text: str) -> None:
        """Prints lines as they are, because the Gateway's own tables and lists are not Markdown; a code block is."""
        if "```" in text:
            self.markdown(text)
        elif text.strip():
            self._print(Text(printable(text).strip("\n")))
            self._after_block = True

    def line(self, text: str, style: str = "") -> None:
        self._print(Text(printable(text), style=style))
        self._after_block = False

    def error(self, message: str) -> None:
        self.line(message, "red")

    def history(self, messages: list[MessageAnswer]) -> None:
        for message in messages:
            role, text = message.get("role"), turn_stream.message_text(message)
            if role == "user" and text.strip():
                more = len(text) - EARLIER_CHARS
                self.user(text if more <= 0 else f"{text[:EARLIER_CHARS]}… ({more:,} more characters)")
            elif role == "assistant":
                self._assistant(message)
            elif role == "toolResult" and (message.get("isError") or failure_text(text) != text):
                self.show(turn_stream.FAILED, f"{message.get('toolName') or 'tool'}: {failure_text(text) or 'failed'}")
            elif role == "system" and text:
                self.line(f"— {text} —", "dim")

    def user(self, text: str) -> None:
        self.line(f"› {text}", "bold cyan")

    def _assistant(self, message: MessageAnswer) -> None:
        if turn_stream.is_from_gateway(message):
            self.plain(turn_stream.message_text(message))
            return
        content = message.get("content")
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if block.get("type") == "text":
                self.markdown(str(block.get("text") or ""))
            elif block.get("type") in ("toolCall", "tool_use"):
                arguments = block.get("arguments", block.get("input"))
                self.line(f"⚙ {turn_stream.tool_line(str(block.get('name')), arguments)}", "dim")
        if message.get("stopReason") == "aborted":
            self.line("stopped", "yellow")
        elif message.get("stopReason") == "error":
            self.error(shortened(str(message.get("errorMessage") or "the run failed"), RESULT_CHARS))
