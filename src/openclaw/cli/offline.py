"""Reads the state folder in the place of a Gateway that does not run, so that people can look without starting one.

The stores are those of the Gateway, opened for one call under the Gateway's own lock. A folder that does not exist yet
is not made: an empty one elsewhere stands in for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from typing import TYPE_CHECKING, Any

from openclaw import paths
from openclaw.cli.command import UserError
from openclaw.cli.gateway_target import start_command
from openclaw.cli.service import locked_state
from openclaw.cli.terminal import note
from openclaw.clock import SystemClock
from openclaw.storage.files.newer_state import Unreadable

if TYPE_CHECKING:
    from openclaw.findings import Finding

_METHODS = """
status health agents.list models.list skills.status channels.status usage.cost outbox.list pairing.list
sessions.list sessions.resolve sessions.preview sessions.archived sessions.tree sessions.entries sessions.search
sessions.export sessions.usage chat.view chat.history messages.list messages.get messages.why context.get
context.diff context.find cron.list cron.status cron.runs memory.status device.pair.list exec.approvals.get
"""
READABLE = frozenset(_METHODS.split())
"""The methods that are answered from the folder. They only read, and what they tell is in files."""
WAIT_S = 10
"""How long to wait for another command that reads the folder."""


def read_folder(method: str, params: dict[str, object], *, told: bool) -> dict[str, object]:
    """Answers a call from the state folder, as the Gateway would. It says so once, unless it was ``told`` already."""
    logging.getLogger("openclaw").addHandler(logging.NullHandler())
    state = paths.state_dir()
    try:
        if os.path.isdir(os.path.join(state, "agents")) or os.path.exists(os.path.join(state, "ledger.db")):
            with locked_state(WAIT_S):
                reply, problems = _answer(state, method, params)
        else:
            reply, problems = _answer_from_nothing(state, method, params)
    except Unreadable as problem:
        raise UserError(str(problem)) from None
    except OSError as error:
        raise UserError(f"No Gateway is running, and {state} cannot be read: {error.strerror or error}") from error
    if not told:
        note(f"No Gateway is running; this is what {state} holds. Start one: {start_command()}")
        for problem in problems:
            note(f"{paths.config_path()} is not valid and is left out: {problem}. `openclaw doctor` tells more.")
    return reply


def shared_findings() -> list[Finding]:
    """Check what all Gateways of the installation share. Raises ``OSError`` or ``StorageRefused`` for the database."""
    from openclaw.gateway.offline import check_shared

    return asyncio.run(check_shared(paths.state_dir(), paths.config_path(), SystemClock(), os.environ))


def _answer(state: str, method: str, params: dict[str, object]) -> tuple[dict[str, object], list[str]]:
    from openclaw.gateway.offline import answer_offline

    return asyncio.run(answer_offline(state, paths.config_path(), SystemClock(), os.environ, method, params))


def _answer_from_nothing(state: str, method: str, params: dict[str, object]) -> tuple[dict[str, object], list[str]]:
    """The answer of a folder that holds nothing yet. Its name is put where that of the stand-in would be."""
    with tempfile.TemporaryDirectory() as empty:

        def renamed(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: renamed(one) for name, one in value.items()}
            if isinstance(value, list):
                return [renamed(one) for one in value]
            return value.replace(empty, state) if isinstance(value, str) else value

        reply, problems = _answer(empty, method, params)
        return renamed(reply), problems
