"""Real stores on a temporary directory with a clock that is held still."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from openclaw.clock import Clock, SystemClock
from openclaw.config.store import ConfigStore
from openclaw.messages import TextBlock, UserMessage
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript import FileTranscriptStore

AGENT = "main"


class FileStores(msgspec.Struct):
    """Doubles as the state that a reset works on, whose stores are its own."""

    state_dir: Path
    config: ConfigStore
    sessions: FileSessionStore
    transcripts: FileTranscriptStore

    @property
    def stores(self) -> FileStores:
        return self

    async def put(self, key: str, updated_at: int, **fields: Any) -> SessionEntry:
        """A session as an earlier day left it."""
        made: Any = {"sessionId": f"session-of-{key.rsplit(':', 1)[-1]}", "updatedAt": updated_at, **fields}
        entry = await self.sessions.update(AGENT, key, lambda _: made)
        assert entry is not None
        return entry

    async def say(self, entry: SessionEntry, text: str) -> None:
        transcript = await self.transcripts.open(transcript_ref(AGENT, entry))
        assert transcript is not None
        message = UserMessage(content=[TextBlock(text=text)], timestamp=1)
        await transcript.append({"type": "message", "message": message})

    async def heard(self, entry: SessionEntry) -> list[str]:
        """What a model would be shown."""
        transcript = await self.transcripts.open(transcript_ref(AGENT, entry), create=False)
        messages = transcript.context().messages if transcript else []
        return [block.text for message in messages for block in message.content if isinstance(block, TextBlock)]

    async def markers(self, entry: SessionEntry) -> list[str]:
        """What people see between messages."""
        shown = await self.transcripts.tail(transcript_ref(AGENT, entry), 50)
        return [json.loads(line.raw)["data"]["text"] for line in shown if line.type == "custom"]


@asynccontextmanager
async def file_stores(state: Path, session: dict[str, Any] | None = None) -> AsyncGenerator[FileStores]:
    clock: Clock = SystemClock()
    path = state / "openclaw.json"
    path.write_text(json.dumps({"session": session or {}, "gateway": {"mode": "local"}}))
    config = ConfigStore(str(path), clock, {})
    config.load_or_create()
    sessions = await FileSessionStore.open(str(state), clock=clock, agent_ids=[AGENT])
    transcripts = FileTranscriptStore(str(state), clock=clock)
    try:
        yield FileStores(state, config, sessions, transcripts)
    finally:
        await transcripts.close()
        await sessions.close()
