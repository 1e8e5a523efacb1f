from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.tools.exec.allowlist import SAFE_USES, AllowedCommand, RefusedCommand, Segment, evaluate, parse

GREP = os.path.realpath(shutil.which("grep") or "/usr/bin/grep")


def decide(command: str, allowlist: list[str] | None = None, cwd: str = "/") -> AllowedCommand | RefusedCommand:
    return evaluate(command, allowlist=allowlist or [], safe_bins=list(SAFE_USES), search_path=os.defpath, cwd=cwd)


@pytest.mark.parametrize(
    "command",
    [
        "cat $HOME",
        "cat `id`",
        "cat $(id)",
        "cat <(id)",
        "cat < /etc/passwd",
        "cat > x",
        "cat 2>&1",
        "cat << EOF",
        "cat & id",
        "(cat)",
        "{ cat; }",
        "cat *",
        "cat ?",
        "cat [a]",
        "cat ~",
        "cat # id",
        "cat \nid",
        "cat \\\nid",
        "cat \\x",
        "!cat",
        'cat "$HOME"',
        'cat "`id`"',
        'cat "a',
        "cat 'a",
        "A=1 cat",
        "cat |",
        "| cat",
        "cat ;; id",
        "cat |& id",
        "",
        "cat \x00",
    ],
)
def test_whatever_a_shell_would_interpret_is_refused(command: str) -> None:
    assert isinstance(parse(command), RefusedCommand)


def test_programs_with_literal_arguments_are_taken_apart() -> None:
    assert parse("a 'b $c'\"d e\"f | g && h -x=1 || i; j ''") == [
        Segment("", ["a", "b $cd ef"]),
        Segment("|", ["g"]),
        Segment("&&", ["h", "-x=1"]),
        Segment("||", ["i"]),
        Segment(";", ["j", ""]),
    ]


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8), min_size=1, max_size=4))
def test_quoting_and_taking_apart_are_inverse(words: list[str]) -> None:
    parsed = parse(" ".join("'" + word.replace("'", "") + "'" for word in ["run", *words]))
    assert parsed == [Segment("", ["run", *(word.replace("'", "") for word in words)])]


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("grep -in foo", True),
        ("grep -e foo -A 3", True),
        ("grep foo file", False),
        ("grep -e foo file", False),
        ("grep -f patterns", False),
        ("grep -r foo", False),
        ("grep --fil=x foo", False),
        ("sort -rn -k 2", True),
        ("sort -k2", True),
        ("sort -o out", False),
        ("sort -uo out", False),
        ("sort --compress-program=sh", False),
        ("sort file", False),
        ("uniq - out", False),
        ("uniq -c", True),
        ("head -5", True),
        ("head -n 5", True),
        ("head -n", False),
        ("head secret", False),
        ("tail -f", False),
        ("tr a-z A-Z", True),
        ("tr a b c", False),
        ("wc -l --files0-from=x", False),
        ("cut -d : -f 1", True),
        ("jq -r .a", shutil.which("jq") is not None),
        ("jq -f x", False),
        ("grep x | sort | sh", False),
        ("./grep x", False),
        ("cat x", False),
        ("no-such-program", False),
    ],
)
def test_filters_are_safe_only_while_they_filter(command: str, allowed: bool) -> None:
    assert isinstance(decide(command), AllowedCommand) == allowed


def test_every_program_of_a_chain_must_be_listed_by_its_real_path(tmp_path: Path) -> None:
    listed = [GREP]
    assert decide("grep -r foo . && grep x y", listed) == AllowedCommand(f"{GREP} -r foo . && {GREP} x y")
    assert isinstance(decide("grep x; cat y", listed), RefusedCommand)
    assert isinstance(decide("grep x y", ["grep"]), RefusedCommand)
    assert isinstance(decide("grep x y", [str(Path(GREP).parent / "*")]), AllowedCommand)
    planted = tmp_path / "grep"
    planted.symlink_to(shutil.which("env") or "/usr/bin/env")
    assert isinstance(decide("./grep sh -c id", [str(planted)], cwd=str(tmp_path)), RefusedCommand)


def test_what_runs_is_the_checked_form() -> None:
    decided = decide("grep 'a $(id)' x", [GREP])
    assert isinstance(decided, AllowedCommand)
    assert shlex.split(decided.command) == [GREP, "a $(id)", "x"]
