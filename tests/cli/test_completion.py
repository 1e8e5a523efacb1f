from __future__ import annotations

import shutil
import subprocess

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
        ("openclaw completion z", {"zsh"}),
        ("openclaw devices approve some-request --js", {"--json"}),
    ],
)
def test_bash_completes(cli: Cli, line: str, offered: set[str]) -> None:
    assert _complete(cli("completion", "bash").stdout, line) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_parse(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).stdout
    assert "sessions" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True).returncode == 0


def test_an_unknown_shell_is_a_usage_error(cli: Cli) -> None:
    assert cli("completion", "tcsh").returncode == 2
