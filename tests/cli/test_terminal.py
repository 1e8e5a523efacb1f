from __future__ import annotations

import io
import time

import pytest

from openclaw.cli.terminal import working


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
