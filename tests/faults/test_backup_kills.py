"""kill -9 at every step of a backup and of a restore.

The steps are not listed by hand: every call that changes the disk is one, and so is every named point. A step that the
tables below do not know fails the test, because somebody has to decide what a kill leaves there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeAlias

import pytest

from openclaw.clock import SystemClock
from openclaw.messages import Route
from openclaw.storage import faults
from openclaw.storage.files import restore as restoring
from openclaw.storage.files.backup import Backup, BackupError, BackupFolder
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.restore import finish_restore, restore
from openclaw.storage.message_ledger import Accept, JobRow, MessageBody, OutboxPart
from tests.support.forked_gateway import FORKS, ForkedGateway
from tests.support.gateway import model_config
from tests.support.model_server import ModelServer

CANARY = "CANARY-CANARY-CANARY"
Left: TypeAlias = Literal["old", "planned", "new"]
"""``planned`` is neither the old nor the new state yet, and the next start makes it the new one."""

BACKUP_STEPS: dict[str, Literal["old", "new"]] = {
    "backup.listed": "old",
    "copy_database: open": "old",
    "copy_database: sqlite3.connect": "old",
    "copy_database: os.remove": "old",
    "write_temporary: open": "old",
    "put_in_place: os.rename": "old",
    "backup.copied": "old",
    "backup.stored": "new",
}
PREPARING: dict[str, Left] = dict.fromkeys(
    [
        *("restore: os.mkdir", "_restore_beside: os.mkdir", "_locked: open", "_prepare: os.mkdir"),
        *("_write: os.mkdir", "_write: open", "_write: os.chmod", "extract: os.chmod", "restore.extracted"),
        *("_connect: sqlite3.connect", "_lengthen_log: open"),
        *("keep_second_name: os.remove", "keep_second_name: os.link", "keep_second_name: os.rename"),
        *("commit.before", "commit.after", "outbox.dead"),
        *("restore.prepared", "write_temporary: open", "put_in_place: os.rename", "restore.noted"),
    ],
    "old",
)
"""What the two ways of a restore have in common. The second one begins where the first has failed."""
RESTORE_STEPS: dict[str, dict[str, Left]] = {
    "in one step": {
        **PREPARING,
        "restore.exchanged": "new",
        "_finish_beside: os.rename": "new",
        "restore.aside": "new",
        "_finish_beside: os.remove": "new",
        "_finish_beside: os.rmdir": "new",
    },
    "entry by entry": {
        **PREPARING,
        "_restore_beside: os.remove": "old",
        "_restore_beside: os.rmdir": "old",
        "_restore_inside: os.mkdir": "old",
        "restore.planned": "planned",
        "_move: os.rename": "planned",
        "restore.moved": "planned",
        "restore.emptied": "planned",
        "_finish_inside: os.rename": "new",
        "restore.filled": "new",
        "_finish_inside: os.remove": "new",
        "_finish_inside: os.rmdir": "new",
    },
}
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate"}


def step_of(event: str, frame: FrameType | None) -> str | None:
    """The name of a step: the function of the storage that asked, and what it asked for."""
    while frame is not None:
        code = frame.f_code
        if "/openclaw/storage/" in code.co_filename and not code.co_name.startswith("<"):
            return f"{code.co_name}: {event}"
        frame = frame.f_back
    return None


def die_at(number: int, note: str, work: Callable[..., object], *args: Any) -> None:
    """Do the work and die at a step, whose name is noted before."""
    count, noted = 0, os.open(note, os.O_WRONLY | os.O_CREAT, 0o600)

    def meet(step: str) -> None:
        nonlocal count
        if count == number:
            os.write(noted, step.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def audit(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if event in CHANGES or writes or event == "sqlite3.connect":
            step = step_of(event, sys._getframe(1))
            if step is not None:
                meet(step)

    faults.point = meet
    sys.addaudithook(audit)
    work(*args)


def died_at(number: int, root: Path, work: Callable[..., object], *args: Any) -> str | None:
    """The step at which another process died that did the work. None if it came to the end."""
    note = root / "step"
    note.unlink(missing_ok=True)
    process = FORKS.Process(target=die_at, args=(number, str(note), work, *args))
    process.start()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return note.read_text() if process.exitcode else None


# The state


def tree(folder: Path) -> dict[str, bytes]:
    """The content of a state folder, without what the ledger and the lock write into their files."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {str(path.relative_to(folder)): path for path in files}
    own = ("ledger.db", "gateway.lock", ".restore", "before-restore-")
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(own)}


def open_work(folder: Path) -> int:
    """How much in the ledger a Gateway would resume."""
    with contextlib.closing(sqlite3.connect(f"{(folder / 'ledger.db').as_uri()}?mode=ro", uri=True)) as database:
        counts = [
            "SELECT count(*) FROM messages WHERE ended_at IS NULL",
            "SELECT count(*) FROM outbox WHERE state IN ('pending', 'sending')",
            "SELECT count(*) FROM jobs WHERE ended_at IS NULL",
            "SELECT count(*) FROM held",
        ]
        return sum(database.execute(count).fetchone()[0] for count in counts)


def message(run_id: str) -> Accept:
    return Accept(
        run_id=run_id,
        dedupe_key=f"signal|{run_id}",
        agent_id="main",
        session_key="agent:main:main",
        session_id="s",
        source="signal",
        route=Route(channel="signal", to="ann"),
        body=MessageBody(prompt="hi"),
    )


async def put_under_way(state: Path) -> None:
    ledger = await FileLedger.open(str(state), clock=SystemClock())
    await ledger.accept(message("r1"))
    await ledger.post(message("r2"), [OutboxPart(part=0, channel="signal", payload={"text": "hello"})])
    await ledger.hold("signal|default|ann|7", b'{"text": "and one more thing"}')
    job = JobRow(id="j", kind="subagent", owner_key="k", run_id="r1", trace="t", state={}, created_at=1)
    await ledger.job_put(job)
    await ledger.close()


def fill(state: Path, mark: str) -> None:
    for name in ("agents/main/sessions/s1.jsonl", "openclaw.json", "credentials/keys.json", f"{mark}-only.json"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(f"{mark} {name} {CANARY}")
    asyncio.run(put_under_way(state))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder as it is backed up: with messages, replies and jobs under way."""
    fill(tmp_path / "state", "new")
    return tmp_path / "state"


def test_a_backup_that_is_killed_leaves_the_earlier_ones_whole_and_nothing_to_read(state: Path, tmp_path: Path) -> None:
    reached: set[str] = set()
    for number in range(1000):
        shutil.rmtree(tmp_path / "backups", ignore_errors=True)
        folder = BackupFolder(tmp_path / "backups", "correct horse", create=True)
        first, _ = folder.create(state, "1")
        with (state / "openclaw.json").open("a") as file:
            file.write(f" {number}")
        step = died_at(number, tmp_path, folder.create, state, "2")
        listed = folder.list()
        if step is None:
            assert len(listed) == 2
            break
        reached.add(step)
        assert step in BACKUP_STEPS, f"nobody has said what a kill leaves at the step {step!r}"
        assert listed[0] == first and len(listed) == {"old": 1, "new": 2}[BACKUP_STEPS[step]], step
        assert [folder.verify(backup) for backup in listed] == [[]] * len(listed), step
        stored = b"".join(path.read_bytes() for path in folder.folder.rglob("*") if path.is_file())
        assert CANARY.encode() not in stored, step
        again, _ = folder.create(state, "2")
        assert folder.verify(again) == [] and folder.list() == [*listed, again]
        names = [path.name for path in folder.folder.rglob("*")]
        assert not [name for name in names if name.endswith(".tmp") or name.startswith(".copy-")], step
    assert reached == BACKUP_STEPS.keys()


def restore_in_one_step(folder: BackupFolder, backup: Backup, state: Path) -> None:
    restore(folder, backup, state)


def restore_entry_by_entry(folder: BackupFolder, backup: Backup, state: Path) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    restoring.exchange = refuse
    restore(folder, backup, state)


WAYS = {"in one step": restore_in_one_step, "entry by entry": restore_entry_by_entry}


class Restoring:
    """A restore over an older state, which can be begun again and again."""

    def __init__(self, root: Path, way: str) -> None:
        self.root, self.way = root, way
        self.target = root / "target"
        self.folder = BackupFolder(root / "backups", create=True)
        self.backup, _ = self.folder.create(root / "state", "1")
        fill(root / "older", "old")
        (root / "older" / "gateway.lock").touch()
        self.new, self.old = tree(root / "state"), tree(root / "older")

    def killed_at(self, number: int) -> str | None:
        for path in (*self.root.glob("target*"), *self.root.glob(".target-restore-*")):
            shutil.rmtree(path)
        shutil.copytree(self.root / "older", self.target)
        return died_at(number, self.root, WAYS[self.way], self.folder, self.backup, self.target)

    def state(self) -> str:
        if tree(self.target) == self.old and open_work(self.target) == 4:
            return "old"
        return "new" if tree(self.target) == self.new and open_work(self.target) == 0 else "neither"

    def check(self, left: Left, step: str | None) -> None:
        """Check what a start finds once it has completed what was left."""
        assert self.state() == {"planned": "new"}.get(left, left), step
        asides = [*self.root.glob("target.before-restore-*"), *self.target.glob("before-restore-*")]
        assert [tree(aside) for aside in asides] == ([] if left == "old" else [self.old]), step
        assert not [*self.root.glob(".target-restore-*"), *self.target.glob(".restore")], "keys are left behind"


@pytest.mark.parametrize("way", WAYS)
def test_a_restore_that_is_killed_leaves_the_old_state_or_the_new_one(state: Path, tmp_path: Path, way: str) -> None:
    restoring, steps, reached = Restoring(tmp_path, way), RESTORE_STEPS[way], set[str]()
    for number in range(1000):
        if (step := restoring.killed_at(number)) is None:
            break
        reached.add(step)
        assert step in steps, f"nobody has said what a kill leaves at the step {step!r}"
        assert steps[step] == "planned" or restoring.state() == steps[step], step
        finish_restore(restoring.target)
        restoring.check(steps[step], step)
    restoring.check("new", None)
    assert reached == steps.keys()


@pytest.mark.parametrize(
    ("way", "first"), [("in one step", "restore.exchanged"), ("entry by entry", "restore.planned")]
)
def test_a_second_kill_while_a_killed_restore_is_completed(state: Path, tmp_path: Path, way: str, first: str) -> None:
    restoring = Restoring(tmp_path, way)
    begun = next(number for number in range(1000) if restoring.killed_at(number) == first)
    for number in range(1000):
        assert restoring.killed_at(begun) == first
        step = died_at(number, tmp_path, finish_restore, restoring.target)
        finish_restore(restoring.target)
        restoring.check("new", step)
        if step is None:
            assert number > 5
            break


def test_a_restore_that_is_under_way_is_left_alone(state: Path, tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path / "backups", create=True)
    backup, _ = folder.create(state, "1")
    refused: list[str] = []

    def begin_another(*_: object) -> None:
        with pytest.raises(BackupError) as problem:
            restore(folder, backup, tmp_path / "target")
        refused.append(str(problem.value))

    restore(folder, backup, tmp_path / "target", begin_another)
    assert len(refused) == len(backup.files) and "under way" in refused[0]
    assert tree(tmp_path / "target") == tree(state)


def test_a_folder_of_somebody_else_with_such_a_name_stays(tmp_path: Path) -> None:
    for folder in (tmp_path / ".target-restore-mine", tmp_path / "target" / ".restore"):
        folder.mkdir(parents=True)
        (folder / "openclaw.json").write_text("{}")
    before = tree(tmp_path)
    finish_restore(tmp_path / "target")
    assert tree(tmp_path) == before and len(before) == 2


@pytest.mark.files_only("the files themselves are restored")
@pytest.mark.parametrize(("way", "step"), [("in one step", "restore.exchanged"), ("entry by entry", "restore.emptied")])
async def test_the_next_start_completes_a_killed_restore(tmp_path: Path, way: str, step: str) -> None:
    async with ModelServer() as models:
        gateway = ForkedGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
        async with gateway, gateway.client() as client:
            await client.chat("before the backup [[reply:one]]")
        folder = BackupFolder(tmp_path / "backups", create=True)
        backup, _ = await asyncio.to_thread(folder.create, gateway.state_dir, "1")
        async with gateway, gateway.client() as client:
            await client.chat("after the backup [[reply:two]]")
        plan = [{"at": step, "do": "kill"}]
        killed = FORKS.Process(target=run_to_death, args=(plan, WAYS[way], folder, backup, gateway.state_dir))
        killed.start()
        await asyncio.to_thread(killed.join, 60)
        assert killed.exitcode == -signal.SIGKILL
        async with gateway, gateway.client() as client:
            history = str(await client.call("chat.history", {"sessionKey": "main"}))
        assert "before the backup" in history and "after the backup" not in history
        asides = [*tmp_path.glob("state.before-restore-*"), *gateway.state_dir.glob("before-restore-*")]
        assert ["after the backup" in str(tree(aside)) for aside in asides] == [True], "the older state is there, too"


def run_to_death(plan: list[dict[str, str]], work: Callable[..., object], *args: Any) -> None:
    faults.point = faults.Plan([faults.Fault(**fault) for fault in plan]).point
    work(*args)
