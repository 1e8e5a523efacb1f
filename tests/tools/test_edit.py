"""What the model reads of ``edit``, and what becomes of the file."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from openclaw.messages import TextBlock
from openclaw.path_opener import PathOpener, PathRefused
from openclaw.tools.arguments import validate_arguments
from openclaw.tools.base import ToolContext, ToolError, ToolResult
from openclaw.tools.edit import EditedText, EditTool, Replacement, TextSpan, edit_text, locate, reindented


def text_of(result: ToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextBlock)
    return block.text


def changed_text(text: str, old: str, new: str, *, every: bool = False) -> EditedText:
    return edit_text(text, [Replacement(old, new, every)], "f")


@pytest.fixture
def editor(workspace: Path) -> EditTool:
    return EditTool(PathOpener(workspace, confine=True))


async def edit(editor: EditTool, context: ToolContext, content: str, old: str, new: str) -> bytes:
    path = context.workspace / "f.txt"
    path.write_bytes(content.encode())
    await editor.run({"path": "f.txt", "oldText": old, "newText": new}, context)
    return path.read_bytes()


async def test_one_passage_is_replaced_and_described(editor: EditTool, context: ToolContext) -> None:
    (context.workspace / "f.txt").write_text("one\ntwo\nthree")
    result = await editor.run({"file_path": "f.txt", "old_string": "two", "new_string": "TWO"}, context)
    assert text_of(result) == "Edited f.txt (1 replacement).\n 1 one\n-2 two\n+2 TWO\n 3 three"
    assert result.details == {"diff": " 1 one\n-2 two\n+2 TWO\n 3 three", "firstChangedLine": 2}
    assert (context.workspace / "f.txt").read_text() == "one\nTWO\nthree"


async def test_the_diff_shows_four_lines_around_and_numbers_them(editor: EditTool, context: ToolContext) -> None:
    text = "\n".join(f"l{n}" for n in range(1, 21))
    (context.workspace / "f.txt").write_text(text)
    result = await editor.run({"path": "f.txt", "oldText": "l10\nl11\n", "newText": "l10\nnew\nnewer\n"}, context)
    expected = [" 8 l8", " 9 l9", " 10 l10", "-11 l11", "+11 new", "+12 newer", " 12 l12", " 13 l13"]
    rows = result.details["diff"].split("\n")
    assert [row.replace("  ", " ") for row in rows[2:-3]] == expected
    assert (len(rows), result.details["firstChangedLine"]) == (13, 11)


async def test_an_empty_new_text_deletes(editor: EditTool, context: ToolContext) -> None:
    assert await edit(editor, context, "a\nb\nc\n", "b\n", "") == b"a\nc\n"


async def test_an_ambiguous_passage_is_refused_with_its_count(editor: EditTool, context: ToolContext) -> None:
    with pytest.raises((ToolError, PathRefused), match=r"^Found 33000 occurrences"):
        await edit(editor, context, "ab\n" * 33_000, "ab", "x")
    with pytest.raises((ToolError, PathRefused), match=r"^Found 2 occurrences"):
        await edit(editor, context, "aaa", "aa", "x")
    with pytest.raises((ToolError, PathRefused), match=r"^Found 2 occurrences"):
        await edit(editor, context, "“a”  \n„a‟", '"a"', "x")
    assert (context.workspace / "f.txt").read_text() == "“a”  \n„a‟"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("zzz", "y", "Could not find oldText in f.txt"),
        ("two", "two", "No changes made to f.txt"),
        ("", "x", "oldText is empty"),
        ("  ", "x", "Could not find"),
    ],
)
async def test_an_edit_that_cannot_be_meant_is_refused(
    editor: EditTool, context: ToolContext, old: str, new: str, problem: str
) -> None:
    with pytest.raises((ToolError, PathRefused), match=problem):
        await edit(editor, context, "one\ntwo\n", old, new)


async def test_missing_files_and_parameters_are_named(editor: EditTool, context: ToolContext) -> None:
    with pytest.raises((ToolError, PathRefused), match=r"^File not found: zz$"):
        await editor.run({"path": "zz", "oldText": "a", "newText": "b"}, context)
    with pytest.raises(
        (ToolError, PathRefused), match=r"Missing required parameter: newText \(newText or new_string\)"
    ):
        await editor.run({"path": "zz", "oldText": "a"}, context)
    (context.workspace / "latin").write_bytes(b"caf\xe9")
    with pytest.raises((ToolError, PathRefused), match="not UTF-8"):
        await editor.run({"path": "latin", "oldText": "caf", "newText": "b"}, context)


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("\ufeffa\r\nb\r\nc", "a\nb", "x\ny", "\ufeffx\r\ny\r\nc"),
        ("a\r\nb\nc\r\n", "b", "x\ny", "a\r\nx\r\ny\nc\r\n"),
        ("a\nb\n", "a\r\nb", "x\r\ny", "x\ny\n"),
        ("say “hi”  \nkept “q”  \n", 'say "hi"', "bye", "bye  \nkept “q”  \n"),
        ("if x:   \n    go()\t\nend – here\n", "if x:\n    go()\n", "pass\n", "pass\nend – here\n"),
        ("a\u00a0b \r\n“c”\r\n", 'a b\n"c"\n', "x\n", "x\r\n"),
        ("f(‘x’) + 1", "f('x') ", "g() ", "g() + 1"),
        ("f(‘x’)   \nnext", "f('x') ", "g()", "g()\nnext"),
    ],
    ids=[
        "bom-and-crlf",
        "mixed-endings",
        "crlf-in-request",
        "quotes",
        "trailing-blanks",
        "nbsp-crlf",
        "blank-inside-line",
        "blank-at-line-end",
    ],
)
async def test_only_the_passage_changes_whatever_the_file_looks_like(
    editor: EditTool, context: ToolContext, text: str, old: str, new: str, expected: str
) -> None:
    assert await edit(editor, context, text, old, new) == expected.encode()


alphabet = st.text(alphabet="ab \n\r\t“”'\"–-\u00a0é", max_size=40)


@example("0", "\r\n", "", "")
@example("a", "\r\nb", "", "c")
@given(alphabet, alphabet, alphabet, alphabet)
def test_an_exact_unique_passage_is_replaced_exactly(before: str, old: str, after: str, new: str) -> None:
    text = before + old + after
    plain, needle = text.replace("\r\n", "\n"), old.replace("\r\n", "\n")
    assume(needle and text.find(old) == len(before) and plain.find(needle, plain.find(needle) + 1) < 0)
    # A line end cut in two by the passage is not something a model can name.
    assume(not (before.endswith("\r") and old.startswith("\n")) and not (old.endswith("\r") and after[:1] == "\n"))
    assert locate(text, old).spans == [TextSpan(len(before), len(before) + len(old))]
    expected_new = new.replace("\r\n", "\n")
    newline = text.find("\n")
    if newline > 0 and text[newline - 1] == "\r":
        expected_new = expected_new.replace("\n", "\r\n")
    assume(expected_new != old)
    change = changed_text(text, old, new)
    assert change.after == before + expected_new + after
    assert change.first_changed_line >= 1


@given(alphabet, alphabet)
def test_a_passage_is_never_misplaced(text: str, old: str) -> None:
    for every in (False, True):
        spans = locate(text, old, every=every).spans
        assert all(0 <= span.start < span.end <= len(text) for span in spans)
        if every:
            assert all(one.end <= other.start for one, other in pairwise(spans))


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=2, max_size=8, unique=True), st.data())
def test_trailing_blanks_and_line_ends_elsewhere_survive_a_fuzzy_edit(words: list[str], data: st.DataObject) -> None:
    blanks = st.sampled_from(["", " ", "\t ", "\u00a0"])
    ends = st.sampled_from(["\n", "\r\n"])
    lines = [f"<{word}>" + data.draw(blanks) + data.draw(ends) for word in words]
    index = data.draw(st.integers(0, len(words) - 2))
    old = f"<{words[index]}>\n<{words[index + 1]}>\n"
    change = changed_text("".join(lines), old, "")
    assert change.after == "".join(lines[:index] + lines[index + 2 :])


async def test_edits_of_one_file_at_the_same_time_all_count(workspace: Path, context: ToolContext) -> None:
    (workspace / "f.txt").write_text("\n".join(f"<{n}>" for n in range(20)))
    tools = [EditTool(PathOpener(workspace, confine=bool(n % 2))) for n in range(20)]
    await asyncio.gather(
        *(t.run({"path": "f.txt", "oldText": f"<{n}>", "newText": f"done {n}"}, context) for n, t in enumerate(tools))
    )
    assert (workspace / "f.txt").read_text() == "\n".join(f"done {n}" for n in range(20))


# Several replacements


async def test_several_replacements_are_applied_together_and_shown_in_one_diff(
    editor: EditTool, context: ToolContext
) -> None:
    (context.workspace / "f.txt").write_text("".join(f"line {n}\n" for n in range(1, 13)))
    edits = [{"old_string": "line 11\n", "new_string": ""}, {"oldText": "line 2\n", "newText": "two\nand a half\n"}]
    arguments = validate_arguments(editor.spec, {"path": "f.txt", "edits": edits})
    result = await editor.run(arguments, context)
    assert text_of(result) == (
        "Edited f.txt (2 replacements).\n"
        "  1 line 1\n- 2 line 2\n+ 2 two\n+ 3 and a half\n  3 line 3\n  4 line 4\n  5 line 5\n    ...\n"
        "  9 line 9\n 10 line 10\n-11 line 11\n 12 line 12"
    )
    assert (context.workspace / "f.txt").read_text().startswith("line 1\ntwo\nand a half\nline 3\n")


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ([("one", "1"), ("zzz", "y")], "Could not find edits[1].oldText in f.txt"),
        ([("one", "1"), ("o", "y")], "Found 2 occurrences of edits[1].oldText in f.txt, at lines 1 and 2"),
        ([("one\ntwo", "1"), ("two\nthree", "y")], "edits[0] and edits[1] overlap at line 2 of f.txt"),
        ([("one", "1"), ("", "y")], "edits[1].oldText is empty"),
        ([("one", "1")] * 101, "edits has 101 replacements, and 100 is the most"),
    ],
)
async def test_all_replacements_are_applied_or_none(
    editor: EditTool, context: ToolContext, edits: list[tuple[str, str]], problem: str
) -> None:
    (context.workspace / "f.txt").write_text("one\ntwo\nthree\n")
    listed = [{"oldText": old, "newText": new} for old, new in edits]
    with pytest.raises(ToolError) as refused:
        await editor.run({"path": "f.txt", "edits": listed}, context)
    assert problem in str(refused.value)
    assert (context.workspace / "f.txt").read_text() == "one\ntwo\nthree\n"


async def test_a_call_without_a_replacement_gets_an_example(editor: EditTool, context: ToolContext) -> None:
    for arguments in ({}, {"edits": []}):
        with pytest.raises(ToolError, match=r'oldText.*"edits": \[\{"oldText": "draft", "newText": "final"\}\]'):
            await editor.run({"path": "f.txt", **arguments}, context)
    both = {"oldText": "a", "newText": "b", "edits": [{"oldText": "a", "newText": "b"}]}
    with pytest.raises(ToolError, match="not both"):
        await editor.run({"path": "f.txt", **both}, context)


async def test_replace_all_replaces_every_occurrence(editor: EditTool, context: ToolContext) -> None:
    path = context.workspace / "f.txt"
    path.write_text("old(a)\nkeep\nold(old)\n")
    result = await editor.run({"path": "f.txt", "oldText": "old", "newText": "new", "replaceAll": True}, context)
    assert text_of(result).startswith("Edited f.txt (3 replacements).")
    assert path.read_text() == "new(a)\nkeep\nnew(new)\n"


@given(st.text(alphabet="ab\n", max_size=60), st.text(alphabet="ab", min_size=1, max_size=3), st.text(alphabet="xy"))
def test_replace_all_is_what_python_replaces(text: str, old: str, new: str) -> None:
    assume(old in text)
    assert changed_text(text, old, new, every=True).after == text.replace(old, new)


def test_an_ambiguous_passage_names_its_lines() -> None:
    with pytest.raises(ToolError, match=r"Found 3 occurrences of oldText in f, at lines 2, 4 and 5\. Add surrounding"):
        changed_text("a\nx = 1\nb\nx = 1\nx = 1\n", "x = 1", "y")
    with pytest.raises(ToolError, match=r"at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more"):
        changed_text("x\n" * 12, "x", "y")


# Misses


PROGRAM = "import os\n\n\ndef area(width, height):\n    size = width * height\n    return size\n\n\nprint(area(2, 3))\n"


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        (
            "def area(width, height):\n    size = width + height\n    return size",
            "The nearest passage is lines 4-6:\n4| def area(width, height):\n5|     size = width * height\n"
            "6|     return size\nFirst difference: line 5, column 18: oldText has '    size = width + height', "
            "the file has '    size = width * height'.",
        ),
        (
            "print(area(2, 4))",
            "The nearest passage is line 9:\n9| print(area(2, 3))\nFirst difference: line 9, column 15: "
            "oldText has 'print(area(2, 4))', the file has 'print(area(2, 3))'.",
        ),
        ("nothing of this is in there", "No passage resembles it."),
    ],
)
def test_a_miss_shows_the_nearest_passage_and_the_first_difference(old: str, expected: str) -> None:
    with pytest.raises(ToolError) as miss:
        changed_text(PROGRAM, old, "x")
    assert expected in str(miss.value)


@given(alphabet, st.text(min_size=1, max_size=40))
def test_every_miss_is_explained(text: str, old: str) -> None:
    assume(not locate(text, old).spans)
    with pytest.raises(ToolError, match="Could not find oldText"):
        changed_text(text, old, "x")


# Indentation


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (
            "class A:\n    def f(self):\n        return 1\n",
            "  def f(self):\n    return 1",
            "  def f(self):\n    if self:\n      return 2\n    return 1",
            "class A:\n    def f(self):\n        if self:\n            return 2\n        return 1\n",
        ),
        (
            "func f() {\n\tif x {\n\t\tgo()\n\t}\n}\n",
            "    if x {\n        go()\n    }\n",
            "    if x {\n        go()\n        stop()\n    }\n",
            "func f() {\n\tif x {\n\t\tgo()\n\t\tstop()\n\t}\n}\n",
        ),
        (
            "def f():\r\n    a = 1\r\n\r\n    b = 2\r\n",
            "a = 1\n\nb = 2\n",
            "a = 1\n\nc = 3\n",
            "def f():\r\n    a = 1\r\n\r\n    c = 3\r\n",
        ),
        ("x:\n  - a\n  - b", "    - a\n    - b", "    - a", "x:\n  - a"),
    ],
    ids=["two-to-four", "spaces-to-tabs", "crlf", "to-the-end"],
)
def test_a_difference_in_indentation_alone_takes_that_of_the_file(text: str, old: str, new: str, expected: str) -> None:
    assert changed_text(text, old, new).after == expected


def test_indentation_is_not_guessed_where_two_passages_fit() -> None:
    with pytest.raises(ToolError, match="Found 2 occurrences of oldText in f, at lines 1 and 3"):
        changed_text("  go(a)\nb\n    go(a)\n", "\tgo(a)", "\tgo(b)")


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), min_size=1, max_size=6))
def test_a_passage_in_other_units_comes_back_in_those_of_the_file(rows: list[tuple[int, str]]) -> None:
    theirs = [f"{'  ' * depth}{word}" for depth, word in rows]
    ours = [f"{chr(9) * depth}{word}" for depth, word in rows]
    pairs = [("  " * depth, "\t" * depth) for depth, _ in rows]
    assert reindented("\n".join(theirs), pairs) == "\n".join(ours)


# What survives


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"\xef\xbb\xbfa\r\nb\r\n", "a\nb", "x\ny\nz", b"\xef\xbb\xbfx\r\ny\r\nz\r\n"),
        (b"a\nb", "b\n", "c\n", b"a\nc"),
        (b"a\nb\n", "b", "c", b"a\nc\n"),
        (b"a\nlast", "a\nlast\n", "x\n", b"x"),
    ],
    ids=["bom-crlf", "no-final-newline", "final-newline", "whole-file"],
)
async def test_bytes_around_the_passage_and_mode_bits_survive(
    editor: EditTool, context: ToolContext, before: bytes, old: str, new: str, after: bytes
) -> None:
    path = context.workspace / "run.sh"
    path.write_bytes(before)
    path.chmod(0o755)
    await editor.run({"path": "run.sh", "oldText": old, "newText": new}, context)
    assert path.read_bytes() == after
    assert path.stat().st_mode & 0o777 == 0o755


async def test_a_missing_file_names_the_one_that_was_meant(editor: EditTool, context: ToolContext) -> None:
    (context.workspace / "config.yaml").write_text("a: 1\n")
    with pytest.raises(PathRefused, match=r"^File not found: config\.yml\. Did you mean config\.yaml\?$"):
        await editor.run({"path": "config.yml", "oldText": "1", "newText": "2"}, context)


async def test_a_long_diff_is_cut_with_an_exact_notice(editor: EditTool, context: ToolContext) -> None:
    (context.workspace / "f.txt").write_text("x\n")
    result = await editor.run({"path": "f.txt", "oldText": "x\n", "newText": "y\n" * 100}, context)
    rows = text_of(result).split("\n")
    assert rows[-1].strip() == "... 42 more lines of this diff"
    assert len(rows) == 62


def call(text: str, *edits: tuple[str, str]) -> Any:
    return edit_text(text, [Replacement(old, new) for old, new in edits], "f")


@given(st.permutations(range(12)), st.integers(1, 12))
def test_the_order_of_the_replacements_does_not_matter(order: list[int], count: int) -> None:
    text = "".join(f"<{n}>\n" for n in range(12))
    change = call(text, *((f"<{n}>", f"[{n}]" * (n % 3)) for n in order[:count]))
    expected = "".join((f"[{n}]" * (n % 3) if n in order[:count] else f"<{n}>") + "\n" for n in range(12))
    assert change.after == expected
