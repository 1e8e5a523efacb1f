"""Approvals of commands by a person: the open requests, their journal, and the rules that people set for good.

- ``Approvals`` holds the open requests. Each is asked once, and answered once or expired.
- ``ApprovalJournal`` (``exec-pending.json``) keeps them on disk, so that a restart can tell what became of them.
- ``ApprovalRules`` (``exec-approvals.json``) holds what people allowed for good, and how strict this machine is.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.clock import Clock, wait_within
from openclaw.storage.documents import DocumentStore, SharedDocument
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.exec.allowlist import AllowRule
from openclaw.tools.exec.binding import MAX_SHOWN, BoundFile, shown_command, visible
from openclaw.tools.exec.settings import Ask, Fallback, HostRules, Security

log = logging.getLogger("openclaw.tools.exec.approvals")

ApprovalDecision: TypeAlias = Literal["allow-once", "allow-always", "deny"]
JOURNAL_FILE = "exec-pending.json"
JOURNALS = "exec-pending/"
"""The beginning of the names of the journals, where several nodes share the documents."""
RULES_FILE = "exec-approvals.json"
TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 24 * 3_600_000
MAX_PENDING = 64
MAX_LOST = 64
"""How many requests from before a restart are remembered, to answer people who decide too late."""
MAX_RULES_BYTES = 1 << 20
MAX_PATTERNS = 2000
SLUG = 8
"""The first characters of an id, which people use to name an approval."""
KEPT_COMMAND = 2000
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
LOST = "the Gateway was restarted while it waited. Have the command asked for again"


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


class Approval:
    """One request, from asking to its end."""

    def __init__(self, id: str, request: ApprovalRequest, now_ms: int, timeout_ms: int, run_id: str) -> None:
        self.id = id
        self.request = request
        self.created_at_ms = now_ms
        self.expires_at_ms = now_ms + timeout_ms
        self.run_id = run_id
        """The run that asked. Empty if another program asked."""
        self.decision: ApprovalDecision | None = None
        self.withdrawn = False
        """True if the session was stopped, so that nobody waits for an answer."""
        self.ended = asyncio.Event()

    @property
    def slug(self) -> str:
        return self.id[:SLUG]

    @property
    def choices(self) -> str:
        return "allow-once or deny" if self.request.once_only else "allow-once, allow-always or deny"

    async def wait(self) -> ApprovalDecision | None:
        """Returns the decision, or None if nobody decided in time."""
        await self.ended.wait()
        return self.decision


class UnknownApproval(Exception):
    """No open request has this id, or several ids begin with it."""

    perhaps = " It may have been answered already, or its time was up."
    """A sentence for people, to put after the message."""


class LostApproval(UnknownApproval):
    """The request was open when the Gateway stopped."""

    perhaps = ""


class Approvals:
    """The open requests of one Gateway. The ``on_...`` callbacks are set where the Gateway is assembled."""

    def __init__(self, clock: Clock, journal: ApprovalJournal | None = None) -> None:
        self._clock = clock
        self.journal = journal
        """Keeps requests on disk. None if they are not kept."""
        self._open: dict[str, Approval] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_requested: Callable[[Approval], None] = lambda approval: None
        self.on_decided: Callable[[Approval, str | None], None] = lambda approval, by: None
        self.on_expired: Callable[[Approval], None] = lambda approval: None

    def ask(
        self, request: ApprovalRequest, *, id: str | None = None, timeout_ms: int = TIMEOUT_MS, run_id: str = ""
    ) -> Approval:
        """Opens a request. Raises ``ValueError`` if it cannot be shown, the id is taken, or too many are open."""
        request = request.visible()
        if id is not None and not _ID.fullmatch(id):
            raise ValueError("approval id: use up to 128 letters, digits and . _ : -")
        if id is not None and id in self._open:
            raise ValueError("approval id already pending")
        if len(self._open) >= MAX_PENDING:
            raise ValueError(f"{MAX_PENDING} approvals are pending already; decide some of them first")
        timeout = max(1, min(timeout_ms, MAX_TIMEOUT_MS))
        approval = Approval(id or str(uuid.uuid4()), request, self._clock.now_ms(), timeout, run_id)
        self._open[approval.id] = approval
        self.spawn(self._expire(approval, timeout / 1000))
        self.on_requested(approval)
        return approval

    def find(self, ref: str) -> Approval:
        """Finds a request by its id or the beginning of it. Raises ``UnknownApproval`` unless exactly one matches."""
        ref = ref.strip()
        if ref in self._open:
            return self._open[ref]
        matches = [approval for id, approval in self._open.items() if len(ref) >= 4 and id.startswith(ref.lower())]
        if len(matches) > 1:
            raise UnknownApproval(
                f"ambiguous approval id: {len(matches)} pending ones begin with {ref}; write more of it"
            )
        if matches:
            return matches[0]
        if self.journal is not None and self.journal.is_lost(ref.lower()):
            raise LostApproval(f"approval {ref[:SLUG]} is no longer open: {LOST}")
        raise UnknownApproval("unknown approval id")

    async def keep(self, approval: Approval, state: Literal["asked", "running"] = "asked") -> None:
        """Writes the request to the journal. From then on, a restart tells the session what became of it."""
        if self.journal is not None:
            command = approval.request.command[:KEPT_COMMAND]
            pending = PendingApproval(id=approval.id, command=command, run_id=approval.run_id, state=state)
            await _written(self.journal.note(pending))

    async def settled(self, approval: Approval) -> None:
        """Removes the request from the journal, because the asker knows the outcome."""
        if self.journal is not None:
            await _written(self.journal.forget(approval.id))

    def resolve(self, ref: str, decision: ApprovalDecision, by: str | None = None) -> Approval:
        approval = self.find(ref)
        approval.decision = decision
        self._close(approval)
        self.on_decided(approval, by)
        return approval

    def pending(self) -> list[Approval]:
        return list(self._open.values())

    def withdraw(self, session_key: str) -> None:
        """Closes the open requests of a session that was stopped."""
        for approval in self.pending():
            if approval.request.session_key == session_key and approval.run_id:
                approval.withdrawn = True
                self._close(approval)
                self.on_expired(approval)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work in the background until it ends or ``close`` is called. A failure is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("what follows an approval failed", exc_info=error)

    async def _expire(self, approval: Approval, seconds: float) -> None:
        if not await wait_within(approval.ended, seconds, self._clock):
            self._close(approval)
            self.on_expired(approval)

    def _close(self, approval: Approval) -> None:
        self._open.pop(approval.id, None)
        approval.ended.set()


async def _written(change: Awaitable[None]) -> None:
    try:
        await change
    except OSError as error:  # The request itself does not depend on the journal.
        log.warning("a restart would not know what became of a question: %s", error)


async def ask_person(
    approvals: Approvals,
    tool: str,
    request: ApprovalRequest,
    context: ToolContext,
    act: Callable[[Approval, ApprovalDecision | None], Awaitable[None]],
) -> Approval:
    """Puts the question, keeps it on disk and returns at once: an answer may take minutes.

    ``act`` is called in the background with the answer, or with None if nobody answers in time. If it fails, the
    session is notified. It is not called if the session is stopped. If the Gateway stops meanwhile, the request stays
    in the journal and the next start tells the session. Raises ``ToolError`` when the question cannot be put.
    """
    try:
        approval = approvals.ask(request, run_id=context.run_id)
    except ValueError as problem:
        raise ToolError(f"{tool} needs an approval, which cannot be asked for now: {problem}") from None
    await approvals.keep(approval)

    async def follow() -> None:
        decision = await approval.wait()
        try:
            if not approval.withdrawn:
                await act(approval, decision)
        except Exception as error:
            log.exception("what follows the answer to %s failed", approval.slug)
            context.announce(
                f"{tool} failed after the answer (id {approval.slug}): {str(error) or type(error).__name__}"
            )
        await approvals.settled(approval)

    approvals.spawn(follow())
    return approval


def pending_result(approval: Approval, warning: str = "") -> ToolResult:
    """What the model reads while a person is asked."""
    once_only = approval.request.once_only
    text = (
        f"{warning}Approval required (id {approval.slug}). Approve to run; the outcome follows in this session "
        "when the command has ended. Do not run it again meanwhile. The person can answer with "
        f"/approve {approval.slug} {approval.choices}."
        + (f" It cannot be allowed for good: {once_only}." if once_only else "")
    )
    details = {
        "status": "approval-pending",
        "approvalId": approval.id,
        "approvalSlug": approval.slug,
        "expiresAtMs": approval.expires_at_ms,
        "host": approval.request.host,
        "command": approval.request.command,
        "cwd": approval.request.cwd,
    }
    return text_result(text, details)


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    id: str
    command: str
    run_id: str = ""
    """The run that asked. Empty if another program asked."""
    state: Literal["asked", "running", "lost"] = "asked"
    """``running``: the command was approved and started. ``lost``: the Gateway stopped meanwhile."""


class ApprovalJournal:
    """The open requests on disk. Each Gateway has a document of its own, since nobody else changes its requests."""

    def __init__(self, documents: DocumentStore, node: str = "") -> None:
        """``node`` is the id of this Gateway among several that share the documents."""
        self._documents = documents
        self._name = journal_name(node)
        self._kept = _journal(documents, self._name)
        self.left_over: list[PendingApproval] = []
        """Requests that were open at a stop and whose session has not been told yet."""

    async def load(self) -> None:
        """Reads what this Gateway left at its last stop. Call it before the first request."""
        self.left_over += [approval for approval in (await self._kept.current()).values() if approval.state != "lost"]

    async def inherit(self, node: str) -> None:
        """Takes over what a Gateway left that has died. Exactly one of the others does so."""
        name = journal_name(node)
        if name == self._name:
            return
        inherited = (await _journal(self._documents, name).current()).values()
        if inherited:
            await self._kept.change(lambda journal: journal.update({approval.id: approval for approval in inherited}))
            self.left_over += [approval for approval in inherited if approval.state != "lost"]
        await self._documents.remove(name)

    async def note(self, pending: PendingApproval) -> None:
        def put(journal: dict[str, PendingApproval]) -> None:
            journal[pending.id] = pending
            lost = [id for id, entry in journal.items() if entry.state == "lost"]
            for id in lost[:-MAX_LOST]:
                del journal[id]

        await self._kept.change(put)

    async def forget(self, id: str) -> None:
        await self._kept.change(lambda journal: journal.pop(id, None))

    def is_lost(self, ref: str) -> bool:
        """Whether an id, or the beginning of one, names a request that a restart closed."""
        journal = self._kept.value
        named = (approval for id, approval in journal.items() if id == ref or (len(ref) >= 4 and id.startswith(ref)))
        return any(approval.state == "lost" or approval in self.left_over for approval in named)


def journal_name(node: str) -> str:
    return f"{JOURNALS}{node}.json" if node else JOURNAL_FILE


def _journal(documents: DocumentStore, name: str) -> SharedDocument[dict[str, PendingApproval]]:
    return SharedDocument(
        documents,
        name,
        dict,
        lambda data: {approval.id: approval for approval in msgspec.json.decode(data, type=list[PendingApproval])},
        lambda journal: msgspec.json.encode(list(journal.values())),
        damaged="drop",
        consequence="questions that were open are not told as closed",
    )


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
