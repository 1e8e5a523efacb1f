"""Messages as tests of the ledger accept them."""

from __future__ import annotations

from typing import Any

from openclaw.messages import Route
from openclaw.storage.message_ledger import Accept, MessageBody, Reason, ReasonCode


def message(number: object = 1, **changes: Any) -> Accept:
    fields: dict[str, Any] = {
        "run_id": f"run-{number}",
        "dedupe_key": f"telegram|default|peer|main|{number}",
        "agent_id": "main",
        "session_key": "agent:main:main",
        "session_id": "s",
        "source": "telegram",
        "route": Route(channel="telegram", to="1"),
        "body": MessageBody(text=f"hello {number}"),
    }
    return Accept(**{**fields, **changes})


def because(words: str) -> Reason:
    return Reason(ReasonCode.OTHER, words)
