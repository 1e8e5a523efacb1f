"""What is approved is what runs: a file that is swapped, rewritten or replaced after the question does not run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.clock import SystemClock
from openclaw.storage.files.disk import FileDocuments
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.exec import binding
from openclaw.tools.exec.allowlist import AllowRule
from openclaw.tools.exec.approvals import ApprovalRules, request_of
from openclaw.tools.exec.binding import Changed, bind, bind_text, held
from openclaw.tools.exec.settings import ExecSettings
from openclaw.tools.exec.tool import ExecTool
from openclaw.tools.process import ProcessRegistry
from openclaw.tools.shell_process import ShellCommand, spawn
from tests.support.questions import begin, memory_desk

RACES = int(os.environ.get("OPENCLAW_RACES", "40"))
GOOD, BAD = "echo good $0 $1\n", "touch ran\n"


class Asking:
    def __init__(self, tmp_path: Path, processes: ProcessRegistry, context: ToolContext) -> None:
        self.desk = memory_desk()
        self.calls: dict[str, asyncio.Task[Any]] = {}
        self.rules = ApprovalRules(FileDocuments(tmp_path / "state"), SystemClock())
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.workspace = context.workspace
        self.context = msgspec.structs.replace(context, notify=self.told.put_nowait, wake=self.told.put_nowait)
        self.tool = ExecTool(ExecSettings(host="gateway"), processes, self.rules, self.desk)

    async def ask(self, command: str, **arguments: Any) -> str:
        call = await begin(self.desk, self.tool.run({"command": command, **arguments}, self.context))
        assert call.question is not None, call.task
        self.calls[call.question.id] = call.task
        return call.question.id

    async def answered(self, id: str, decision: Any = "allow-once") -> str:
        await self.desk.answer(id, decision)
        try:
            result = await asyncio.wait_for(self.calls[id], 60)
        except ToolError as failed:
            return str(failed)
        return str(result.content[0].text)

    async def once_only(self, id: str) -> str | None:
        return request_of(await self.desk.find(id)).once_only

    def script(self, name: str, text: str, *, first: str = "#!/bin/sh\n") -> Path:
        path = self.workspace / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(first + text)
        path.chmod(0o755)
        return path

    @property
    def ran(self) -> bool:
        return (self.workspace / "ran").exists()


@pytest.fixture
async def asking(tmp_path: Path, processes: ProcessRegistry, context: ToolContext) -> AsyncIterator[Asking]:
    made = Asking(tmp_path, processes, context)
    yield made
    await made.desk.close()


def rewrite(path: Path) -> None:
    path.write_text(f"#!/bin/sh\n{BAD}")


def swap(path: Path) -> None:
    other = path.with_name("other")
    other.write_text(f"#!/bin/sh\n{BAD}")
    other.chmod(0o755)
    other.replace(path)


def link(path: Path) -> None:
    swap(path.with_name("elsewhere"))
    path.unlink()
    path.symlink_to("elsewhere")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [rewrite, swap, link, remove])
@pytest.mark.parametrize(
    "command",
    [
        "./job.sh x",
        "sh job.sh x",
        "bash -eu ./job.sh",
        "env sh job.sh",
        "sh -c './job.sh x'",
        "cat /dev/null | ./job.sh",
        "true && sh job.sh",
        "cd . && ./job.sh",
        "./job.sh > out",
        "timeout 5 ./job.sh",
        "find . -name job.sh -exec ./job.sh ';'",
    ],
)
async def test_a_script_that_changed_after_the_question_does_not_run(
    asking: Asking, command: str, change: Callable[[Path], None]
) -> None:
    script = asking.script("job.sh", GOOD)
    id = await asking.ask(command)
    change(script)
    told = await asking.answered(id)
    assert "is not what it was when the command was allowed" in told
    assert not asking.ran


async def test_a_script_in_a_folder_that_the_command_goes_to_is_bound_too(asking: Asking) -> None:
    script = asking.script("sub/job.sh", GOOD)
    id = await asking.ask("cd sub && sh job.sh")
    rewrite(script)
    assert "is not what it was" in await asking.answered(id)
    assert not asking.ran


@pytest.mark.parametrize("name", ["job.py", "job.sh"])
async def test_an_approved_script_runs_as_if_started_by_its_name(asking: Asking, name: str) -> None:
    if name == "job.py":
        asking.script("helper.py", "", first="WORD = 'helped'\n")
        text = "import sys, helper\nprint(sys.argv, __file__, __name__, helper.WORD)\n"
        asking.script(name, text, first="")
        told = await asking.answered(await asking.ask(f"/usr/bin/python3 {name} one 'two three'"))
        assert f"['job.py', 'one', 'two three'] {asking.workspace}/job.py __main__ helped" in told
    else:
        asking.script(name, 'echo "$0" "$2" "$(dirname "$0")"\nexit 3\n')
        told = await asking.answered(await asking.ask(f"./{name} one 'two three'"))
        assert f"{asking.workspace}/job.sh two three {asking.workspace}" in told
        assert "code 3" in told


async def test_a_program_replaced_on_the_search_path_does_not_run(asking: Asking, tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    shutil.copy("/usr/bin/true", bin / "mytool")
    asking.tool = ExecTool(
        ExecSettings(host="gateway", path_prepend=[str(bin)]), asking.tool._processes, asking.rules, asking.desk
    )
    for command in ("mytool x", "mytool x | cat"):
        id = await asking.ask(command)
        (bin / "mytool").unlink()
        (bin / "mytool").write_text(f"#!/bin/sh\n{BAD}")
        (bin / "mytool").chmod(0o755)
        assert "is not what it was" in await asking.answered(id)
        shutil.copy("/usr/bin/true", bin / "mytool")
    assert not asking.ran


async def test_a_program_planted_earlier_on_the_search_path_does_not_run(asking: Asking, tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    asking.tool = ExecTool(
        ExecSettings(host="gateway", path_prepend=[str(bin)]), asking.tool._processes, asking.rules, asking.desk
    )
    id = await asking.ask("date +%Y")
    (bin / "date").write_text(f"#!/bin/sh\n{BAD}")
    (bin / "date").chmod(0o755)
    assert (await asking.answered(id)).isdigit()
    assert not asking.ran


async def test_the_working_folder_cannot_be_swapped(asking: Asking) -> None:
    for name, text in (("sub", GOOD), ("evil", BAD)):
        asking.script(f"{name}/job.sh", text)
    id = await asking.ask("ls", workdir="sub")
    (asking.workspace / "sub").rename(asking.workspace / "aside")
    (asking.workspace / "sub").symlink_to("evil")
    assert "is not what it was" in await asking.answered(id)


async def test_a_script_is_asked_about_every_time_because_of_what_it_loads(asking: Asking) -> None:
    asking.script("helper.sh", "echo good\n")
    asking.script("job.sh", ". ./helper.sh\n")
    id = await asking.ask("./job.sh x")
    reason = await asking.once_only(id) or ""
    assert "is a script" in reason
    assert await asking.answered(id, "allow-always") == "good"
    asking.script("helper.sh", BAD)
    await asking.ask("./job.sh x")
    assert not asking.ran


async def test_an_interpreter_is_bound_with_its_script(asking: Asking, tmp_path: Path) -> None:
    shell = tmp_path / "mysh"
    shutil.copy("/bin/dash" if Path("/bin/dash").exists() else "/bin/sh", shell)
    asking.script("job", GOOD, first=f"#!{shell}\n")
    id = await asking.ask("./job x")
    shell.unlink()
    shutil.copy("/usr/bin/touch", shell)
    assert "is not what it was" in await asking.answered(id)


FORMS = [
    "lib.so", "./lib.so", "-D ./lib.so", "-D./lib.so", "-vDlib.so", "--load=lib.so", "@lib.so", "-o a=1,b=lib.so",
    "lib.so:ro", "file://{cwd}/lib.so", "{cwd}/lib.so", "--load={cwd}/lib.so", "sub/../lib.so",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
async def test_a_file_that_an_argument_names_cannot_change_after_the_question(asking: Asking, form: str) -> None:
    (asking.workspace / "sub").mkdir()
    library = asking.workspace / "lib.so"
    library.write_bytes(b"good")
    id = await asking.ask(f"/usr/bin/touch {form.format(cwd=asking.workspace)}")
    assert f"{library} can be written by the agent" in os.path.normpath(await asking.once_only(id) or "")
    library.write_bytes(b"evil")
    assert "is not what it was" in await asking.answered(id)


@pytest.mark.parametrize("form", ["-D {}/lib.so", "-D{}/lib.so", "--load={}/lib.so", "@{}/lib.so"])
async def test_a_command_allowed_for_good_is_asked_about_again_when_a_file_it_names_changes(
    asking: Asking, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "system"
    system.mkdir()
    (system / "lib.so").write_bytes(b"good")
    monkeypatch.setattr(binding, "_SYSTEM_TREES", {*binding._SYSTEM_TREES, str(system)})  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    command = f"/usr/bin/stat {form.format(system)}"
    id = await asking.ask(command)
    assert await asking.once_only(id) is None
    await asking.answered(id, "allow-always")
    with contextlib.suppress(ToolError):  # The program does not know the option. It runs without a question.
        assert (await asking.tool.run({"command": command}, asking.context)).details["status"] == "completed"
    (system / "lib.so").write_bytes(b"evil")
    await asking.ask(command)


async def test_no_rule_is_stored_for_a_program_that_the_agent_can_replace(asking: Asking) -> None:
    shutil.copy("/usr/bin/true", asking.workspace / "tool")
    (asking.workspace / "link").symlink_to("/usr/bin/stat")
    for command in ("./tool now", "./link -f"):
        id = await asking.ask(command)
        assert "folder that the agent can write to" in (await asking.once_only(id) or "")


async def test_a_rule_of_an_older_version_for_a_script_no_longer_holds(asking: Asking) -> None:
    asking.script("job.sh", GOOD)
    bound = bind(["./job.sh", "x"], "/usr/bin:/bin", str(asking.workspace))
    assert bound is not None and bound.program is not None
    pattern = f"={asking.workspace}/job.sh x"
    rule = AllowRule(pattern=pattern, cwd=str(asking.workspace), files=(bound.program, *bound.files))
    await asking.rules.allow_always("main", rule, "./job.sh x")
    await asking.ask("./job.sh x")


def test_a_command_that_names_too_many_files_is_refused_and_not_bound_in_part(workspace: Path) -> None:
    for number in range(binding.MAX_FILES + 1):
        (workspace / f"file{number}").touch()
    words = [f"file{number}" for number in range(binding.MAX_FILES + 1)]
    with pytest.raises(ToolError, match="name fewer"):
        bind(["/usr/bin/cat", *words], "", str(workspace))
    with pytest.raises(ToolError, match="name fewer"):
        bind_text(f"cat {' '.join(words)} | sh", "/usr/bin:/bin", str(workspace))


def command(binding: Any, cwd: Path) -> ShellCommand:
    return ShellCommand(
        text="", cwd=str(cwd), env={"PATH": "/usr/bin:/bin"}, use_pty=False, timeout=None, binding=binding
    )


@pytest.mark.parametrize("argv", [["./job.sh"], ["sh", "job.sh"], ["python3", "job.py"]])
def test_a_script_that_flips_all_the_time_never_runs_in_its_other_form(workspace: Path, argv: list[str]) -> None:
    """A thread swaps and rewrites the script while it is started again and again."""
    good = {"job.sh": "#!/bin/sh\necho good\n", "job.py": "print('good')\n"}
    bad = {"job.sh": "#!/bin/sh\ntouch ran\n", "job.py": "open('ran', 'w')\n"}
    name = argv[-1].removeprefix("./")

    def put(text: str) -> None:
        (workspace / "new").write_text(text)
        (workspace / "new").chmod(0o755)
        os.replace(workspace / "new", workspace / name)

    put(good[name])
    binding = bind(argv, "/usr/bin:/bin", str(workspace))
    assert binding is not None
    done = threading.Event()

    def flip() -> None:
        while not done.is_set():
            put(bad[name])
            put(good[name])
            fd = os.open(workspace / name, os.O_WRONLY)
            os.write(fd, bad[name].encode())
            os.close(fd)
            put(good[name])

    thread = threading.Thread(target=flip)
    thread.start()
    outcomes = {"ran": 0, "refused": 0}
    try:
        for _ in range(RACES):
            try:
                started = spawn(command(binding, workspace))
            except Changed:
                outcomes["refused"] += 1
                continue
            assert started.child.wait() == 0
            output = os.read(started.output_fd, 100)
            for fd in (started.output_fd, started.input_fd):
                if fd is not None:
                    os.close(fd)
            assert output == b"good\n"
            outcomes["ran"] += 1
    finally:
        done.set()
        thread.join()
    assert not (workspace / "ran").exists()
    assert sum(outcomes.values()) == RACES


def test_a_program_cannot_be_written_between_the_look_and_its_start(workspace: Path) -> None:
    shutil.copy("/usr/bin/true", workspace / "tool")
    binding = bind(["./tool"], "", str(workspace))
    assert binding is not None
    with held(binding, str(workspace)) as launch:
        assert launch.executable is not None
        with pytest.raises(OSError, match="temporarily unavailable"):
            os.open(workspace / "tool", os.O_WRONLY | os.O_NONBLOCK)
    os.close(os.open(workspace / "tool", os.O_WRONLY | os.O_NONBLOCK))


def test_no_descriptor_is_left_open(workspace: Path) -> None:
    (workspace / "job.sh").write_text("#!/bin/sh\n")
    (workspace / "job.sh").chmod(0o755)
    binding = bind(["./job.sh"], "/usr/bin", str(workspace))
    assert binding is not None
    before = len(os.listdir("/proc/self/fd"))
    with held(binding, str(workspace)):
        pass
    (workspace / "job.sh").write_text("#!/bin/sh\n\n")
    with pytest.raises(ToolError), held(binding, str(workspace)):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
