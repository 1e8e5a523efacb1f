from __future__ import annotations

import asyncio
import base64
import io
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from PIL import Image

from openclaw.messages import ImageBlock, TextBlock
from openclaw.path_opener import PathOpener, PathRefused
from openclaw.tools.base import ToolContext, ToolError, ToolResult
from openclaw.tools.files import (
    MAX_PAGE_BYTES,
    MAX_PAGE_LINES,
    Ambiguous,
    EditTool,
    NotFound,
    ReadTool,
    TextSpan,
    WriteTool,
    edit_text,
    locate,
    read_page,
)


@pytest.fixture
def reader(workspace: Path) -> ReadTool:
    return ReadTool(PathOpener(workspace, confine=True))


def text_of(result: ToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextBlock)
    return block.text


async def read(reader: ReadTool, context: ToolContext, content: str | bytes, **arguments: Any) -> ToolResult:
    data = content if isinstance(content, bytes) else content.encode()
    (context.workspace / "f.txt").write_bytes(data)
    return await reader.run({"path": "f.txt", **arguments}, context)


def numbered(count: int) -> str:
    return "\n".join(f"line {n}" for n in range(1, count + 1))


async def test_a_short_file_comes_whole_and_without_details(reader: ReadTool, context: ToolContext) -> None:
    result = await read(reader, context, "hello from the workspace\nline two\n")
    assert text_of(result) == "hello from the workspace\nline two\n"
    assert result.details is msgspec.UNSET


async def test_a_long_file_is_cut_at_two_thousand_lines(reader: ReadTool, context: ToolContext) -> None:
    result = await read(reader, context, numbered(3000))
    text = text_of(result)
    assert text.endswith("line 2000\n\n[Showing lines 1-2000 of 3000. Use offset=2001 to continue.]")
    truncation = result.details["truncation"]
    assert (truncation["truncatedBy"], truncation["totalLines"], truncation["outputLines"]) == ("lines", 3000, 2000)
    assert "content" not in truncation


async def test_offset_and_limit_choose_a_window(reader: ReadTool, context: ToolContext) -> None:
    result = await read(reader, context, numbered(3000), offset=10, limit=5)
    expected = "line 10\nline 11\nline 12\nline 13\nline 14\n\n[2986 more lines in file. Use offset=15 to continue.]"
    assert text_of(result) == expected


async def test_bytes_end_a_page_at_a_whole_line(reader: ReadTool, context: ToolContext) -> None:
    result = await read(reader, context, "\n".join(["x" * 100] * 1000))
    assert text_of(result).endswith("\n\n[Showing lines 1-506 of 1000 (50.0KB limit). Use offset=507 to continue.]")
    assert result.details["truncation"]["truncatedBy"] == "bytes"


async def test_a_line_too_large_to_show_comes_with_a_way_to_see_it(reader: ReadTool, context: ToolContext) -> None:
    result = await read(reader, context, "x" * 60_000)
    expected = "[Line 1 is 58.6KB, exceeds 50.0KB limit. Use exec: sed -n '1p' f.txt | head -c 51200]"
    assert text_of(result) == expected
    assert result.details["truncation"]["firstLineExceedsLimit"]


async def test_an_offset_beyond_the_end_names_the_number_of_lines(reader: ReadTool, context: ToolContext) -> None:
    with pytest.raises((ToolError, PathRefused), match=r"^Offset 9 is beyond end of file \(4 lines total\)$"):
        await read(reader, context, "a\nb\nc\nd", offset=9)


async def test_odd_requests(reader: ReadTool, context: ToolContext) -> None:
    assert text_of(await read(reader, context, "")) == ""
    assert text_of(await read(reader, context, "a\nb", offset=0)) == "a\nb"
    assert text_of(await read(reader, context, b"caf\xe9")) == "caf\ufffd"
    with pytest.raises((ToolError, PathRefused), match="offset must be 1 or more"):
        await read(reader, context, "a", offset=-1)
    with pytest.raises((ToolError, PathRefused), match="binary file"):
        await read(reader, context, b"\x7fELF\0\0\0")
    with pytest.raises((ToolError, PathRefused), match="Missing required parameter: path"):
        await reader.run({}, context)
    with pytest.raises((ToolError, PathRefused), match="ENOENT: no such file or directory"):
        await reader.run({"file_path": "missing.txt"}, context)
    with pytest.raises((ToolError, PathRefused), match="path leaves the workspace"):
        await reader.run({"path": "../x"}, context)


@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=30), min_size=1),
    limit=st.integers(1, 7),
)
def test_pages_read_one_after_the_other_give_the_whole_file(lines: list[str], limit: int) -> None:
    data = "\n".join(lines).encode()
    collected: list[bytes] = []
    while True:
        page = read_page(io.BytesIO(data), len(collected) + 1, limit)
        collected += page.lines
        if page.last == page.total_lines:
            break
    assert b"\n".join(collected) == data


@given(st.lists(st.integers(0, 3 * MAX_PAGE_BYTES // 4), min_size=1, max_size=12), st.integers(1, 12))
def test_a_page_holds_whole_lines_within_the_limits(sizes: list[int], offset: int) -> None:
    data = b"\n".join(b"x" * size for size in sizes)
    if offset > len(sizes):
        with pytest.raises((ToolError, PathRefused), match="beyond end"):
            read_page(io.BytesIO(data), offset, None)
        return
    page = read_page(io.BytesIO(data), offset, None)
    assert page.lines == data.split(b"\n")[offset - 1 : offset - 1 + len(page.lines)]
    assert len(b"\n".join(page.lines)) <= MAX_PAGE_BYTES
    assert len(page.lines) <= MAX_PAGE_LINES
    assert page.total_lines == len(sizes)
    rest = data.split(b"\n")[offset - 1 + len(page.lines) :]
    assert (page.cut_by == "bytes") == bool(rest)


def test_lines_that_cross_the_reading_buffer_stay_whole() -> None:
    lines = [b"%07d" % n for n in range(400_000)]
    page = read_page(io.BytesIO(b"\n".join(lines)), 262_140, 20)
    assert page.lines == lines[262_139:262_159]
    assert page.total_lines == 400_000


def picture(kind: str, size: tuple[int, int], noise: bool = False) -> bytes:
    image = Image.frombytes("RGB", size, os.urandom(size[0] * size[1] * 3)) if noise else Image.new("RGB", size, "red")
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "mime"),
    [("JPEG", "image/jpeg"), ("PNG", "image/png"), ("GIF", "image/gif"), ("WEBP", "image/webp")],
)
async def test_pictures_are_known_by_their_bytes_and_passed_as_they_are(
    reader: ReadTool, context: ToolContext, kind: str, mime: str
) -> None:
    data = picture(kind, (20, 10))
    result = await read(reader, context, data)
    text, image = result.content
    assert text == TextBlock(text=f"Read image file [{mime}]")
    assert isinstance(image, ImageBlock)
    assert (image.mime_type, base64.b64decode(image.data)) == (mime, data)


async def test_a_large_picture_is_scaled_to_two_thousand_pixels(reader: ReadTool, context: ToolContext) -> None:
    result = await read(reader, context, picture("PNG", (3000, 1500)))
    assert "original 3000x1500, displayed at 2000x1000" in text_of(result)
    assert "Multiply coordinates by 1.50" in text_of(result)
    image = result.content[1]
    assert isinstance(image, ImageBlock)
    with Image.open(io.BytesIO(base64.b64decode(image.data))) as shown:
        assert shown.size == (2000, 1000)


async def test_a_heavy_picture_is_brought_below_the_providers_limit(reader: ReadTool, context: ToolContext) -> None:
    data = picture("PNG", (1300, 1300), noise=True)
    assert len(data) > 4.5 * 1024 * 1024
    image = (await read(reader, context, data)).content[1]
    assert isinstance(image, ImageBlock)
    assert len(image.data) <= 4.5 * 1024 * 1024


async def test_a_picture_that_cannot_be_shown_leaves_words_instead(reader: ReadTool, context: ToolContext) -> None:
    broken = await read(reader, context, picture("PNG", (2500, 10))[:60])
    assert len(broken.content) == 1
    assert "was left out: the picture cannot be decoded" in text_of(broken)
    blind = msgspec.structs.replace(context, model_sees_images=False)
    unseen = await read(reader, blind, picture("PNG", (5, 5)))
    assert len(unseen.content) == 1
    assert "cannot see images" in text_of(unseen)


@pytest.fixture
def writer(workspace: Path) -> WriteTool:
    return WriteTool(PathOpener(workspace, confine=True))


async def test_writing_makes_parents_and_reports_real_bytes(writer: WriteTool, context: ToolContext) -> None:
    result = await writer.run({"path": "notes/today.md", "content": "héllo"}, context)
    assert result.content == [TextBlock(text="Successfully wrote 6 bytes to notes/today.md")]
    assert (context.workspace / "notes" / "today.md").read_text() == "héllo"


async def test_writing_replaces_and_keeps_line_ends_as_given(writer: WriteTool, context: ToolContext) -> None:
    (context.workspace / "a").write_text("old and longer")
    await writer.run({"file_path": "a", "content": "x\r\ny\n"}, context)
    assert (context.workspace / "a").read_bytes() == b"x\r\ny\n"
    await writer.run({"path": "a", "content": ""}, context)
    assert (context.workspace / "a").read_bytes() == b""


async def test_what_is_missing_or_impossible_is_said(writer: WriteTool, context: ToolContext) -> None:
    with pytest.raises(ToolError, match=r"content required"):
        await writer.run({"path": "a"}, context)
    with pytest.raises((ToolError, PathRefused), match="path leaves the workspace"):
        await writer.run({"path": "/etc/a", "content": ""}, context)
    with pytest.raises((ToolError, PathRefused), match="half of a character"):
        await writer.run({"path": "a", "content": "x\ud800"}, context)
    assert not (context.workspace / "a").exists()


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
    assert result.content == [TextBlock(text="Successfully replaced text in f.txt.")]
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
        ("zzz", "y", "Could not find the text in f.txt"),
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
    span = locate(text, old)
    assert span == TextSpan(len(before), len(before) + len(old))
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
    if isinstance(found, TextSpan):
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
