from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from openclaw.cli.completion import completions

from .conftest import Cli


def test_every_command_and_its_flags_are_offered() -> None:
    table = completions()
    assert "gateway" in table[""]
    assert {"run", "start", "stop", "call", "--port"} <= set(table["gateway"])
    assert "--context" in table["message send"]
    assert "bash" in table["completion"]


def _complete(script: str, line: str) -> set[str]:
    words = line.split(" ")
    array = " ".join(f"'{word}'" for word in words)
    program = (
        f"{script}\nCOMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _openclaw; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("openclaw sta", {"status"}),
        ("openclaw gateway st", {"start", "stop", "status"}),
        ("openclaw message send --con", {"--context"}),
        ("openclaw sessions --act", {"--active"}),
        ("openclaw --no-color mes", {"message"}),
        ("openclaw --profile work mes", {"message"}),
        ("openclaw completion z", {"zsh"}),
        ("openclaw devices approve some-request --js", {"--json"}),
    ],
)
def test_bash_completes(cli: Cli, line: str, offered: set[str]) -> None:
    assert _complete(cli("completion", "bash").stdout, line) == offered


def need_shell(name: str) -> str:
    """The shell. The test is skipped where it is not installed; with ``OPENCLAW_TEST_REQUIRE_ALL`` it fails."""
    if found := shutil.which(name):
        return found
    if os.environ.get("OPENCLAW_TEST_REQUIRE_ALL"):
        pytest.fail(f"{name} is not installed")
    pytest.skip(f"{name} is not installed")


LINES = [
    ("openclaw sta", {"status"}),
    ("openclaw gateway st", {"start", "stop", "status"}),
    ("openclaw daemon st", {"start", "stop", "status"}),
    ("openclaw message send --con", {"--context"}),
    ("openclaw --profile work models set-", {"set-image"}),
    ("openclaw models set --js", {"--json"}),
    ("openclaw models set zzz", set[str]()),
]


def test_fish_completes(cli: Cli, tmp_path: Path) -> None:
    fish, script = need_shell("fish"), tmp_path / "openclaw.fish"
    script.write_text(cli("completion", "fish").stdout)
    asked = "".join(f"echo '>'; complete -C'{line}'; " for line, _ in LINES)
    done = subprocess.run(
        [fish, "--no-config", "-c", f"source {script}; {asked}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.stderr == ""
    offers = done.stdout.split(">\n")[1:]
    assert [{line.split("\t")[0] for line in offer.splitlines()} for offer in offers] == [words for _, words in LINES]


def test_zsh_completes(cli: Cli, tmp_path: Path) -> None:
    zsh, script = need_shell("zsh"), tmp_path / "_openclaw"
    script.write_text(cli("completion", "zsh").stdout)
    # The functions of zsh's completion get the words to offer. Here they print those that fit.
    stand_ins = """
    compdef() { : }
    _files() { : }
    _describe() {
      local one
      for one in "${(@P)@[-1]}"; do [[ $one == ${words[CURRENT]}* ]] && print -- "${one%%:*}"; done
    }
    """
    asked = "".join(f"print '>'; words=({line}); CURRENT=$#words; _openclaw; " for line, _ in LINES)
    program = f"{stand_ins}\nsource {script}\n{asked}"
    done = subprocess.run([zsh, "-f", "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stderr == ""
    assert [set(offer.split()) for offer in done.stdout.split(">\n")[1:]] == [words for _, words in LINES]


def test_an_unknown_shell_is_a_usage_error(cli: Cli) -> None:
    assert cli("completion", "tcsh").returncode == 2
