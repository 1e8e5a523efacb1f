"""What a model reads of the file tools in a running Gateway in which commands are denied."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.flows.test_what_the_model_reads import Read, read_of
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer
from tests.tools.test_documents import NOTEBOOK, pdf

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessGateway]:
    tools = {"deny": ["exec", "process"], "exec": {"applyPatch": {"enabled": True}}}
    config = model_config(models.base_url, models.api_key, tools=tools)
    state = tmp_path_factory.mktemp("gateway") / "state"
    async with InProcessGateway(state, config) as gateway:
        folder = gateway.state_dir / "workspace" / "p"
        (folder / "docs" / "empty").mkdir(parents=True)
        (folder / "app.py").write_text("def main():\n    return 1\n\n\ndef other():\n    return main()\n")
        (folder / "docs" / "guide.md").write_text("# Guide\nCall main.\n")
        (folder / "nothing.txt").write_text("")
        (folder / "data.bin").write_bytes(b"\x7fELF\0\0")
        (folder / "bill.pdf").write_bytes(pdf([["Total 30 EUR"], ["Terms"]]))
        (folder / "study.ipynb").write_text(json.dumps(NOTEBOOK))
        yield gateway


BATTERY: list[tuple[str, dict[str, Any], str, bool]] = [
    ("read", {"path": "p/nothing.txt"}, "[p/nothing.txt is empty.]", False),
    ("read", {"path": "p/docs"}, "[Directory p/docs, 2 entries]\nempty/\nguide.md", False),
    ("read", {"path": "p/docs/empty"}, "[p/docs/empty is an empty directory.]", False),
    ("read", {"path": "p/docs/guid.md"}, "Did you mean p/docs/guide.md?", True),
    ("read", {"path": "p/docs/guide.md", "limit": 1}, "# Guide\n\n[1 more line in file. Use offset=2 to con", False),
    ("read", {"path": "p/docs/guide.md", "offset": 3}, "Offset 3 is beyond end of file (2 lines total)", True),
    ("read", {"path": "p/data.bin"}, "p/data.bin is a binary file", True),
    ("read", {"path": "p/bill.pdf"}, "--- Page 1 ---\nTotal 30 EUR\n\n--- Page 2 ---\nTerms\n\n[PDF, pages 1-2", False),
    ("read", {"path": "p/bill.pdf", "pages": "3"}, "page 3 does not exist: it has 2 pages", True),
    ("read", {"path": "p/bill.pdf", "pages": "last"}, 'pages must be one page or a range, such as "3"', True),
    ("read", {"path": "p/study.ipynb"}, "[Cell 1, markdown]\n# Study", False),
    ("search", {"pattern": r"main\(\)", "path": "p"}, "p/app.py\n1: def main():\n6:     return main()\n\n[2 l", False),
    ("search", {"pattern": "main", "path": "p", "mode": "files"}, "p/app.py\np/docs/guide.md\n\n[2 files.]", False),
    ("search", {"pattern": "*.md", "path": "p", "mode": "names"}, "p/docs/guide.md\n\n[1 file.]", False),
    ("search", {"pattern": "absent", "path": "p"}, "[No match in p (", False),
    ("search", {"pattern": "f(", "path": "p"}, "pattern is not a regular expression (missing )", True),
    ("search", {"pattern": "x", "path": "/etc"}, "path leaves the workspace: /etc", True),
    ("search", {}, "pattern: pattern required", True),
    (
        "edit",
        {"path": "p/app.py", "oldText": "return 2", "newText": "x"},
        "The nearest passage is line 2:\n2|     re",
        True,
    ),
    (
        "edit",
        {"path": "p/app.py", "oldText": "return", "newText": "x"},
        "Found 2 occurrences of oldText in p/app.py, at lines 2 and 6",
        True,
    ),
    (
        "edit",
        {"path": "p/app.py", "edits": [{"oldText": "zzz", "newText": "x"}, {"oldText": "main", "newText": "x"}]},
        "None of the edits was applied.",
        True,
    ),
    ("edit", {"path": "p/app.py"}, '"edits": [{"oldText": "draft", "newText": "final"}]', True),
    (
        "edit",
        {"path": "p/ap.py", "oldText": "a", "newText": "b"},
        "File not found: p/ap.py. Did you mean p/app.py",
        True,
    ),
    (
        "apply_patch",
        {"input": "*** Begin Patch\n*** Update File: p/app.py\n@@\n-zzz\n+x\n*** End Patch"},
        "Hunk 1 of p/app.py does not fit",
        True,
    ),
    ("apply_patch", {"input": "x"}, 'A patch begins with the line "*** Begin Patch"', True),
    ("exec", {"command": "ls"}, "", True),
]


@pytest.mark.parametrize(("tool", "arguments", "text", "is_error"), BATTERY)
async def test_the_model_reads(
    gateway: InProcessGateway, models: ModelServer, tool: str, arguments: dict[str, Any], text: str, is_error: bool
) -> None:
    (result,) = await read_of(gateway, models, Call(tool, arguments), provider="anthropic-like")
    assert text in result.text
    assert result.is_error in (is_error, None)


async def test_changes_are_shown_and_found_again(gateway: InProcessGateway, models: ModelServer) -> None:
    results = await read_of(
        gateway,
        models,
        Call("write", {"path": "q/a.txt", "content": "one\ntwo\n"}),
        Call("edit", {"path": "q/a.txt", "edits": [{"oldText": "one", "newText": "1"}]}),
        Call("apply_patch", {"input": "*** Begin Patch\n*** Update File: q/a.txt\n@@\n-two\n+2\n*** End Patch"}),
        Call("search", {"pattern": r"^\d$", "path": "q"}),
    )
    assert [result.text for result in results][1:] == [
        "Edited q/a.txt (1 replacement).\n-1 one\n+1 1\n 2 two",
        "Applied the patch:\nM q/a.txt",
        "q/a.txt\n1: 1\n2: 2\n\n[2 lines in 1 file.]",
    ]
    assert all(isinstance(result, Read) for result in results)
