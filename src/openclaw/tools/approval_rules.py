"""``exec-approvals.json``: what people allowed on this machine for good, and how careful commands must be here.

People and other programs edit it too, so it is read anew whenever it changed. One that cannot be understood forbids
everything: it may have said so.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from pathlib import Path
from typing import Any

import msgspec

from openclaw.clock import Clock
from openclaw.paths import make_private_dir
from openclaw.storage.files.disk import atomic_replace
from openclaw.tools.base import ToolError
from openclaw.tools.exec_settings import Ask, Security
from openclaw.tools.exec_terms import Fallback, HostRules

FILE_NAME = "exec-approvals.json"
MAX_BYTES = 1 << 20
MAX_PATTERNS = 2000


class Pattern(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    pattern: str
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


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    exists: bool
    hash: str
    file: RulesFile

    def view(self) -> dict[str, Any]:
        """For clients: without the secret of the socket."""
        file = msgspec.to_builtins(self.file)
        if socket := file.pop("socket", None):
            file["socket"] = {"path": socket["path"]} if socket.get("path") else {}
        return {"path": self.path, "exists": self.exists, "hash": self.hash, "file": file}


class BadRules(Exception):
    """What was wrong with the file, and what to do."""


class ApprovalRules:
    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._path = Path(state_dir) / FILE_NAME
        self._clock = clock
        self._known: tuple[tuple[int, int, int], Snapshot] | None = None
        self._writing = asyncio.Lock()

    async def snapshot(self) -> Snapshot:
        """Raises ``BadRules``."""
        return await asyncio.to_thread(self._read)

    async def rules_for(self, agent_id: str) -> HostRules:
        """The agent's own, then those of ``*``, then the defaults. Raises ``ToolError`` for a damaged file."""
        try:
            file = (await self.snapshot()).file
        except BadRules as bad:
            raise ToolError(f"exec is denied: {bad}") from None
        own, everyone = file.agents.get(agent_id, Rules()), file.agents.get("*", Rules())
        layers = (own, everyone, file.defaults)
        fallback: Fallback = "deny"
        for layer in reversed(layers):
            fallback = layer.ask_fallback or fallback
        return HostRules(
            security=next((layer.security for layer in layers if layer.security), None),
            ask=next((layer.ask for layer in layers if layer.ask), None),
            ask_fallback=fallback,
            allowlist=tuple(entry.pattern for layer in (everyone, own) for entry in layer.allowlist),
        )

    async def allow_always(self, agent_id: str, programs: list[str], command: str) -> None:
        """Adds the programs to the agent's allowlist."""
        now = self._clock.now_ms()
        async with self._writing:
            file = (await self.snapshot()).file
            rules = file.agents.setdefault(agent_id, Rules())
            known = {entry.pattern: entry for entry in rules.allowlist}
            for program in dict.fromkeys(programs):
                entry = known.get(program)
                if entry is None:
                    entry = Pattern(pattern=program, id=str(uuid.uuid4()))
                    rules.allowlist = [*rules.allowlist, entry][-MAX_PATTERNS:]
                entry.last_used_at, entry.last_used_command = now, command[:500]
                entry.last_resolved_path = program
            await asyncio.to_thread(self._write, file)

    async def replace(self, file: Any, base_hash: str | None) -> Snapshot:
        """The whole file, by someone who has read the present one. Raises ``BadRules``."""
        async with self._writing:
            before = await self.snapshot()
            if before.exists and not base_hash:
                raise BadRules("exec approvals base hash required; re-run exec.approvals.get and retry")
            if before.exists and base_hash != before.hash:
                raise BadRules("exec approvals changed since last load; re-run exec.approvals.get and retry")
            new = _decoded(file)
            if new.socket is msgspec.UNSET or "token" not in new.socket:
                new.socket = before.file.socket
            await asyncio.to_thread(self._write, new)
            return await self.snapshot()

    def _read(self) -> Snapshot:
        try:
            facts = self._path.stat()
            mark = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if self._known is not None and self._known[0] == mark:
                return msgspec.structs.replace(self._known[1], file=_copy(self._known[1].file))
            with self._path.open("rb") as stored:
                data = stored.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return Snapshot(path=str(self._path), exists=False, hash=_hash(b""), file=RulesFile())
        except OSError as error:
            raise BadRules(f"{self._path} cannot be read ({error.strerror}); mend it or remove it") from None
        if len(data) > MAX_BYTES:
            raise BadRules(f"{self._path} is larger than {MAX_BYTES} bytes; mend it or remove it")
        try:
            file = _decoded(msgspec.json.decode(data))
        except msgspec.MsgspecError as error:
            raise BadRules(f"{self._path} is no valid JSON ({error}); mend it or remove it") from None
        snapshot = Snapshot(path=str(self._path), exists=True, hash=_hash(data), file=file)
        self._known = (mark, snapshot)
        return msgspec.structs.replace(snapshot, file=_copy(file))

    def _write(self, file: RulesFile) -> None:
        make_private_dir(str(self._path.parent))
        atomic_replace(self._path, msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")


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
