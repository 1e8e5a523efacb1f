"""``openclaw outbox``."""

from __future__ import annotations

import json
from typing import Any

from .conftest import Cli
from .fake_gateway import FakeGateway

PART: dict[str, Any] = {
    "id": 17,
    "state": "dead",
    "channel": "signal",
    "to": "+1555",
    "act": "send",
    "text": "Hello\nAnn " + "x" * 80,
    "media": 0,
    "createdAt": 0,
    "error": "Unregistered user",
    "part": 0,
    "attempts": 1,
    "nextAt": None,
    "possiblyDuplicate": False,
    "messageId": 3,
    "runId": "r1",
    "accountId": None,
}


def test_what_waits_and_what_was_given_up_is_shown(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["outbox.list"] = {"ts": 7_200_000, "waiting": 0, "parts": [PART]}
    shown = cli("outbox").stdout
    assert "17  dead     signal to +1555, 2 h old: Hello Ann xxx" in shown and "…" in shown
    assert "Unregistered user" in shown and "openclaw outbox retry ID" in shown
    assert json.loads(cli("outbox", "list", "--json").stdout)["parts"] == [PART]
    gateway.replies["outbox.list"] = {"ts": 0, "waiting": 0, "parts": []}
    assert cli("outbox").stdout == "Nothing waits, and nothing was given up.\n"


def test_parts_are_named_by_number_or_all_at_once(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["outbox.retry"] = {"ok": True, "retried": 2}
    gateway.replies["outbox.drop"] = {"ok": True, "dropped": 1}
    assert cli("outbox", "retry", "17", "18").stdout == "2 parts will be tried again.\n"
    assert cli("outbox", "drop", "--all").stdout == "1 part will not be sent.\n"
    assert gateway.params_of("outbox.retry") == [{"ids": [17, 18]}]
    assert gateway.params_of("outbox.drop") == [{"all": True}]
    assert "or give --all" in cli("outbox", "drop").stderr
