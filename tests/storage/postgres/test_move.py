"""Everything is copied from files to PostgreSQL and back, byte for byte, and again without harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from openclaw.messages import TextBlock, UserMessage
from openclaw.storage.message_ledger import JobRow, OutboxPart, ReasonCode, RejectedMessage
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.transcripts import TranscriptRef
from tests.storage.conformance.messages import because, message
from tests.storage.conformance.stores import FileStores, PostgresStores, Stores
from tests.storage.still_clock import StillClock
from tests.support.postgres import new_schema, postgres_server

MAIN = "agent:main:main"
REF = TranscriptRef(agent_id="main", session_id="s")
OLD = TranscriptRef(agent_id="main", session_id="old")
KEPT = {
    "credentials/signal-allowFrom.json": b'{"version": 1, "allowFrom": ["+1"]}\n',
    "devices/paired.json": b"{}\n",
    "cron/jobs.json": b'{"version": 1, "jobs": []}\n',
    "cron/runs/j.jsonl": b'{"action":"finished"}\n',
    "exec-approvals.json": b"{\n}\n",
    "system-events.json": b"{}",
    "first-sessions.json": b'{"/w": "s"}',
    "channels/signal/default/last-event": b"17",
}


async def fill(stores: Stores) -> None:
    await stores.sessions.update("main", MAIN, lambda _: {"sessionId": "s", "updatedAt": 7, "odd": [1, None]})
    await stores.sessions.update("ops", "agent:ops:x", lambda _: {"sessionId": "t", "label": "L"})
    for ref in (REF, OLD):
        transcript = await stores.transcripts.open(ref, cwd="/w")
        assert transcript is not None
        for text in ("one", "two é"):
            await transcript.append(
                {"type": "message", "message": UserMessage(content=[TextBlock(text=text)], timestamp=1)}
            )
        await transcript.sync()
    await stores.transcripts.archive(OLD, "deleted")
    row, _ = await stores.ledger.accept(message(1, dedupe_keys=("k1",)), step="running")
    await stores.ledger.tool_started(row.id, "c1", "read", "{}")
    await stores.ledger.tool_finished(row.id, "c1", ok=True)
    parts = [OutboxPart(part=0, channel="signal", payload={"text": "hi"})]
    await stores.ledger.finish(row.id, "answered", reason=because("x"), result={"text": "hi"}, outbox=parts)
    await stores.ledger.accept(message(2))
    await stores.ledger.hold("h", b"\x00held")
    await stores.ledger.add_pending("p", "7", b"{}", keep=9)
    await stores.ledger.note_rejected(RejectedMessage(message_id="7", channel="signal", code=ReasonCode.NOT_ADDRESSED))
    job = JobRow(id="j", kind="k", owner_key=MAIN, run_id="r", trace="t", state={"n": 1}, created_at=5)
    await stores.ledger.job_put(job)
    await stores.blobs.put(b"\x00blob")
    for name, data in KEPT.items():
        await stores.documents.put(name, data, None)


async def everything(stores: Stores) -> dict[str, Any]:
    ledger, rows = stores.ledger, (await stores.sessions.select(SessionQuery())).rows
    messages = await ledger.recent()
    return {
        "sessions": [(row.agent_id, row.key, row.entry) for row in rows],
        "lines": await stores.transcripts.page(REF, 0, 1 << 20),
        "messages": messages,
        "stories": [await ledger.history(row.id) for row in messages],
        "calls": [await ledger.tool_calls(row.id) for row in messages],
        "parts": [await ledger.outbox_of(row.id) for row in messages],
        "seen": await ledger.seen("k1", 1 << 40, 10, remember=False),
        "held": await ledger.held(),
        "pending": [row.message for row in await ledger.pending("p", 9)],
        "turned away": await ledger.rejected(["7"]),
        "jobs": await ledger.jobs(),
        "documents": {name: (await stores.documents.get(name) or (b"gone",))[0] for name in KEPT},
    }


def migrate(state: Path, to: str, schema: str, **more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "openclaw", "storage", "migrate", "--to", to, "--schema", schema, "--json"]
    env = {**os.environ, "OPENCLAW_STATE_DIR": str(state), "HOME": str(state.parent), **more}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def contents(state: Path) -> dict[str, bytes]:
    found = (path for path in state.rglob("*") if path.is_file() and ".jsonl" in path.name)
    return {str(path.relative_to(state)): path.read_bytes() for path in found}


async def test_everything_is_copied_to_the_database_and_back(tmp_path: Path) -> None:
    state, back, url, schema = tmp_path / "state", tmp_path / "back", postgres_server().url, new_schema()
    files = FileStores(StillClock(), state)
    await files.open()
    await fill(files)
    before = await everything(files)
    await files.close()
    untouched = contents(state)

    report = migrate(state, url, schema)
    assert (report["ok"], report["transcripts"], report["lines"], report["sessions"], report["messages"]) == (
        *(True, 2, 6, 2, 2),
    )
    assert contents(state) == untouched and report["documents"] == len(KEPT)
    again = migrate(state, url, schema)
    assert again["ok"] and again["transcripts"] == again["sessions"] == again["messages"] == again["documents"] == 0

    database = PostgresStores(StillClock(), tmp_path / "other", url, schema)
    await database.open()
    after = await everything(database)
    cursors = before.pop("lines"), after.pop("lines")
    assert cursors[0] == cursors[1] and after == before
    new, _ = await database.ledger.accept(message(3))
    assert new.id > max(row.id for row in before["messages"]), "the numbers go on"
    assert [step.state for step in await database.ledger.history(new.id)] == ["accepted"]
    await database.ledger.finish(new.id, "silent")
    await database.database.write("DELETE FROM messages WHERE id = $1", new.id)
    await database.close()

    report = migrate(back, "files", schema, OPENCLAW_STORAGE_URL=url)
    assert report["ok"] and report["blobs"] == 1
    assert contents(back) == untouched
    files = FileStores(StillClock(), back)
    await files.open()
    returned = await everything(files)
    returned.pop("lines")
    assert returned == before
    await files.close()


async def test_what_differs_is_named_and_left_alone(tmp_path: Path) -> None:
    state, url, schema = tmp_path / "state", postgres_server().url, new_schema()
    files = FileStores(StillClock(), state)
    await files.open()
    await fill(files)
    await files.close()
    migrate(state, url, schema)
    with (state / "agents" / "main" / "sessions" / "s.jsonl").open("ab") as file:
        file.write(b'{"type":"custom","id":"x","parentId":null}\n')
    (state / "cron" / "jobs.json").write_bytes(b"{}")
    report = migrate(state, url, schema)
    assert not report["ok"] and "s.jsonl" in report["conflicts"][0] and "cron/jobs.json" in report["conflicts"][1]
