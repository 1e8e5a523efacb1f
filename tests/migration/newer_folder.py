"""A state folder as OpenClaw 2026.9 writes it: the tables and values were read from folders of 2026.9.6."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.storage.files.newer_state import add_session, conversation, database

_SHARED = """
CREATE TABLE cron_jobs (store_key TEXT, job_id TEXT, name TEXT, enabled INTEGER, job_json TEXT, state_json TEXT);
CREATE TABLE channel_pairing_allow_entries (channel_key TEXT, account_id TEXT, entry TEXT, sort_order INTEGER);
CREATE TABLE device_pairing_paired (device_id TEXT, public_key TEXT, display_name TEXT, platform TEXT, client_id TEXT,
  client_mode TEXT, role TEXT, roles_json TEXT, scopes_json TEXT, tokens_json TEXT, created_at_ms INTEGER,
  approved_at_ms INTEGER);
CREATE TABLE exec_approvals_config (config_key TEXT, raw_json TEXT);
"""
_TURN = {"kind": "agentTurn", "message": "Good morning", "toolsAllow": ["*"]}
MORNING = {
    "id": "job-1",
    "agentId": "main",
    "name": "morning",
    "enabled": True,
    "createdAtMs": 1795039657291,
    "schedule": {"kind": "cron", "expr": "0 8 * * *"},
    "sessionTarget": "isolated",
    "wakeMode": "now",
    "payload": _TURN,
    "delivery": {"mode": "announce", "channel": "last"},
    "scheduledToolPolicy": {"version": 1, "mode": "trusted"},
    "state": {},
}
NARROW = {**MORNING, "id": "job-2", "name": "narrow", "payload": {**_TURN, "toolsAllow": ["read"]}}
HOUSEKEEPING = {
    "id": "job-3",
    "name": "heartbeat-main",
    "enabled": False,
    "schedule": {"kind": "every", "everyMs": 1800000},
    "sessionTarget": "main",
    "payload": {"kind": "heartbeat"},
}
CONFIG: dict[str, Any] = {
    "meta": {"lastTouchedVersion": "2026.9.6"},
    "gateway": {"mode": "local", "auth": {"mode": "token", "token": "their-gateway-token"}},
    "agents": {
        "ownership": "explicit",
        "defaults": {"model": {"primary": "mock/mock-1"}},
        "entries": {"main": {}, "work": {"identity": {"name": "Willa"}, "tools": {"deny": ["exec"]}}},
    },
    "channels": {"telegram": {"enabled": False, "botToken": "1:their-bot", "streaming": {"mode": "off"}}},
}


def make_folder(folder: Path) -> Path:
    """Two agents, three sessions (one with branches and a compaction), jobs, people, a device, rules and a key."""
    base = database(folder, schema=25)
    add_session(base, "agent:main:main", "s-main", conversation("s-main", "Hello 🦞", "Good day", "More", "Gladly"))
    add_session(base, "agent:main:plans", "s-plans", compacted("s-plans"), compressed=True)
    work = database(folder, agent="work", schema=25)
    add_session(work, "agent:work:main", "s-work", conversation("s-work", "What now?", "Tea."))
    for agent, path in (("main", base), ("work", work)):
        store = {"version": 1, "profiles": {"mock:default": {"type": "api_key", "provider": "mock", "key": agent}}}
        with contextlib.closing(sqlite3.connect(path)) as own, own:
            own.execute("CREATE TABLE auth_profile_store (store_key TEXT, store_json TEXT, updated_at INTEGER)")
            own.execute("INSERT INTO auth_profile_store VALUES ('default', ?, 1)", (json.dumps(store),))
    for name in ("workspace", "workspace-work"):
        (folder / name / "memory").mkdir(parents=True)
        (folder / name / "AGENTS.md").write_text(f"# {name}\n")
        (folder / name / "memory" / "2026-09-01.md").write_text("- tea is green\n")
    (folder / "state").mkdir()
    with contextlib.closing(sqlite3.connect(folder / "state" / "openclaw.sqlite")) as shared:
        shared.executescript(_SHARED)
        for job in (MORNING, NARROW, HOUSEKEEPING):
            row = ("jobs", job["id"], job["name"], 1, json.dumps(job), "{}")
            shared.execute("INSERT INTO cron_jobs VALUES (?, ?, ?, ?, ?, ?)", row)
        people = [("telegram", "default", "4711", 0), ("telegram", "second", "4712", 1)]
        shared.executemany("INSERT INTO channel_pairing_allow_entries VALUES (?, ?, ?, ?)", people)
        tokens = json.dumps({"operator": {"token": "their-device-token", "role": "operator", "scopes": []}})
        device = (
            "d" * 64,
            "key",
            "Ana's laptop",
            "linux",
            "cli",
            "cli",
            "operator",
            '["operator"]',
            "[]",
            tokens,
            1,
            2,
        )
        shared.execute(f"INSERT INTO device_pairing_paired VALUES ({', '.join('?' * 12)})", device)
        rules = {"agents": {"main": {"allowlist": [{"pattern": "/usr/bin/uname", "id": "r1", "lastUsedAt": 1}]}}}
        raw = json.dumps({"version": 1, "socket": {"path": "/x", "token": "their-socket"}, "defaults": {}, **rules})
        shared.execute("INSERT INTO exec_approvals_config VALUES ('current', ?)", (raw,))
        shared.commit()
    (folder / "openclaw.json").write_text(json.dumps(CONFIG))
    return folder


def compacted(session_id: str) -> list[dict[str, Any]]:
    """An abandoned branch, a compaction that keeps the last question, and an answer after it."""
    header, *lines = conversation(session_id, "one", "two", "three", "four")
    stamp = header["timestamp"]
    lines[3]["parentId"] = "e2"
    aside = {**lines[3], "id": "aside", "parentId": "e1"}
    compaction = {
        "type": "compaction",
        "id": "c1",
        "parentId": "e3",
        "timestamp": stamp,
        "summary": "They counted.",
        "firstKeptEntryId": "e2",
        "tokensBefore": 9000,
    }
    after = {**lines[0], "id": "e9", "parentId": "c1"}
    return [header, *lines[:3], aside, lines[3], compaction, after]
