"""Finding and signalling everything a command started: its group, its session, and its descendants."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

Members = dict[int, int]
"""Process id to start time: a number used again later is not taken for the old process."""


def survivors(leader: int, remembered: Members | None = None) -> Members:
    """Live processes of the tree, and those remembered from before their parent died.

    Programs with their own job control leave the group, and some leave the session; they are still descendants.
    Empty where the system has no ``/proc``: the group is then all we can reach.
    """
    table = _process_table()
    tree = {leader}
    grew = True
    while grew:
        found = tree | {pid for pid, row in table.items() if tree & {row.parent, row.group, row.session}}
        grew, tree = len(found) > len(tree), found
    tree |= {pid for pid, started in (remembered or {}).items() if pid in table and table[pid].started == started}
    return {pid: table[pid].started for pid in tree if pid in table and not table[pid].dead}


def signal_tree(leader: int, number: signal.Signals, remembered: Members | None = None) -> Members:
    """Signals the group and every other member. The leader must not have been reaped: that keeps its number ours."""
    members = survivors(leader, remembered)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return members


class _Row:
    __slots__ = ("dead", "group", "parent", "session", "started")

    def __init__(self, stat: str) -> None:
        # The command name stands in parentheses and may itself hold spaces and parentheses.
        fields = stat[stat.rindex(")") + 2 :].split()
        self.dead = fields[0] in ("Z", "X")
        self.parent, self.group, self.session = int(fields[1]), int(fields[2]), int(fields[3])
        self.started = int(fields[19])


def _process_table() -> dict[int, _Row]:
    table: dict[int, _Row] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    table[int(entry.name)] = _Row(Path(entry.path, "stat").read_text(errors="replace"))
    return table
