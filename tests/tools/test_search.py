"""What the model reads of ``search``: the same with ripgrep and without it, and never more than ``read`` would show."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.messages import TextBlock
from openclaw.path_opener import PathOpener, PathRefused
from openclaw.tools import search
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.policy import allows, profile, subagent_filter
from openclaw.tools.sandbox.launch import READ_ONLY, sandbox_filter, tools_inside
from openclaw.tools.search import Glob, SearchTool, common_text

ENGINES = [None, shutil.which("rg")]


@pytest.fixture(params=ENGINES, ids=["python", "ripgrep"])
def searcher(request: pytest.FixtureRequest, workspace: Path) -> SearchTool:
    if request.param is None and request.param_index:  # type: ignore[attr-defined]
        pytest.skip("ripgrep is not installed")
    return SearchTool(PathOpener(workspace, confine=True), request.param)


def put(workspace: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


async def found(searcher: SearchTool, call: ToolContext, /, **arguments: Any) -> str:
    block = (await searcher.run(arguments, call)).content[0]
    assert isinstance(block, TextBlock)
    return block.text


PROJECT: dict[str, str | bytes] = {
    "src/app.py": "import os\n\ndef main():\n    return os.name\n\n\ndef other():\n    main()\n",
    "src/web/page.ts": "export function main() {}\r\n",
    "README.md": "Run main.\n",
    "logo.png": b"\x89PNG\0main",
    ".git/config": "main",
    "node_modules/x/index.js": "main",
    "build/out.py": "main",
    ".gitignore": "build/\n*.log\n!keep.log\n",
    "a.log": "main",
    "keep.log": "main",
}


async def test_matching_lines_come_with_their_files_and_numbers(
    searcher: SearchTool, workspace: Path, context: ToolContext
) -> None:
    put(workspace, PROJECT)
    assert await found(searcher, context, pattern=r"\bmain\b") == (
        "README.md\n1: Run main.\n\nkeep.log\n1: main\n\nsrc/app.py\n3: def main():\n8:     main()\n\n"
        "src/web/page.ts\n1: export function main() {}\n\n[5 lines in 4 files.]"
    )
    assert await found(searcher, context, pattern="main", glob="*.{py,ts}", mode="files") == (
        "src/app.py\nsrc/web/page.ts\n\n[2 files.]"
    )
    assert await found(searcher, context, pattern="def main", path="src", context=1) == (
        "src/app.py\n2- \n3: def main():\n4-     return os.name\n\n[1 line in 1 file.]"
    )
    assert await found(searcher, context, pattern="^RUN", ignoreCase=True, path="README.md") == (
        "README.md\n1: Run main.\n\n[1 line in 1 file.]"
    )
    nothing = await found(searcher, context, pattern="nothing here", glob="*.py")
    assert nothing == "[No match in . (1 file of *.py searched).]"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.py", ["src/app.py"]),
        ("src/**/*.ts", ["src/web/page.ts"]),
        ("READ", ["README.md"]),
        ("web/p", ["src/web/page.ts"]),
        ("*.{md,png}", ["README.md", "logo.png"]),
    ],
)
async def test_files_are_found_by_name(
    searcher: SearchTool, workspace: Path, context: ToolContext, pattern: str, names: list[str]
) -> None:
    put(workspace, PROJECT)
    text = await found(searcher, context, pattern=pattern, mode="names")
    assert text.split("\n")[:-2] == names


async def test_every_cut_is_said(
    searcher: SearchTool, workspace: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(workspace, {f"f{n}.txt": "hit\nhit\n" for n in range(5)})
    limited = await found(searcher, context, pattern="hit", limit=3)
    assert limited == (
        "f0.txt\n1: hit\n2: hit\n\nf1.txt\n1: hit\n\n"
        "[3 lines in 2 files; there are more; raise limit or narrow the search.]"
    )
    exact = await found(searcher, context, pattern="hit", limit=10)
    assert exact.endswith("[10 lines in 5 files.]")
    names = await found(searcher, context, pattern="f*", mode="names", limit=2)
    assert names.endswith("[5 files; showing the first 2; raise limit or narrow the pattern.]")
    monkeypatch.setattr(search, "MAX_FILE_BYTES", 4)
    assert "5 larger than" in await found(searcher, context, pattern="hit")
    put(workspace, {"long.txt": "x" * 1000 + "hit" + "y" * 1000})
    monkeypatch.setattr(search, "MAX_FILE_BYTES", 4000)
    line = await found(searcher, context, pattern="xhit", path="long.txt")
    assert re.fullmatch(r"long.txt\n1: …x{100,}hity+…\n\n\[1 line in 1 file.\]", line)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"pattern": "f("}, r"pattern is not a regular expression \(missing \)"),
        ({"pattern": " "}, "pattern required"),
        ({"pattern": "x" * 1001}, "1001 characters, and 1000 is the most"),
        ({"pattern": "x", "path": "nowhere.md"}, r"no such file or directory.*Did you mean anywhere.md\?"),
        ({"pattern": "x", "path": "../outside"}, "path leaves the workspace"),
        ({"pattern": "x", "path": "/etc"}, "path leaves the workspace"),
        ({"pattern": "x", "glob": "{a,b,c,d}" * 4}, "more than 50 patterns"),
    ],
)
async def test_a_wrong_search_says_what_is_wrong(
    searcher: SearchTool, workspace: Path, context: ToolContext, arguments: dict[str, Any], problem: str
) -> None:
    put(workspace, {"anywhere.md": "x"})
    with pytest.raises((ToolError, PathRefused), match=problem):
        await searcher.run(arguments, context)


async def test_an_expression_that_takes_forever_is_given_up(
    searcher: SearchTool, workspace: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(workspace, {"a.txt": "a" * 60 + "b"})
    monkeypatch.setattr(search, "TIMEOUT_S", 1.0)
    with pytest.raises(ToolError, match="The search took longer than 1 seconds; narrow path or glob"):
        await found(searcher, context, pattern="(a+)+$")


# The same rules as for ``read``


async def test_links_lead_nowhere(searcher: SearchTool, workspace: Path, tmp_path: Path, context: ToolContext) -> None:
    outside = tmp_path / "outside"
    put(outside, {"secret.txt": "password"})
    (workspace / "folder").symlink_to(outside)
    (workspace / "file.txt").symlink_to(outside / "secret.txt")
    os.link(outside / "secret.txt", workspace / "hard.txt")
    put(workspace, {"own.txt": "password"})
    text = await found(searcher, context, pattern="password")
    assert text == "own.txt\n1: password\n\n[1 line in 1 file; 1 could not be opened.]"


class Hiding:
    """A guard that keeps everything named secret from the run."""

    def refusal(self, path: str, *, writing: bool) -> str | None:
        return "belongs to the owner" if "secret" in path else None

    def hidden_names(self, folder: str, names: Sequence[str]) -> set[str]:
        return {name for name in names if "secret" in f"{folder}/{name}"}


@pytest.mark.parametrize("mode", ["content", "files", "names"])
async def test_a_guest_finds_none_of_the_owners_files(
    searcher: SearchTool, workspace: Path, context: ToolContext, mode: str
) -> None:
    put(workspace, {"secret/plan.md": "plan", "my-secret-plan.md": "plan", "plan.md": "plan"})
    guest = msgspec.structs.replace(context, owner_files=Hiding())
    text = await found(searcher, guest, pattern="plan", mode=mode)
    assert "plan.md" in text
    assert "secret" not in text


def test_search_is_allowed_exactly_where_read_is() -> None:
    filters = [
        *(profile(name) for name in ("minimal", "coding", "messaging", "full")),
        *(sandbox_filter(None, None), READ_ONLY, subagent_filter(), sandbox_filter(["group:fs"], None)),
    ]
    for rules in filters:
        assert allows(rules, "search") == allows(rules, "read")
    assert tools_inside(["read", "search"], [sandbox_filter(None, None)]) == ["read", "search"]


# ripgrep changes nothing

WORDS = ["alpha", "Alpha", "beta1", "foo(bar)", "naïve", "\u212aelvin", "kelvin", "tab\there", "x", ""]
PATTERNS = [
    *("alpha", r"al\w+", "(?i)ALPHA", r"beta\d", r"foo\(bar", "na.ve", "kelvin", "a{2}|bet", "al(pha)?", r"^x$", r"\t"),
    *("alph[ab]", "(?:bet)a1", "alpha|x", "e(?=ta)", "[^a]lpha", "beta?", "(?x) al pha", "lph.*$", ".", "ta1$"),
]


@pytest.mark.skipif(ENGINES[1] is None, reason="ripgrep is not installed")
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ignore_case", [False, True])
async def test_ripgrep_and_python_find_the_same(
    workspace: Path, context: ToolContext, pattern: str, ignore_case: bool
) -> None:
    put(workspace, {f"{n}.txt": "\n".join(WORDS[n % len(WORDS) :][: n // 2 + 1]) for n in range(2 * len(WORDS))})
    put(workspace, {"latin.txt": b"caf\xe9 alpha", "-dash.txt": "alpha", "s p.txt": "beta1", "n\nl.txt": "alpha"})
    opener = PathOpener(workspace, confine=True)
    arguments = {"pattern": pattern, "ignoreCase": ignore_case, "context": 1}
    texts = [await found(SearchTool(opener, engine), context, **arguments) for engine in ENGINES]
    assert texts[0] == texts[1]


@given(st.text(alphabet="ab.*+?()[]|\\^$dw{2}", max_size=12), st.text(alphabet="abd2 ", max_size=12))
def test_every_match_has_the_common_text(pattern: str, text: str) -> None:
    common = common_text(pattern, ignore_case=False)
    try:
        match = re.search(pattern, text)
    except re.error:
        return
    assert match is None or common in text


# Ignore files


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a/b.py", True),
        ("b", "a/b", True),
        ("a/b", "a/b", True),
        ("a/b", "x/a/b", False),
        ("/b", "b", True),
        ("/b", "a/b", False),
        ("**/b", "b", True),
        ("**/b", "x/y/b", True),
        ("a/**", "a/b/c", True),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/x/y/c", True),
        ("a/*", "a/b/c", False),
        ("[!a]x", "bx", True),
        ("[^a]x", "ax", False),
        (r"\*", "*", True),
        (r"\*", "a", False),
        ("a?c", "abc", True),
    ],
)
def test_globs(pattern: str, path: str, matches: bool) -> None:
    assert Glob.of(pattern).matches(path) is matches


async def test_ignore_files_of_inner_folders_come_last(
    searcher: SearchTool, workspace: Path, context: ToolContext
) -> None:
    files = {".gitignore": "*.txt\n/top\n", "in/.gitignore": "!a.txt\n", "in/a.txt": "", "in/b.txt": "", "top/c": ""}
    put(workspace, {**files, "in/top/d": "", "in/.ignore": "# all\nlocal/\n", "in/local/e": ""})
    text = await found(searcher, context, pattern="*", mode="names")
    assert text.split("\n")[:-2] == [".gitignore", "in/.gitignore", "in/.ignore", "in/a.txt", "in/top/d"]
