"""One session on real files, a runtime of real parts, and a summariser that plays a script."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from openclaw.agent.compaction.compaction import CompactionHooks, CompactionJob, CompactionSettings, CompactionsUnderWay
from openclaw.agent.prompt.report import ReportStore
from openclaw.agent.prompt.system_prompt import PromptCache
from openclaw.agent.prompt.workspace_snapshot import WorkspaceSnapshots
from openclaw.agent.runtime import AddedTools, ModelParts, PromptLines, PromptParts, Runtime, Stores, ToolParts, Wakeups
from openclaw.agent.spend.spend import Spending
from openclaw.agent.window.history_cleaner import Hygiene
from openclaw.agent.window.tokens import PromptBudget, TokenMeasures
from openclaw.cluster.claims import SoleClaims
from openclaw.config.load import build
from openclaw.config.store import Derived
from openclaw.events import Event
from openclaw.messages import AssistantMessage, Message, TextBlock, Usage, UserMessage, user_text
from openclaw.models.base import Model, ModelError, ModelRequest, OnEvent
from openclaw.models.calls import Failover
from openclaw.models.keys import Keys
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.files.disk import FileBlobStore, FileDocuments
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.transcripts import Transcript, TranscriptRef
from tests.agent.scripted import HeldClock

KEY = "agent:main:main"
SESSION_ID = "11111111-1111-4111-8111-111111111111"
HANGS = "hangs"


class TickingClock(HeldClock):
    """Every look moves it, so that entries have an order in time."""

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms


class _ConfigStore:
    def __init__(self, raw: dict[str, Any]) -> None:
        self.current = build(raw)


Answer = str | ModelError | Callable[[ModelRequest], str]


class Summaries:
    """Answers of the model, one per call; the last one goes on for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []

    async def answer(self, request: ModelRequest, agent_id: str, on_event: OnEvent) -> AssistantMessage:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ModelError):
            raise answer
        if answer == HANGS:
            await asyncio.Event().wait()
        text: Any = answer(request) if callable(answer) else answer
        text = await text if inspect.isawaitable(text) else text
        return AssistantMessage(content=[TextBlock(text=text)], provider="mock", model="mock-1")

    def asked(self, number: int = -1) -> str:
        (message,) = self.requests[number].messages
        assert isinstance(message, UserMessage)
        return user_text(message)


def make_runtime(state_dir: Path, clock: HeldClock, config: dict[str, Any] | None = None, **parts: Any) -> Runtime:
    """A ``Runtime`` with its own real parts; whatever else a test needs it gives as ``parts``."""
    config_store = _ConfigStore(config or {})
    derived = Derived()
    catalogue = parts.pop("catalogue", None)
    stores = Stores(
        sessions=parts.pop("sessions", None),
        transcripts=parts.pop("transcripts", None),
        ledger=parts.pop("ledger", None),
        blobs=parts.pop("blobs", None),
        documents=parts.pop("documents", None),
        close=parts.pop("close", None),
        claims=SoleClaims(),
    )
    models = ModelParts(
        catalogue=catalogue,
        rescan=cast(Any, None),
        calls=parts.pop("model_calls", None),
        failover=parts.pop("failover", None)
        or Failover(Keys({}, clock=clock), lambda: config_store.current, lambda: catalogue(), derived),
        measures=TokenMeasures(),
        hygiene=Hygiene(),
        spending=parts.pop("spending", None) or Spending(),
    )
    prompting = PromptParts(
        snapshots=WorkspaceSnapshots(str(state_dir), clock, FileDocuments(state_dir)),
        cache=PromptCache(),
        reports=ReportStore(stores.blobs or FileBlobStore(str(state_dir))),
        derived=derived,
        hooks=parts.pop("hooks", None) or CompactionHooks(),
        compacting=CompactionsUnderWay(),
        lines=PromptLines(),
    )
    unused = ("processes", "memories", "questions", "approval_rules", "nodes", "mcp")
    tools = ToolParts(
        added=AddedTools(), wakeups=Wakeups(), **{name: cast(Any, parts.pop(name, None)) for name in unused}
    )
    fields: dict[str, Any] = {"notes": None, "search": None, "config": config_store, **parts}
    return Runtime(
        state_dir=state_dir, clock=clock, stores=stores, models=models, prompting=prompting, tools=tools, **fields
    )


class StoredSession:
    def __init__(self, state_dir: Path, summaries: Summaries, config: dict[str, Any] | None = None) -> None:
        self.clock = TickingClock()
        self.summaries = summaries
        self.events: list[Event] = []
        self.sessions = FileSessionStore(str(state_dir), clock=self.clock, store_template=None, default_agent="main")
        self.transcripts = FileTranscriptStore(str(state_dir), clock=self.clock, store_path=self.sessions.path)
        self.runtime = make_runtime(
            state_dir,
            self.clock,
            config,
            sessions=self.sessions,
            transcripts=self.transcripts,
            model_calls=SimpleNamespace(call=summaries.answer),
        )
        self.transcript: Transcript

    async def __aenter__(self) -> StoredSession:
        await self.sessions.update("main", KEY, lambda _: SessionEntry(sessionId=SESSION_ID, updatedAt=1))
        found = await self.transcripts.open(TranscriptRef(agent_id="main", session_id=SESSION_ID), cwd="/tmp")
        assert found is not None
        self.transcript = found
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transcripts.close()
        await self.sessions.close()

    async def say(self, message: Message) -> str:
        message = msgspec.structs.replace(message, timestamp=self.clock.now_ms())
        return await self.transcript.append({"type": "message", "message": message})

    async def user(self, text: str) -> str:
        return await self.say(UserMessage(content=[TextBlock(text=text)]))

    async def answer(self, text: str, total: int = 0) -> str:
        usage = Usage(input=total, total_tokens=total)
        return await self.say(
            AssistantMessage(content=[TextBlock(text=text)], provider="mock", model="mock-1", usage=usage)
        )

    async def turns(self, count: int, tokens: int = 100, name: str = "turn") -> None:
        for number in range(count):
            await self.user(f"{name} {number} " + "word " * tokens)
            await self.answer(f"reply to {name} {number} " + "text " * tokens)

    def job(self, *, window: int = 10_000, reserve: int = 2000, keep: int = 1000, **fields: Any) -> CompactionJob:
        model = Model(provider="mock", id="mock-1", context_window=window, reasoning=True)
        return CompactionJob(
            **{
                "runtime": self.runtime,
                "agent_id": "main",
                "session_key": KEY,
                "transcript": self.transcript,
                "model": model,
                "budget": PromptBudget(window=window, output=window // 16, overhead=100),
                "settings": CompactionSettings(window=window, reserve=reserve, keep=keep),
                "reason": "threshold",
                "emit": self.events.append,
                **fields,
            }
        )

    async def entry(self) -> SessionEntry:
        entry = await self.sessions.get("main", KEY)
        assert entry is not None
        return entry

    def seen(self) -> str:
        """Everything the model would be shown now."""
        parts: list[str] = []
        for message in self.transcript.context().messages:
            parts.append(user_text(message) if isinstance(message, UserMessage) else message.text)
        return "\n".join(parts)

    def lines(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in Path(self.transcript.path).read_bytes().splitlines()]

    def stored(self) -> bytes:
        return Path(self.transcript.path).read_bytes()
