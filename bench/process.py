"""What a process costs: CPU time of a command from start to exit, CPU and memory of one that runs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median

from bench.row import Speed

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a running process and of the children it has waited for."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS


def tree_cpu_s(pid: int) -> float:
    """The same of a process and its children that run now."""
    total = cpu_s(pid)
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = file.read().split()
    for child in children:
        with contextlib.suppress(OSError):
            total += cpu_s(int(child))
    return total


def rss_mb(pid: int) -> float:
    return _status_kb(pid, "VmRSS") / 1024


def peak_rss_mb(pid: int) -> float:
    return _status_kb(pid, "VmHWM") / 1024


def _status_kb(pid: int, name: str) -> int:
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    raise ValueError(f"no {name} for process {pid}")


def environment() -> dict[str, str]:
    """Ours, without what would make a measured Python behave unlike a user's, e.g. compile every module each time."""
    ours = ("OPENCLAW_", "CLAWDBOT_", "PYTHON")
    return {name: value for name, value in os.environ.items() if name == "PYTHONPATH" or not name.startswith(ours)}


def run_cpu_ms(command: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    """CPU time of one run of the command; its output is thrown away, a failure is not."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    given = environment() if env is None else dict(env)
    pid = os.posix_spawn(command[0], list(command), given, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} failed with status {os.waitstatus_to_exitcode(status)}")
    return (usage.ru_utime + usage.ru_stime) * 1000


def speed(runs: int = 9) -> Speed:
    """How fast this machine is at this moment."""
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(runs):
        began = time.monotonic()
        cpu.append(run_cpu_ms([sys.executable, "-c", "pass"]))
        wall.append((time.monotonic() - began) * 1000)
    return Speed(median(cpu), median(wall))
