"""Approvals of commands by a person: how one is asked for, and the rules that people set for good.

An approval is a kind of question (``questions/desk.py``). ``ApprovalRules`` (``exec-approvals.json``) holds what people
allowed for good, and how strict this machine is.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from openclaw.clock import Clock
from openclaw.questions.answers import approval_options
from openclaw.questions.desk import QuestionDesk
from openclaw.storage.documents import DocumentStore, SharedDocument
from openclaw.storage.questions import Question
from openclaw.text import shortened
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.exec.allowlist import AllowRule
from openclaw.tools.exec.binding import MAX_SHOWN, BoundFile, fenced, shown_command, visible
from openclaw.tools.exec.settings import Ask, Fallback, HostRules, Security

log = logging.getLogger("openclaw.tools.exec.approvals")

ApprovalDecision: TypeAlias = Literal["allow-once", "allow-always", "deny"]
RULES_FILE = "exec-approvals.json"
TIMEOUT_MS = 120_000
MAX_RULES_BYTES = 1 << 20
MAX_PATTERNS = 2000
SHOWN_COMMAND = 300
"""The characters of the command in a result that says that it was not run."""
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a person needs to know to decide. ``Approvals.ask`` makes every text in it visible."""

    command: str
    """The whole command, after the variables that it sets."""
    cwd: str | None = None
    host: str | None = None
    node: str | None = None
    """The node that runs it, if it runs on one."""
    security: str | None = None
    ask: str | None = None
    agent_id: str | None = None
    resolved_path: str | None = None
    session_key: str | None = None
    env: dict[str, str] | None = None
    """The variables that the command sets."""
    once_only: str | None = None
    """Why ``allow-always`` would not be remembered. None if it would be."""

    def visible(self) -> ApprovalRequest:
        """The request as people may be shown it. Raises ``ValueError`` if nobody could read all of it."""
        texts = {name: visible(value) for name, value in msgspec.structs.asdict(self).items() if isinstance(value, str)}
        texts["command"] = shown_command(self.command, self.env or {})
        if (size := sum(map(len, texts.values()))) > MAX_SHOWN:
            raise ValueError(
                f"the command is too long to be shown to a person whole ({size} characters, at most {MAX_SHOWN}); "
                "write it to a script and have that asked for"
            )
        env = {visible(name): visible(value) for name, value in (self.env or {}).items()}
        return msgspec.structs.replace(self, **texts, env=env or None)


def approval_question(
    request: ApprovalRequest,
    *,
    kind: Literal["command", "tool"] = "command",
    id: str = "",
    timeout_ms: int = TIMEOUT_MS,
    run_id: str = "",
    call_id: str = "",
    fingerprint: str = "",
) -> Question:
    """Make the question whether something may run. Raises ``ValueError`` if it cannot be shown or the id is invalid."""
    request = request.visible()
    if id and not _ID.fullmatch(id):
        raise ValueError("approval id: use up to 128 letters, digits and . _ : -")
    return Question(
        id=id,
        kind=kind,
        text=_question_text(request, kind),
        options=approval_options(once_only=request.once_only is not None),
        details={name: value for name, value in msgspec.to_builtins(request).items() if value is not None},
        fingerprint=fingerprint,
        agent_id=request.agent_id or "",
        session_key=request.session_key or "",
        run_id=run_id,
        call_id=call_id,
        created_at=0,
        expires_at=timeout_ms,
    )


def _question_text(request: ApprovalRequest, kind: Literal["command", "tool"]) -> str:
    """The whole question. Long ones go out in several messages."""
    lines = [f"🔒 May I {'run this command' if kind == 'command' else 'call this tool'}?", "", fenced(request.command)]
    if request.node:
        lines += ["", "On the node:", fenced(request.node)]
    if request.cwd:
        lines += ["", "In:", fenced(request.cwd)]
    if request.env:
        lines += ["", "It sets:", fenced("\n".join(f"{name}={value}" for name, value in request.env.items()))]
    if request.once_only:
        lines += ["", "It cannot be allowed for good:", fenced(request.once_only)]
    return "\n".join(lines)


def request_of(question: Question) -> ApprovalRequest:
    return msgspec.convert(question.details, ApprovalRequest)


def decision_of(question: Question) -> ApprovalDecision | None:
    """Return what a person decided, or None if nobody did."""
    decisions: dict[str | None, ApprovalDecision] = {name: name for name in get_args(ApprovalDecision)}
    return decisions.get(question.answer) if question.state == "answered" else None


async def ask_approval(
    desk: QuestionDesk,
    tool: str,
    request: ApprovalRequest,
    context: ToolContext,
    *,
    kind: Literal["command", "tool"] = "command",
    fingerprint: str = "",
) -> Question:
    """Ask a person and return the question once it has ended. The run waits without holding a slot.

    A call that resumes after a restart waits for the question that it had asked. Raises ``ToolError`` if the question
    cannot be asked, or if the call is no longer what the question was about.
    """
    question = await desk.of_call(context.run_id, context.call_id) if context.resumed else None
    if question is None:
        try:
            question = await desk.ask(
                approval_question(
                    request, kind=kind, run_id=context.run_id, call_id=context.call_id, fingerprint=fingerprint
                )
            )
        except ValueError as problem:
            raise ToolError(f"{tool} needs an approval, which cannot be asked for now: {problem}") from None
    elif question.fingerprint != fingerprint:
        await desk.withdraw([question])
        raise ToolError(
            f"{tool} was not run (id {question.id}): it is not what it was when a person was asked. Call it again "
            "if it is still needed"
        )
    return await context.wait_for_person(desk, question)


def fingerprint_of(*parts: Any) -> str:
    """Identify what a question is about, so that an answer counts for nothing else after a restart."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def refusal_reason(question: Question) -> str | None:
    """The code of the reason why an ended question allows nothing, or None if a person allowed it."""
    match question.state, decision_of(question):
        case "answered", "deny" | None:
            return "user-denied"
        case "answered", _:
            return None
        case "expired", _:
            return "approval-timeout"
        case _:
            return "withdrawn"


def refused_result(question: Question, reason: str, tool: str = "Exec") -> ToolResult:
    """The result of a call that a person denied, or that nobody allowed in time."""
    shown = shortened(" ".join(str(question.details.get("command", "")).split()), SHOWN_COMMAND)
    status = "denied" if question.state == "answered" else question.state
    details = {"status": status, "questionId": question.id, "reason": reason}
    return text_result(f"{tool} denied (gateway id={question.id}, {reason}): {shown}", details)


class Pattern(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    pattern: str
    """See ``AllowRule``."""
    cwd: str | None = None
    files: list[BoundFile] = []
    id: str | None = None
    last_used_at: int | None = None
    last_used_command: str | None = None
    last_resolved_path: str | None = None


class Rules(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    security: Security | None = None
    ask: Ask | None = None
    ask_fallback: Fallback | None = None
    auto_allow_skills: bool | None = None
    allowlist: list[Pattern] = []


class RulesFile(msgspec.Struct, kw_only=True, rename="camel"):
    version: int = 1
    socket: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    defaults: Rules = msgspec.field(default_factory=Rules)
    agents: dict[str, Rules] = {}


class RulesSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    exists: bool
    hash: str
    file: RulesFile

    def view(self) -> dict[str, Any]:
        """The snapshot for clients, without the secret of the socket."""
        file = msgspec.to_builtins(self.file)
        if socket := file.pop("socket", None):
            file["socket"] = {"path": socket["path"]} if socket.get("path") else {}
        return {"path": self.path, "exists": self.exists, "hash": self.hash, "file": file}


class BadRules(Exception):
    """The rules file is not valid. The message says what is wrong and what to do."""


class ApprovalRules:
    """The rules file. People and other programs edit it too, so it is read again whenever it has changed.

    A file that cannot be understood forbids every command, because that may be what it says.
    """

    def __init__(self, documents: DocumentStore, clock: Clock) -> None:
        self._document: SharedDocument[RulesFile] = SharedDocument(
            documents, RULES_FILE, RulesFile, _decode_rules, _encode_rules, damaged="refuse"
        )
        self._clock = clock

    async def snapshot(self) -> RulesSnapshot:
        """The rules of this moment. The record is the caller's own. Raises ``BadRules``."""
        try:
            file = await self._document.current()
        except _BadDocument as bad:
            raise BadRules(f"{self._document.place} {bad}; mend it or remove it") from None
        except OSError as error:
            why = error.strerror or str(error)
            raise BadRules(f"{self._document.place} cannot be read ({why}); mend it or remove it") from None
        # A deep copy, because the document goes on to use its own record. This way is quicker than ``copy.deepcopy``.
        return self._snapshot(msgspec.convert(msgspec.to_builtins(file), RulesFile))

    def _snapshot(self, file: RulesFile) -> RulesSnapshot:
        document = self._document
        digest = hashlib.sha256(document.data or b"").hexdigest()
        return RulesSnapshot(path=document.place, exists=document.exists, hash=digest, file=file)

    async def rules_for(self, agent_id: str) -> HostRules:
        """The rules of the agent, then those of ``*``, then the defaults. Raises ``ToolError`` for a damaged file."""
        try:
            file = (await self.snapshot()).file
        except BadRules as bad:
            raise ToolError(f"exec is denied: {bad}") from None
        own, everyone = file.agents.get(agent_id, Rules()), file.agents.get("*", Rules())
        layers = (own, everyone, file.defaults)
        fallbacks: list[Fallback] = [layer.ask_fallback for layer in layers if layer.ask_fallback]
        return HostRules(
            security=next((layer.security for layer in layers if layer.security), None),
            ask=next((layer.ask for layer in layers if layer.ask), None),
            ask_fallback=fallbacks[0] if fallbacks else "deny",
            allowlist=tuple(
                AllowRule(pattern=entry.pattern, cwd=entry.cwd, files=tuple(entry.files))
                for layer in (everyone, own)
                for entry in layer.allowlist
            ),
        )

    async def allow_always(self, agent_id: str, rule: AllowRule, command: str) -> None:
        """Adds the rule to the agent's allowlist. One for the same command takes the place of an older one."""
        now = self._clock.now_ms()
        entry = Pattern(
            pattern=rule.pattern,
            cwd=rule.cwd,
            files=list(rule.files),
            id=str(uuid.uuid4()),
            last_used_at=now,
            last_used_command=command[:500],
            last_resolved_path=rule.files[0].path if rule.files else None,
        )

        def add(file: RulesFile) -> None:
            rules = file.agents.setdefault(agent_id, Rules())
            others = [one for one in rules.allowlist if (one.pattern, one.cwd) != (rule.pattern, rule.cwd)]
            rules.allowlist = [*others, entry][-MAX_PATTERNS:]

        await self.snapshot()  # Raises ``BadRules`` where ``change`` would raise an error without advice.
        await self._document.change(add)

    async def replace(self, file: Any, base_hash: str | None) -> RulesSnapshot:
        """Replaces the whole file if ``base_hash`` is that of the present one. Raises ``BadRules``."""
        before = await self.snapshot()
        if before.exists and not base_hash:
            raise BadRules("exec approvals base hash required; re-run exec.approvals.get and retry")
        new = _decoded(file)

        def put(present: RulesFile) -> None:
            snapshot = self._snapshot(present)
            if snapshot.exists and base_hash != snapshot.hash:
                raise BadRules("exec approvals changed since last load; re-run exec.approvals.get and retry")
            socket = new.socket
            if socket is msgspec.UNSET or "token" not in socket:
                socket = present.socket
            present.version, present.socket = new.version, socket
            present.defaults, present.agents = new.defaults, new.agents

        await self._document.change(put)
        return await self.snapshot()


class _BadDocument(ValueError):
    """The rules cannot be read. The text says why."""


def _decode_rules(data: bytes) -> RulesFile:
    if len(data) > MAX_RULES_BYTES:
        raise _BadDocument(f"is larger than {MAX_RULES_BYTES} bytes")
    try:
        return _decoded(msgspec.json.decode(data))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _BadDocument(f"is invalid JSON ({error})") from None


def _encode_rules(file: RulesFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def _decoded(raw: Any) -> RulesFile:
    try:
        file = msgspec.convert(raw, RulesFile)
    except msgspec.ValidationError as error:
        raise BadRules(f"exec approvals file is not valid: {error}") from None
    if file.version != 1:
        raise BadRules(f"exec approvals file has version {file.version}; this Gateway knows version 1")
    return file
