from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from openclaw.messages import ImageBlock, TextBlock
from openclaw.tools.base import ToolContext, ToolError, ToolResult
from openclaw.tools.opener import PathOpener
from openclaw.tools.read import MAX_BYTES, MAX_LINES, ReadTool, read_page


@pytest.fixture
def tool(workspace: Path) -> ReadTool:
    return ReadTool(PathOpener(workspace, confine=True))


def text_of(result: ToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextBlock)
    return block.text


async def read(tool: ReadTool, context: ToolContext, content: str | bytes, **arguments: Any) -> ToolResult:
    data = content if isinstance(content, bytes) else content.encode()
    (context.workspace / "f.txt").write_bytes(data)
    return await tool.run({"path": "f.txt", **arguments}, context)


def numbered(count: int) -> str:
    return "\n".join(f"line {n}" for n in range(1, count + 1))


async def test_a_short_file_comes_whole_and_without_details(tool: ReadTool, context: ToolContext) -> None:
    result = await read(tool, context, "hello from the workspace\nline two\n")
    assert text_of(result) == "hello from the workspace\nline two\n"
    assert result.details is msgspec.UNSET


async def test_a_long_file_is_cut_at_two_thousand_lines(tool: ReadTool, context: ToolContext) -> None:
    result = await read(tool, context, numbered(3000))
    text = text_of(result)
    assert text.endswith("line 2000\n\n[Showing lines 1-2000 of 3000. Use offset=2001 to continue.]")
    truncation = result.details["truncation"]
    assert (truncation["truncatedBy"], truncation["totalLines"], truncation["outputLines"]) == ("lines", 3000, 2000)
    assert "content" not in truncation


async def test_offset_and_limit_choose_a_window(tool: ReadTool, context: ToolContext) -> None:
    result = await read(tool, context, numbered(3000), offset=10, limit=5)
    expected = "line 10\nline 11\nline 12\nline 13\nline 14\n\n[2986 more lines in file. Use offset=15 to continue.]"
    assert text_of(result) == expected


async def test_bytes_end_a_page_at_a_whole_line(tool: ReadTool, context: ToolContext) -> None:
    result = await read(tool, context, "\n".join(["x" * 100] * 1000))
    assert text_of(result).endswith("\n\n[Showing lines 1-506 of 1000 (50.0KB limit). Use offset=507 to continue.]")
    assert result.details["truncation"]["truncatedBy"] == "bytes"


async def test_a_line_too_large_to_show_comes_with_a_way_to_see_it(tool: ReadTool, context: ToolContext) -> None:
    result = await read(tool, context, "x" * 60_000)
    expected = "[Line 1 is 58.6KB, exceeds 50.0KB limit. Use exec: sed -n '1p' f.txt | head -c 51200]"
    assert text_of(result) == expected
    assert result.details["truncation"]["firstLineExceedsLimit"]


async def test_an_offset_beyond_the_end_names_the_number_of_lines(tool: ReadTool, context: ToolContext) -> None:
    with pytest.raises(ToolError, match=r"^Offset 9 is beyond end of file \(4 lines total\)$"):
        await read(tool, context, "a\nb\nc\nd", offset=9)


async def test_odd_requests(tool: ReadTool, context: ToolContext) -> None:
    assert text_of(await read(tool, context, "")) == ""
    assert text_of(await read(tool, context, "a\nb", offset=0)) == "a\nb"
    assert text_of(await read(tool, context, b"caf\xe9")) == "caf\ufffd"
    with pytest.raises(ToolError, match="offset must be 1 or more"):
        await read(tool, context, "a", offset=-1)
    with pytest.raises(ToolError, match="binary file"):
        await read(tool, context, b"\x7fELF\0\0\0")
    with pytest.raises(ToolError, match="Missing required parameter: path"):
        await tool.run({}, context)
    with pytest.raises(ToolError, match="ENOENT: no such file or directory"):
        await tool.run({"file_path": "missing.txt"}, context)
    with pytest.raises(ToolError, match="path leaves the workspace"):
        await tool.run({"path": "../x"}, context)


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


@given(st.lists(st.integers(0, 3 * MAX_BYTES // 4), min_size=1, max_size=12), st.integers(1, 12))
def test_a_page_holds_whole_lines_within_the_limits(sizes: list[int], offset: int) -> None:
    data = b"\n".join(b"x" * size for size in sizes)
    if offset > len(sizes):
        with pytest.raises(ToolError, match="beyond end"):
            read_page(io.BytesIO(data), offset, None)
        return
    page = read_page(io.BytesIO(data), offset, None)
    assert page.lines == data.split(b"\n")[offset - 1 : offset - 1 + len(page.lines)]
    assert len(b"\n".join(page.lines)) <= MAX_BYTES
    assert len(page.lines) <= MAX_LINES
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
    tool: ReadTool, context: ToolContext, kind: str, mime: str
) -> None:
    data = picture(kind, (20, 10))
    result = await read(tool, context, data)
    text, image = result.content
    assert text == TextBlock(text=f"Read image file [{mime}]")
    assert isinstance(image, ImageBlock)
    assert (image.mime_type, base64.b64decode(image.data)) == (mime, data)


async def test_a_large_picture_is_scaled_to_two_thousand_pixels(tool: ReadTool, context: ToolContext) -> None:
    result = await read(tool, context, picture("PNG", (3000, 1500)))
    assert "original 3000x1500, displayed at 2000x1000" in text_of(result)
    assert "Multiply coordinates by 1.50" in text_of(result)
    image = result.content[1]
    assert isinstance(image, ImageBlock)
    with Image.open(io.BytesIO(base64.b64decode(image.data))) as shown:
        assert shown.size == (2000, 1000)


async def test_a_heavy_picture_is_brought_below_the_providers_limit(tool: ReadTool, context: ToolContext) -> None:
    data = picture("PNG", (1300, 1300), noise=True)
    assert len(data) > 4.5 * 1024 * 1024
    image = (await read(tool, context, data)).content[1]
    assert isinstance(image, ImageBlock)
    assert len(image.data) <= 4.5 * 1024 * 1024


async def test_a_picture_that_cannot_be_shown_leaves_words_instead(tool: ReadTool, context: ToolContext) -> None:
    broken = await read(tool, context, picture("PNG", (2500, 10))[:60])
    assert len(broken.content) == 1
    assert "was left out: the picture cannot be decoded" in text_of(broken)
    blind = msgspec.structs.replace(context, model_sees_images=False)
    unseen = await read(tool, blind, picture("PNG", (5, 5)))
    assert len(unseen.content) == 1
    assert "cannot see images" in text_of(unseen)
