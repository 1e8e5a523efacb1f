"""The report of a prompt: the sizes of its parts, how reports are stored, and what ``/context`` shows of them."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.agent.window.tool_share import left_out_text
from openclaw.models.base import Model
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.blobs import BlobStore
from openclaw.text import redact_urls

if TYPE_CHECKING:
    from openclaw.agent.prompt.system_prompt import PromptFacts, SystemPrompt


log = logging.getLogger("openclaw.agent.context")

_OF_THE_RUN = ("source", "generatedAt", "sessionId", "sessionKey", "turnFacts")
"""The fields of ``PromptReport.own``."""
NAMES_SHOWN = 30
TOP_SHOWN = 30


class PromptReport(msgspec.Struct, frozen=True):
    """The sizes of the parts of one run's prompt. It never contains the prompt itself."""

    own: dict[str, Any]
    """The fields that belong to one run."""
    shared: dict[str, Any]
    """The fields that are the same for every run with this prompt. Never mutate it."""
    warnings: list[str] = []
    """Warnings for the person that no run has given before."""

    def whole(self) -> dict[str, Any]:
        """The report in the shape that clients know."""
        return {**self.own, **self.shared, **({"warnings": self.warnings} if self.warnings else {})}


def shared_report(facts: PromptFacts, prompt: SystemPrompt) -> dict[str, Any]:
    """``PromptReport.shared`` of a prompt."""
    schemas = [msgspec.json.encode(tool.spec.parameters) for tool in facts.tools]
    shown = facts.skills.skills if prompt.skills_chars else ()
    return {
        "provider": facts.model.provider,
        "model": facts.model.id,
        "workspaceDir": facts.workspace,
        "bootstrapMaxChars": facts.max_file_chars,
        "sandbox": {"mode": facts.sandbox_mode, "sandboxed": facts.sandbox is not None},
        "systemPrompt": {
            "chars": prompt.chars,
            "projectContextChars": prompt.project_context_chars,
            "nonProjectContextChars": prompt.chars - prompt.project_context_chars,
        },
        "injectedWorkspaceFiles": [
            {
                "name": file.name,
                "path": file.path,
                "missing": file.missing,
                **({"notRead": file.unread} if file.unread else {}),
                "rawChars": file.raw_chars,
                "injectedChars": len(file.text),
                "truncated": file.truncated,
            }
            for file in facts.files
        ],
        "skills": {
            "promptChars": prompt.skills_chars,
            "entries": [{"name": skill.name, "blockChars": len(skill.block.strip())} for skill in shown],
        },
        "tools": {
            "listChars": prompt.tool_list_chars,
            "schemaChars": sum(len(schema) for schema in schemas),
            **({"leftOut": facts.left_out, "window": facts.model.context_window} if facts.left_out else {}),
            "entries": [
                {
                    "name": tool.spec.name,
                    "summaryChars": len(tool.spec.description.strip()),
                    "schemaChars": len(schema),
                    "propertiesCount": len(tool.spec.parameters.get("properties", {})),
                }
                for tool, schema in zip(facts.tools, schemas, strict=True)
            ],
        },
    }


def model_facts(model: Model) -> bytes:
    """The model as it is stored. Its headers and its address may hold keys, so these are left out."""
    shown = redact_urls(model.base_url)
    if model.headers or shown != model.base_url:
        model = msgspec.structs.replace(model, headers={}, base_url=shown)
    return msgspec.json.encode(model)


class ReportStore:
    """Stores prompts, tools and reports as blobs, each content once. It remembers what is already stored."""

    MOST_KNOWN = 4096
    MOST_AT_HAND = 256

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._known: OrderedDict[str, None] = OrderedDict()
        """The digests of blobs that are stored."""
        self._at_hand: OrderedDict[int, tuple[object, str]] = OrderedDict()
        """By their addresses: objects that many runs share, and their digests. Holding them keeps the address."""

    async def persist(self, report: PromptReport) -> dict[str, Any]:
        """Stores the report and returns its small form for the session's entry, with the digest of the blob.

        The digest is left out if the disk refuses the blob. The run goes on without it.
        """
        digest = await self.same(report.shared, lambda: msgspec.json.encode(report.shared, order="sorted"))
        return {**report.own, "blob": digest} if digest else report.own

    async def same(self, thing: object, encode: Callable[[], bytes]) -> str:
        """Like ``once``, for an object that many runs share. It is encoded only the first time."""
        cached = self._at_hand.get(id(thing))
        if cached is not None and cached[0] is thing:
            return cached[1]
        if digest := await self.once(encode()):
            self._at_hand[id(thing)] = (thing, digest)
            if len(self._at_hand) > self.MOST_AT_HAND:
                self._at_hand.popitem(last=False)
        return digest

    async def once(self, data: bytes) -> str:
        """Stores the data unless it is stored already. Returns its digest, or nothing if the disk refuses it."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._known:
            try:
                await self._blobs.put(data)
            except OSError as error:
                log.warning("what a run was given could not be kept: %s", error)
                return ""
            self._known[digest] = None
            if len(self._known) > self.MOST_KNOWN:
                self._known.popitem(last=False)
        return digest


async def stored_report(entry: SessionEntry | None, blobs: BlobStore) -> dict[str, Any] | None:
    """The report of the session's last run, or None. Entries of older versions hold the whole report."""
    stored = (entry or {}).get("systemPromptReport")
    if not isinstance(stored, dict) or stored.get("source") != "run":
        return None
    if "systemPrompt" in stored:
        return stored
    data = await blobs.get(str(stored.get("blob")))
    if data is None:
        return None
    own = {name: stored[name] for name in _OF_THE_RUN if name in stored}
    return {**own, **msgspec.json.decode(data, type=dict[str, Any])}


# What /context shows


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
    lines = ["🧠 Context breakdown (detailed)", *_parts(report)]
    if chars := (report.get("turnFacts") or {}).get("chars"):
        lines.append(f"Turn facts (time, model, channel, levels; behind the newest message): {sized(chars)}")
    lines.append("")
    lines += _top("Top skills (prompt entry size):", skills, "blockChars", "skills")
    lines += _top("Top tools (schema size):", tools, "schemaChars", "tools")
    lines += _top("Top tools (summary text size):", tools, "summaryChars", "tools")
    if counted := [tool for tool in tools if tool.get("propertiesCount") is not None]:
        ranked = sorted(counted, key=lambda tool: (-tool["propertiesCount"], tool["name"]))
        rows = [f"- {tool['name']}: {tool['propertiesCount']} params" for tool in ranked[:TOP_SHOWN]]
        lines += ["Tools (param count):", *rows, *_more(len(ranked), "tools"), ""]
    return "\n".join([*lines, tokens_line(entry)])


def context_json(report: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    session = {name: entry.get(name) for name in ("totalTokens", "inputTokens", "outputTokens", "contextTokens")}
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
        *left_out_lines(report),
        f"Tool list (system prompt text): {sized(tools['listChars'])}",
        f"Tool schemas (JSON): {sized(tools['schemaChars'])} (counts toward context; not shown as text)",
        "Tools: (same as above)",
    ]


def left_out_lines(report: Mapping[str, Any]) -> list[str]:
    """Say which tools the model's window had no room for. Empty if it had room for all."""
    tools = report["tools"]
    return [f"Tools {left_out_text(tools['leftOut'], tools['window'])}"] if tools.get("leftOut") else []


def sized(chars: int) -> str:
    return f"{chars:,} chars (~{math.ceil(chars / 4):,} tok)"


def _file_line(file: Mapping[str, Any]) -> str:
    if file["missing"]:
        return f"- {file['name']}: MISSING | raw 0 | injected 0"
    if reason := file.get("notRead"):
        return f"- {file['name']}: NOT READ | raw 0 | injected 0 | {reason}"
    state = "TRUNCATED" if file["truncated"] else "OK"
    return f"- {file['name']}: {state} | raw {sized(file['rawChars'])} | injected {sized(file['injectedChars'])}"


def _names(entries: Sequence[Mapping[str, Any]]) -> str:
    if not entries:
        return "(none)"
    shown = ", ".join(str(entry["name"]) for entry in entries[:NAMES_SHOWN])
    more = len(entries) - NAMES_SHOWN
    return f"{shown}, … (+{more} more)" if more > 0 else shown


def _top(title: str, entries: Sequence[Mapping[str, Any]], field: str, noun: str) -> list[str]:
    """The largest entries, largest first. A section without rows is left out."""
    if not entries:
        return []
    ranked = sorted(entries, key=lambda entry: (-entry[field], entry["name"]))
    rows = [f"- {entry['name']}: {sized(entry[field])}" for entry in ranked[:TOP_SHOWN]]
    return [title, *rows, *_more(len(ranked), noun), ""]


def _more(count: int, noun: str) -> list[str]:
    return [f"… (+{count - TOP_SHOWN} more {noun})"] if count > TOP_SHOWN else []


def tokens_line(entry: Mapping[str, Any]) -> str:
    total, window = entry.get("totalTokens"), entry.get("contextTokens")
    used = f"{total:,} total" if total is not None else "unknown"
    return f"Session tokens (cached): {used} / ctx={f'{window:,}' if window is not None else '?'}"
