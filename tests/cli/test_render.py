from __future__ import annotations

import pytest

from openclaw.cli import turn as turns
from openclaw.cli.render import Renderer
from openclaw.cli.stream import printer_for
from openclaw.cli.turn import Turn, short_result


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    import re

    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    return [line.rstrip() for line in text.splitlines()]


def test_blocks_of_one_message_stand_together_with_air_between(capsys: pytest.CaptureFixture[str]) -> None:
    renderer = Renderer()
    renderer.show(turns.TEXT, "# Title\n\nOne **bold** word.\n\n- a\n- b\n\nEnd.\n")
    renderer.flush()
    assert shown(capsys) == ["Title", "", "One bold word.", "", " • a", " • b", "", "End."]


def test_the_final_text_replaces_what_was_only_a_draft(capsys: pytest.CaptureFixture[str]) -> None:
    renderer, turn = Renderer(), Turn("r")
    turn.streamed, turn.final_text, turn.state = "draft", "the reply", "final"
    renderer.show(turns.TEXT, "draft")
    renderer.finish(turn)
    lines = shown(capsys)
    assert "the reply" in lines
    assert "draft" not in lines


def test_the_rest_of_the_final_text_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    renderer, turn = Renderer(), Turn("r")
    turn.streamed, turn.final_text, turn.state = "Hel", "Hello", "final"
    renderer.show(turns.TEXT, "Hel")
    renderer.finish(turn)
    assert shown(capsys) == ["Hello"]


@pytest.mark.parametrize(
    ("state", "error", "line"),
    [("aborted", None, "stopped"), ("error", "the model is overloaded", "the model is overloaded")],
)
def test_the_end_of_a_turn_is_said(
    capsys: pytest.CaptureFixture[str], state: str, error: str | None, line: str
) -> None:
    turn = Turn("r")
    turn.state, turn.error = state, error
    Renderer().finish(turn)
    assert shown(capsys) == [line]


def test_markup_in_a_reply_is_text_not_style(capsys: pytest.CaptureFixture[str]) -> None:
    renderer = Renderer()
    renderer.line("[red]not red[/red] [link=http://x]y[/link]")
    assert shown(capsys) == ["[red]not red[/red] [link=http://x]y[/link]"]


def test_tool_results_are_shortened() -> None:
    assert short_result("a\n\nb") == ["a", "b"]
    assert short_result("\n".join("12345")) == ["1", "2", "3", "… 2 more lines"]
    assert len(short_result("x" * 5000)[0]) == 120
    assert short_result("") == []


def test_lines_of_the_gateways_own_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    card = "Model: mock\nContext: 3k\n\n- AGENTS.md: OK | raw 12\n- SOUL.md: MISSING"
    message = {"role": "assistant", "model": "gateway-injected", "content": [{"type": "text", "text": card}]}
    renderer, turn = Renderer(), Turn("r")
    turn.digest({"type": "event", "event": "chat", "payload": {"runId": "r", "state": "final", "message": message}})
    renderer.finish(turn)
    renderer.history([message])
    assert shown(capsys) == [*card.splitlines(), *card.splitlines()]


def test_a_reply_on_a_terminal_is_rendered_and_into_a_pipe_it_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for tty, expected in ((True, ["One bold word."]), (False, ["One **bold** word."])):
        monkeypatch.setattr("sys.stdout.isatty", lambda tty=tty: tty)
        printer = printer_for(quiet=False)
        printer.show(turns.TEXT, "One **bold** word.\n")
        printer.end_line()
        assert shown(capsys) == expected
