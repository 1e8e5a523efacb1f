from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.tools.base import ToolError
from openclaw.tools.exec.environment import command_environment, working_directory


@pytest.mark.parametrize(
    "name", ["PATH", "ld_preload", "DYLD_X", "NODE_OPTIONS", "PYTHONPATH", "BASH_ENV", "IFS", "a-b", ""]
)
def test_names_that_change_what_runs_are_refused(name: str) -> None:
    with pytest.raises(ToolError, match="env: "):
        command_environment({}, {}, {name: "x"}, [])


def test_the_search_path_is_prepended_without_repeats() -> None:
    made = command_environment({"PATH": "/usr/bin:/a:/bin"}, {}, {"N": 1}, ["/a", "/b"])
    assert made == {"PATH": "/a:/b:/usr/bin:/bin", "N": "1"}


def test_a_workspace_that_does_not_exist_falls_back_to_home(tmp_path: Path) -> None:
    assert working_directory(tmp_path / "none", None) == (str(Path.home()), "")


def test_the_gateways_variables_win_over_those_of_skills_and_its_secrets_are_kept_back() -> None:
    own = {"HOME": "/home/me", "OPENCLAW_GATEWAY_TOKEN": "secret", "OPENCLAW_GATEWAY_PASSWORD": "secret"}
    made = command_environment(own, {"HOME": "/elsewhere", "SKILL_KEY": "k"}, {"SKILL_KEY": "mine"}, [])
    assert made == {"HOME": "/home/me", "SKILL_KEY": "mine"}
