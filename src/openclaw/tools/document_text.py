"""Turns one document into text: ``python -m openclaw.tools.document_text KIND FIRST LAST``, with the document as input.

It runs in a process of its own, with limits on memory and time, because a document may be made to exhaust both. The
libraries come with the extra ``documents``. Nothing else of this program is imported here.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import sys
import time
import zipfile
from collections.abc import Iterator
from typing import Any, cast

MEMORY_BYTES = 1024**3
CPU_S = 20
WORK_S = 12.0
"""After this no further page is begun."""
MAX_CHARS = 2_000_000
"""The most text of a document without pages."""
MAX_PDF_CHARS = 50 * 1024
MAX_PAGES = 20
"""The most pages of one call."""
MAX_UNPACKED_BYTES = 200 * 1024**2
MAX_ENTRIES = 10_000
MAX_CELL_CHARS = 2000
LONGEST_PAGE = 1_000_000


class UnreadableDocument(Exception):
    """The document cannot be read. The text says why."""


def main(kind: str, first: int, last: int) -> dict[str, Any]:
    data = sys.stdin.buffer.read()
    _limit()
    try:
        if kind == "pdf":
            return read_pdf(data, first, last)
        text, cut = bounded({"docx": docx_parts, "xlsx": xlsx_parts, "notebook": notebook_parts}[kind](data))
        return {"text": text, "cut": cut}
    except UnreadableDocument as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": f"reading it needs more than {MEMORY_BYTES // 1024**2} MB of memory"}
    except ImportError as error:
        return {"missing": str(error.name)}
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except Exception as error:  # Whatever a library raises for a damaged file ends here: this is the whole process.
        return {"error": f"it is damaged ({type(error).__name__}: {str(error)[:200]})"}


def _limit() -> None:
    import resource

    limits = {
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_CPU: CPU_S,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for name, most in limits.items():
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit on the address space.
            resource.setrlimit(name, (most, most))


def bounded(parts: Iterator[str]) -> tuple[str, bool]:
    """Join the parts, and return whether some of the text was cut."""
    kept: list[str] = []
    size = 0
    for part in parts:
        if size + len(part) > MAX_CHARS:
            kept.append(part[: MAX_CHARS - size])
            return "".join(kept), True
        kept.append(part)
        size += len(part)
    return "".join(kept), False


# PDF


def read_pdf(data: bytes, first: int, last: int) -> dict[str, Any]:
    """Return the text of the pages ``first`` to ``last`` (0 for the end), as many of them as fit one answer."""
    import logging

    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    begun = time.monotonic()
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableDocument("it is protected with a password")
        total = len(reader.pages)
    except PyPdfError as error:
        raise UnreadableDocument(f"it is damaged ({str(error)[:200]})") from None
    if first > total:
        raise UnreadableDocument(f"page {first} does not exist: it has {total} page{'s' * (total != 1)}")
    pages: list[dict[str, Any]] = []
    chars = 0
    for number in range(first, min(last or total, total, first + MAX_PAGES - 1) + 1):
        if pages and time.monotonic() - begun > WORK_S:
            break
        try:
            page = reader.pages[number - 1]
            text = page.extract_text().strip()[:LONGEST_PAGE]
            if not text:
                page.get_contents()  # The library leaves out content that it cannot unpack. This raises the reason.
        except MemoryError:
            raise
        except Exception as error:  # One damaged page must not hide the others.
            text = f"[This page cannot be read: {str(error)[:200] or type(error).__name__}]"
        if pages and chars + len(text.encode("utf-8", "replace")) > MAX_PDF_CHARS:
            break
        pages.append({"number": number, "text": text.encode("utf-8", "replace").decode()})
        chars += len(text.encode("utf-8", "replace"))
    return {"pages": pages, "total": total}


# Office documents


def check_archive(data: bytes) -> None:
    """Refuse an archive that unpacks to too much. Python's zip reader unpacks no more than an entry declares."""
    try:
        entries = zipfile.ZipFile(io.BytesIO(data)).infolist()
    except zipfile.BadZipFile as error:
        raise UnreadableDocument(f"it is damaged ({error})") from None
    if len(entries) > MAX_ENTRIES:
        raise UnreadableDocument(f"its archive has {len(entries)} entries, more than {MAX_ENTRIES}")
    if (size := sum(entry.file_size for entry in entries)) > MAX_UNPACKED_BYTES:
        raise UnreadableDocument(
            f"it unpacks to {size // 1024**2} MB, more than the {MAX_UNPACKED_BYTES // 1024**2} MB that are read"
        )


def docx_parts(data: bytes) -> Iterator[str]:
    """The paragraphs and tables of a Word document, as Markdown."""
    check_archive(data)
    from docx import Document
    from docx.table import Table

    for block in Document(io.BytesIO(data)).iter_inner_content():
        if isinstance(block, Table):
            for row in block.rows:
                cells = (" ".join(cell.text.split()).replace("|", "\\|") for cell in row.cells)
                yield f"| {' | '.join(cells)} |\n"
            yield "\n"
            continue
        text, style = block.text, str(block.style.name if block.style is not None else "")
        if not text.strip():
            continue
        level = style.removeprefix("Heading ")
        if style == "Title" or (level != style and level.isdigit()):
            yield f"{'#' * (1 if style == 'Title' else min(6, int(level)))} {text}\n\n"
        elif style.startswith("List"):
            yield f"{'1.' if 'Number' in style else '-'} {text}\n"
        else:
            yield f"{text}\n\n"


def xlsx_parts(data: bytes) -> Iterator[str]:
    """The sheets of a workbook: a line per row, with its number and its cells behind tabs.

    A formula is shown as its value, or as itself if the program that saved it did not compute it.
    """
    check_archive(data)
    from openpyxl import load_workbook

    values = load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    formulas = load_workbook(io.BytesIO(data), read_only=True)
    for number, name in enumerate(values.sheetnames):
        yield ("\n" if number else "") + f"## Sheet: {name}\n"
        sheet, computed = values[name], formulas[name]
        if not hasattr(sheet, "iter_rows"):
            yield "[A chart without cells.]\n"
            continue
        rows = zip(sheet.iter_rows(values_only=True), computed.iter_rows(values_only=True), strict=False)
        empty = True
        for index, (row, formula_row) in enumerate(rows, 1):
            cells = [
                _cell(formula if value is None else value) for value, formula in zip(row, formula_row, strict=False)
            ]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                empty = False
                yield f"{index}\t" + "\t".join(cells) + "\n"
        if empty:
            yield "[This sheet is empty.]\n"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return " ".join(str(value)[:MAX_CELL_CHARS].split())


# Notebooks


def notebook_parts(data: bytes) -> Iterator[str]:
    """The cells of a Jupyter notebook and the text of their outputs."""
    try:
        notebook: Any = json.loads(data)
    except ValueError as error:
        raise UnreadableDocument(f"it is not JSON ({error})") from None
    book = _dict(notebook)
    cells = _list(book.get("cells")) or [
        cell for sheet in _list(book.get("worksheets")) for cell in _list(_dict(sheet).get("cells"))
    ]
    language = str(_dict(_dict(book.get("metadata")).get("kernelspec")).get("language") or "python")
    if not cells:
        yield "[The notebook has no cells.]\n"
    for number, entry in enumerate(cells, 1):
        cell = _dict(entry)
        kind = str(cell.get("cell_type") or "raw")
        source = _text(cell.get("source", cell.get("input"))).rstrip()
        if kind != "code":
            yield f"[Cell {number}, {kind}]\n{source}\n\n"
            continue
        count = cell.get("execution_count")
        yield f"[Cell {number}, code{'' if count is None else f', run {count}'}]\n```{language}\n{source}\n```\n"
        for output in _list(cell.get("outputs")):
            if text := _output(_dict(output)).rstrip():
                yield f"[Output]\n{text}\n"
        yield "\n"


def _output(output: dict[str, Any]) -> str:
    if output.get("output_type") in ("error", "pyerr"):
        return f"{output.get('ename')}: {output.get('evalue')}"
    if "text" in output:
        return _text(output["text"])
    data = _dict(output.get("data"))
    if "text/plain" in data:
        other = [name for name in data if name.startswith("image/")]
        return _text(data["text/plain"]) + "".join(f"\n[{name} left out]" for name in other)
    return "".join(f"[{name} left out]\n" for name in data)


def _dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _text(value: object) -> str:
    return "".join(map(str, _list(value))) if isinstance(value, list) else str(value or "")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), ensure_ascii=True))
