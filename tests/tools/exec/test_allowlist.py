from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.config.unsupported import FILTERS, unsupported_values
from openclaw.tools.exec import binding
from openclaw.tools.exec.allowlist import (
    SAFE_USES,
    AllowedCommand,
    AllowRule,
    RefusedCommand,
    evaluate,
    parse,
    rule_for,
)
from openclaw.tools.exec.binding import resolve_program, runs_arguments, runs_others

GREP = os.path.realpath(shutil.which("grep") or "/usr/bin/grep")
PATH = "/usr/local/bin:/usr/bin:/bin"


def decide(command: str, allowlist: list[str] | None = None, cwd: str = "/") -> AllowedCommand | RefusedCommand:
    rules = [AllowRule(pattern=pattern) for pattern in allowlist or []]
    return evaluate(command, rules=rules, safe_bins=[*SAFE_USES, "jq"], search_path=PATH, cwd=cwd)


def test_a_program_with_literal_arguments_is_taken_apart() -> None:
    assert parse("a 'b $c'\"d e\"f -x=1 ''") == ["a", "b $cd ef", "-x=1", ""]


@given(st.lists(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=8), min_size=1))
def test_quoting_and_taking_apart_are_inverse(words: list[str]) -> None:
    parsed = parse(" ".join("'" + word.replace("'", "") + "'" for word in ["run", *words]))
    if not isinstance(parsed, RefusedCommand):
        assert parsed == ["run", *(word.replace("'", "") for word in words)]


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
        ("sort -T /tmp", False),
        ("sort --compress-program=sh", False),
        ("sort file", False),
        ("uniq - out", False),
        ("uniq -c", True),
        ("head -5", True),
        ("head -n 5", True),
        ("head -n", False),
        ("head secret", False),
        ("head -- secret", False),
        ("tail -f", False),
        ("tr a-z A-Z", True),
        ("tr a b c", False),
        ("wc -l --files0-from=x", False),
        ("cut -d : -f 1", True),
        ("jq -r .a", False),
        ("jq -n env", False),
        ("./grep x", False),
        ("/usr/bin/grep x", False),
        ("cat x", False),
        ("no-such-program", False),
    ],
)
def test_filters_are_safe_only_while_they_filter(command: str, allowed: bool) -> None:
    decided = decide(command)
    assert isinstance(decided, AllowedCommand) == allowed
    if isinstance(decided, AllowedCommand):
        assert decided.is_filter


def test_a_setting_that_names_another_filter_is_told_to_have_no_effect() -> None:
    assert set(FILTERS) == SAFE_USES.keys()
    told = unsupported_values({"tools": {"exec": {"safeBins": ["grep", "jq"]}}})
    assert ["only cut" in rule.reason for _, rule in told] == [True]
    assert not [*unsupported_values({"tools": {"exec": {"safeBins": ["grep"]}}})]


def test_a_filter_is_never_taken_from_a_folder_that_an_agent_can_write(tmp_path: Path) -> None:
    planted = tmp_path / "grep"
    planted.write_text("#!/bin/sh\ntouch ran\n")
    planted.chmod(0o755)
    decided = evaluate("grep x", rules=[], safe_bins=["grep"], search_path=f"{tmp_path}:{PATH}", cwd=str(tmp_path))
    assert isinstance(decided, AllowedCommand)
    assert decided.binding.program is not None
    assert not decided.binding.program.path.startswith(str(tmp_path))


def test_a_program_is_listed_by_its_real_path(tmp_path: Path) -> None:
    assert isinstance(decide("grep -r foo .", [GREP]), AllowedCommand)
    assert isinstance(decide("grep x y", ["grep"]), RefusedCommand)
    assert isinstance(decide("grep x y", [str(Path(GREP).parent / "*")]), AllowedCommand)
    planted = tmp_path / "grep"
    planted.symlink_to(shutil.which("env") or "/usr/bin/env")
    assert isinstance(decide("./grep sh -c id", [str(planted)], cwd=str(tmp_path)), RefusedCommand)


@pytest.mark.parametrize("name", ["env", "sh", "bash", "python3", "perl", "find", "xargs", "timeout", "nice"])
def test_no_rule_covers_a_program_that_runs_its_arguments(name: str) -> None:
    if not (found := shutil.which(name)):
        pytest.skip(f"{name} is not installed")
    for pattern in (os.path.realpath(found), found, "/usr/bin/*", "/*", "/bin/*"):
        decided = decide(f"{name} x", [pattern])
        assert isinstance(decided, RefusedCommand)
        assert "runs whatever its arguments name" in decided.reason


def test_a_program_that_can_run_others_is_covered_by_its_own_path_only(tmp_path: Path) -> None:
    tool = tmp_path / "make"
    shutil.copy("/usr/bin/true", tool)
    assert isinstance(decide(f"{tool} all", [f"{tmp_path}/*"]), RefusedCommand)
    assert isinstance(decide(f"{tool} all", [str(tool)]), AllowedCommand)


@pytest.mark.parametrize(
    "name",
    ["python3.11", "pypy3", "perl5.36", "vim.basic", "busybox", "bash", "mawk", "ld-linux-x86-64.so.2", "lua5.4", "SH"],
)
def test_programs_that_run_code_are_known_by_all_their_names(tmp_path: Path, name: str) -> None:
    tool = tmp_path / name
    shutil.copy("/usr/bin/true", tool)
    program = resolve_program(str(tool), "", "/")
    assert program is not None
    assert runs_arguments(program)
    # A link under a harmless name does not help.
    (tmp_path / "harmless").symlink_to(tool)
    program = resolve_program("./harmless", "", str(tmp_path))
    assert program is not None
    assert runs_arguments(program)
    assert runs_others(program)


def test_what_is_stored_is_one_command_in_one_folder_with_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "_SYSTEM_TREES", {*binding._SYSTEM_TREES, str(tmp_path)})  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program = tmp_path / "deploy"
    shutil.copy("/usr/bin/true", program)
    stored = rule_for("./deploy now", PATH, str(tmp_path))
    assert isinstance(stored, AllowRule)
    assert [Path(file.path).name for file in stored.files] == ["deploy"]

    def again(command: str, cwd: Path = tmp_path) -> AllowedCommand | RefusedCommand:
        return evaluate(command, rules=[stored], safe_bins=[], search_path=PATH, cwd=str(cwd))

    assert isinstance(again("./deploy now"), AllowedCommand)
    assert isinstance(again("./deploy later"), RefusedCommand)
    (tmp_path / "other").mkdir()
    shutil.copy("/usr/bin/touch", tmp_path / "other" / "deploy")
    assert isinstance(again("./deploy now", tmp_path / "other"), RefusedCommand)
    shutil.copy("/usr/bin/touch", program)
    changed = again("./deploy now")
    assert isinstance(changed, RefusedCommand)
    assert "has changed since it was allowed" in changed.reason


def test_a_rule_that_lost_its_content_covers_nothing(tmp_path: Path) -> None:
    stored = rule_for("/usr/bin/touch x", PATH, str(tmp_path))
    assert isinstance(stored, AllowRule)
    bare = AllowRule(pattern=stored.pattern, cwd=stored.cwd)
    decided = evaluate("/usr/bin/touch x", rules=[bare], safe_bins=[], search_path=PATH, cwd=str(tmp_path))
    assert isinstance(decided, RefusedCommand)
