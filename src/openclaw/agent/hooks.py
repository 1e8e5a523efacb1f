"""The hooks around compaction. Extensions add them with ``api.on(name, function)``, see ``extensions/api.py``.

A function may be plain or async. These are the names:

``session_before_compact``  It may return ``Cancel()`` or its own ``CompactionResult``. The first answer counts.
``session_compact``         It is called after an entry was appended.
``before_compaction``       It is called before a summary is made. Its result is ignored.
``after_compaction``        It is called after every compaction, also after one that failed.
``before_content_leaves``   It is awaited before messages leave the prompt, so that it can save what must last.

``session_before_compact`` may also return ``{"cancel": True, "reason": ...}`` or ``{"compaction": {"summary": ...}}``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.messages import Message

log = logging.getLogger("openclaw.agents.hooks")

LONGEST_HOOK_S = 60.0
LONGEST_FLUSH_S = 600.0
"""A ``before_content_leaves`` hook may call a model and therefore gets more time."""
CompactionReason: TypeAlias = Literal["threshold", "overflow", "manual"]


class BeforeCompact(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    session_key: str
    session_id: str
    reason: CompactionReason
    first_kept_entry_id: str
    tokens_before: int
    messages: list[Message]
    """The messages that the summary replaces, oldest first. A hook must not change them."""
    previous_summary: str = ""
    instructions: str = ""


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A summary and where the kept messages begin. The Gateway or a hook makes it."""

    summary: str
    first_kept_entry_id: str
    tokens_before: int = 0
    details: dict[str, Any] = {}


class Cancel(msgspec.Struct, frozen=True):
    why: str = ""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    session_key: str
    session_id: str
    reason: CompactionReason
    entry_id: str | None
    """The appended entry; None if nothing was appended."""
    from_hook: bool = False
    error: str = ""


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """Messages are about to leave the prompt of this session.

    The session is locked while the hook runs. A hook that needs the model calls it directly; a queued turn would wait
    for the hook.
    """

    agent_id: str
    session_key: str
    session_id: str
    reason: CompactionReason
    in_run: bool
    """True if a run waits for this compaction because its prompt does not fit."""


HookAnswer: TypeAlias = Cancel | CompactionResult | None
NAMES = frozenset(
    {"session_before_compact", "session_compact", "before_compaction", "after_compaction", "before_content_leaves"}
)
"""The names that ``CompactionHooks.on`` accepts. Each is an attribute of ``CompactionHooks``."""
BeforeHook: TypeAlias = Callable[[BeforeCompact], Awaitable[HookAnswer]]
TellHook: TypeAlias = Callable[[BeforeCompact], Awaitable[None]]
AfterHook: TypeAlias = Callable[[Compacted], Awaitable[None]]
LeavingHook: TypeAlias = Callable[[Leaving], Awaitable[Any]]


class CompactionHooks:
    """The registered hooks, by name. A hook that fails or takes too long is logged and skipped."""

    def __init__(self) -> None:
        self.session_before_compact: list[BeforeHook] = []
        self.before_compaction: list[TellHook] = []
        self.session_compact: list[AfterHook] = []
        self.after_compaction: list[AfterHook] = []
        self.before_content_leaves: list[LeavingHook] = []
        self._leaving: set[str] = set()

    def on(self, name: str, function: Callable[[Any], Any]) -> None:
        if name not in NAMES:
            raise ValueError(f"there is no hook {name!r}; there are {', '.join(sorted(NAMES))}")
        getattr(self, name).append(function)

    async def ask_before(self, about: BeforeCompact) -> HookAnswer:
        for tell in self.before_compaction:
            await _guarded(tell, about, LONGEST_HOOK_S)
        for hook in self.session_before_compact:
            answer = await _guarded(lambda about, hook=hook: _answer(hook, about), about, LONGEST_HOOK_S)
            if answer is not None:
                return answer
        return None

    async def tell_after(self, what: Compacted) -> None:
        for hook in (*(self.session_compact if what.entry_id else ()), *self.after_compaction):
            await _guarded(hook, what, LONGEST_HOOK_S)

    async def content_leaves(self, leaving: Leaving) -> None:
        """Calls the hooks. Does nothing for a compaction that one of these hooks itself causes in the same session."""
        if leaving.session_key in self._leaving:
            return
        self._leaving.add(leaving.session_key)
        try:
            for hook in self.before_content_leaves:
                await _guarded(hook, leaving, LONGEST_FLUSH_S)
        finally:
            self._leaving.discard(leaving.session_key)


async def _answer(hook: BeforeHook, about: BeforeCompact) -> HookAnswer:
    """Calls the hook and converts a returned dict. Raises ``TypeError`` for a return value of another form."""
    said: Any = hook(about)
    said = await said if inspect.isawaitable(said) else said
    if said is None or isinstance(said, Cancel | CompactionResult):
        return said
    if isinstance(said, dict) and said.get("cancel"):
        return Cancel(str(said.get("reason") or ""))
    made = said.get("compaction") if isinstance(said, dict) else None
    if not isinstance(made, dict) or not str(made.get("summary") or "").strip():
        raise TypeError(f"session_before_compact returned neither a cancellation nor a summary: {said!r:.200}")
    return CompactionResult(
        summary=str(made["summary"]),
        first_kept_entry_id=str(made.get("firstKeptEntryId") or about.first_kept_entry_id),
        tokens_before=about.tokens_before,
        details=made["details"] if isinstance(made.get("details"), dict) else {},
    )


async def _guarded(hook: Callable[[Any], Awaitable[Any]], about: Any, longest_s: float) -> Any:
    """Calls the hook with a time limit. Logs an error and returns None if it fails."""
    try:
        async with asyncio.timeout(longest_s):
            said: Any = hook(about)
            return await said if inspect.isawaitable(said) else said
    except Exception:
        log.exception("a hook failed for session %s", about.session_key)
        return None
