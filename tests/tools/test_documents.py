"""Documents as text: PDF, Word, Excel and notebooks, and those that are made to do harm."""

from __future__ import annotations

import datetime
import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from docx import Document
from openpyxl import Workbook

from openclaw.messages import TextBlock
from openclaw.path_opener import PathOpener
from openclaw.tools import document_text, documents
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.documents import page_range
from openclaw.tools.files import ReadTool


@pytest.fixture
def reader(workspace: Path) -> ReadTool:
    return ReadTool(PathOpener(workspace, confine=True))


async def read(reader: ReadTool, context: ToolContext, name: str, data: bytes, **arguments: Any) -> str:
    (context.workspace / name).write_bytes(data)
    result = await reader.run({"path": name, **arguments}, context)
    return "\n".join(block.text for block in result.content if isinstance(block, TextBlock))


def pdf(pages: list[list[str]], *, comment: bytes = b"") -> bytes:
    """A PDF without NUL bytes whose pages have these lines."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids: list[int] = []
    for lines in pages:
        drawn = "".join(f"({line}) Tj 0 -14 Td " for line in lines)
        content = f"BT /F1 12 Tf 40 800 Td {drawn}ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % len(objects)
        )
        kids.append(len(objects))
    references = " ".join(f"{kid} 0 R" for kid in kids).encode()
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (references, len(kids))
    return assembled(objects, comment)


def assembled(objects: list[bytes], comment: bytes = b"") -> bytes:
    body = bytearray(b"%PDF-1.4\n" + comment)
    offsets: list[int] = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(body)
    rows = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    body += b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, rows)
    return bytes(body + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start))


async def test_a_pdf_comes_page_by_page(reader: ReadTool, context: ToolContext) -> None:
    data = pdf([["Invoice 17", "Total 30 EUR"], ["Terms"], []])
    assert b"\0" not in data
    assert await read(reader, context, "invoice.pdf", data) == (
        "--- Page 1 ---\nInvoice 17\nTotal 30 EUR\n\n--- Page 2 ---\nTerms\n\n--- Page 3 ---\n[No text on this page.]"
        "\n\n[PDF, pages 1-3 of 3.]"
    )
    second = await read(reader, context, "invoice.pdf", data, pages="2")
    assert second == "--- Page 2 ---\nTerms\n\n[PDF, page 2 of 3. Page 3 was not asked for.]"


async def test_a_long_pdf_says_how_to_continue(reader: ReadTool, context: ToolContext) -> None:
    data = pdf([[f"page {n}"] for n in range(1, 31)])
    first = await read(reader, context, "book.pdf", data)
    assert first.endswith('page 20\n\n[PDF, pages 1-20 of 30. Use pages="21-" to continue.]')
    rest = await read(reader, context, "book.pdf", data, pages="21-")
    assert rest.endswith("page 30\n\n[PDF, pages 21-30 of 30.]")
    long_page = await read(reader, context, "long.pdf", pdf([[f"line {n}" for n in range(2500)]]))
    assert long_page.endswith(
        '[PDF, page 1 of 1. Showing lines 1-2000 of 2501 of them. Use pages="1" and offset=2001 to continue.]'
    )


async def test_pages_that_do_not_exist_or_make_no_sense_are_named(reader: ReadTool, context: ToolContext) -> None:
    with pytest.raises(ToolError, match=r"page 9 does not exist: it has 1 page$"):
        await read(reader, context, "a.pdf", pdf([["x"]]), pages="9")
    with pytest.raises(ToolError, match=r"pages is for PDF documents, and a.txt is not one"):
        await read(reader, context, "a.txt", b"x", pages="1")


@pytest.mark.parametrize(("pages", "expected"), [("3", (3, 3)), (" 2-5 ", (2, 5)), ("8-", (8, 0)), ("1 - 2", (1, 2))])
def test_page_ranges(pages: str, expected: tuple[int, int]) -> None:
    assert page_range(pages) == expected


@pytest.mark.parametrize("pages", ["", "0", "5-2", "a", "1,2", "-3", "1--2", "9" * 7])
def test_other_page_ranges_are_refused(pages: str) -> None:
    with pytest.raises(ToolError, match="pages must be one page or a range"):
        page_range(pages)


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


async def test_a_word_document_comes_as_markdown(reader: ReadTool, context: ToolContext) -> None:
    document = Document()
    document.add_heading("Minutes", 0)
    document.add_heading("Decisions", 1)
    document.add_paragraph("We ship on Friday.")
    document.add_paragraph("tell Ana", style="List Bullet")
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "who", "a|b"
    assert await read(reader, context, "minutes.docx", saved(document)) == (
        "# Minutes\n\n# Decisions\n\nWe ship on Friday.\n\n- tell Ana\n| who | a\\|b |\n\n"
    )
    assert await read(reader, context, "empty.docx", saved(Document())) == "[empty.docx has no text.]"


async def test_a_workbook_comes_by_rows(reader: ReadTool, context: ToolContext) -> None:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Budget"
    sheet.append(["item", "cost", "due"])
    sheet.append(["rent", 900.5, datetime.datetime(2026, 3, 1)])
    sheet.append([])
    sheet.append(["sum", "=SUM(B2:B3)"])
    book.create_sheet("Notes")
    assert await read(reader, context, "budget.xlsx", saved(book)) == (
        "## Sheet: Budget\n1\titem\tcost\tdue\n2\trent\t900.5\t2026-03-01\n4\tsum\t=SUM(B2:B3)\n"
        "\n## Sheet: Notes\n[This sheet is empty.]\n"
    )
    part = await read(reader, context, "budget.xlsx", saved(book), offset=2, limit=1)
    assert part == "1\titem\tcost\tdue\n\n[5 more lines in file. Use offset=3 to continue.]"


NOTEBOOK = {
    "metadata": {"kernelspec": {"language": "python"}},
    "cells": [
        {"cell_type": "markdown", "source": ["# Study\n", "of things"]},
        {
            "cell_type": "code",
            "execution_count": 3,
            "source": "plot(1 + 1)",
            "outputs": [
                {"output_type": "stream", "text": ["done\n"]},
                {"output_type": "display_data", "data": {"text/plain": "<Figure>", "image/png": "iVBORw"}},
                {"output_type": "error", "ename": "ValueError", "evalue": "no"},
            ],
        },
    ],
}


async def test_a_notebook_comes_by_cells(reader: ReadTool, context: ToolContext) -> None:
    assert await read(reader, context, "study.ipynb", json.dumps(NOTEBOOK).encode()) == (
        "[Cell 1, markdown]\n# Study\nof things\n\n[Cell 2, code, run 3]\n```python\nplot(1 + 1)\n```\n"
        "[Output]\ndone\n[Output]\n<Figure>\n[image/png left out]\n[Output]\nValueError: no\n\n"
    )


async def test_a_missing_library_is_named_with_the_command_that_installs_it(
    reader: ReadTool, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_library(*_: object, **__: object) -> str:
        return '{"missing": "pypdf"}'

    monkeypatch.setattr(documents, "run_program", without_library)
    with pytest.raises(ToolError, match=r"a.pdf is a PDF document.*not installed here: openclaw extras add documents$"):
        await read(reader, context, "a.pdf", pdf([["x"]]))


# Hostile documents


def archive(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return buffer.getvalue()


def entity_bomb() -> bytes:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    xml = f'<?xml version="1.0"?><!DOCTYPE w [<!ENTITY e0 "lol">{entities}]><w>&e9;</w>'
    relation = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
        'Target="word/document.xml"/></Relationships>'
    )
    types = (
        '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override '
        'PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.'
        'document.main+xml"/><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
        'relationships+xml"/></Types>'
    )
    parts = {"[Content_Types].xml": types, "_rels/.rels": relation, "word/document.xml": xml}
    return archive({name: text.encode() for name, text in parts.items()})


def pdf_bomb() -> bytes:
    packed = zlib.compress(b"BT (x) Tj ET " * 20_000_000, 9)
    packed = zlib.compress(packed, 9)
    stream = b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n%s\nendstream" % (len(packed), packed)
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 3 0 R /Resources << >> >>"
    tree = b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>"
    return assembled([b"<< /Type /Catalog /Pages 2 0 R >>", tree, stream, page])


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("bomb.docx", lambda: archive({"word/document.xml": b"\0" * (201 * 1024**2)}), "unpacks to 201 MB"),
        ("many.xlsx", lambda: archive({f"{n}": b"" for n in range(10_001)}), "10001 entries"),
        ("entities.docx", entity_bomb, "cannot be read"),
        ("loop.pdf", lambda: assembled([b"<< /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>"]), "read"),
        ("cut.pdf", lambda: pdf([["x"]])[:60], "cannot be read as a PDF document: it is damaged"),
        ("cut.xlsx", lambda: archive({"a": b"x" * 999})[:50], "cannot be read as an Excel workbook: it is damaged"),
        ("other.docx", lambda: archive({"a": b"x"}), "damaged"),
        ("deep.ipynb", lambda: b'{"cells":' + b"[" * 200_000, "cannot be read as a Jupyter notebook"),
        ("cut.ipynb", lambda: b'{"cells": [', "it is not JSON"),
        ("huge.pdf", lambda: b"%PDF-1.4" + b"x" * 33 * 1024**2, "huge.pdf has more than 32MB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_hostile_document_is_an_error_and_nothing_else(
    reader: ReadTool, context: ToolContext, name: str, data: Any, problem: str
) -> None:
    with pytest.raises(ToolError, match=problem):
        await read(reader, context, name, data())


async def test_a_page_that_unpacks_to_too_much_does_not_reach_the_gateway(
    reader: ReadTool, context: ToolContext
) -> None:
    try:
        text = await read(reader, context, "bomb.pdf", pdf_bomb())
    except ToolError as error:
        text = str(error)
    assert "cannot be read" in text
    assert len(text) < 60_000


async def test_a_document_that_takes_too_long_is_given_up(
    reader: ReadTool, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "TIMEOUT_S", 0.0)
    with pytest.raises(ToolError, match=r"slow.pdf cannot be read: it took longer than 0 seconds"):
        await read(reader, context, "slow.pdf", pdf([["x"]]))


def test_the_text_of_a_document_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_text, "MAX_CHARS", 10)
    assert document_text.bounded(iter(["12345", "67890", "x"])) == ("1234567890", True)
    assert document_text.bounded(iter(["12345", "67890"])) == ("1234567890", False)


async def test_what_was_cut_of_a_document_is_said(
    reader: ReadTool, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(*_: object, **__: object) -> str:
        return msgspec.json.encode({"text": "half", "cut": True}).decode()

    monkeypatch.setattr(documents, "run_program", cut)
    text = await read(reader, context, "study.ipynb", b"{}")
    assert text == "half\n[The document is longer: only its first 4 characters can be read.]"
