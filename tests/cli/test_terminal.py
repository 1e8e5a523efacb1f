from __future__ import annotations

import io
import time

import pytest

from openclaw.cli.terminal import fitted, paint, show_progress, working


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_tells_what_it_does_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with working("Searching", after_s=0.01):
        until = time.monotonic() + 60
        while "Searching… 0 s" not in terminal.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert "Searching… 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_pipe_hears_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    with working("Searching", after_s=0.001):
        time.sleep(0.01)
    assert pipe.getvalue() == ""


def test_progress_stays_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    show_progress("Downloading broke off " * 20, "[###] 1/2 MB")
    line = terminal.getvalue().strip("\r").removesuffix("\x1b[K")
    assert len(line) < 80
    assert line.endswith("… [###] 1/2 MB")


def test_long_remarks_are_broken_between_words_and_commands_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    command = "  ln -sf /a/very/long/path/to/somewhere ~/.local/bin/openclaw"
    text = f"one two three four\n{command}\nshort"
    assert fitted(text, 9).split("\n") == ["one two", "three", "four", command, "short"]
    assert fitted("a" * 30, 9) == "a" * 30
    coloured = paint("It answers", "green") + ": yes"
    assert fitted(coloured, 15) == coloured
