"""What ``apply_patch`` makes of a patch, and that it changes all of its files or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.messages import TextBlock
from openclaw.path_opener import PathOpener, PathRefused
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.patch import ApplyPatchTool, Hunk, patched


@pytest.fixture
def patcher(workspace: Path) -> ApplyPatchTool:
    return ApplyPatchTool(PathOpener(workspace, confine=True))


async def apply(patcher: ApplyPatchTool, context: ToolContext, body: str) -> str:
    block = (await patcher.run({"input": f"*** Begin Patch\n{body}\n*** End Patch"}, context)).content[0]
    assert isinstance(block, TextBlock)
    return block.text


async def test_a_patch_adds_updates_moves_and_deletes(
    patcher: ApplyPatchTool, workspace: Path, context: ToolContext
) -> None:
    (workspace / "run.sh").write_bytes(b"#!/bin/sh\necho one\necho two\n")
    (workspace / "run.sh").chmod(0o755)
    (workspace / "old.txt").write_text("x\n")
    (workspace / "app.py").write_bytes(b"\xef\xbb\xbfclass A:\r\n    def f(self):\r\n        return 1\r\n")
    text = await apply(
        patcher,
        context,
        "*** Add File: docs/new.md\n+# New\n+\n*** Update File: run.sh\n*** Move to: bin/run.sh\n@@\n echo one\n"
        "-echo two\n+echo 2\n+echo 3\n*** Delete File: old.txt\n*** Update File: app.py\n@@ def f(self):\n"
        "-        return 1\n+        return 2",
    )
    assert text == "Applied the patch:\nA docs/new.md\nM run.sh -> bin/run.sh\nD old.txt\nM app.py"
    assert (workspace / "docs/new.md").read_text() == "# New\n\n"
    assert (workspace / "bin/run.sh").read_text() == "#!/bin/sh\necho one\necho 2\necho 3\n"
    assert (workspace / "bin/run.sh").stat().st_mode & 0o777 == 0o755
    assert not (workspace / "run.sh").exists()
    assert not (workspace / "old.txt").exists()
    assert (workspace / "app.py").read_bytes() == (b"\xef\xbb\xbfclass A:\r\n    def f(self):\r\n        return 2\r\n")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("*** Update File: b.txt\n@@\n-zwo\n+2", "Hunk 1 of b.txt does not fit"),
        ("*** Update File: b.txt\n@@ nowhere\n-two\n+2", "the line after @@ is not in the file: 'nowhere'"),
        ("*** Add File: b.txt\n+x", "b.txt exists already"),
        ("*** Delete File: c.txt", "no such file or directory"),
        ("*** Update File: b.tx\n@@\n-two\n+2", "Did you mean b.txt"),
        ("*** Add File: ../x\n+x", "path leaves the workspace"),
        ("*** Update File: a.txt\n@@\n-one\n+uno", "a.txt occurs twice in the patch"),
        ("*** Update File: b.txt", "The patch has no hunk for b.txt"),
        ("*** Update File: b.txt\n@@\n*two", r"Line \d+ of the patch must begin with a blank, \+ or -"),
    ],
)
async def test_nothing_is_changed_if_one_part_does_not_fit(
    patcher: ApplyPatchTool, workspace: Path, context: ToolContext, body: str, problem: str
) -> None:
    (workspace / "a.txt").write_text("one\n")
    (workspace / "b.txt").write_text("two\n")
    with pytest.raises((ToolError, PathRefused), match=problem):
        await apply(patcher, context, f"*** Update File: a.txt\n@@\n-one\n+1\n{body}")
    assert (workspace / "a.txt").read_text() == "one\n"
    assert (workspace / "b.txt").read_text() == "two\n"


async def test_files_get_back_what_they_had_if_one_cannot_be_written(
    patcher: ApplyPatchTool, workspace: Path, context: ToolContext
) -> None:
    (workspace / "a.txt").write_text("one\n")
    (workspace / "folder").write_text("a file")
    with pytest.raises((ToolError, PathRefused)):
        await apply(
            patcher, context, "*** Update File: a.txt\n@@\n-one\n+1\n*** Add File: n.txt\n+x\n*** Add File: n.txt/y\n+x"
        )
    assert (workspace / "a.txt").read_text() == "one\n"
    assert not (workspace / "n.txt").exists()


@pytest.mark.parametrize(
    ("text", "hunks", "expected"),
    [
        ("a\nb\na\nb\n", [Hunk(["a"], ["b"], ["x"]), Hunk(["a"], ["b"], ["y"])], "a\nx\na\ny\n"),
        ("a\nb\na\n", [Hunk([], ["a"], ["z"], at_end=True)], "a\nb\nz\n"),
        ("a\n", [Hunk([], [], ["b"])], "a\nb\n"),
        ("a", [Hunk([], ["a"], ["b"])], "b"),
        ("a  \nb\n", [Hunk([], ["a", "b"], ["a", "c"])], "a  \nc\n"),
        ("a\nb\n", [Hunk([], ["a", ""], ["x", ""])], "x\nb\n"),
        ("", [Hunk([], [], ["b"])], "b\n"),
    ],
)
def test_hunks_are_applied_in_their_order(text: str, hunks: list[Hunk], expected: str) -> None:
    assert patched(text, hunks, "f") == expected


@pytest.mark.parametrize("text", ["", "x", "*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: a\n+x"])
async def test_a_text_that_is_no_patch_is_refused(patcher: ApplyPatchTool, context: ToolContext, text: str) -> None:
    with pytest.raises(ToolError):
        await patcher.run({"input": text}, context)
