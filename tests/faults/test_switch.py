"""The fault switch itself: off unless asked for twice at the start of the process, and exact when on."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from openclaw.storage import faults
from openclaw.storage.faults import Fault, Plan, plan_from


def test_it_is_off_in_this_process_and_costs_an_empty_call() -> None:
    assert not faults.active
    assert faults.point is faults.write is faults.sync


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OPENCLAW_FAULT_PLAN": '[{"at":"*","do":"kill"}]'},
        {"OPENCLAW_FAULT_INJECTION": "allow"},
        {"OPENCLAW_FAULT_INJECTION": "1", "OPENCLAW_FAULT_PLAN": '[{"at":"*","do":"kill"}]'},
    ],
)
def test_a_plan_alone_or_consent_alone_does_nothing(environ: dict[str, str]) -> None:
    assert plan_from(environ) is None


def test_a_plan_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError):
        plan_from({"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": '[{"at":"x","do":"explode"}]'})


def test_variables_set_after_the_start_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_FAULT_INJECTION", "allow")
    monkeypatch.setenv("OPENCLAW_FAULT_PLAN", '[{"at":"*","do":"EIO"}]')
    faults.point("accept.before")  # It would raise an OSError.
    assert not faults.active


def test_kill_takes_the_process_at_the_nth_hit() -> None:
    code = "from openclaw.storage import faults\nfor n in range(5): print(n, flush=True); faults.point('here')"
    plan = json.dumps([{"at": "here", "do": "kill", "hit": 3}])
    env = {**os.environ, "OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": plan}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (-9, ["0", "1", "2"])


def test_a_write_fails_for_the_files_it_names_as_often_as_it_says() -> None:
    plan = Plan([Fault(at="write", do="ENOSPC", path="*.jsonl", hit=2, times=2)])
    plan.write(Path("/x/other.db"))
    plan.write(Path("/x/a.jsonl"))
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            plan.write(Path("/x/a.jsonl"))
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/x/a.jsonl")
    plan.write(Path("/x/a.jsonl"))


def test_a_fault_can_be_held_back_and_ended_by_a_file(tmp_path: Path) -> None:
    full = tmp_path / "full"
    plan = Plan([Fault(at="sync", do="EIO", while_exists=str(full))])
    plan.sync(Path("/x/a.jsonl"))
    full.touch()
    with pytest.raises(OSError, match="Input/output"):
        plan.sync(Path("/x/a.jsonl"))
    full.unlink()
    plan.sync(Path("/x/a.jsonl"))


def test_nothing_is_written_to_what_a_power_cut_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads still work while the power fails: what they wrote is gone, and nothing is promised any more."""
    path = tmp_path / "a.jsonl"
    plan = Plan([Fault(at="here", do="power cut")])
    with path.open("ab", buffering=0) as file:
        plan.write(path)
        file.write(b"synced\n")
        plan.sync(path)
        file.write(b"lost\n")
        commit = threading.Thread(target=plan.write, args=(tmp_path / "ledger.db",), daemon=True)

        def dying(*_: int) -> None:
            file.write(b"under way\n")
            commit.start()
            commit.join(0.2)

        monkeypatch.setattr(os, "kill", dying)
        plan.point("here")
    assert path.read_bytes() == b"synced\n"
    assert commit.is_alive(), "the ledger got its commit"
