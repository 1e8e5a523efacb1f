"""Extension points around compaction, on one screen. ``hooks.on(name, function)`` adds one; plain functions will do.

``session_before_compact``  may return ``Cancel()`` or a ``Compaction`` of its own; the first answer counts
``session_compact``         told afterwards, with the entry that was appended
``before_compaction``       told before a summary is made; cannot change anything
``after_compaction``        told afterwards, whether it succeeded or not
``before_content_leaves``   awaited once before anything leaves the prompt: the moment to write down what must last

A hook may also return ``{"cancel": True, "reason": ...}`` or ``{"compaction": {"summary": ...}}``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.config.schema import Config
from openclaw.messages import Message

log = logging.getLogger("openclaw.agents.hooks")

LONGEST_HOOK_S = 60.0
LONGEST_FLUSH_S = 600.0
Reason: TypeAlias = Literal["threshold", "overflow", "manual"]


class BeforeCompact(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    session_key: str
    session_id: str
    reason: Reason
    first_kept_entry_id: str
    tokens_before: int
    messages: list[Message]
    """What would be condensed, oldest first. Treat as frozen."""
    previous_summary: str = ""
    instructions: str = ""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """A finished compaction, made by us or by a hook."""

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
    reason: Reason
    entry_id: str | None
    """None: nothing was appended."""
    from_hook: bool = False
    error: str = ""


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """Content is about to leave the prompt of this session.

    The session is held for the hook meanwhile: what it wants to say to the model it says itself, without queueing.
    """

    agent_id: str
    session_key: str
    session_id: str
    reason: Reason
    in_run: bool
    """A run is waiting for this, because its prompt does not fit."""


Answer: TypeAlias = Cancel | Compaction | None
NAMES = frozenset(
    {"session_before_compact", "session_compact", "before_compaction", "after_compaction", "before_content_leaves"}
)
BeforeHook: TypeAlias = Callable[[BeforeCompact], Awaitable[Answer]]
TellHook: TypeAlias = Callable[[BeforeCompact], Awaitable[None]]
AfterHook: TypeAlias = Callable[[Compacted], Awaitable[None]]
LeavingHook: TypeAlias = Callable[[Leaving], Awaitable[Any]]


class Hooks:
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

    async def ask_before(self, about: BeforeCompact) -> Answer:
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
        """A hook may itself run a turn that fills the window; it is not asked again for that one."""
        if leaving.session_key in self._leaving:
            return
        self._leaving.add(leaving.session_key)
        try:
            for hook in self.before_content_leaves:
                await _guarded(hook, leaving, LONGEST_FLUSH_S)
        finally:
            self._leaving.discard(leaving.session_key)


async def _answer(hook: BeforeHook, about: BeforeCompact) -> Answer:
    """What a hook said, as a record. Raises for what is neither an answer nor nothing."""
    said: Any = hook(about)
    said = await said if inspect.isawaitable(said) else said
    if said is None or isinstance(said, Cancel | Compaction):
        return said
    if isinstance(said, dict) and said.get("cancel"):
        return Cancel(str(said.get("reason") or ""))
    made = said.get("compaction") if isinstance(said, dict) else None
    if not isinstance(made, dict) or not str(made.get("summary") or "").strip():
        raise TypeError(f"session_before_compact returned neither a cancellation nor a summary: {said!r:.200}")
    return Compaction(
        summary=str(made["summary"]),
        first_kept_entry_id=str(made.get("firstKeptEntryId") or about.first_kept_entry_id),
        tokens_before=about.tokens_before,
        details=made["details"] if isinstance(made.get("details"), dict) else {},
    )


async def _guarded(hook: Callable[[Any], Awaitable[Any]], about: Any, longest_s: float) -> Any:
    """An extension that fails or hangs does not take the session with it."""
    try:
        async with asyncio.timeout(longest_s):
            said: Any = hook(about)
            return await said if inspect.isawaitable(said) else said
    except Exception:
        log.exception("a hook failed for session %s", about.session_key)
        return None


log = logging.getLogger("openclaw.agents.extensions")

MOST = 100


def load_extensions(config: Config, hooks: Hooks) -> list[str]:
    """Blocking. The names of those that are in place."""
    loaded: list[str] = []
    for path in list(extension_files(config))[:MOST]:
        try:
            _load(path).register(hooks)
        except Exception:  # Whatever somebody else's file does, the Gateway starts.
            log.exception("the extension %s cannot be used", path)
        else:
            log.info("extension %s", path)
            loaded.append(path.stem)
    return loaded


def extension_files(config: Config) -> Iterator[Path]:
    """Files, and those directly in folders, of ``plugins.load.paths``, as far as allow and deny let them."""
    plugins = config.plugins
    named = plugins.load.get("paths")
    for text in named if plugins.enabled and isinstance(named, list) else ():
        place = Path(str(text)).expanduser()
        files = sorted(place.glob("*.py")) if place.is_dir() else [place]
        for file in files:
            if file.stem not in plugins.deny and (not plugins.allow or file.stem in plugins.allow):
                yield file


def _load(path: Path) -> ModuleType:
    name = f"openclaw_extension_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"{path} is no Python file (plugins.load.paths)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, "register", None)):
        raise AttributeError(f"{path} has no function register(hooks)")
    return module
