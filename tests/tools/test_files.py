from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from openclaw.messages import ImageBlock, TextBlock
from openclaw.path_opener import PathOpener, PathRefused
from openclaw.tools.base import ToolContext, ToolError, ToolResult
from openclaw.tools.files import (
    MAX_PAGE_BYTES,
    MAX_PAGE_LINES,
    ReadTool,
    WriteTool,
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
    assert text_of(await read(reader, context, "")) == "[f.txt is empty.]"
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
        if page.last >= page.total_lines:
            break
    assert b"\n".join(collected) + b"\n" * page.final_newline == data


@given(st.lists(st.integers(0, 3 * MAX_PAGE_BYTES // 4), min_size=1, max_size=12), st.integers(1, 12))
def test_a_page_holds_whole_lines_within_the_limits(sizes: list[int], offset: int) -> None:
    data = b"\n".join(b"x" * size for size in sizes)
    whole = data.removesuffix(b"\n").split(b"\n") if data else []
    if offset > max(1, len(whole)):
        with pytest.raises((ToolError, PathRefused), match="beyond end"):
            read_page(io.BytesIO(data), offset, None)
        return
    page = read_page(io.BytesIO(data), offset, None)
    assert page.lines == whole[offset - 1 : offset - 1 + len(page.lines)]
    assert len(b"\n".join(page.lines)) <= MAX_PAGE_BYTES
    assert len(page.lines) <= MAX_PAGE_LINES
    assert page.total_lines == len(whole)
    rest = whole[offset - 1 + len(page.lines) :]
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


@pytest.mark.parametrize(
    ("content", "arguments", "notice"),
    [
        ("a\nb\n", {"limit": 1}, "a\n\n[1 more line in file. Use offset=2 to continue.]"),
        ("a\nb\n", {"limit": 2}, "a\nb\n"),
        ("a\nb", {"limit": 2}, "a\nb"),
        ("\n", {}, "\n"),
        ("a\n\n", {"limit": 1}, "a\n\n[1 more line in file. Use offset=2 to continue.]"),
        (f"{numbered(2000)}\n", {}, f"{numbered(2000)}\n"),
        (
            f"{'x' * 60_000}\nshort",
            {},
            "[Line 1 is 58.6KB, exceeds 50.0KB limit. Use exec: sed -n '1p' f.txt | head -c 51200]\n\n"
            "[1 more line in file. Use offset=2 to continue.]",
        ),
    ],
    ids=["one-more", "all", "no-newline", "blank", "blank-more", "full-page", "oversized"],
)
async def test_a_notice_counts_only_lines_that_exist(
    reader: ReadTool, context: ToolContext, content: str, arguments: dict[str, Any], notice: str
) -> None:
    assert text_of(await read(reader, context, content, **arguments)) == notice


async def test_a_directory_lists_its_entries(reader: ReadTool, context: ToolContext) -> None:
    folder = context.workspace / "docs"
    (folder / "guide").mkdir(parents=True)
    assert text_of(await reader.run({"path": "docs/guide"}, context)) == "[docs/guide is an empty directory.]"
    (folder / "a.md").write_text("x")
    (folder / "b.md").symlink_to("a.md")
    expected = "[Directory docs, 3 entries]\na.md\nb.md (link)\nguide/"
    assert text_of(await reader.run({"path": "docs"}, context)) == expected
    part = text_of(await reader.run({"path": "docs", "offset": 2, "limit": 1}, context))
    assert part.endswith("b.md (link)\n\n[Showing entries 2-2 of 3. Use offset=3 to continue.]")
    with pytest.raises(ToolError, match=r"Offset 4 is beyond the end of docs \(3 entries\)"):
        await reader.run({"path": "docs", "offset": 4}, context)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("docs/raedme.md", "docs/readme.md"),
        ("docs/README.md", "docs/readme.md"),
        ("docs/readme.txt", "docs/readme.md"),
        ("readme.md", "docs/readme.md"),
        ("doc/readme.md", "docs/readme.md"),
        ("wherever/else.py", None),
    ],
)
async def test_a_missing_file_comes_with_what_was_meant(
    reader: ReadTool, context: ToolContext, path: str, meant: str | None
) -> None:
    (context.workspace / "docs").mkdir()
    (context.workspace / "docs" / "readme.md").write_text("x")
    with pytest.raises(PathRefused) as missing:
        await reader.run({"path": path}, context)
    assert str(missing.value).startswith("ENOENT: no such file or directory")
    assert str(missing.value).endswith(f"Did you mean {meant}?" if meant else "else.py'")


class Hiding:
    """A guard that keeps everything named secret from the run."""

    def refusal(self, path: str, *, writing: bool) -> str | None:
        return "belongs to the owner" if "secret" in path else None

    def hidden_names(self, folder: str, names: Sequence[str]) -> set[str]:
        return {name for name in names if "secret" in f"{folder}/{name}"}


async def test_a_guest_does_not_learn_the_names_of_the_owners_files(reader: ReadTool, context: ToolContext) -> None:
    (context.workspace / "secrets.md").write_text("x")
    (context.workspace / "plan.md").write_text("x")
    guest = msgspec.structs.replace(context, owner_files=Hiding())
    assert text_of(await reader.run({"path": "."}, guest)) == "[Directory ., 1 entry]\nplan.md"
    with pytest.raises(PathRefused, match=r"access '.*secret.md'$"):
        await reader.run({"path": "secret.md"}, msgspec.structs.replace(context, owner_files=NamesOnly()))


class NamesOnly(Hiding):
    def refusal(self, path: str, *, writing: bool) -> str | None:
        return None
