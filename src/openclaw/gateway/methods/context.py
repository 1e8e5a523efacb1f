"""``context.*``: what a past run was sent, what changed since, and when a phrase was in the model's view."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec

from openclaw.agent.prompt.system_prompt import cut_files, prompt_parts
from openclaw.agent.request_log import (
    NotedRun,
    NotStored,
    PhraseSearch,
    RebuiltRequest,
    differences,
    how_it_moved,
    last_entry,
    preview,
    read_record,
    rebuild,
    role_of,
    words_of,
)
from openclaw.gateway.server.frames import NonEmpty, Params, Positive
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.models.calls import wire_body
from openclaw.protocol.context import (
    ChangesSince,
    ComparedRun,
    ContextDifference,
    ContextReport,
    PhraseSightings,
    RequestMessage,
    SystemPromptView,
    ToolsView,
    TurnFactsView,
    WholeRequest,
)
from openclaw.storage.message_ledger import LedgerRow
from openclaw.storage.transcripts import Transcript, TranscriptRef

if TYPE_CHECKING:
    from openclaw.agent.runtime import Stores
    from openclaw.gateway.session_directory import SessionDirectory

methods = MethodTable()

MOST_RUNS = 500
NOT_NOTED = "Nothing was noted of what run {run} was sent: it called no model, or is older than these notes."


class ContextGet(Params):
    key: NonEmpty = "main"
    run_id: NonEmpty | None = None
    """A run id or its beginning. Without it the session's last run is meant."""
    call: Positive | None = None
    """The number of the model call in the run. Without it the last call is meant."""
    full: bool = False
    """Add the whole request."""
    wire: bool = False
    """Add the exact JSON text that was sent to the provider."""


@methods.add("context.get", ContextGet)
async def get(call: MethodCall, params: ContextGet) -> ContextReport:
    """What a model call was sent, part by part with sizes."""
    lookup = RunLookup(call.gateway.runtime.stores, call.gateway.directory)
    run = await lookup.run(params.run_id) if params.run_id else (await lookup.last_runs(params.key, 1))[0]
    rebuilt = await lookup.rebuild(run, params.call)
    report = _report(run, rebuilt, params.call)
    report.since = await lookup.changes_since(run, rebuilt)
    if params.wire:
        request = rebuilt.request()
        body = await asyncio.to_thread(wire_body, request) if request else None
        report.wire = body.decode() if body is not None else None
    if params.full:
        report.request = WholeRequest(
            system=rebuilt.system,
            system_suffix=rebuilt.settings.suffix,
            turn_facts=rebuilt.settings.facts,
            messages=[sent.message for sent in rebuilt.messages],
            tools=rebuilt.tools,
        )
    return report


async def _changes(old: RebuiltRequest, new: RebuiltRequest, transcript: Transcript | None) -> list[str]:
    last_entries = last_entry(old.call), last_entry(new.call)
    return differences(old, new, await how_it_moved(old.settings, new.settings, *last_entries, transcript))


def _report(run: NotedRun, rebuilt: RebuiltRequest, number: int | None) -> ContextReport:
    settings, call = rebuilt.settings, rebuilt.call
    return ContextReport(
        run_id=run.run_id,
        call=number or run.record.count,
        calls=run.record.count,
        at=call.at,
        session_id=settings.session_id,
        model=settings.model,
        thinking=settings.thinking,
        exact=not rebuilt.missing,
        missing=rebuilt.missing,
        system_prompt=SystemPromptView(
            chars=len(rebuilt.system) + len(settings.suffix),
            digest=settings.system,
            parts=prompt_parts(rebuilt.system, settings.suffix),
            truncated=cut_files(rebuilt.system),
        ),
        tools=ToolsView(
            names=[tool.name for tool in rebuilt.tools],
            chars=sum(len(msgspec.json.encode(tool.parameters)) for tool in rebuilt.tools),
            digest=settings.tools,
        ),
        turn_facts=TurnFactsView(
            chars=len(settings.facts),
            after=after.name if (after := rebuilt.facts_after) else None,
            text=settings.facts,
        ),
        compaction=settings.compaction or None,
        pruned=call.pruned,
        shortened=call.shortened,
        messages=[
            RequestMessage(
                entry_id=sent.entry_id or None,
                changed=not sent.entry_id,
                role=role_of(sent.message),
                chars=len(words_of(sent.message)),
                preview=preview(sent.message),
            )
            for sent in rebuilt.messages
        ],
        since=None,
    )


class ContextDiff(Params):
    key: NonEmpty = "main"
    a: NonEmpty | None = None
    b: NonEmpty | None = None


@methods.add("context.diff", ContextDiff)
async def diff(call: MethodCall, params: ContextDiff) -> ContextDifference:
    """Compare two runs. Without ids the session's last two runs are compared."""
    lookup = RunLookup(call.gateway.runtime.stores, call.gateway.directory)
    if params.a and params.b:
        before, after = await lookup.run(params.a), await lookup.run(params.b)
    elif params.a or params.b:
        raise MethodError("Provide both a and b, or neither for the last two runs of the session")
    else:
        runs = await lookup.last_runs(params.key, 2)
        if len(runs) < 2:
            raise MethodError("There is only one run so far; nothing to compare it with")
        before, after = runs[1], runs[0]
    old, new = [await lookup.rebuild(run) for run in (before, after)]
    return ContextDifference(
        a=ComparedRun(before.run_id, before.at, len(old.messages)),
        b=ComparedRun(after.run_id, after.at, len(new.messages)),
        exact=not old.missing and not new.missing,
        changes=await _changes(old, new, after.transcript),
    )


class ContextFind(Params):
    phrase: Annotated[str, msgspec.Meta(min_length=2, max_length=1000)]
    key: NonEmpty = "main"
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_RUNS)] = 200


@methods.add("context.find", ContextFind)
async def find(call: MethodCall, params: ContextFind) -> PhraseSightings:
    """Return in which of the session's last runs the phrase came into the model's view, and when and why it left."""
    stores = call.gateway.runtime.stores
    runs = await RunLookup(stores, call.gateway.directory).last_runs(params.key, params.limit)
    search = PhraseSearch(params.phrase, stores.blobs)
    sightings = await search.sightings(runs[::-1])
    return PhraseSightings(len(runs), sightings, bool(search.where), search.where)


class RunLookup:
    """Finds runs and the record of what they were sent."""

    def __init__(self, stores: Stores, directory: SessionDirectory) -> None:
        self._stores = stores
        self._directory = directory
        self._opened: dict[str, Transcript | None] = {}
        """Transcripts by session id. Many runs share one."""

    async def run(self, ref: str) -> NotedRun:
        row = await self._stores.ledger.by_run(ref)
        if row is None:
            rows = await self._stores.ledger.runs_beginning(ref, 2)
            if len(rows) != 1:
                raise MethodError(f"{'Several runs begin' if rows else 'No run begins'} with {ref!r}")
            row = rows[0]
        if row.state == "superseded" and (by := (row.result or {}).get("answeredBy")):
            row = await self._stores.ledger.by_run(by) or row
        run = await self._noted(row)
        if run is None:
            raise MethodError(NOT_NOTED.format(run=row.run_id))
        return run

    async def last_runs(self, key: str, count: int) -> list[NotedRun]:
        """Return the last runs, newest first, at least one. ``key`` may also be the session's id or label."""
        session = await self._directory.find(key)
        key = session.key if session else self._directory.target(key).key
        runs: list[NotedRun] = []
        for row in await self._stores.ledger.recent(session_key=key, limit=MOST_RUNS):
            run = await self._noted(row)
            if run is not None:
                runs.append(run)
                if len(runs) == count:
                    break
        if not runs:
            raise MethodError(f"Nothing was noted yet of what the runs of {key} were sent")
        return runs

    async def rebuild(self, run: NotedRun, number: int | None = None) -> RebuiltRequest:
        try:
            return await rebuild(run.record, run.transcript, self._stores.blobs, number)
        except NotStored as problem:
            raise MethodError(f"run {run.run_id}: {problem}") from None

    async def changes_since(self, run: NotedRun, rebuilt: RebuiltRequest) -> ChangesSince | None:
        """Return the changes since the run before it in the same session, or None for the first run."""
        rows = await self._stores.ledger.recent(session_key=run.session_key, limit=MOST_RUNS)
        earlier = next((rows[index + 1 :] for index, row in enumerate(rows) if row.run_id == run.run_id), [])
        for row in earlier:
            before = await self._noted(row)
            if before is not None:
                return ChangesSince(before.run_id, await _changes(await self.rebuild(before), rebuilt, run.transcript))
        return None

    async def _noted(self, row: LedgerRow) -> NotedRun | None:
        record = await read_record((row.result or {}).get("request"), self._stores.blobs)
        if record is None or not record.count:
            return None
        session_id = record.session_id
        if session_id not in self._opened:
            entry = await self._stores.sessions.get(row.agent_id, row.session_key)
            file = entry.get("sessionFile") if entry and entry["sessionId"] == session_id else None
            ref = TranscriptRef(agent_id=row.agent_id, session_id=session_id, file=file)
            self._opened[session_id] = await self._stores.transcripts.open(ref, create=False)
        return NotedRun(
            run_id=row.run_id,
            session_key=row.session_key,
            at=record.calls[-1].at if record.calls else row.ended_at or row.accepted_at,
            record=record,
            transcript=self._opened[session_id],
        )
