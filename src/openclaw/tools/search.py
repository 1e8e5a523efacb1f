"""The ``search`` tool finds text in files, or files by name, with the path rules of ``read``.

The opener lists and opens every file, so that a link or a swap leads nowhere else. Lines are matched in a process of
their own (``match_lines.py``). ripgrep, where it is installed, only rules out files that lack a text which every match
must have. So the results are the same without it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from fnmatch import translate
from re import _constants as ops  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from openclaw.path_opener import IsFolder, PathOpener, PathRefused
from openclaw.program import ProgramFailed, run_program
from openclaw.tools.arguments import RecordTool, ToolArguments, required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.files import explain_missing

Mode: TypeAlias = Literal["content", "files", "names"]

MAX_PATTERN_CHARS = 1000
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
MAX_CONTEXT = 20
MAX_FILES = 50_000
"""So many files are looked at."""
MAX_FILE_BYTES = 2 * 1024 * 1024
"""Larger files are not searched, and are counted in a notice."""
MAX_OUTPUT_CHARS = 30_000
TIMEOUT_S = 20.0
BATCH_BYTES = 16 * 1024 * 1024
MAX_IGNORE_BYTES = 64 * 1024
MAX_BRACES = 50
_MOST_REPLY = 4 * 1024 * 1024
_BINARY_HEAD = 8192
_SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__"})
_IGNORE_FILES = (".gitignore", ".ignore")
_NAMES_CHARS = 100_000
"""The names of files that one call of ripgrep gets."""
_BRACES = re.compile(r"\{([^{}]*)\}")


class SearchArguments(ToolArguments):
    pattern: Annotated[str, Meta(description="Regular expression; with mode names a glob or part of a name")]
    path: Annotated[str, Meta(description="Directory or file to search (the workspace)")] = "."
    glob: Annotated[str, Meta(description="Only these files: *.py, src/**/*.{ts,tsx}")] | None = None
    mode: Annotated[Mode, Meta(description="content: lines; files: paths with a match; names: file names")] = "content"
    context: Annotated[int, Meta(ge=0, le=MAX_CONTEXT, description="Lines around each match")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="Most results (100)")] = DEFAULT_LIMIT
    ignore_case: bool = False


class SearchTool(RecordTool[SearchArguments]):
    name = "search"
    parallel = True
    summary = "Search file contents and names"
    description = (
        "Find text in files, or files by name. Skips .git, binary files and what .gitignore names. Prefer it to grep "
        "and find in exec."
    )
    examples = ({"pattern": "def main", "glob": "*.py"},)

    def __init__(self, opener: PathOpener, ripgrep: str | None = None) -> None:
        self._opener = opener
        self._ripgrep = ripgrep

    async def execute(self, arguments: SearchArguments, context: ToolContext) -> ToolResult:
        pattern = required_text(arguments.pattern, "pattern")
        if len(pattern) > MAX_PATTERN_CHARS:
            raise ToolError(f"pattern has {len(pattern)} characters, and {MAX_PATTERN_CHARS} is the most")
        opener, stop = context.guarded(self._opener), threading.Event()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                listing = await asyncio.to_thread(list_files, opener, arguments, stop)
                if arguments.mode == "names":
                    return text_result(_shown_names(listing, arguments))
                return text_result(await self._contents(opener, listing, arguments, stop))
        except TimeoutError:
            raise ToolError(
                f"The search took longer than {TIMEOUT_S:.0f} seconds; narrow path or glob, or simplify the pattern"
            ) from None
        finally:
            stop.set()

    async def _contents(
        self, opener: PathOpener, listing: Listing, arguments: SearchArguments, stop: threading.Event
    ) -> str:
        files, skipped = await self._candidates(listing, arguments), SkippedFiles()
        needed = common_text(arguments.pattern, ignore_case=False).encode() if not arguments.ignore_case else b""
        batches = _batches(opener, listing, files, needed, skipped, stop)
        matches: list[FileMatches] = []
        # An invalid pattern is an error even if there is nothing to search.
        batch = await asyncio.to_thread(next, batches, b"")
        while True:
            results = sum(1 if arguments.mode == "files" else file.matches for file in matches)
            matches += await _match(arguments, batch, arguments.limit - results)
            results = sum(1 if arguments.mode == "files" else file.matches for file in matches)
            if results > arguments.limit or not (batch := await asyncio.to_thread(next, batches, b"")):
                return _shown_matches(matches, listing, arguments, skipped)

    async def _candidates(self, listing: Listing, arguments: SearchArguments) -> Sequence[str]:
        """Return the files that ripgrep does not rule out, or all of them if it cannot help."""
        text = common_text(arguments.pattern, ignore_case=arguments.ignore_case)
        if self._ripgrep is None or not text or listing.single:
            return listing.files
        found: set[str] = set()
        argv = [self._ripgrep, "--no-config", "--no-messages", "--no-ignore", "--hidden", "--text", "--null", "-l"]
        argv += ["--encoding", "none", "-F", *(["-i"] if arguments.ignore_case else []), "-e", text, "--"]
        # ripgrep ends with status 1 if no file matches.
        shell = ["/bin/sh", "-c", '"$@" || [ $? -eq 1 ]', "sh", *argv]
        for names in _chunks(listing.files):
            try:
                reply = await run_program([*shell, *names], listing.folder, {}, most_bytes=_MOST_REPLY)
            except ProgramFailed:
                return listing.files
            found.update(reply.split("\0"))
        return [name for name in listing.files if name in found]


def common_text(pattern: str, *, ignore_case: bool) -> str:
    """Return the longest text that every match of an expression has, or an empty text if none is certain."""
    try:
        tree = parser.parse(pattern)
    except (re.error, OverflowError, RecursionError):
        return ""
    if tree.state.flags & (re.VERBOSE | re.IGNORECASE) or not pattern.isascii():
        return ""
    longest = run = ""
    for op, argument in tree:
        run = run + chr(argument) if op is ops.LITERAL else ""
        longest = max(longest, run, key=len)
    # Without regard to case, letters outside of ASCII can match these too.
    safe = longest.isprintable() and not (ignore_case and set(longest.lower()) & set("iks"))
    return longest if safe and len(longest) > 1 else ""


def _chunks(names: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for name in names:
        chunk.append(name)
        size += len(name) + 1
        if size > _NAMES_CHARS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


# Which files are searched


class Listing(msgspec.Struct):
    """The files below a folder, without those that are ignored."""

    path: str
    folder: str = ""
    """Where the folder is on this machine."""
    files: list[str] = []
    """Paths below the folder, in sorted order."""
    single: bool = False
    """``path`` is a file itself."""
    complete: bool = True

    def shown(self, name: str) -> str:
        """Return the path that ``read`` opens."""
        if self.single:
            return self.path
        return name if self.path in (".", "./") else f"{self.path.rstrip('/')}/{name}"


class _Folder(msgspec.Struct, frozen=True):
    name: str
    """Below the folder that is searched, with a slash at its end."""
    rules: tuple[tuple[str, Sequence[_Rule]], ...]
    """The ignore files that apply, outer ones first, each with the folder of its own."""


class _Rule(msgspec.Struct, frozen=True):
    glob: Glob
    negated: bool
    folders_only: bool


def list_files(opener: PathOpener, arguments: SearchArguments, stop: threading.Event) -> Listing:
    path = arguments.path.strip() or "."
    listing = Listing(path)
    globs = [Glob.of(glob) for glob in _expanded(arguments.glob)] if arguments.glob else []
    try:
        with explain_missing(opener, path), opener.open_read(path):
            listing.files, listing.single = [path], True
            return listing
    except IsFolder:
        listing.folder = opener.location(path)
    pending = [_Folder("", ())]
    while pending:
        if stop.is_set():
            raise ToolError("The search was stopped")
        folder = pending.pop()
        try:
            entries = opener.scan(listing.shown(folder.name) if folder.name else path)
        except PathRefused:
            continue
        rules = folder.rules
        if any(name in _IGNORE_FILES for name, _ in entries):
            rules = (*rules, (folder.name, _read_rules(opener, listing, folder.name, [name for name, _ in entries])))
        below: list[_Folder] = []
        for name, kind in entries:
            inside = f"{folder.name}{name}"
            if kind == "link" or (kind == "folder" and name in _SKIPPED_FOLDERS):
                continue
            if _is_ignored(inside, kind == "folder", rules):
                continue
            if kind == "folder":
                below.append(_Folder(f"{inside}/", rules))
            elif not globs or any(glob.matches(inside) for glob in globs):
                listing.files.append(inside)
        pending += reversed(below)
        if len(listing.files) > MAX_FILES:
            listing.complete = False
            break
    listing.files = sorted(listing.files[:MAX_FILES])
    return listing


def _read_rules(opener: PathOpener, listing: Listing, folder: str, names: Sequence[str]) -> list[_Rule]:
    rules: list[_Rule] = []
    for name in (name for name in _IGNORE_FILES if name in names):
        try:
            with opener.open_read(listing.shown(f"{folder}{name}")) as file:
                text = file.read(MAX_IGNORE_BYTES).decode("utf-8", "replace")
        except PathRefused:
            continue
        for line in text.splitlines():
            rule = line if line.endswith("\\ ") else line.rstrip()
            if not rule or rule.startswith("#"):
                continue
            negated = rule.startswith("!")
            rule = rule.removeprefix("!") if negated else rule
            if bare := rule.rstrip("/"):
                rules.append(_Rule(Glob.of(bare), negated, rule.endswith("/")))
    return rules


def _is_ignored(path: str, is_folder: bool, rules: Sequence[tuple[str, Sequence[_Rule]]]) -> bool:
    """The last rule that matches decides, and inner files come last."""
    ignored = False
    for folder, listed in rules:
        inside = path[len(folder) :]
        for rule in listed:
            if ignored == rule.negated and (is_folder or not rule.folders_only) and rule.glob.matches(inside):
                ignored = not rule.negated
    return ignored


class Glob(msgspec.Struct, frozen=True):
    """A pattern for paths. Without a slash it matches names in any folder; ``**`` matches any number of folders."""

    parts: tuple[re.Pattern[str] | None, ...]
    """None stands for ``**``."""
    by_name: bool

    @classmethod
    def of(cls, pattern: str) -> Glob:
        # The library's expressions for names take a linear time, unlike one for a whole path.
        pieces = [piece for piece in pattern.split("/") if piece]
        parts = tuple(None if piece == "**" else re.compile(translate(_plain_glob(piece))) for piece in pieces)
        return cls(parts, "/" not in pattern)

    def matches(self, path: str) -> bool:
        names = path.split("/")
        if self.by_name:
            part = self.parts[0] if self.parts else None
            return part is None or part.match(names[-1]) is not None
        reached = {0}
        for name in names:
            following: set[int] = set()
            for index in self._skipping(reached):
                part = self.parts[index] if index < len(self.parts) else False
                if part is None:
                    following.add(index)
                elif part and part.match(name):
                    following.add(index + 1)
            reached = following
        return len(self.parts) in reached or (
            bool(self.parts) and self.parts[-1] is None and len(self.parts) - 1 in reached
        )

    def _skipping(self, reached: set[int]) -> set[int]:
        """Add the places behind each ``**``, which may match no folder."""
        places = set(reached)
        for index in sorted(reached):
            while index < len(self.parts) and self.parts[index] is None:
                index += 1
                places.add(index)
        return places


def _plain_glob(piece: str) -> str:
    return re.sub(r"\\(.)", r"[\1]", piece).replace("[^", "[!")


def _expanded(glob: str) -> list[str]:
    """Return the globs that ``{a,b}`` stands for."""
    globs = [glob.strip()]
    while any(map(_BRACES.search, globs)):
        following: list[str] = []
        for pattern in globs:
            match = _BRACES.search(pattern)
            choices = match.group(1).split(",") if match else []
            following += [f"{pattern[: match.start()]}{one}{pattern[match.end() :]}" for one in choices if match]
            following += [] if match else [pattern]
        globs = following
        if len(globs) > MAX_BRACES:
            raise ToolError(f"glob stands for more than {MAX_BRACES} patterns; use a simpler one")
    return globs


# What is in them


class SkippedFiles(msgspec.Struct):
    large: int = 0
    unreadable: int = 0


class FileMatches(msgspec.Struct):
    name: str
    matches: int
    rows: list[tuple[int, bool, str]]
    """Line number, whether the line matches, and its text."""


class _Reply(msgspec.Struct):
    files: list[FileMatches] = []
    error: str = ""


def _batches(
    opener: PathOpener,
    listing: Listing,
    files: Sequence[str],
    needed: bytes,
    skipped: SkippedFiles,
    stop: threading.Event,
) -> Iterator[bytes]:
    """Read the files that have ``needed``, for as many bytes at a time as one process gets."""
    batch = bytearray()
    for name in files:
        if stop.is_set():
            return
        try:
            with opener.open_read(listing.shown(name)) as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except (PathRefused, OSError):
            skipped.unreadable += 1
            continue
        if b"\0" in data[:_BINARY_HEAD]:
            continue
        if len(data) > MAX_FILE_BYTES:
            skipped.large += 1
            continue
        if needed not in data:
            continue
        batch += json.dumps([name, len(data)]).encode() + b"\n" + data
        if len(batch) > BATCH_BYTES:
            yield bytes(batch)
            batch.clear()
    if batch:
        yield bytes(batch)


async def _match(arguments: SearchArguments, batch: bytes, limit: int) -> list[FileMatches]:
    request = {
        "pattern": arguments.pattern,
        "ignoreCase": arguments.ignore_case,
        "context": arguments.context,
        "mode": arguments.mode,
        "limit": limit,
    }
    argv = [sys.executable, "-I", "-m", "openclaw.tools.match_lines"]
    given = msgspec.json.encode(request) + b"\n" + batch
    try:
        reply = await run_program(argv, "/", {}, most_bytes=_MOST_REPLY, given=given)
        found = msgspec.json.decode(reply, type=_Reply)
    except (ProgramFailed, msgspec.DecodeError):
        raise ToolError("The search failed: the pattern needs too much memory; simplify it") from None
    if found.error:
        raise ToolError(found.error)
    return found.files


# What the model reads


def _shown_names(listing: Listing, arguments: SearchArguments) -> str:
    pattern = arguments.pattern.strip()
    if any(char in pattern for char in "*?["):
        globs = [Glob.of(glob) for glob in _expanded(pattern)]
        names = [name for name in listing.files if any(glob.matches(name) for glob in globs)]
    else:
        names = [name for name in listing.files if pattern.casefold() in name.casefold()]
    rows = [listing.shown(name) for name in names[: arguments.limit]]
    notices = [f"{len(names)} {'file' if len(names) == 1 else 'files'}"] if names else []
    if len(names) > len(rows):
        notices.append(f"showing the first {len(rows)}; raise limit or narrow the pattern")
    return _with_notices(rows, notices, listing, arguments, SkippedFiles())


def _shown_matches(
    matches: Sequence[FileMatches], listing: Listing, arguments: SearchArguments, skipped: SkippedFiles
) -> str:
    rows: list[str] = []
    left = arguments.limit
    more = False
    files = 0
    for file in matches:
        if left == 0:
            more = True
            break
        files += 1
        rows.append(listing.shown(file.name))
        if arguments.mode == "files":
            left -= 1
            continue
        last = 0
        for number, matching, text in file.rows:
            if matching and left == 0:
                more = True
                break
            left -= matching
            if last and number > last + 1 and arguments.context:
                rows.append("--")
            rows.append(f"{number}{':' if matching else '-'} {text}")
            last = number
        rows.append("")
    while rows and not rows[-1]:
        rows.pop()
    count = arguments.limit - left
    if arguments.mode == "files":
        notices = [f"{files} {'file' if files == 1 else 'files'}"]
    else:
        notices = [f"{count} {'line' if count == 1 else 'lines'} in {files} {'file' if files == 1 else 'files'}"]
    if more:
        notices.append("there are more; raise limit or narrow the search")
    return _with_notices(rows, notices if rows else [], listing, arguments, skipped)


def _with_notices(
    rows: Sequence[str], notices: list[str], listing: Listing, arguments: SearchArguments, skipped: SkippedFiles
) -> str:
    kept: list[str] = []
    size = 0
    for row in rows:
        size += len(row) + 1
        if size > MAX_OUTPUT_CHARS:
            notices.append(f"{len(rows) - len(kept)} more lines of this result were cut; narrow the search")
            break
        kept.append(row)
    if not rows:
        count = len(listing.files)
        where = f" of {arguments.glob}" if arguments.glob else ""
        notices.append(f"No match in {listing.path} ({count} {'file' if count == 1 else 'files'}{where} searched)")
    if skipped.large:
        notices.append(f"{skipped.large} larger than {MAX_FILE_BYTES // 1024**2}MB not searched")
    if skipped.unreadable:
        notices.append(f"{skipped.unreadable} could not be opened")
    if not listing.complete:
        notices.append(f"only the first {MAX_FILES} files were searched; narrow path or glob")
    notice = f"[{'; '.join(notices)}.]"
    return "\n".join([*kept, "", notice]) if kept else notice


def installed_ripgrep() -> str | None:
    return shutil.which("rg")
