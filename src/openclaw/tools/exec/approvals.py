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
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.clock import Clock, wait_within
from openclaw.paths import make_private_dir
from openclaw.storage.files.disk import atomic_replace
from openclaw.tools.base import ToolError, ToolResult, text_result
from openclaw.tools.exec.allowlist import AllowRule
from openclaw.tools.exec.binding import BoundFile
from openclaw.tools.exec.question import MAX_SHOWN, shown_command, visible
from openclaw.tools.exec.settings import Ask, Fallback, HostRules, Security

log = logging.getLogger("openclaw.tools.exec.approvals")

Decision: TypeAlias = Literal["allow-once", "allow-always", "deny"]
JOURNAL_FILE = "exec-pending.json"
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
        self.decision: Decision | None = None
        self.withdrawn = False
        """True if the session was stopped, so that nobody waits for an answer."""
        self.ended = asyncio.Event()

    @property
    def slug(self) -> str:
        return self.id[:SLUG]

    @property
    def choices(self) -> str:
        return "allow-once or deny" if self.request.once_only else "allow-once, allow-always or deny"

    async def wait(self) -> Decision | None:
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
        found = [one for id, one in self._open.items() if len(ref) >= 4 and id.startswith(ref.lower())]
        if len(found) > 1:
            raise UnknownApproval(
                f"ambiguous approval id: {len(found)} pending ones begin with {ref}; write more of it"
            )
        if found:
            return found[0]
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

    def resolve(self, ref: str, decision: Decision, by: str | None = None) -> Approval:
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


async def asked_person(approvals: Approvals, request: ApprovalRequest, run_id: str) -> Approval:
    """Puts the question, and keeps it on disk. Raises ``ToolError`` when it cannot be asked now."""
    try:
        approval = approvals.ask(request, run_id=run_id)
    except ValueError as full:
        raise ToolError(f"exec needs an approval, which cannot be asked for now: {full}") from None
    await approvals.keep(approval)
    return approval


def pending_result(approval: Approval, warning: str = "") -> ToolResult:
    """What the model reads while a person is asked."""
    text = (
        f"{warning}Approval required (id {approval.slug}). Approve to run; the outcome follows in this session "
        "when the command has ended. Do not run it again meanwhile. The person can answer with "
        f"/approve {approval.slug} {approval.choices}."
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
    """The open requests on disk. Each change replaces the whole file, since requests are few and change rarely."""

    def __init__(self, state_dir: str) -> None:
        self._path = Path(state_dir) / JOURNAL_FILE
        self._pending: dict[str, PendingApproval] = {}
        self.left_over: list[PendingApproval] = []
        """Requests that were open at the last stop and whose session has not been told yet."""
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Reads the file. Call it before the first request. A damaged file counts as empty."""
        found = await asyncio.to_thread(self._read)
        self._pending = {one.id: one for one in found}
        self.left_over = [one for one in found if one.state != "lost"]

    async def note(self, pending: PendingApproval) -> None:
        self._pending[pending.id] = pending
        lost = [id for id, one in self._pending.items() if one.state == "lost"]
        for id in lost[:-MAX_LOST]:
            del self._pending[id]
        await self._write()

    async def forget(self, id: str) -> None:
        if self._pending.pop(id, None) is not None:
            await self._write()

    def is_lost(self, ref: str) -> bool:
        """Whether an id, or the beginning of one, names a request that a restart closed."""
        named = (one for id, one in self._pending.items() if id == ref or (len(ref) >= 4 and id.startswith(ref)))
        return any(one.state == "lost" or one in self.left_over for one in named)

    async def _write(self) -> None:
        async with self._writing:
            await asyncio.to_thread(_replace, self._path, msgspec.json.encode(list(self._pending.values())))

    def _read(self) -> list[PendingApproval]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[PendingApproval])
        except FileNotFoundError:
            return []
        except (msgspec.DecodeError, OSError) as error:
            log.warning("%s cannot be read (%s): questions that were open are not told as closed", self._path, error)
            return []


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

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._path = Path(state_dir) / RULES_FILE
        self._clock = clock
        self._known: tuple[tuple[int, int, int], RulesSnapshot] | None = None
        self._writing = asyncio.Lock()

    async def snapshot(self) -> RulesSnapshot:
        """Raises ``BadRules``."""
        return await asyncio.to_thread(self._read)

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
        async with self._writing:
            file = (await self.snapshot()).file
            rules = file.agents.setdefault(agent_id, Rules())
            entry = Pattern(
                pattern=rule.pattern,
                cwd=rule.cwd,
                files=list(rule.files),
                id=str(uuid.uuid4()),
                last_used_at=now,
                last_used_command=command[:500],
                last_resolved_path=rule.files[0].path if rule.files else None,
            )
            others = [one for one in rules.allowlist if (one.pattern, one.cwd) != (rule.pattern, rule.cwd)]
            rules.allowlist = [*others, entry][-MAX_PATTERNS:]
            await self._write(file)

    async def replace(self, file: Any, base_hash: str | None) -> RulesSnapshot:
        """Replaces the whole file if ``base_hash`` is that of the present one. Raises ``BadRules``."""
        async with self._writing:
            before = await self.snapshot()
            if before.exists and not base_hash:
                raise BadRules("exec approvals base hash required; re-run exec.approvals.get and retry")
            if before.exists and base_hash != before.hash:
                raise BadRules("exec approvals changed since last load; re-run exec.approvals.get and retry")
            new = _decoded(file)
            if new.socket is msgspec.UNSET or "token" not in new.socket:
                new.socket = before.file.socket
            await self._write(new)
            return await self.snapshot()

    def _read(self) -> RulesSnapshot:
        try:
            facts = self._path.stat()
            mark = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if self._known is not None and self._known[0] == mark:
                return msgspec.structs.replace(self._known[1], file=_copy(self._known[1].file))
            with self._path.open("rb") as stored:
                data = stored.read(MAX_RULES_BYTES + 1)
        except FileNotFoundError:
            return RulesSnapshot(path=str(self._path), exists=False, hash=_hash(b""), file=RulesFile())
        except OSError as error:
            raise BadRules(f"{self._path} cannot be read ({error.strerror}); mend it or remove it") from None
        if len(data) > MAX_RULES_BYTES:
            raise BadRules(f"{self._path} is larger than {MAX_RULES_BYTES} bytes; mend it or remove it")
        try:
            file = _decoded(msgspec.json.decode(data))
        except msgspec.MsgspecError as error:
            raise BadRules(f"{self._path} is no valid JSON ({error}); mend it or remove it") from None
        snapshot = RulesSnapshot(path=str(self._path), exists=True, hash=_hash(data), file=file)
        self._known = (mark, snapshot)
        return msgspec.structs.replace(snapshot, file=_copy(file))

    async def _write(self, file: RulesFile) -> None:
        data = msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
        await asyncio.to_thread(_replace, self._path, data)


def _replace(path: Path, data: bytes) -> None:
    make_private_dir(str(path.parent))
    atomic_replace(path, data)


def _copy(file: RulesFile) -> RulesFile:
    return msgspec.convert(msgspec.to_builtins(file), RulesFile)


def _decoded(raw: Any) -> RulesFile:
    try:
        file = msgspec.convert(raw, RulesFile)
    except msgspec.ValidationError as error:
        raise BadRules(f"exec approvals file is not valid: {error}") from None
    if file.version != 1:
        raise BadRules(f"exec approvals file has version {file.version}; this Gateway knows version 1")
    return file


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
