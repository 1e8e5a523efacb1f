"""Forms of commands × rules: no way of writing a command gets it past the rule that it would have to be asked about.

Every form, run by a shell, makes the file ``ran``. ``test_the_forms_work`` shows that they do.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.clock import SystemClock
from openclaw.questions.desk import QuestionDesk
from openclaw.storage.files.disk import FileDocuments
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.exec import binding
from openclaw.tools.exec.allowlist import FREE_ARGUMENTS, SAFE_USES, rule_for
from openclaw.tools.exec.approvals import ApprovalRules
from openclaw.tools.exec.binding import _RUNS_ARGUMENTS, _RUNS_OTHERS
from openclaw.tools.exec.settings import ExecOverrides, ExecSettings
from openclaw.tools.exec.tool import ExecTool
from openclaw.tools.process import ProcessRegistry
from tests.support.clock import until
from tests.support.questions import begin, memory_desk

CARRIERS = ("echo x", "ls", "grep x", "true", "/usr/bin/true")
JOINED = ("; ", ";", " && ", "&&", " || ", " | ", "|", " & ", "&", "\n", "\r\n", " |& ", "\n\n#\n", ";:;", " ;\t")
SUBSTITUTED = (
    "$(touch ran)", "`touch ran`", '"$(touch ran)"', '"`touch ran`"', "${x:-$(touch ran)}", "$((`touch ran`0))",
    "<(touch ran)", ">(touch ran)", "$'x'$(touch ran)", "a[$(touch ran)]", '"a"$(touch ran)"b"', "~$(touch ran)",
    "{a,$(touch ran)}", "x=$(touch ran)", "--x=`touch ran`", "<<EOF\n$(touch ran)\nEOF", '<<<"$(touch ran)"',
)  # fmt: skip
REDIRECTED = ("> ran", ">ran", ">> ran", ">| ran", "&> ran", "2> ran", "<> ran", "1>&2 2>ran", "3>ran")
WRAPPED = (
    "env touch ran", "env -i touch ran", "env -S 'touch ran'", "env A=1 touch ran", "/usr/bin/env touch ran",
    "sh -c 'touch ran'", "bash -c 'touch ran'", "bash -lc 'touch ran'", "dash -c 'touch ran'", "sh -ec 'touch ran'",
    "python3 -c 'open(\"ran\", \"w\")'", "perl -e 'open(F, \">ran\")'", "awk 'BEGIN {system(\"touch ran\")}'",
    "awk 'BEGIN {print > \"ran\"}'", "sed -n '1w ran' seed", "sed '1e touch ran' seed",
    "find . -maxdepth 0 -exec touch ran ';'", "find seed -fprint ran", "xargs -a seed touch ran",
    "timeout 5 touch ran", "nice touch ran", "nice -n 5 touch ran", "nohup touch ran", "setsid touch ran",
    "stdbuf -o0 touch ran", "ionice touch ran", "chrt -o 0 touch ran", "taskset 1 touch ran", "flock seed touch ran",
    "script -qc 'touch ran' out", "unshare touch ran", "busybox touch ran", "nice nice env sh -c 'touch ran'",
    "make -f seed.mk", "make --eval='x:;touch ran' x", "setarch -R touch ran",
    "tar -cf out.tar --checkpoint=1 --checkpoint-action=exec='touch ran' seed",
    "tar -cf out.tar -I 'touch ran;cat' seed", "git -c alias.x='!touch ran' x",
    "git -c core.pager='touch ran' -p log", "git grep --open-files-in-pager='touch ran' x",
    "split --filter='touch ran' seed", "sort --compress-program='touch ran' -S 1 seed", "prlimit touch ran",
    "node -e 'require(\"fs\").writeFileSync(\"ran\",\"\")'", "ld.so /usr/bin/touch ran", "choom -n 0 -- touch ran",
    "/lib64/ld-linux-x86-64.so.2 /usr/bin/touch ran", "setpriv touch ran", "runuser -u root touch ran",
    "script -c 'touch ran'", "perl seed.pl", "python3 seed.py", "sh seed.sh", "./seed.sh",
    "sqlite3 :memory: '.shell touch ran'",
)  # fmt: skip
WRITTEN_ODDLY = (
    "A=1 touch ran", "IFS=,;x=touch,ran;$x", "eval touch ran", "command touch ran", "exec touch ran",
    "builtin eval touch ran", "touch${IFS}ran", "$'touch' ran", "t''ouch r\\an", "{ touch ran; }", "(touch ran)",
    "! touch ran", "if true; then touch ran; fi", "for x in ran; do touch $x; done", "f() { touch ran; }; f",
    "x=ran; touch $x", "touch ra[n]", "touch r?n", "touch ${y:-ran}", "true # x\ntouch ran", "true \\\n; touch ran",
    "coproc touch ran", "time touch ran", "touch ran &", ". ./seed.sh", "source seed.sh", "trap 'touch ran' EXIT",
    "[[ -n $(touch ran) ]]", "case x in x) touch ran;; esac", "echo x >ran", "cat seed >&2 >ran",
)  # fmt: skip
UNSEEN = tuple(f"echo{blank}x" for blank in "\u00a0\u2003\u3000\u2028\x0b\x0c\r\x85\u200b\u202e\ufeff\x1b\x00\t")
FILTERS_ABUSED = (
    "sort -o ran", "sort -oran", "sort -uo ran", "sort --output=ran", "sort --outp ran", "sort seed", "sort -T /tmp",
    "uniq seed ran", "uniq - ran", "head seed", "head -n 1 seed", "head -- seed", "tail -f seed", "tail -n +1 seed",
    "tail --follow=name x", "wc --files0-from=seed", "wc seed", "wc -l seed", "cut -c1 seed", "grep -f seed x",
    "grep -fseed", "grep x seed", "grep -r x", "grep -R x", "grep --include=x x", "grep -e x seed",
    "grep --file=seed", "grep -d recurse x", "tr a b c", "sort --files0-from=seed", "sort --random-source=seed -R",
    "jq -n env", "jq -n '$ENV'", "jq . seed", "jq -f seed", "jq -n 'input_filename'", "grep -l x seed",
    "sort -t , -k 1 seed", "head -c 5 seed", "tail -c 5 seed", "uniq -c seed", "cut -d , -f 1 seed", "cat",
    "cat seed", "tee ran",
)  # fmt: skip
SMUGGLED = [
    *(f"{carrier}{joint}touch ran" for carrier, joint in itertools.product(CARRIERS, JOINED)),
    *(f"{carrier} {part}" for carrier, part in itertools.product(CARRIERS, (*SUBSTITUTED, *REDIRECTED))),
    *WRAPPED,
    *WRITTEN_ODDLY,
    *UNSEEN,
]
EVERYTHING = [
    "/usr/bin/*",
    "/bin/*",
    "/*",
    "~/*",
    "*",
    "sh",
    "/usr/bin/env",
    "/bin/sh",
    "/usr/bin/dash",
    "/usr/bin/bash",
]
NARROW = ["/usr/bin/echo", "/usr/bin/ls", "/usr/bin/true", "/usr/bin/grep", "/bin/echo", "/bin/ls"]
MODES: dict[str, tuple[ExecSettings, ExecOverrides]] = {
    "deny": (ExecSettings(security="deny"), ExecOverrides()),
    "nothing listed, never asked": (ExecSettings(host="gateway", ask="off"), ExecOverrides()),
    "nothing listed, asked": (ExecSettings(host="gateway"), ExecOverrides()),
    "some listed, never asked": (ExecSettings(host="gateway", ask="off", allowlist=NARROW), ExecOverrides()),
    "some listed, asked": (ExecSettings(host="gateway", allowlist=NARROW), ExecOverrides()),
    "everything listed, never asked": (ExecSettings(host="gateway", ask="off", allowlist=EVERYTHING), ExecOverrides()),
    "everything listed, asked": (ExecSettings(host="gateway", allowlist=EVERYTHING), ExecOverrides()),
    "everything listed, always asked": (ExecSettings(ask="always", allowlist=EVERYTHING), ExecOverrides()),
    "everything a filter": (
        ExecSettings(host="gateway", safe_bins=["sh", "env", "touch", *SAFE_USES]),
        ExecOverrides(),
    ),
    "elevated with questions": (ExecSettings(), ExecOverrides(elevated="on", elevated_allowed=True)),
    "allowlist by the session": (ExecSettings(), ExecOverrides(security="allowlist", ask="off")),
}


DIGESTS: dict[tuple[int, ...], str] = {}


@pytest.fixture
def seeded(workspace: Path) -> Path:
    (workspace / "seed").write_text("x\ny\n")
    (workspace / "seed.mk").write_text("x:\n\ttouch ran\n")
    (workspace / "seed.sh").write_text("#!/bin/sh\ntouch ran\n")
    (workspace / "seed.sh").chmod(0o755)
    (workspace / "seed.pl").write_text('open(F, ">ran");')
    (workspace / "seed.py").write_text('open("ran", "w")')
    return workspace


@pytest.fixture(autouse=True)
def digests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of this machine have up to 100 MB and do not change. Each is read once for all tests of this file."""

    def digest(fd: int, read: Any = binding._digest) -> str:  # pyright: ignore[reportPrivateUsage]
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        return DIGESTS[key] if key in DIGESTS else DIGESTS.setdefault(key, read(fd))

    monkeypatch.setattr(binding, "_digest", digest)


@pytest.fixture
async def desk() -> AsyncIterator[QuestionDesk]:
    made = memory_desk()
    yield made
    await made.close()


async def attempt(desk: QuestionDesk, tool: ExecTool, command: str, context: ToolContext, wish: ExecOverrides) -> Any:
    async def wished() -> ExecOverrides:
        return wish

    try:
        call = await begin(
            desk, tool.run({"command": command}, msgspec.structs.replace(context, exec_overrides=wished))
        )
        if call.question is not None:
            await desk.answer(call.question.id, "deny")
        return (await call.task).details
    except ToolError as refused:
        return str(refused)


@pytest.mark.parametrize("mode", MODES)
async def test_no_form_runs_where_its_program_would_have_to_be_asked_about(
    mode: str, seeded: Path, tmp_path: Path, context: ToolContext, processes: ProcessRegistry, desk: QuestionDesk
) -> None:
    settings, wish = MODES[mode]
    rules = ApprovalRules(FileDocuments(tmp_path / "state"), SystemClock())
    tool = ExecTool(settings, processes, rules, desk)
    for form in SMUGGLED:
        outcome = await attempt(desk, tool, form, context, wish)
        pending = isinstance(outcome, dict) and outcome["status"] == "denied"
        if settings.ask == "off" or wish.ask == "off" or mode == "deny":
            assert isinstance(outcome, str), f"{form!r} ran"
        else:
            assert pending or isinstance(outcome, str), f"{form!r} ran: {outcome}"
    assert not (seeded / "ran").exists()


@pytest.mark.parametrize("ask", ["off", "on-miss"])
async def test_no_filter_reads_or_writes_a_file(
    ask: Any, seeded: Path, context: ToolContext, processes: ProcessRegistry, desk: QuestionDesk
) -> None:
    tool = ExecTool(
        ExecSettings(host="gateway", ask=ask, safe_bins=[*SAFE_USES, "jq", "cat", "tee"]), processes, None, desk
    )
    for form in FILTERS_ABUSED:
        outcome = await attempt(desk, tool, form, context, ExecOverrides())
        assert isinstance(outcome, str) or outcome["status"] == "denied", f"{form!r} ran"
    assert not (seeded / "ran").exists()


async def test_the_forms_work(
    seeded: Path, context: ToolContext, processes: ProcessRegistry, desk: QuestionDesk
) -> None:
    """Half of the corpus, at least, does what it says when nothing stops it. A corpus of nonsense proves nothing."""
    tool = ExecTool(ExecSettings(security="full", ask="off", timeout_sec=0.5), processes)
    sample = [*SMUGGLED[:: max(1, len(SMUGGLED) // 40)], *WRAPPED]
    worked = 0
    for form in sample:
        await attempt(desk, tool, form.replace("\0", ""), context, ExecOverrides())
        worked += (seeded / "ran").exists()
        (seeded / "ran").unlink(missing_ok=True)
    assert worked > len(sample) / 2, f"{worked} of {len(sample)}"


async def test_a_filter_runs_without_environment_and_without_a_shell(
    context: ToolContext, processes: ProcessRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = ExecTool(ExecSettings(host="gateway", ask="off"), processes)
    result = await tool.run({"command": "grep -c x", "background": True}, context)
    session = processes.get(context.process_scope, result.details["sessionId"])
    assert session is not None
    proc = Path(f"/proc/{session.pid}")
    # The kernel says that a program was begun a moment before it shows what it was begun with.
    await until(lambda: proc.joinpath("cmdline").read_bytes() != b"")
    assert proc.joinpath("cmdline").read_bytes().endswith(b"/grep\0-c\0x\0")
    assert proc.joinpath("environ").read_bytes() == b""
    await session.process.write(b"x\ny\nx\n")
    session.process.close_input()
    await asyncio.wait_for(session.ended.wait(), 60)
    assert session.output.text() == "2\n"


INSTALLED = sorted(name for name in _RUNS_ARGUMENTS | _RUNS_OTHERS if shutil.which(name))


@pytest.mark.parametrize("name", INSTALLED)
def test_allow_always_stores_nothing_that_can_run_something_else(name: str, tmp_path: Path) -> None:
    path = os.environ["PATH"]
    (tmp_path / "harmless").symlink_to(shutil.which(name) or "")
    for command in (name, f"{name} -x", shutil.which(name) or "", "./harmless", f"{name} touch ran"):
        assert isinstance(rule_for(command, path, str(tmp_path)), str), command


@pytest.mark.parametrize("form", [*SMUGGLED])
def test_allow_always_stores_no_form_that_needs_a_shell_or_runs_its_arguments(form: str, seeded: Path) -> None:
    assert isinstance(rule_for(form, "/usr/bin:/bin", str(seeded)), str)


def test_programs_with_free_arguments_are_few_and_run_nothing() -> None:
    assert not FREE_ARGUMENTS & (_RUNS_ARGUMENTS | _RUNS_OTHERS)
    assert not SAFE_USES.keys() & _RUNS_ARGUMENTS
