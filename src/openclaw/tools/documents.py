"""Documents that are not text: their kinds, and how their text is read in a process with limits."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from openclaw.program import ProgramFailed, run_program
from openclaw.tools.base import ToolError

Kind: TypeAlias = Literal["pdf", "docx", "xlsx", "notebook"]

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
TIMEOUT_S = 30.0
_MOST_OUTPUT = 16 * 1024 * 1024
_NAMES: dict[Kind, str] = {
    "pdf": "a PDF document",
    "docx": "a Word document",
    "xlsx": "an Excel workbook",
    "notebook": "a Jupyter notebook",
}
_OFFICE: dict[str, Kind] = {".docx": "docx", ".docm": "docx", ".xlsx": "xlsx", ".xlsm": "xlsx"}
_RANGE = re.compile(r"(\d{1,6})(-?)(\d{0,6})")


class PdfPage(msgspec.Struct, frozen=True):
    number: int
    text: str


class DocumentText(msgspec.Struct, frozen=True):
    """What the process reports about a document."""

    text: str = ""
    cut: bool = False
    """Whether the document has more text than is read."""
    pages: list[PdfPage] = []
    total: int = 0
    """How many pages a PDF has."""
    error: str = ""
    missing: str = ""
    """The library that is not installed."""


def document_kind(path: str, head: bytes) -> Kind | None:
    """Return the kind of a document by its first bytes and its name, or None if it is something else."""
    suffix = Path(path.strip()).suffix.lower()
    if b"%PDF-" in head[:1024] and (suffix == ".pdf" or head.startswith(b"%PDF-")):
        return "pdf"
    if head.startswith(b"PK\x03\x04"):
        return _OFFICE.get(suffix)
    return "notebook" if suffix == ".ipynb" and head.lstrip()[:1] == b"{" else None


def page_range(pages: str) -> tuple[int, int]:
    """Read ``3``, ``2-5`` or ``8-`` as first and last page; 0 stands for the end. Raises ``ToolError``."""
    match = _RANGE.fullmatch("".join(pages.split()))
    first, dash, last = match.groups() if match else ("", "", "")
    start = int(first or 0)
    end = int(last) if last else 0 if dash else start
    if start < 1 or (last and not dash) or (end and end < start):
        raise ToolError(f'pages must be one page or a range, such as "3", "2-5" or "8-", not "{pages}"')
    return start, end


async def read_document(path: str, kind: Kind, data: bytes, first: int = 1, last: int = 0) -> DocumentText:
    """Return the text of a document. Raises ``ToolError`` for the model."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ToolError(f"{path} has more than {MAX_DOCUMENT_BYTES // 1024**2}MB, too large to read as a document")
    argv = [sys.executable, "-I", "-m", "openclaw.tools.document_text", kind, str(first), str(last)]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reply = await run_program(argv, os.sep, {"LC_ALL": "C.UTF-8"}, most_bytes=_MOST_OUTPUT, given=data)
        document = msgspec.json.decode(reply, type=DocumentText)
    except TimeoutError:
        raise ToolError(f"{path} cannot be read: it took longer than {TIMEOUT_S:.0f} seconds") from None
    except (ProgramFailed, msgspec.DecodeError):
        # The process was killed by a limit, or a library failed in a way that Python cannot report.
        raise ToolError(f"{path} cannot be read: it exceeds the limits on time or memory") from None
    if document.missing:
        raise ToolError(
            f"{path} is {_NAMES[kind]}. Reading it needs libraries that are not installed here: "
            "openclaw extras add documents"
        )
    if document.error:
        raise ToolError(f"{path} cannot be read as {_NAMES[kind]}: {document.error}")
    return document
