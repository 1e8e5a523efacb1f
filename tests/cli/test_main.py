from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw import __version__
from openclaw.cli.command import Action, Group, explained
from openclaw.cli.main import TABLE, find_command, main
from tests.support.ports import KeptPort

from .conftest import Cli
from .fake_gateway import FakeGateway, spoken

HEAVY = (
    "asyncio",
    "dataclasses",
    "logging",
    "typing",
    "msgspec",
    "aiohttp",
    "rich",
    "prompt_toolkit",
    "pathlib",
    "ssl",
)


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version_is_one_line(cli: Cli, flag: str) -> None:
    done = cli(flag)
    assert (done.returncode, done.stdout) == (0, f"openclaw {__version__}\n")


def test_bare_command_without_a_terminal_prints_the_help(cli: Cli) -> None:
    done = cli()
    assert done.returncode == 0
    for name, _, _ in TABLE:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize(("typed", "meant"), [("stauts", "status"), ("sesions", "sessions"), ("masage", "message")])
def test_unknown_command_names_the_nearest_one(cli: Cli, typed: str, meant: str) -> None:
    done = cli(typed)
    assert done.returncode == 2
    assert f"openclaw {meant}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("start", "`openclaw gateway start`"),
        ("answer", "`openclaw questions answer`"),
        ("restore", "`openclaw backup restore`"),
    ],
)
def test_a_sub_command_alone_names_the_command_it_belongs_to(cli: Cli, typed: str, meant: str) -> None:
    done = cli(typed)
    assert done.returncode == 2 and f"Did you mean {meant}" in done.stderr


def test_unknown_sub_command_names_the_nearest_one(cli: Cli) -> None:
    done = cli("gateway", "strat")
    assert done.returncode == 2
    assert "openclaw gateway start" in done.stderr


@pytest.mark.parametrize("words", [("nonsense",), ("gateway", "strat"), ("status", "--nope")])
def test_json_is_printed_also_when_there_is_no_such_command(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli(*words, "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "USAGE")


def _every_parser() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, _, _ in TABLE:
        command = find_command(name)
        found.append((name,))
        found += [(name, action) for action in command.actions] if isinstance(command, Group) else []
    return found


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for words in _every_parser():
        assert main([*words, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "example:\n  openclaw " in shown, words


def _every_action() -> list[tuple[str, Action]]:
    found: list[tuple[str, Action]] = []
    for name, _, _ in TABLE:
        command = find_command(name)
        if isinstance(command, Group):
            found += [(f"{name} {sub}", action) for sub, action in command.actions.items()]
        elif command is not None:
            found.append((name, command))
    return found


@pytest.mark.parametrize(("words", "action"), _every_action())
def test_every_example_is_a_command_that_parses(words: str, action: Action) -> None:
    for line in action.example.splitlines():
        program, *given = shlex.split(line)
        given = given[: next((i for i, word in enumerate(given) if word in (">", "|", "--")), len(given))]
        assert program == "openclaw"
        name = given[0] if isinstance(find_command(given[0]), Action) else " ".join(given[:2])
        default = getattr(find_command(given[0]), "default", None)
        meant = dict(_every_action()).get(name) or dict(_every_action())[f"{given[0]} {default}"]
        rest = given[1:] if name not in dict(_every_action()) else given[len(name.split()) :]
        meant.parser(name).parse_intermixed_args(rest)


def test_every_command_that_tells_or_changes_something_prints_json_when_asked() -> None:
    talk = {"chat", "gateway run", "node run", "mcp serve", "completion"}
    """They talk with a person or another program as long as they run, or print a script."""
    assert {words for words, action in _every_action() if not action.prints_json} == talk


WRONG = (["--no-such-option"], ["surplus"] * 9, ["--json=yes"], ["--timeout", "soon"], ["--limit", "x"], ["\udcff"])


def test_wrong_arguments_of_any_command_are_told_without_a_trace_or_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"OPENCLAW_STATE_DIR": str(tmp_path), "OPENCLAW_GATEWAY_PORT": "1"}.items():
        monkeypatch.setenv(name, value)

    def never(_: object) -> int:
        return 0

    for words, action in _every_action():
        monkeypatch.setattr(action, "run", never)
        codes: list[int] = []
        for wrong in WRONG:
            codes.append(main([*words.split(), *wrong]))
            told = capsys.readouterr()
            assert "Traceback" not in told.err and "\x1b" not in told.out + told.err, (words, wrong)
            assert codes[-1] in (0, 2), (words, wrong)
            assert codes[-1] == 0 or "unexpected" not in told.err, (words, wrong)
        assert codes[0] == 2, words


@pytest.mark.parametrize(
    ("code", "advice"), [(errno.EACCES, "doctor"), (errno.EROFS, "OPENCLAW_STATE_DIR"), (errno.ENOSPC, "Make room")]
)
def test_a_file_that_cannot_be_used_is_told_without_a_trace(
    code: int, advice: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> int:
        raise OSError(code, os.strerror(code), "/state/openclaw.json")

    action = dict(_every_action())["config path"]
    monkeypatch.setattr(action, "run", fail)
    assert main(["config", "path"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"/state/openclaw.json: {os.strerror(code)}. ") and advice in told
    assert main(["config", "path", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "FAILED"


def test_a_full_disk_is_told_also_where_the_error_names_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", "/state")
    told = explained(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert str(told) == "/state: No space left on device. Make room, then try again."


def test_every_help_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((80, 24)))
    for words in [(), *_every_parser()]:
        assert main([*words, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > 80 and not line.startswith("  openclaw ")] == []


def test_a_wrong_option_is_a_usage_error(cli: Cli) -> None:
    done = cli("sessions", "--nope")
    assert done.returncode == 2
    assert "--nope" in done.stderr


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        ((), "openclaw gateway start"),
        (("--profile", "work"), "openclaw --profile work gateway start"),
    ],
)
def test_advice_to_start_a_gateway_names_the_profile_in_use(cli: Cli, flags: tuple[str, ...], start: str) -> None:
    port = KeptPort()
    done = cli(*flags, "status", OPENCLAW_GATEWAY_PORT=str(port.number))
    assert f"Start one: {start}\n" in done.stderr and f"`{start}` to start it" in " ".join(done.stdout.split())


def test_a_profile_has_a_state_directory_of_its_own(cli: Cli, tmp_path: Path) -> None:
    done = cli("--profile", "work", "config", "path")
    assert done.stdout.strip() == str(tmp_path / ".openclaw-work" / "openclaw.json")
    done = cli("--dev", "gateway", "status", "--json")
    assert json.loads(done.stdout)["gateway"]["port"] == 19001


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "ünï"])
def test_a_profile_name_cannot_leave_the_home_directory(cli: Cli, name: str) -> None:
    done = cli("--profile", name, "config", "path")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_unexpected_error_shows_no_traceback_unless_asked(cli: Cli, state: Path) -> None:
    (state / "gateway.lock").write_text(json.dumps({"pid": os.getpid(), "port": [1]}))
    done = cli("status")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Traceback" in cli("status", OPENCLAW_DEBUG="1").stderr


def test_a_reader_that_leaves_early_is_no_error(cli: Cli) -> None:
    script = f"{sys.executable} -m openclaw --help | head -c 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=cli.environ)
    assert done.stderr == ""


FAST = [
    ["--version"],
    ["status", "--json"],
    ["sessions", "--json"],
    ["health", "--json"],
    ["gateway", "call", "status"],
    ["gateway", "status", "--json"],
    ["message", "send", "hi"],
    ["agent", "--agent", "main", "-m", "hi"],
    ["logs"],
]


@pytest.mark.parametrize("words", FAST, ids=lambda words: " ".join(words[:2]))
def test_simple_commands_import_nothing_heavy(cli: Cli, gateway: FakeGateway, words: list[str]) -> None:
    gateway.replies |= {"status": {}, "health": {"ok": True}, "sessions.list": {"sessions": []}}
    gateway.replies["logs.tail"] = {"file": "f", "cursor": 0, "size": 0, "lines": []}
    gateway.replies["agents.list"] = {"defaultId": "main", "agents": [{"id": "main"}]}
    gateway.streams["agent"] = spoken("hello")
    program = (
        "import sys; from openclaw.cli.main import main; code = main(sys.argv[1:]);"
        f"print(code, [m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env=cli.environ,
        stdin=subprocess.DEVNULL,
    )
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr


def test_help_takes_a_command(cli: Cli) -> None:
    assert "--active" in cli("help", "sessions").stdout
    assert "commands:" in cli("help").stdout
