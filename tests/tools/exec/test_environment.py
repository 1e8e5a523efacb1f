from __future__ import annotations

import os
from pathlib import Path

import pytest

from openclaw.tools.base import ToolError
from openclaw.tools.exec.binding import names
from openclaw.tools.exec.settings import command_environment, wanted_variables, working_directory
from openclaw.variables import is_refused_variable

DANGEROUS = names("""
    PATH HOME ZDOTDIR BASH_ENV ENV IFS PS4 PROMPT_COMMAND SHELLOPTS BASHOPTS CDPATH SHELL EDITOR VISUAL PAGER
    MANPAGER BROWSER LESSOPEN LESSCLOSE LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT ld_preload DYLD_INSERT_LIBRARIES
    GIT_SSH_COMMAND GIT_DIR GIT_CONFIG_COUNT GIT_EXTERNAL_DIFF GIT_PAGER GIT_ASKPASS NODE_OPTIONS NODE_PATH NODE_ENV
    PYTHONPATH PYTHONSTARTUP PYTHONHOME PYTHONWARNINGS PYTHONBREAKPOINT PERL5LIB PERL5OPT RUBYOPT RUBYLIB
    JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS GCONV_PATH LOCPATH TERMINFO TZDIR MAKEFLAGS MFLAGS CFLAGS CC
    RUSTC_WRAPPER npm_config_prefix PIP_INDEX_URL SSH_ASKPASS XDG_CONFIG_HOME DOCKER_HOST KUBECONFIG HTTP_PROXY
    http_proxy SSL_CERT_FILE OPENSSL_CONF SSLKEYLOGFILE TMPDIR GREP_OPTIONS TAR_OPTIONS LS_OPTIONS BASH_FUNC_ls%%
    a-b FOO
""")


@pytest.mark.parametrize("name", [*sorted(DANGEROUS), "", "LANG\n", "lang"])
def test_a_call_sets_only_names_that_are_known_to_be_harmless(name: str) -> None:
    with pytest.raises(ToolError, match="env: "):
        wanted_variables({name: "x"})


@pytest.mark.parametrize("name", [*sorted(DANGEROUS - {"NODE_ENV", "FOO"}), "", "LANG\n", "OPENCLAW_GATEWAY_TOKEN"])
def test_a_skill_sets_no_variable_that_changes_other_commands(name: str) -> None:
    assert is_refused_variable(name) and is_refused_variable(name.lower())


@pytest.mark.parametrize(
    "name",
    sorted(
        names(
            "OPENAI_API_KEY GOOGLE_MAPS_KEY NPM_TOKEN GITHUB_TOKEN NODE_ENV NOTION_BASE_URL GIT_AUTHOR_NAME FOO _X LANG"
        )
    ),
)
def test_a_skill_sets_the_keys_and_settings_of_its_service(name: str) -> None:
    assert not is_refused_variable(name, "x") and is_refused_variable(name, "x\0")


@pytest.mark.parametrize("value", ["/tmp/x", ":/etc/shadow", "../../x", "a/../../b", "x\ny", "x\0", "$(id)", "`id`"])
def test_a_value_names_no_file_and_holds_no_code(value: str) -> None:
    with pytest.raises(ToolError, match="env: the value of TZ"):
        wanted_variables({"TZ": value})


def test_language_zone_and_terminal_can_be_set() -> None:
    wanted = {"LANG": "de_DE.UTF-8", "LC_ALL": "C", "TZ": "Europe/Berlin", "COLUMNS": "80", "NO_COLOR": "1"}
    assert wanted_variables(wanted) == wanted


def test_the_search_path_is_prepended_without_repeats_and_without_relative_folders() -> None:
    made = command_environment({"PATH": "/usr/bin:.:/a::node_modules/.bin:/bin"}, {}, {"TZ": "UTC"}, ["/a", "/b"])
    assert made == {"PATH": "/a:/b:/usr/bin:/bin", "TZ": "UTC"}
    assert command_environment({}, {}, {}, [])["PATH"] == os.defpath


def test_a_workspace_that_does_not_exist_falls_back_to_home(tmp_path: Path) -> None:
    assert working_directory(tmp_path / "none", None) == (os.path.realpath(Path.home()), "")


def test_a_link_is_shown_as_the_folder_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "safe").symlink_to("/etc")
    assert working_directory(tmp_path, "safe") == ("/etc", "")


def test_secrets_of_the_gateway_do_not_reach_commands() -> None:
    own = {
        "HOME": "/home/me",
        "OPENCLAW_GATEWAY_TOKEN": "secret",
        "OPENCLAW_GATEWAY_PASSWORD": "secret",
        "ANTHROPIC_API_KEY": "secret",
        "GITHUB_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HTTPS_PROXY": "http://me:secret@proxy",
        "BASH_ENV": "/tmp/secret",
        "LD_PRELOAD": "/tmp/secret",
        "SOMETHING_NEW": "secret",
    }
    made = command_environment(own, {"HOME": "/elsewhere", "SKILL_KEY": "k"}, {}, [])
    assert made == {"HOME": "/home/me", "SKILL_KEY": "k", "PATH": os.defpath}
