from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.cli import turn_stream
from openclaw.cli.markdown_printer import BlockSplitter, MarkdownPrinter
from openclaw.cli.turn_stream import Turn, printer_for, short_result

FENCED = "Look:\n```python\nx = 1\n\ny = 2\n```\nDone.\n"
LIST = "- one\n\n- two\n  more of two\n\n  still two\n\nAfter the list.\n"
TABLE = "| a | b |\n| - | - |\n| 1 | 2 |\n\nAfter the table.\n"


def blocks_of(text: str, *cuts: int) -> list[str]:
    splitter, blocks, last = BlockSplitter(), [], 0
    for cut in [*sorted(cuts), len(text)]:
        blocks += splitter.feed(text[last:cut])
        last = max(last, cut)
    return [*blocks, splitter.finish()]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("One.\n\nTwo.\n", ["One.\n\n", "Two.\n"]),
        ("# Title\nText\n\n", ["# Title\n", "Text\n\n", ""]),
        (FENCED, ["Look:\n", "```python\nx = 1\n\ny = 2\n```\n", "Done.\n"]),
        (LIST, ["- one\n\n- two\n  more of two\n\n  still two\n\n", "After the list.\n"]),
        (TABLE, ["| a | b |\n| - | - |\n| 1 | 2 |\n\n", "After the table.\n"]),
        (
            "1. a\n   ```\n   code\n\n   more\n   ```\n2. b\n\nend\n",
            ["1. a\n   ```\n   code\n\n   more\n   ```\n2. b\n\n", "end\n"],
        ),
        ("- ```\n\n  x\n  ```\n- y\n\nz\n", ["- ```\n\n  x\n  ```\n- y\n\n", "z\n"]),
        ("````\n```\n\n```\n````\nx\n", ["````\n```\n\n```\n````\n", "x\n"]),
        ("~~~\na\n\n```\n~~~\n", ["~~~\na\n\n```\n~~~\n", ""]),
        ("`` `code` ``\nx\n\ny", ["`` `code` ``\nx\n\n", "y"]),
        ("\n\nfirst\n\n", ["\n\nfirst\n\n", ""]),
        ("no newline", ["no newline"]),
    ],
)
def test_a_block_is_shown_when_it_is_finished(text: str, blocks: list[str]) -> None:
    assert blocks_of(text) == blocks


def test_a_finished_paragraph_does_not_wait_for_the_next_one() -> None:
    splitter = BlockSplitter()
    assert splitter.feed("Hello wor") == []
    assert splitter.pending == "Hello wor"
    assert splitter.feed("ld.\n\n") == ["Hello world.\n\n"]


def test_a_code_block_waits_for_its_end() -> None:
    splitter = BlockSplitter()
    assert splitter.feed("```\na\n\nb\n\n") == []
    assert splitter.feed("```\n") == ["```\na\n\nb\n\n```\n"]


LINES = st.sampled_from(
    [
        "",
        "",
        "text",
        "# head",
        "- item",
        "  more",
        "1. one",
        "```",
        "```py",
        "~~~",
        "| a | b |",
        "| - | - |",
        "    code",
        "> q",
        "   ",
    ]
)
MARKDOWN = st.lists(LINES, max_size=25).map("\n".join)


@given(st.one_of(MARKDOWN, st.text()), st.lists(st.integers(0, 200), max_size=8))
def test_blocks_joined_are_the_text_however_it_arrives(text: str, cuts: list[int]) -> None:
    cuts = [min(cut, len(text)) for cut in cuts]
    assert "".join(blocks_of(text, *cuts)) == text
    assert blocks_of(text, *cuts) == blocks_of(text)


@given(st.lists(st.sampled_from(["para\n\n", FENCED, "# h\n", "```\n- x\n\n# y\n```\n"]), min_size=1, max_size=8))
def test_a_fence_is_never_cut_in_two(parts: list[str]) -> None:
    for block in blocks_of("".join(parts)):
        assert block.count("```") % 2 == 0


@given(st.lists(st.sampled_from(["- a\n", "- b\n\n", "  more\n", "- c\n\n  deep\n\n"]), min_size=1, max_size=8))
def test_a_list_is_never_cut_in_two(items: list[str]) -> None:
    text = "- first\n" + "".join(items)
    assert blocks_of(text + "\nAfter.\n")[0] == text + "\n"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    return [line.rstrip() for line in text.splitlines()]


def on_terminal(raw: str) -> list[str]:
    """The lines that a terminal shows after these characters."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\d*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", raw):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part.endswith("A") and part[0] == "\x1b":
            row -= int(part[2:-1])
        elif part[0] != "\x1b":
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def test_words_are_written_in_place_and_replaced_by_the_finished_block(capsys: pytest.CaptureFixture[str]) -> None:
    renderer = MarkdownPrinter(in_place=True)
    for word in ("One ", "**bold** ", f"{'word ' * 20}"):
        renderer.show(turn_stream.TEXT, word)
    raw = capsys.readouterr().out
    draft = on_terminal(raw)
    assert draft[0].startswith("One **bold** word") and len(draft) == 2 and max(map(len, draft)) < 60
    renderer.show(turn_stream.TEXT, "end.\n\n- a")
    raw += capsys.readouterr().out
    assert on_terminal(raw)[-2:] == ["", "- a"]
    assert on_terminal(raw)[0].startswith("One bold word")
    renderer.show(turn_stream.VOID, "")
    renderer.show(turn_stream.NOTE, "overloaded; trying again now")
    raw += capsys.readouterr().out
    assert [line for line in on_terminal(raw) if line][-1] == "overloaded; trying again now"
    assert "- a" not in on_terminal(raw)


def test_the_history_shows_the_beginning_of_a_very_long_message(capsys: pytest.CaptureFixture[str]) -> None:
    MarkdownPrinter().history([{"role": "user", "content": "x" * 50_000}, {"role": "assistant", "content": "read"}])
    shown = capsys.readouterr().out
    assert "(48,000 more characters)" in " ".join(shown.split()) and len(shown) < 3000 and "read" in shown


def test_the_history_shows_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    MarkdownPrinter().history(
        [
            {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "the model is overloaded"},
            {"role": "toolResult", "toolName": "read", "isError": True, "content": "no such file"},
            {"role": "assistant", "content": [{"type": "text", "text": "So far"}], "stopReason": "aborted"},
        ]
    )
    assert shown(capsys) == ["the model is overloaded", "✗ read: no such file", "So far", "stopped"]


def test_blocks_of_one_message_stand_together_with_air_between(capsys: pytest.CaptureFixture[str]) -> None:
    renderer = MarkdownPrinter()
    renderer.show(turn_stream.TEXT, "# Title\n\nOne **bold** word.\n\n- a\n- b\n\nEnd.\n")
    renderer.end_line()
    assert shown(capsys) == ["Title", "", "One bold word.", "", " • a", " • b", "", "End."]


def test_the_final_text_replaces_what_was_only_a_draft(capsys: pytest.CaptureFixture[str]) -> None:
    renderer, turn = MarkdownPrinter(), Turn("r")
    turn.streamed, turn.final_text, turn.state = "draft", "the reply", "final"
    renderer.show(turn_stream.TEXT, "draft")
    renderer.finish(turn)
    lines = shown(capsys)
    assert "the reply" in lines
    assert "draft" not in lines


def test_the_rest_of_the_final_text_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    renderer, turn = MarkdownPrinter(), Turn("r")
    turn.streamed, turn.final_text, turn.state = "Hel", "Hello", "final"
    renderer.show(turn_stream.TEXT, "Hel")
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
    MarkdownPrinter().finish(turn)
    assert shown(capsys) == [line]


def test_markup_in_a_reply_is_text_not_style(capsys: pytest.CaptureFixture[str]) -> None:
    renderer = MarkdownPrinter()
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
    renderer, turn = MarkdownPrinter(), Turn("r")
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
        printer.show(turn_stream.TEXT, "One **bold** word.\n")
        printer.end_line()
        assert [line for line in on_terminal(capsys.readouterr().out) if line] == expected


def test_the_gateway_speaks_plain_text_unless_it_shows_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    renderer = MarkdownPrinter()
    renderer.plain("too_busy_3 *as it is*")
    renderer.plain("Allowed once. Command:\n```\ntouch /tmp/x\n```")
    told = "\n".join(shown(capsys))
    assert "too_busy_3 *as it is*" in told
    assert "touch /tmp/x" in told and "```" not in told
