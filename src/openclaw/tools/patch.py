"""The ``apply_patch`` tool: changes to several files in one text, between ``*** Begin Patch`` and ``*** End Patch``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from openclaw.path_opener import FileMissing, IsFolder, PathOpener, PathRefused
from openclaw.tools.arguments import RecordTool, ToolArguments, required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.edit import BOM, nearest_passage, read_text
from openclaw.tools.files import encode_text

BEGIN, END = "*** Begin Patch", "*** End Patch"
MAX_PATCH_CHARS = 2_000_000
MAX_PATCHED_FILES = 100
_ADD, _DELETE, _UPDATE = "*** Add File: ", "*** Delete File: ", "*** Update File: "
_UNIFIED = re.compile(r"-\d+(,\d+)? \+\d+(,\d+)? @@.*")
"""Line numbers as other formats of patches have them. They are not needed."""
_MOVE, _END_OF_FILE = "*** Move to: ", "*** End of File"


class PatchArguments(ToolArguments):
    input: Annotated[str, Meta(description="The patch")]


class ApplyPatchTool(RecordTool[PatchArguments]):
    name = "apply_patch"
    summary = "Apply a patch to several files"
    description = (
        "Change several files, all or none. The patch is between *** Begin Patch and *** End Patch and has parts: "
        "*** Add File: path (lines with +), *** Delete File: path, *** Update File: path (after it perhaps *** Move "
        "to: path, then hunks: @@ and perhaps a line to start at, context lines with a blank, removed with -, added "
        "with +)."
    )
    examples = ({"input": f"{BEGIN}\n{_UPDATE}notes.md\n@@\n-draft\n+final\n{END}"},)

    def __init__(self, opener: PathOpener) -> None:
        self._opener = opener

    async def execute(self, arguments: PatchArguments, context: ToolContext) -> ToolResult:
        text = required_text(arguments.input, "input")
        return await asyncio.to_thread(_apply, context.guarded(self._opener), text)


class Hunk(msgspec.Struct):
    """Lines that are replaced by others."""

    after: list[str] = []
    """Lines to find first, in their order."""
    old: list[str] = []
    new: list[str] = []
    at_end: bool = False


class FilePatch(msgspec.Struct):
    """What a patch does with one file."""

    action: Literal["add", "delete", "update"]
    path: str
    move_to: str = ""
    lines: list[str] = []
    """The lines of a file that is added."""
    hunks: list[Hunk] = []


def parse_patch(text: str) -> list[FilePatch]:
    """Read a patch. Raises ``ToolError`` with the line that is wrong."""
    if len(text) > MAX_PATCH_CHARS:
        raise ToolError(f"The patch has {len(text)} characters, and {MAX_PATCH_CHARS} is the most")
    lines = text.replace("\r\n", "\n").strip().split("\n")
    if lines[0].strip() != BEGIN or lines[-1].strip() != END:
        raise ToolError(f'A patch begins with the line "{BEGIN}" and ends with the line "{END}"')
    patches: list[FilePatch] = []
    for number, line in enumerate(lines[1:-1], 2):
        _read_line(patches, line, number)
    if not patches:
        raise ToolError(f'The patch changes nothing: it has no "{_UPDATE}path", "{_ADD}path" or "{_DELETE}path"')
    if len(patches) > MAX_PATCHED_FILES:
        raise ToolError(f"The patch changes {len(patches)} files, and {MAX_PATCHED_FILES} is the most")
    for patch in patches:
        if patch.action == "update" and not patch.move_to and not any(hunk.old or hunk.new for hunk in patch.hunks):
            raise ToolError(f"The patch has no hunk for {patch.path}")
    return patches


def _read_line(patches: list[FilePatch], line: str, number: int) -> None:
    patch = patches[-1] if patches else None
    for head, action in ((_ADD, "add"), (_DELETE, "delete"), (_UPDATE, "update")):
        if line.startswith(head):
            patches.append(msgspec.convert({"action": action, "path": line[len(head) :].strip()}, FilePatch))
            return
    if patch is not None and patch.action == "add" and line.startswith("+"):
        patch.lines.append(line[1:])
    elif patch is None or patch.action != "update":
        if line.strip():
            raise ToolError(f"Line {number} of the patch is not understood: {line[:80]!r}")
    elif line.startswith(_MOVE) and not patch.hunks:
        patch.move_to = line[len(_MOVE) :].strip()
    elif line.startswith("@@"):
        anchor = line[2:].strip()
        anchor = "" if _UNIFIED.fullmatch(anchor) else anchor
        if patch.hunks and not (patch.hunks[-1].old or patch.hunks[-1].new):
            patch.hunks[-1].after += [anchor] if anchor else []  # Several of these lines narrow the place down.
        else:
            patch.hunks.append(Hunk(after=[anchor] if anchor else []))
    elif line.strip() == _END_OF_FILE and patch.hunks:
        patch.hunks[-1].at_end = True
    elif line[:1] in ("+", "-", " ", ""):
        if not patch.hunks:
            patch.hunks.append(Hunk())
        hunk, content = patch.hunks[-1], line[1:]
        if line[:1] != "+":
            hunk.old.append(content)
        if line[:1] != "-":
            hunk.new.append(content)
    else:
        raise ToolError(f"Line {number} of the patch must begin with a blank, + or -: {line[:80]!r}")


class _Write(msgspec.Struct, frozen=True):
    """A file as it is after the patch, or None if it is removed, and as it was before."""

    path: str
    data: bytes | None
    before: bytes | None
    mode: int | None = None


def _apply(opener: PathOpener, text: str) -> ToolResult:
    patches = parse_patch(text)
    paths = [path for patch in patches for path in (patch.path, patch.move_to) if path]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise ToolError(f"{twice} occurs twice in the patch; put its hunks into one part. Nothing was changed.")
    with opener.editing(*paths):
        try:
            writes = [write for patch in patches for write in _writes(opener, patch)]
        except (ToolError, PathRefused) as error:
            raise ToolError(f"{error}\nNothing was changed.") from None
        _carry_out(opener, writes)
    letters = {"add": "A", "delete": "D", "update": "M"}
    rows = [
        f"{letters[patch.action]} {patch.path}{f' -> {patch.move_to}' if patch.move_to else ''}" for patch in patches
    ]
    return text_result("Applied the patch:\n" + "\n".join(rows))


def _writes(opener: PathOpener, patch: FilePatch) -> Iterator[_Write]:
    if not patch.path:
        raise ToolError("A part of the patch has no path")
    if patch.action == "add":
        if _present(opener, patch.path) is not None:
            raise ToolError(f"{patch.path} exists already; use {_UPDATE.strip()} or choose another path")
        yield _Write(patch.path, encode_text("".join(f"{line}\n" for line in patch.lines)), None)
        return
    bom, text = read_text(opener, patch.path) if patch.action == "update" else ("", "")
    with opener.open_read(patch.path) as file:
        before, mode = file.read(), os.fstat(file.fileno()).st_mode
    if patch.action == "delete":
        yield _Write(patch.path, None, before, mode)
        return
    data = encode_text(bom + patched(text, patch.hunks, patch.path))
    if not patch.move_to:
        yield _Write(patch.path, data, before, mode)
        return
    if _present(opener, patch.move_to) is not None:
        raise ToolError(f"{patch.move_to} exists already; {patch.path} cannot be moved there")
    yield _Write(patch.move_to, data, None, mode)
    yield _Write(patch.path, None, before, mode)


def _present(opener: PathOpener, path: str) -> bool | None:
    try:
        with opener.open_read(path):
            return True
    except FileMissing:
        return None
    except IsFolder:
        return False


def _carry_out(opener: PathOpener, writes: Sequence[_Write]) -> None:
    """Write all files. If one fails, the others get back what they had."""
    done: list[_Write] = []
    try:
        for write in writes:
            _store(opener, write.path, write.data, write.mode)
            done.append(write)
    except BaseException:
        for write in reversed(done):
            with contextlib.suppress(PathRefused, OSError):
                _store(opener, write.path, write.before, write.mode)
        raise


def _store(opener: PathOpener, path: str, data: bytes | None, mode: int | None) -> None:
    if data is None:
        opener.remove(path)
        return
    with opener.open_write_atomic(path, mode=mode) as file:
        file.write(data)


def patched(text: str, hunks: Sequence[Hunk], path: str) -> str:
    """Return the text with the hunks applied in their order. Raises ``ToolError``."""
    lines = text.removeprefix(BOM).split("\n")
    crlf = len(lines) > 1 and lines[0].endswith("\r")
    ends_blank = lines[-1] == ""
    if ends_blank:
        lines.pop()
    bare = [line.removesuffix("\r") for line in lines]
    result: list[str] = []
    position = 0
    for number, hunk in enumerate(hunks, 1):
        start = position
        for anchor in hunk.after:
            place = _find(bare, [anchor], start, at_end=False)
            if place is None:
                raise ToolError(f"Hunk {number} of {path}: the line after @@ is not in the file: {anchor[:80]!r}")
            start = place + 1
        place = _find(bare, hunk.old, start, at_end=hunk.at_end) if hunk.old else len(bare)
        if place is None and len(hunk.old) > 1 and not hunk.old[-1]:
            # A blank line at the end of a hunk is often none of the file.
            hunk = Hunk(hunk.after, hunk.old[:-1], hunk.new[:-1] if hunk.new[-1:] == [""] else hunk.new, hunk.at_end)
            place = _find(bare, hunk.old, start, at_end=hunk.at_end)
        if place is None:
            raise ToolError(f"Hunk {number} of {path} does not fit. {nearest_passage(text, chr(10).join(hunk.old))}")
        if not hunk.old and hunk.after:
            place = start
        result += lines[position:place]
        result += _replaced(lines[place : place + len(hunk.old)], hunk, "\r" if crlf else "")
        position = place + len(hunk.old)
    result += lines[position:]
    return "\n".join(result) + ("\n" if result and (ends_blank or not text) else "")


def _replaced(lines: Sequence[str], hunk: Hunk, end: str) -> list[str]:
    """Return the new lines. Those that the hunk leaves as they are stay exactly as the file has them."""
    own: dict[str, list[str]] = {}
    for old, line in zip(hunk.old, lines, strict=True):
        own.setdefault(old, []).append(line)
    return [own[line].pop(0) if own.get(line) else f"{line}{end}" for line in hunk.new]


def _find(lines: Sequence[str], wanted: Sequence[str], start: int, *, at_end: bool) -> int | None:
    """Return where the lines are from ``start`` on: exactly, else with other blanks at their ends, else around them."""
    last = len(lines) - len(wanted)
    places = [last] if at_end else range(start, last + 1)
    for same in (str, str.rstrip, str.strip):
        target = [same(line) for line in wanted]
        for place in places:
            if place < start or same(lines[place]) != target[0]:
                continue
            if [same(line) for line in lines[place : place + len(wanted)]] == target:
                return place
    return _find(lines, wanted, start, at_end=False) if at_end else None
