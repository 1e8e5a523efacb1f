"""Sizes of what a run gave the model, taken from the parts the prompt was built of. Never the prompt itself."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.agent.prompt.workspace_files import untold_warnings
from openclaw.messages import ToolSpec
from openclaw.models.base import Model, ModelRequest
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.base import BlobStore

if TYPE_CHECKING:
    from openclaw.agent.prompt.facts import PromptFacts
    from openclaw.agent.prompt.system_prompt import SystemPrompt


class PromptReport(msgspec.Struct, frozen=True):
    own: dict[str, Any]
    """What belongs to one run."""
    shared: dict[str, Any]
    """What is the same for every run with this prompt. Never mutate it."""
    warnings: list[str] = []
    """What the person is to be told for the first time."""

    def whole(self) -> dict[str, Any]:
        """In the shape clients know."""
        return {**self.own, **self.shared, **({"warnings": self.warnings} if self.warnings else {})}


UNSEEN_SOURCES = ("", "cron", "heartbeat", "hook")
"""Runs nobody reads along: a warning given there would be lost."""


def prompt_report(
    session_key: str, session_id: str, source: str, facts: PromptFacts, prompt: SystemPrompt, now_ms: int
) -> PromptReport:
    own = {"source": "run", "generatedAt": now_ms, "sessionId": session_id, "sessionKey": session_key}
    seen = facts.mode == "full" and source not in UNSEEN_SOURCES
    return PromptReport(own, prompt.report, untold_warnings(facts.files) if seen else [])


def shared_report(facts: PromptFacts, prompt: SystemPrompt) -> dict[str, Any]:
    """What is the same for every run with this prompt."""
    schemas = [msgspec.json.encode(tool.spec.parameters) for tool in facts.tools]
    shown = facts.skills.skills if prompt.skills_chars else ()
    return {
        "provider": facts.model.provider,
        "model": facts.model.id,
        "workspaceDir": facts.workspace,
        "bootstrapMaxChars": facts.max_file_chars,
        "sandbox": {"mode": facts.sandbox_mode, "sandboxed": False},
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


log = logging.getLogger("openclaw.agents.context")

_OF_THE_RUN = ("source", "generatedAt", "sessionId", "sessionKey")
"""What differs from run to run; the rest is the same for many and is kept once."""


class PromptDigests(msgspec.Struct, frozen=True):
    """Empty where the disk would not take it. The things themselves are held, so that their addresses stay theirs."""

    system: str
    tools: list[ToolSpec]
    model: Model
    system_digest: str
    tools_digest: str
    model_digest: str

    def is_of(self, request: ModelRequest) -> bool:
        return self.system is request.system and self.tools is request.tools and self.model is request.model


def model_facts(model: Model) -> bytes:
    """Without its headers: they may hold keys, which are kept nowhere."""
    return msgspec.json.encode(msgspec.structs.replace(model, headers={}) if model.headers else model)


class ReportStore:
    """Keeps reports once by their content. A session's entry holds only what is its own, and the digest."""

    MOST_KNOWN = 4096
    MOST_AT_HAND = 64

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._at_hand: OrderedDict[int, tuple[object, str]] = OrderedDict()
        self._prompts: OrderedDict[int, PromptDigests] = OrderedDict()

    async def keep(self, report: PromptReport, blobs: BlobStore) -> dict[str, Any]:
        """The small form for the entry. Without a digest if the disk would not take it: a report is worth no run."""
        digest = await self.same(report.shared, lambda: msgspec.json.encode(report.shared, order="sorted"), blobs)
        return {**report.own, "blob": digest} if digest else report.own

    async def prompt_of(self, request: ModelRequest, blobs: BlobStore) -> PromptDigests:
        """Of what comes again and again as the very same objects, whatever the conversation is."""
        known = self._prompts.get(id(request.system))
        if known is not None and known.is_of(request):
            return known
        found = PromptDigests(
            request.system,
            request.tools,
            request.model,
            await self.once(request.system.encode(), blobs) or "",
            await self.once(msgspec.json.encode(request.tools), blobs) or "",
            await self.once(model_facts(request.model), blobs) or "",
        )
        if found.system_digest and found.tools_digest and found.model_digest:
            self._prompts[id(request.system)] = found
            if len(self._prompts) > self.MOST_AT_HAND:
                self._prompts.popitem(last=False)
        return found

    async def same(self, thing: object, encode: Callable[[], bytes], blobs: BlobStore) -> str | None:
        """As ``once``, for what comes again and again as the very same, unchanged object."""
        known = self._at_hand.get(id(thing))
        if known is not None and known[0] is thing:
            return known[1]
        digest = await self.once(encode(), blobs)
        if digest is not None:
            self._at_hand[id(thing)] = (thing, digest)
            if len(self._at_hand) > self.MOST_AT_HAND:
                self._at_hand.popitem(last=False)
        return digest

    async def once(self, data: bytes, blobs: BlobStore) -> str | None:
        """The digest of what is kept; None if the disk would not take it."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._known:
            try:
                await blobs.put(data)
            except OSError as error:
                log.warning("what a run was given could not be kept: %s", error)
                return None
            self._known[digest] = None
            if len(self._known) > self.MOST_KNOWN:
                self._known.popitem(last=False)
        return digest


async def stored_report(entry: SessionEntry | None, blobs: BlobStore) -> dict[str, Any] | None:
    """The report of the session's last run, or None. Entries of older versions hold it whole."""
    kept = (entry or {}).get("systemPromptReport")
    if not isinstance(kept, dict) or kept.get("source") != "run":
        return None
    if "systemPrompt" in kept:
        return kept
    data = await blobs.get(str(kept.get("blob")))
    if data is None:
        return None
    own = {name: kept[name] for name in _OF_THE_RUN if name in kept}
    return {**own, **msgspec.json.decode(data, type=dict[str, Any])}


NAMES_SHOWN = 30
TOP_SHOWN = 30
_COUNTS = ("totalTokens", "inputTokens", "outputTokens", "contextTokens")


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
