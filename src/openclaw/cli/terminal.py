"""Output to a terminal: colours where they are wanted, and nothing else that a terminal obeys.

``guarded`` puts a stream between each command and the terminal. So a name, a reply or an error from outside cannot
control the terminal, whichever line of whichever command prints it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys

from openclaw.text import printable, printable_json, redact_urls, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Any, TextIO

_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
_MARK = f"\ufdd0{os.urandom(8).hex()}"
"""Stands for the beginning of a colour until the guard puts the terminal's code there. Nobody else can know it."""
_COLOUR = re.compile(f"({_MARK}[0-9]{{1,2}}m)")


def wants_color(stream: TextIO | None = None) -> bool:
    output = sys.stdout if stream is None else stream
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and output.isatty()


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    return f"{_MARK}{_CODES[style]}m{text}{_MARK}0m" if wants_color(stream) else text


class Guard:
    """A stream that lets text and our own colours through."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.rich_proxied_file = stream
        """Rich writes here. It makes its own colours, and ``MarkdownPrinter`` gives it safe text only."""

    def write(self, text: str) -> int:
        parts = _COLOUR.split(text)
        parts[::2] = map(printable, parts[::2])
        parts[1::2] = [f"\x1b[{part.removeprefix(_MARK)}" for part in parts[1::2]]
        self._stream.write("".join(parts))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def guarded() -> Generator[None, None, None]:
    before: Any = (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = Guard(before[0]), Guard(before[1])  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def show_progress(text: str, bar: str = "") -> None:
    """Replaces the last line of the terminal on stderr. Text that does not fit on it before the bar is cut."""
    stream: TextIO = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    room = max(20, _columns() - len(bar) - 2)
    stream.write(f"\r{' '.join(part for part in (shortened(printable(text), room), bar) if part)}\x1b[K")
    stream.flush()


@contextlib.contextmanager
def working(what: str, after_s: float = 1.0) -> Generator[None, None, None]:
    """Shows on the terminal what is being done and for how long, if it takes more than a moment."""
    if not sys.stderr.isatty():
        yield
        return
    import threading
    import time

    began, done = time.monotonic(), threading.Event()

    def tell() -> None:
        while not done.wait(after_s):
            show_progress(f"{what}… {int(time.monotonic() - began)} s")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        if time.monotonic() - began >= after_s:
            show_progress("")


class CountedWork:
    """Progress on the terminal, n of m, of work that takes more than a moment. Use it in a ``with``."""

    def __init__(self, what: str, after_s: float = 1.0) -> None:
        import time

        self._what = what
        self._shown = False
        self._now = time.monotonic
        self._from = self._now() + after_s

    def tell(self, done: int, total: int) -> None:
        if sys.stderr.isatty() and self._now() >= self._from:
            show_progress(f"{self._what}: {done} of {total} ({100 * done // max(total, 1)}%)")
            self._shown = True

    def __enter__(self) -> CountedWork:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            show_progress("")


def print_json(value: Any, *, indent: int | None = 2) -> None:
    import json

    sys.stdout.write(printable_json(json.dumps(value, indent=indent, ensure_ascii=False)) + "\n")


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Prints text that may be coloured and may hold addresses. Passwords and keys in addresses are masked."""
    parts = _COLOUR.split(text)
    parts[::2] = map(redact_urls, parts[::2])
    (stream or sys.stdout).write("".join(parts) + "\n")


def note(text: str) -> None:
    """Writes a remark to stderr, apart from the output that a script reads. A terminal gets lines that fit it."""
    sys.stderr.write((fitted(text, _columns()) if sys.stderr.isatty() else text) + "\n")
    sys.stderr.flush()


def fitted(text: str, columns: int) -> str:
    """Breaks long lines between words. An indented line is left whole: it is a command or a path to be copied."""
    lines: list[str] = []
    for line in text.split("\n"):
        if line[:1] == " " or len(_COLOUR.sub("", line)) <= columns:
            lines.append(line)
            continue
        room = -1
        for word in line.split(" "):
            size = len(_COLOUR.sub("", word)) + 1
            if size > room:
                lines.append(word)
                room = columns - size + 1
            else:
                lines[-1] += f" {word}"
                room -= size
    return "\n".join(lines)


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
