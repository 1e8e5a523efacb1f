"""``openclaw cluster``."""

from __future__ import annotations

import json
from typing import Any

from .conftest import Cli
from .fake_gateway import FakeGateway

NODE: dict[str, Any] = {
    "id": "n1",
    "url": "http://10.0.0.1:18789",
    "host": "one",
    "pid": 7,
    "version": "1.0",
    "state": "alive",
    "startedAt": 0,
    "leaseMs": 4300,
    "sessions": 12,
    "runs": 3,
    "queued": 1,
    "clients": 2,
    "relayLagMs": 0.42,
    "databaseMs": 1.26,
    "connected": False,
    "waitingBytes": 0,
    "droppedEvents": 0,
}


def test_the_nodes_are_shown_with_what_they_own_and_their_lag(cli: Cli, gateway: FakeGateway) -> None:
    gone = {**NODE, "id": "n2", "state": "dead", "url": "", "host": "two", "endedAt": 7_170_000}
    status: dict[str, Any] = {"clustered": True, "node": "n1", "storage": "postgresql://db/x#openclaw", "ts": 7_200_000}
    status |= {"nodes": [NODE, gone], "holds": {"scheduler": "n1"}, "unowned": 0}
    gateway.replies["cluster.status"] = status
    shown = cli("cluster", "status").stdout
    assert shown.startswith("1 node on postgresql://db/x")
    assert "n1  alive    http://10.0.0.1:18789 (this one)" in shown and "n2  dead     two" in shown
    assert "12 sessions, 3 runs, 1 waiting, 2 clients; lease 4.3 s, relay 0.4 ms, database 1.3 ms" in shown
    assert "holds scheduler" in shown and "started 2 h ago, was given up 30 s ago" in shown
    assert json.loads(cli("cluster", "status", "--json").stdout) == status


def test_with_files_there_is_one_node(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["cluster.status"] = {"clustered": False, "nodes": []}
    assert "in files and is the only node" in cli("cluster").stdout


def test_a_database_that_does_not_answer_is_told_with_what_was_seen_last(cli: Cli, gateway: FakeGateway) -> None:
    status: dict[str, Any] = {"clustered": True, "node": "n1", "storage": "postgresql://db/x#openclaw", "ts": 0}
    status |= {"nodes": [NODE], "holds": {}, "unowned": 0, "problem": "connection refused"}
    gateway.replies["cluster.status"] = status
    shown = cli("cluster", "status").stdout
    assert "The database cannot be reached (connection refused). This is what this node saw last." in shown
