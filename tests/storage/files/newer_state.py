"""Makes state folders of the newer generation, with the tables that its versions write."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import zstandard

META = """CREATE TABLE schema_meta (meta_key TEXT NOT NULL PRIMARY KEY, role TEXT NOT NULL,
  schema_version INTEGER NOT NULL, agent_id TEXT, app_version TEXT, created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL) STRICT;"""
SCHEMA_8 = """
CREATE TABLE sessions (session_id TEXT NOT NULL PRIMARY KEY, session_key TEXT NOT NULL, created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL);
CREATE TABLE session_entries (session_key TEXT NOT NULL PRIMARY KEY, session_id TEXT NOT NULL, entry_json TEXT NOT NULL,
  updated_at INTEGER NOT NULL);
CREATE TABLE transcript_events (session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT NOT NULL,
  created_at INTEGER NOT NULL, PRIMARY KEY (session_id, seq));
"""
SCHEMA_21 = """
CREATE TABLE session_nodes (session_key TEXT NOT NULL PRIMARY KEY, current_session_id TEXT NOT NULL,
  entry_json TEXT NOT NULL, entry_valid INTEGER NOT NULL DEFAULT 0, updated_at INTEGER NOT NULL, label TEXT) STRICT;
CREATE TABLE session_windows (session_id TEXT NOT NULL PRIMARY KEY, session_key TEXT NOT NULL, previous_session_id TEXT,
  reason TEXT, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL) STRICT;
CREATE TABLE transcript_events (session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT NOT NULL,
  created_at INTEGER NOT NULL, PRIMARY KEY (session_id, seq)) STRICT;
CREATE TABLE session_transcript_cold_archives (session_id TEXT NOT NULL PRIMARY KEY, generation TEXT NOT NULL,
  archive_name TEXT NOT NULL UNIQUE, archive_sha256 TEXT NOT NULL, event_count INTEGER NOT NULL,
  raw_bytes INTEGER NOT NULL, archive_bytes INTEGER NOT NULL, last_seq INTEGER NOT NULL, archived_at INTEGER NOT NULL,
  storage TEXT NOT NULL, archive_blob BLOB) STRICT;
"""
SCHEMA_21 += """
CREATE TABLE session_transcript_archives (session_id TEXT NOT NULL, generation TEXT NOT NULL, session_key TEXT NOT NULL,
  reason TEXT NOT NULL, encoding TEXT NOT NULL, archive_blob BLOB NOT NULL, archive_sha256 TEXT NOT NULL,
  archive_name TEXT NOT NULL UNIQUE, created_at INTEGER NOT NULL, PRIMARY KEY (session_id, generation)) STRICT;
"""
SCHEMA_23 = SCHEMA_21.replace(
    "event_json TEXT NOT NULL,\n  created_at",
    "event_json TEXT,\n  event_zstd BLOB, event_utf8_bytes INTEGER, created_at",
)


def database(state: Path, agent: str = "main", *, schema: int = 23, version: str | None = "2026.9.6") -> Path:
    """An agent's database of that schema, without sessions."""
    path = state / "agents" / agent / "agent" / "openclaw-agent.sqlite"
    path.parent.mkdir(parents=True)
    tables = SCHEMA_23 if schema >= 23 else SCHEMA_21 if schema >= 14 else SCHEMA_8 if schema >= 4 else ""
    with closing(sqlite3.connect(path)) as made, made:
        made.executescript(META + tables)
        made.execute("INSERT INTO schema_meta VALUES ('primary', 'agent', ?, ?, ?, 1, 1)", (schema, agent, version))
        made.execute(f"PRAGMA user_version = {schema}")
    return path


def add_session(
    path: Path,
    key: str,
    session_id: str,
    events: list[dict[str, Any]],
    *,
    updated: int = 1_790_000_000_000,
    entry: dict[str, Any] | None = None,
    current: bool = True,
    compressed: bool = False,
) -> None:
    with closing(sqlite3.connect(path)) as base, base:
        nodes = _has(base, "session_nodes")
        made = json.dumps({"sessionId": session_id, "updatedAt": updated, "sessionFile": "x", **(entry or {})})
        if nodes:
            base.execute(
                "INSERT INTO session_windows (session_id, session_key, created_at, updated_at) VALUES (?, ?, 1, ?)",
                (session_id, key, updated),
            )
        else:
            base.execute("INSERT INTO sessions VALUES (?, ?, 1, ?)", (session_id, key, updated))
        if current and nodes:
            base.execute(
                "INSERT INTO session_nodes (session_key, current_session_id, entry_json, updated_at) "
                "VALUES (?, ?, ?, ?)",
                (key, session_id, made, updated),
            )
        elif current:
            base.execute("INSERT INTO session_entries VALUES (?, ?, ?, ?)", (key, session_id, made, updated))
        for seq, event in enumerate(events):
            text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
            if compressed and seq:
                blob = zstandard.ZstdCompressor(level=1).compress(text.encode())
                base.execute(
                    "INSERT INTO transcript_events (session_id, seq, event_zstd, event_utf8_bytes, created_at) "
                    "VALUES (?, ?, ?, ?, 1)",
                    (session_id, seq, blob, len(text.encode())),
                )
            else:
                base.execute(
                    "INSERT INTO transcript_events (session_id, seq, event_json, created_at) VALUES (?, ?, ?, 1)",
                    (session_id, seq, text),
                )


def make_cold(path: Path, session_id: str, *, in_file: bool) -> None:
    """Moves a transcript into an archive, as the newer version does with old ones."""
    with closing(sqlite3.connect(path)) as base, base:
        rows = base.execute(
            "SELECT seq, event_json FROM transcript_events WHERE session_id = ? ORDER BY seq", (session_id,)
        ).fetchall()
        base.execute("DELETE FROM transcript_events WHERE session_id = ?", (session_id,))
        records: list[dict[str, Any]] = [{"kind": "header", "version": 1, "sessionId": session_id, "generation": "g"}]
        records += [{"kind": "event", "row": {"seq": s, "event_json": text, "created_at": 1}} for s, text in rows]
        records += [{"kind": "identity", "row": {"seq": 0}}]
        blob = zstandard.ZstdCompressor().compress("".join(json.dumps(record) + "\n" for record in records).encode())
        digest = hashlib.sha256(blob).hexdigest()
        name = f"{digest}.jsonl.zst"
        if in_file:
            file = path.parent.parent / "sessions" / "cold" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(blob)
        base.execute(
            "INSERT INTO session_transcript_cold_archives VALUES (?, 'g', ?, ?, ?, 0, 0, 0, 1, ?, ?)",
            (session_id, name, digest, len(rows), "file" if in_file else "sqlite", None if in_file else blob),
        )


def add_ended(
    path: Path, key: str, session_id: str, events: list[dict[str, Any]], *, reason: str, compressed: bool
) -> None:
    """The transcript of a session that was reset or deleted."""
    blob = "".join(json.dumps(event) + "\n" for event in events).encode()
    blob = zstandard.ZstdCompressor().compress(blob) if compressed else blob
    encoding, digest = "zstd" if compressed else "identity", hashlib.sha256(blob).hexdigest()
    with closing(sqlite3.connect(path)) as base, base:
        base.execute(
            "INSERT INTO session_transcript_archives VALUES (?, 'g', ?, ?, ?, ?, ?, ?, 7)",
            (session_id, key, reason, encoding, blob, digest, f"{session_id}.{reason}"),
        )


def conversation(session_id: str, *said: str, version: int = 4) -> list[dict[str, Any]]:
    """A header and one message for each text, in turn of the user and the assistant."""
    stamp = "2026-09-10T08:00:00.000Z"
    events: list[dict[str, Any]] = [
        {"type": "session", "version": version, "id": session_id, "timestamp": stamp, "cwd": "/home/me"}
    ]
    for number, text in enumerate(said):
        role = "assistant" if number % 2 else "user"
        message: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": text}], "timestamp": number + 1}
        if role == "assistant":
            message |= {"stopReason": "stop", "api": "x", "provider": "p", "model": "m", "usage": {}}
        parent = f"e{number - 1}" if number else None
        events.append(
            {"type": "message", "id": f"e{number}", "parentId": parent, "timestamp": stamp, "message": message}
        )
    return events


def _has(base: sqlite3.Connection, table: str) -> bool:
    return bool(base.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone())
