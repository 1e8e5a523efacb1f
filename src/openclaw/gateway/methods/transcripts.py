"""``sessions.search``, ``export``, ``import``, ``importFolder`` and ``archive``: work on whole transcripts."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from openclaw.clock import iso_utc
from openclaw.gateway.server.params import NonEmpty, Params, Positive
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, entry_of, require_agent, target_of
from openclaw.gateway.views.history import as_people_see_it, joined_parts
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.export import (
    PAGE_BYTES,
    CannotImport,
    imported_lines,
    imported_messages,
    is_transcript,
    public_page,
)
from openclaw.sessions.keys import SessionRef, shown_key
from openclaw.sessions.reset import home_of, previous_sessions
from openclaw.sessions.search import MOST_RESULTS, PER_QUESTION
from openclaw.storage.base import TranscriptRef
from openclaw.storage.files.import_sessions import ImportedSession, import_sessions
from openclaw.storage.files.newer_state import Unreadable
from openclaw.storage.session_query import SessionQuery

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

methods = MethodTable()
IMPORT_NEWS_S = 1.0
"""How long a client waits for news of an import."""
IMPORT_PAGE = 500
"""The most sessions that one answer tells about."""


class SessionsSearch(Params):
    query: NonEmpty
    """The words to find. All must occur; words in double quotes must follow each other."""
    agent_id: NonEmpty | None = None
    key: NonEmpty | None = None
    session_id: NonEmpty | None = None
    role: Literal["user", "assistant", "toolResult", "summary"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_RESULTS)] = 20
    read_bytes: Annotated[int, msgspec.Meta(ge=1, le=PER_QUESTION)] = PER_QUESTION
    """At most so much of what was never searched is read first. Less of it answers sooner, and ``indexed`` grows."""


@methods.add("sessions.search", SessionsSearch)
async def search(call: MethodCall) -> Any:
    """Finds words in everything that was said, tool results included."""
    params: SessionsSearch = call.params
    gateway = call.gateway
    folders = gateway.transcript_folders()
    session_id = params.session_id
    if params.key is not None:
        target = target_of(gateway, params.key, params.agent_id)
        entry = await entry_of(gateway, target)
        if entry is None:
            raise MethodError(f"there is no session {target.key}")
        folders = {target.agent_id: folders.get(target.agent_id, [])}
        session_id = session_id or entry["sessionId"]
    elif params.agent_id is not None:
        require_agent(gateway, params.agent_id)
        folders = {params.agent_id: folders[params.agent_id]}
    answer = await gateway.search.search(
        params.query,
        folders,
        limit=params.limit,
        role=params.role,
        session_id=session_id,
        most_bytes=params.read_bytes,
    )
    # The session key of each current and earlier session id.
    keys: dict[str, str] = {}
    found_in = frozenset(found.session_id for found in answer.results)
    for row in (await gateway.runtime.sessions.select(SessionQuery(ever=found_in))).rows:
        keys[row.entry["sessionId"]] = shown_key(row.key)
        for previous in previous_sessions(row.entry):
            keys.setdefault(previous.session_id, shown_key(row.key))
    results: list[dict[str, Any]] = []
    for found in answer.results:
        fields = {name: value for name, value in msgspec.to_builtins(found).items() if value != ""}
        results.append({"sessionKey": keys.get(found.session_id), **fields})
    reading = answer.reading
    indexed = {"done": reading.read, "total": reading.transcripts}
    return {
        "ts": gateway.runtime.clock.now_ms(),
        "results": results,
        "complete": reading.complete,
        "indexed": indexed,
    }


class SessionsExport(Params):
    key: NonEmpty
    session_id: NonEmpty | None = None
    """An earlier session of that key. Without it the current one is exported."""
    format: Literal["raw", "public"] = "public"
    """``raw`` is every line of the transcript with all branches; ``public`` is the messages of the conversation."""
    cursor: Annotated[int, msgspec.Meta(ge=0)] = 0


@methods.add("sessions.export", SessionsExport)
async def export(call: MethodCall) -> Any:
    """A conversation as JSON lines, in pages."""
    params: SessionsExport = call.params
    gateway = call.gateway
    target = target_of(gateway, params.key)
    ref = await _transcript(gateway, target, params.session_id)
    if await gateway.runtime.transcripts.locate(ref) is None:
        raise MethodError(f"session {ref.session_id} of {target.key} has no transcript")
    if params.format == "raw":
        lines, following = await gateway.runtime.transcripts.page(ref, params.cursor, PAGE_BYTES)
        items: list[Any] = [line.decode("utf-8", "replace") for line in lines]
    else:
        transcript = await gateway.runtime.transcripts.open(ref, create=False)
        entries = await transcript.path_entries() if transcript is not None else []
        said = [entry for entry in entries if entry.type == "message"]
        shown = partial(as_people_see_it, with_reasoning=False)
        items, following = await asyncio.to_thread(lambda: public_page(joined_parts(said), params.cursor, shown))
    answer: dict[str, Any] = {"key": shown_key(target.key), "sessionId": ref.session_id, "format": params.format}
    return {**answer, "items": items, "next": following}


async def _transcript(gateway: Gateway, target: SessionRef, session_id: str | None) -> TranscriptRef:
    entry = await entry_of(gateway, target)
    if entry is None:
        raise MethodError(f"there is no session {target.key}")
    if session_id is None or session_id == entry["sessionId"]:
        session_id, file = entry["sessionId"], entry.get("sessionFile")
    else:
        earlier = {previous.session_id: previous.session_file for previous in previous_sessions(entry)}
        if session_id not in earlier:
            raise MethodError(f"{target.key} never had a session {session_id[:80]}")
        file = earlier[session_id]
    return TranscriptRef(agent_id=target.agent_id, session_id=session_id, file=file)


class SessionsImport(Params):
    key: NonEmpty
    """The key of the new session. It must not exist yet."""
    lines: list[str]
    """The lines of an export, in either format."""


@methods.add("sessions.import", SessionsImport)
async def import_(call: MethodCall) -> Any:
    """Brings in an exported conversation as a new session."""
    params: SessionsImport = call.params
    gateway = call.gateway
    target = target_of(gateway, params.key)
    require_agent(gateway, target.agent_id)

    async def work() -> str:
        if await entry_of(gateway, target) is not None:
            raise MethodError(f"{target.key} exists already; import into another key")
        try:
            return await _bring_in(gateway, target, params.lines)
        except CannotImport as problem:
            raise MethodError(f"not imported: {problem}") from None

    session_id = await gateway.dispatcher.exclusively(target.key, work)
    return {"ok": True, "key": shown_key(target.key), "sessionId": session_id}


async def _bring_in(gateway: Gateway, target: SessionRef, lines: list[str]) -> str:
    """Writes the transcript and then the entry, so that an entry never lacks its transcript."""
    session_id, now = str(uuid.uuid4()), gateway.runtime.clock.now_ms()
    ref = TranscriptRef(agent_id=target.agent_id, session_id=session_id)
    if is_transcript(lines):
        data = await asyncio.to_thread(imported_lines, lines, session_id, iso_utc(now))
        await gateway.runtime.transcripts.create(ref, data)
    else:
        messages = await asyncio.to_thread(imported_messages, lines, now)
        transcript = await gateway.runtime.transcripts.open(ref, cwd=home_of(gateway.runtime, target.agent_id))
        assert transcript is not None
        for message in messages:
            await transcript.append({"type": "message", "message": message})
        await transcript.sync()
    made = SessionEntry(sessionId=session_id, updatedAt=now)
    await gateway.runtime.sessions.update(target.agent_id, target.key, lambda _: made)
    return session_id


class SessionsImportFolder(Params):
    from_: NonEmpty = msgspec.field(name="from")
    """Another state folder on the Gateway's machine. It is only read."""
    dry_run: bool = False
    seen: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many sessions earlier answers have told about. 0 begins."""


class FolderImport:
    """An import of a state folder that goes on while its client asks how far it is."""

    def __init__(self, gateway: Gateway, params: SessionsImportFolder) -> None:
        self.done: list[ImportedSession] = []
        self.wanted = params.from_, params.dry_run
        self._source = import_sessions(
            Path(params.from_).expanduser(),
            gateway.runtime.state_dir,
            gateway.runtime.sessions,
            dry_run=params.dry_run,
        )
        self.task = gateway.spawn(self._run())

    async def _run(self) -> None:
        async for session in self._source:
            self.done.append(session)


@methods.add("sessions.importFolder", SessionsImportFolder)
async def import_folder(call: MethodCall) -> Any:
    """Begins an import, or tells what it has done since the last call. One runs at a time."""
    params: SessionsImportFolder = call.params
    gateway = call.gateway
    if not gateway.runtime.on_files:
        raise MethodError("This Gateway keeps its sessions in a database, and folders are imported into files only.")
    running = gateway.folder_import
    if running is None or (running.task.done() and not params.seen):
        running = gateway.folder_import = FolderImport(gateway, params)
    elif running.wanted != (params.from_, params.dry_run):
        raise MethodError(f"another folder is being imported: {running.wanted[0]}", code="UNAVAILABLE")
    await asyncio.wait([running.task], timeout=IMPORT_NEWS_S)
    finished = running.task.done()
    if finished and isinstance(problem := running.task.exception(), Unreadable):
        gateway.folder_import = None
        raise MethodError(str(problem))
    if finished:
        running.task.result()
    news = running.done[params.seen : params.seen + IMPORT_PAGE]
    seen = params.seen + len(news)
    return {"sessions": msgspec.to_builtins(news), "seen": seen, "done": finished and seen == len(running.done)}


class SessionsArchive(Params):
    after_days: Positive | None = None
    """The age in days. Without it ``session.archive.afterDays`` counts."""
    most: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    """At most so many are compressed. ``left`` of the answer says how many more there are."""


@methods.add("sessions.archive", SessionsArchive)
async def archive(call: MethodCall) -> Any:
    """Compresses old transcripts now rather than in the next hour."""
    done = await call.gateway.compress_old(call.params.after_days, call.params.most)
    answer: dict[str, Any] = {"ok": not done.problems, "compressed": done.files, "problems": done.problems[:50]}
    return {**answer, "left": done.left, "bytesBefore": done.bytes_before, "bytesAfter": done.bytes_after}
