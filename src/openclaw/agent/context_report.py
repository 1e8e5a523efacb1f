"""``/context``: what fills the model's window, in the lines people know. Sizes only, never the prompt itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw.agent.kept_reports import stored_report
from openclaw.agent.preparation import prepare
from openclaw.agent.runtime import Runtime, Turn

NAMES_SHOWN = 30
TOP_SHOWN = 30
_COUNTS = ("totalTokens", "inputTokens", "outputTokens", "contextTokens")


async def session_report(agent_id: str, session_key: str, runtime: Runtime) -> dict[str, Any]:
    """Of the last run if there was one, else what a run would be given now. Raises ``ModelError`` without a model."""
    entry = await runtime.sessions.get(agent_id, session_key)
    report = await stored_report(entry, runtime.blobs)
    if report is not None:
        return report
    session_id = entry["sessionId"] if entry else ""
    turn = Turn(ledger_id=0, run_id="", agent_id=agent_id, session_key=session_key, session_id=session_id, prompt="")
    return {**(await prepare(turn, runtime)).report.whole(), "source": "estimate"}


# Showing


def context_help() -> str:
    return "\n".join(
        [
            "🧠 /context shows what is sent to the model besides your words.",
            "/context list: the parts and their sizes",
            "/context detail: also the largest skills and tools",
            "/context json: the same for programs",
        ]
    )


def context_list(report: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    return "\n".join(["🧠 Context breakdown", *_parts(report), "", tokens_line(entry)])


def context_detail(report: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    skills: list[dict[str, Any]] = report["skills"]["entries"]
    tools: list[dict[str, Any]] = report["tools"]["entries"]
    lines = ["🧠 Context breakdown (detailed)", *_parts(report), ""]
    lines += _top("Top skills (prompt entry size):", skills, "blockChars", "skills")
    lines += _top("Top tools (schema size):", tools, "schemaChars", "tools")
    lines += _top("Top tools (summary text size):", tools, "summaryChars", "tools")
    lines += _parameters(tools)
    return "\n".join([*lines, tokens_line(entry)])


def context_json(report: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    session = {name: entry.get(name) for name in _COUNTS}
    text = msgspec.json.encode({"report": report, "session": session})
    return msgspec.json.format(text, indent=2).decode()


def _parts(report: Mapping[str, Any]) -> list[str]:
    sandbox, prompt = report.get("sandbox") or {}, report["systemPrompt"]
    skills, tools = report["skills"], report["tools"]
    max_chars = report.get("bootstrapMaxChars")
    return [
        f"Workspace: {report.get('workspaceDir') or 'unknown'}",
        f"Bootstrap max/file: {f'{max_chars:,} chars' if max_chars is not None else 'unknown'}",
        f"Sandbox: mode={sandbox.get('mode', 'unknown')} sandboxed={str(bool(sandbox.get('sandboxed'))).lower()}",
        f"System prompt ({report['source']}): {sized(prompt['chars'])}"
        f" (Project Context {sized(prompt['projectContextChars'])})",
        "",
        "Injected workspace files:",
        *([_file_line(file) for file in report["injectedWorkspaceFiles"]] or ["(none)"]),
        "",
        f"Skills list (system prompt text): {sized(skills['promptChars'])} ({len(skills['entries'])} skills)",
        f"Tools: {_names(tools['entries'])}",
        f"Tool list (system prompt text): {sized(tools['listChars'])}",
        f"Tool schemas (JSON): {sized(tools['schemaChars'])} (counts toward context; not shown as text)",
        "Tools: (same as above)",
    ]


def sized(chars: int) -> str:
    return f"{chars:,} chars (~{math.ceil(chars / 4):,} tok)"


def _file_line(file: Mapping[str, Any]) -> str:
    if file["missing"]:
        return f"- {file['name']}: MISSING | raw 0 | injected 0"
    state = "TRUNCATED" if file["truncated"] else "OK"
    return f"- {file['name']}: {state} | raw {sized(file['rawChars'])} | injected {sized(file['injectedChars'])}"


def _names(entries: Sequence[Mapping[str, Any]]) -> str:
    if not entries:
        return "(none)"
    shown = ", ".join(str(entry["name"]) for entry in entries[:NAMES_SHOWN])
    more = len(entries) - NAMES_SHOWN
    return f"{shown}, … (+{more} more)" if more > 0 else shown


def _top(title: str, entries: Sequence[Mapping[str, Any]], field: str, noun: str) -> list[str]:
    """Largest first; a section without rows is left out."""
    if not entries:
        return []
    ranked = sorted(entries, key=lambda entry: (-entry[field], entry["name"]))
    rows = [f"- {entry['name']}: {sized(entry[field])}" for entry in ranked[:TOP_SHOWN]]
    return [title, *rows, *_more(len(ranked), noun), ""]


def _parameters(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    counted = [tool for tool in tools if tool.get("propertiesCount") is not None]
    if not counted:
        return []
    ranked = sorted(counted, key=lambda tool: (-tool["propertiesCount"], tool["name"]))
    rows = [f"- {tool['name']}: {tool['propertiesCount']} params" for tool in ranked[:TOP_SHOWN]]
    return ["Tools (param count):", *rows, *_more(len(ranked), "tools"), ""]


def _more(count: int, noun: str) -> list[str]:
    return [f"… (+{count - TOP_SHOWN} more {noun})"] if count > TOP_SHOWN else []


def tokens_line(entry: Mapping[str, Any]) -> str:
    total, window = entry.get("totalTokens"), entry.get("contextTokens")
    used = f"{total:,} total" if total is not None else "unknown"
    return f"Session tokens (cached): {used} / ctx={f'{window:,}' if window is not None else '?'}"
