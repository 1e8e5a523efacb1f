from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from openclaw.messages import TextBlock
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.edit import EditTool, edit_text
from openclaw.tools.opener import PathOpener
from openclaw.tools.replacement import Ambiguous, NotFound, Span, locate


@pytest.fixture
def tool(workspace: Path) -> EditTool:
    return EditTool(PathOpener(workspace, confine=True))


async def edit(tool: EditTool, context: ToolContext, content: str, old: str, new: str) -> bytes:
    path = context.workspace / "f.txt"
    path.write_bytes(content.encode())
    await tool.run({"path": "f.txt", "oldText": old, "newText": new}, context)
    return path.read_bytes()


async def test_one_passage_is_replaced_and_described(tool: EditTool, context: ToolContext) -> None:
    (context.workspace / "f.txt").write_text("one\ntwo\nthree")
    result = await tool.run({"file_path": "f.txt", "old_string": "two", "new_string": "TWO"}, context)
    assert result.content == [TextBlock(text="Successfully replaced text in f.txt.")]
    assert result.details == {"diff": " 1 one\n-2 two\n+2 TWO\n 3 three", "firstChangedLine": 2}
    assert (context.workspace / "f.txt").read_text() == "one\nTWO\nthree"


async def test_the_diff_shows_four_lines_around_and_numbers_them(tool: EditTool, context: ToolContext) -> None:
    text = "\n".join(f"l{n}" for n in range(1, 21))
    (context.workspace / "f.txt").write_text(text)
    result = await tool.run({"path": "f.txt", "oldText": "l10\nl11\n", "newText": "l10\nnew\nnewer\n"}, context)
    expected = [" 8 l8", " 9 l9", " 10 l10", "-11 l11", "+11 new", "+12 newer", " 12 l12", " 13 l13"]
    rows = result.details["diff"].split("\n")
    assert [row.replace("  ", " ") for row in rows[2:-3]] == expected
    assert (len(rows), result.details["firstChangedLine"]) == (13, 11)


async def test_an_empty_new_text_deletes(tool: EditTool, context: ToolContext) -> None:
    assert await edit(tool, context, "a\nb\nc\n", "b\n", "") == b"a\nc\n"


async def test_an_ambiguous_passage_is_refused_with_its_count(tool: EditTool, context: ToolContext) -> None:
    with pytest.raises(ToolError, match=r"^Found 33000 occurrences"):
        await edit(tool, context, "ab\n" * 33_000, "ab", "x")
    with pytest.raises(ToolError, match=r"^Found 2 occurrences"):
        await edit(tool, context, "aaa", "aa", "x")
    with pytest.raises(ToolError, match=r"^Found 2 occurrences"):
        await edit(tool, context, "“a”  \n„a‟", '"a"', "x")
    assert (context.workspace / "f.txt").read_text() == "“a”  \n„a‟"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("zzz", "y", "Could not find the text in f.txt"),
        ("two", "two", "No changes made to f.txt"),
        ("", "x", "oldText is empty"),
        ("  ", "x", "Could not find"),
    ],
)
async def test_an_edit_that_cannot_be_meant_is_refused(
    tool: EditTool, context: ToolContext, old: str, new: str, problem: str
) -> None:
    with pytest.raises(ToolError, match=problem):
        await edit(tool, context, "one\ntwo\n", old, new)


async def test_missing_files_and_parameters_are_named(tool: EditTool, context: ToolContext) -> None:
    with pytest.raises(ToolError, match=r"^File not found: zz$"):
        await tool.run({"path": "zz", "oldText": "a", "newText": "b"}, context)
    with pytest.raises(ToolError, match=r"Missing required parameter: newText \(newText or new_string\)"):
        await tool.run({"path": "zz", "oldText": "a"}, context)
    (context.workspace / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ToolError, match="not UTF-8"):
        await tool.run({"path": "latin", "oldText": "caf", "newText": "b"}, context)


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
    tool: EditTool, context: ToolContext, text: str, old: str, new: str, expected: str
) -> None:
    assert await edit(tool, context, text, old, new) == expected.encode()


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
    span = locate(text, old)
    assert span == Span(len(before), len(before) + len(old))
    expected_new = new.replace("\r\n", "\n")
    newline = text.find("\n")
    if newline > 0 and text[newline - 1] == "\r":
        expected_new = expected_new.replace("\n", "\r\n")
    assume(expected_new != old)
    changed, diff = edit_text(text, old, new, "f")
    assert changed == before + expected_new + after
    assert diff.first_changed_line >= 1


@given(alphabet, alphabet)
def test_a_passage_is_found_once_refused_or_absent_and_never_misplaced(text: str, old: str) -> None:
    found = locate(text, old)
    if isinstance(found, Span):
        assert 0 <= found.start < found.end <= len(text)
    else:
        assert isinstance(found, NotFound | Ambiguous)


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=2, max_size=8, unique=True), st.data())
def test_trailing_blanks_and_line_ends_elsewhere_survive_a_fuzzy_edit(words: list[str], data: st.DataObject) -> None:
    blanks = st.sampled_from(["", " ", "\t ", "\u00a0"])
    ends = st.sampled_from(["\n", "\r\n"])
    lines = [f"<{word}>" + data.draw(blanks) + data.draw(ends) for word in words]
    index = data.draw(st.integers(0, len(words) - 2))
    old = f"<{words[index]}>\n<{words[index + 1]}>\n"
    changed, _ = edit_text("".join(lines), old, "", "f")
    assert changed == "".join(lines[:index] + lines[index + 2 :])


async def test_edits_of_one_file_at_the_same_time_all_count(workspace: Path, context: ToolContext) -> None:
    (workspace / "f.txt").write_text("\n".join(f"<{n}>" for n in range(20)))
    tools = [EditTool(PathOpener(workspace, confine=bool(n % 2))) for n in range(20)]
    await asyncio.gather(
        *(t.run({"path": "f.txt", "oldText": f"<{n}>", "newText": f"done {n}"}, context) for n, t in enumerate(tools))
    )
    assert (workspace / "f.txt").read_text() == "\n".join(f"done {n}" for n in range(20))
