"""The ledger's word for how a run ended, and why."""

from __future__ import annotations

from openclaw.agent.result import RunResult
from openclaw.storage.base import MessageState


def end_of(result: RunResult) -> tuple[MessageState, str]:
    match result.outcome:
        case "ok" if result.taken_in:
            return "superseded", "its words were taken into the run before it"
        case "ok" if result.silent:
            return "silent", "its reply was NO_REPLY"
        case "ok" if result.notice:
            return "answered", "the model ended its turn without a word"
        case "ok":
            return "answered", ""
        case "error":
            return "expired" if result.expired else "failed", result.error or "unknown error"
        case "aborted":
            if result.error == "timeout":
                return "failed", "the run took longer than its time limit"
            return "superseded", result.error if result.error and " " in result.error else f"stopped ({result.error})"
