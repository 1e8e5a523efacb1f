"""A ledger of schema 4, whose reasons and doubts were sentences, opens with codes and tells the same stories."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from openclaw.runs.delivery_report import delivery_text
from openclaw.runs.history import MessageHistory
from openclaw.runs.reasons import reason_text
from openclaw.runs.recovery import crashes_of
from openclaw.runs.run import Run
from openclaw.runs.why import explain
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.ledger_db import SCHEMA_VERSION
from openclaw.storage.message_ledger import DeliveryCode, MessageBody, Reason, ReasonCode
from tests.storage.still_clock import StillClock

SCHEMA_4 = """
CREATE TABLE messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE, dedupe_key TEXT NOT NULL, agent_id TEXT NOT NULL,
  session_key TEXT NOT NULL, session_id TEXT NOT NULL, source TEXT NOT NULL, route BLOB NOT NULL, body BLOB NOT NULL,
  state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', attempts INTEGER NOT NULL DEFAULT 0,
  accepted_at INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER, result BLOB
);
CREATE UNIQUE INDEX messages_dedupe ON messages (dedupe_key) WHERE dedupe_key <> '';
CREATE INDEX messages_unfinished ON messages (id) WHERE ended_at IS NULL;
CREATE INDEX messages_session ON messages (session_key, id);
CREATE INDEX messages_ended ON messages (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE story (
  ledger_id INTEGER NOT NULL, step INTEGER NOT NULL, at INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
  PRIMARY KEY (ledger_id, step)
) WITHOUT ROWID;
CREATE TABLE tool_calls (
  ledger_id INTEGER NOT NULL, call_id TEXT NOT NULL, name TEXT NOT NULL, arguments TEXT NOT NULL,
  started_at INTEGER NOT NULL, finished_at INTEGER, ok INTEGER, PRIMARY KEY (ledger_id, call_id)
);
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT, ledger_id INTEGER NOT NULL, run_id TEXT NOT NULL, part INTEGER NOT NULL,
  channel TEXT NOT NULL, route BLOB NOT NULL, payload BLOB NOT NULL, state TEXT NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0, next_at INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL,
  error TEXT NOT NULL DEFAULT '', message_id TEXT NOT NULL DEFAULT '', UNIQUE (ledger_id, part)
);
CREATE INDEX outbox_pending ON outbox (next_at, id) WHERE state = 'pending';
CREATE TABLE seen (step INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, at INTEGER NOT NULL);
CREATE INDEX seen_at ON seen (at);
CREATE TABLE held (step INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, message BLOB NOT NULL);
PRAGMA user_version = 4;
"""
START = 1_794_766_925_000  # 2026-11-15 18:22:05 UTC
END = "on 2026-11-15 at 18:22:25"
BUSY = "another message of this session is running"
DROPPED = "Dropped: more messages were waiting than the queue holds (20)"
ENDS: list[tuple[str, str, dict[str, Any] | None, Reason, str]] = [
    ("answered", "", {"text": "hi"}, Reason(), f"Answered {END}: “hi”"),
    ("answered", "the model ended its turn without a word", {}, Reason(ReasonCode.NO_WORDS),
     f"It ended {END} with a notice instead of an answer: the model ended its turn without a word."),
    ("silent", "its reply was NO_REPLY", {}, Reason(ReasonCode.NO_REPLY),
     f"The agent decided {END} to say nothing: its reply was NO_REPLY."),
    ("failed", "HTTP 401: no key", {}, Reason(ReasonCode.OTHER, "HTTP 401: no key"),
     f"Failed {END}: HTTP 401: no key."),
    ("failed", "the run took longer than its time limit", {}, Reason(ReasonCode.TIME_LIMIT),
     f"Failed {END}: the run took longer than its time limit."),
    ("expired", "It had waited 30 hours.", {}, Reason(ReasonCode.OTHER, "It had waited 30 hours."),
     f"Expired {END}: It had waited 30 hours."),
    ("superseded", "collected into run r9", {"answeredBy": "r9"}, Reason(ReasonCode.COLLECTED, "r9"),
     f"It was answered together with later ones: they became one prompt {END}, in run r9."),
    ("superseded", "taken into run r9", {"answeredBy": "r9"}, Reason(ReasonCode.STEERED, "r9"),
     f"Run r9 received its text {END} and gave the answer."),
    ("superseded", "its words were taken into the run before it", {}, Reason(ReasonCode.ANSWERED_BEFORE),
     f"It ended {END} without an answer of its own: its words were taken into the run before it."),
    ("superseded", "stopped (rpc)", {}, Reason(ReasonCode.STOPPED, "rpc"), f"Stopped {END}: a client asked for it."),
    ("superseded", "stopped (interrupt)", {}, Reason(ReasonCode.STOPPED, "interrupt"),
     f"Stopped {END}: a newer message interrupted it."),
    ("superseded", f"{DROPPED}.", {}, Reason(ReasonCode.QUEUE_OVERFLOW, "20"),
     f"It ended {END} without an answer of its own: {DROPPED}."),
    ("superseded", f"{DROPPED}; its beginning was put before the next one.", {},
     Reason(ReasonCode.QUEUE_OVERFLOW_SUMMARIZED, "20"),
     f"It ended {END} without an answer of its own: {DROPPED}; its beginning was put before the next one."),
    ("superseded", "dropped from the queue by hand", {}, Reason(ReasonCode.REMOVED_FROM_QUEUE),
     f"It ended {END} without an answer of its own: dropped from the queue by hand."),
]  # fmt: skip
WAITS: list[tuple[str, Reason, str]] = [
    (BUSY, Reason(ReasonCode.SESSION_BUSY), "It has been waiting for 30 s behind another message of its session."),
    (f"{BUSY}; what comes meanwhile is collected", Reason(ReasonCode.COLLECTING),
     "It has been waiting for 30 s behind another message of its session, to be collected with what else came."),
    ("to be taken into run r6", Reason(ReasonCode.STEERING, "r6"), "It was handed to run r6, which was under way."),
    ("the Gateway stopped before it began", Reason(ReasonCode.RESTARTED),
     "The Gateway stopped before it began and took it up again."),
    ("the disk is full", Reason(ReasonCode.OTHER, "the disk is full"),
     "It has been waiting for 30 s (the disk is full)."),
]  # fmt: skip
PARTS: list[tuple[str, str, int, DeliveryCode, str]] = [
    ("pending", "", 0, DeliveryCode.NONE, ""),
    ("pending", "flood wait", 0, DeliveryCode.NONE, "flood wait"),
    ("pending", "interrupted", 1, DeliveryCode.NONE, ""),
    ("pending", "interrupted 2 times: no answer", 2, DeliveryCode.NONE, "no answer"),
    ("dead", "in doubt 3 times, so not sent again: no answer", 3, DeliveryCode.GIVEN_UP, "no answer"),
    ("dead", "in doubt 3 times, so not sent again: the Gateway stopped while sending it", 3, DeliveryCode.GIVEN_UP, ""),
    ("sent", "possibly delivered twice: it was in doubt whether the first try arrived", 1, DeliveryCode.REPEATED, ""),
    ("sent", "", 0, DeliveryCode.NONE, ""),
]


class OldLedger:
    """Writes a ledger file as version 4 did."""

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "ledger.db")
        self.db.executescript(SCHEMA_4)

    def message(
        self, state: str, reason: str, steps: list[tuple[int, str, str]], result: Any = None, ended: bool = False
    ) -> int:
        attempts = sum(step[1] == "running" for step in steps)
        values = (state, reason, attempts, START, START if attempts else None, START + 20_000 if ended else None)
        number = self.db.execute("SELECT count(*) FROM messages").fetchone()[0] + 1
        self.db.execute(
            "INSERT INTO messages (run_id, dedupe_key, agent_id, session_key, session_id, source, route, body, state,"
            " reason, attempts, accepted_at, started_at, ended_at, result)"
            f" VALUES ('r{number}', '', 'main', 'agent:main:main', 's', 'webchat', '{{}}', '{{\"prompt\":\"hello\"}}',"
            " ?, ?, ?, ?, ?, ?, ?)",
            (*values, None if result is None else json.dumps(result).encode()),
        )
        for step, (at, name, why) in enumerate([(0, "accepted", ""), *steps], start=1):
            self.db.execute("INSERT INTO story VALUES (?, ?, ?, ?, ?)", (number, step, START + at, name, why))
        return number

    def part(self, message: int, number: int, state: str, error: str) -> None:
        self.db.execute(
            "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, attempts, created_at, error)"
            " VALUES (?, 'r', ?, 'signal', '{}', '{}', ?, 1, ?, ?)",
            (message, number, state, START, error),
        )

    async def opened(self, folder: Path) -> FileLedger:
        self.db.commit()
        self.db.close()
        return await FileLedger.open(str(folder), clock=StillClock())


async def told(ledger: FileLedger, number: int) -> list[str]:
    row = await ledger.get(number)
    assert row is not None
    return explain(MessageHistory(row, await ledger.history(number), [], []), START + 30_000)


@pytest.mark.parametrize(("state", "sentence", "result", "reason", "story"), ENDS)
async def test_every_end_keeps_its_story(
    tmp_path: Path, state: str, sentence: str, result: dict[str, Any] | None, reason: Reason, story: str
) -> None:
    old = OldLedger(tmp_path)
    number = old.message(state, sentence, [(0, "running", ""), (20_000, state, sentence)], result, ended=True)
    ledger = await old.opened(tmp_path)
    row = await ledger.get(number)
    assert row is not None and (row.state, row.reason) == (state, reason)
    assert row.body == MessageBody(prompt="hello")
    assert [reason_text(change.reason) for change in await ledger.history(number)] == ["", "", sentence]
    assert reason_text(row.reason) == sentence
    assert story in await told(ledger, number)
    await ledger.close()


@pytest.mark.parametrize(("sentence", "reason", "story"), WAITS)
async def test_every_wait_keeps_its_story(tmp_path: Path, sentence: str, reason: Reason, story: str) -> None:
    old = OldLedger(tmp_path)
    number = old.message("queued", sentence, [(0, "queued", sentence)])
    ledger = await old.opened(tmp_path)
    row = await ledger.get(number)
    assert row is not None and (row.state, row.reason, reason_text(row.reason)) == ("queued", reason, sentence)
    assert story in await told(ledger, number)
    await ledger.close()


async def test_what_was_running_or_accepted_is_taken_up_and_orderly_stops_are_no_crashes(tmp_path: Path) -> None:
    old = OldLedger(tmp_path)
    accepted = old.message("accepted", "", [])
    stop = (5, "queued", "the Gateway was told to stop")
    running = old.message("running", "", [(1, "running", ""), stop, (9, "running", ""), (12, "running", "")])
    ledger = await old.opened(tmp_path)
    rows = {row.id: row for row in await ledger.unfinished()}
    assert sorted(rows) == [accepted, running]
    assert await crashes_of(Run(rows[running]), ledger) == 2
    assert "It has not begun yet, 30 s after it was accepted." in await told(ledger, accepted)
    assert "It has been running for 29 s." in await told(ledger, running)
    await ledger.close()


async def test_doubts_about_deliveries_become_numbers(tmp_path: Path) -> None:
    old = OldLedger(tmp_path)
    number = old.message("answered", "", [(0, "running", ""), (20_000, "answered", "")], {"text": "hi"}, ended=True)
    for place, (state, error, *_) in enumerate(PARTS):
        old.part(number, place, state, error)
    old.part(number, len(PARTS), "sending", "interrupted: no answer")
    ledger = await old.opened(tmp_path)
    *parts, sending = await ledger.outbox_of(number)
    assert [(part.state, part.doubts, part.code, part.error) for part in parts] == [
        (state, doubts, code, problem) for state, _, doubts, code, problem in PARTS
    ]
    assert [delivery_text(part) for part in parts] == [error for _, error, *_ in PARTS]
    assert (sending.state, delivery_text(sending)) == ("pending", "interrupted 2 times")
    await ledger.close()


async def test_the_translation_happens_once(tmp_path: Path) -> None:
    old = OldLedger(tmp_path)
    number = old.message("queued", BUSY, [(0, "queued", BUSY)])
    await (await old.opened(tmp_path)).close()
    ledger = await FileLedger.open(str(tmp_path), clock=StillClock())
    row = await ledger.get(number)
    assert row is not None and row.reason == Reason(ReasonCode.SESSION_BUSY)
    await ledger.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
