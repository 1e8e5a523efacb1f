"""``context.*``: what a past run was sent, what changed since, and when a phrase was in the model's view."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

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
from openclaw.sessions.keys import SessionRef
from openclaw.storage.message_ledger import LedgerRow
from openclaw.storage.transcripts import Transcript, TranscriptRef

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

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
    """Adds the whole request."""
    wire: bool = False
    """Adds the exact JSON text that was sent to the provider."""


@methods.add("context.get", ContextGet)
async def get(call: MethodCall, params: ContextGet) -> Any:
    """What a model call was sent, part by part with sizes."""
    run = (
        await _run(call.gateway, params.run_id) if params.run_id else (await _last_runs(call.gateway, params.key, 1))[0]
    )
    rebuilt = await _rebuilt(call.gateway, run, params.call)
    calls = run.record.count
    view = {"runId": run.run_id, "call": params.call or calls, "calls": calls, **_view(rebuilt)}
    view["since"] = await _since(call.gateway, run, rebuilt)
    if params.wire:
        request = rebuilt.request()
        body = await asyncio.to_thread(wire_body, request) if request else None
        view["wire"] = body.decode() if body is not None else None
    if params.full:
        view["request"] = {
            "system": rebuilt.system,
            "systemSuffix": rebuilt.settings.suffix,
            "turnFacts": rebuilt.settings.facts,
            "messages": [sent.message for sent in rebuilt.messages],
            "tools": rebuilt.tools,
        }
    return view


async def _since(gateway: Gateway, run: NotedRun, rebuilt: RebuiltRequest) -> dict[str, Any] | None:
    """The changes since the run before it in the same session; None for the first run."""
    rows = await gateway.runtime.stores.ledger.recent(session_key=run.session_key, limit=MOST_RUNS)
    earlier = next((rows[place + 1 :] for place, row in enumerate(rows) if row.run_id == run.run_id), [])
    opened: dict[str, Transcript | None] = {rebuilt.settings.session_id: run.transcript}
    for row in earlier:
        before = await _noted(gateway, row, opened)
        if before is not None:
            old = await _rebuilt(gateway, before)
            return {"runId": before.run_id, "changes": await _changes(old, rebuilt, run.transcript)}
    return None


async def _rebuilt(gateway: Gateway, run: NotedRun, number: int | None = None) -> RebuiltRequest:
    try:
        return await rebuild(run.record, run.transcript, gateway.runtime.stores.blobs, number)
    except NotStored as problem:
        raise MethodError(f"run {run.run_id}: {problem}") from None


async def _changes(old: RebuiltRequest, new: RebuiltRequest, transcript: Transcript | None) -> list[str]:
    last_entries = last_entry(old.call), last_entry(new.call)
    return differences(old, new, await how_it_moved(old.settings, new.settings, *last_entries, transcript))


def _view(rebuilt: RebuiltRequest) -> dict[str, Any]:
    settings, call = rebuilt.settings, rebuilt.call
    return {
        "at": call.at,
        "sessionId": settings.session_id,
        "model": settings.model,
        "thinking": settings.thinking,
        "exact": not rebuilt.missing,
        "missing": rebuilt.missing,
        "systemPrompt": {
            "chars": len(rebuilt.system) + len(settings.suffix),
            "digest": settings.system,
            "parts": prompt_parts(rebuilt.system, settings.suffix),
            "truncated": cut_files(rebuilt.system),
        },
        "tools": {
            "names": [tool.name for tool in rebuilt.tools],
            "chars": sum(len(msgspec.json.encode(tool.parameters)) for tool in rebuilt.tools),
            "digest": settings.tools,
        },
        "turnFacts": {
            "chars": len(settings.facts),
            "after": after.name if (after := rebuilt.facts_after) else None,
            "text": settings.facts,
        },
        "compaction": settings.compaction or None,
        "pruned": call.pruned,
        "shortened": call.shortened,
        "messages": [
            {
                "entryId": sent.entry_id or None,
                "changed": not sent.entry_id,
                "role": role_of(sent.message),
                "chars": len(words_of(sent.message)),
                "preview": preview(sent.message),
            }
            for sent in rebuilt.messages
        ],
    }


class ContextDiff(Params):
    key: NonEmpty = "main"
    a: NonEmpty | None = None
    b: NonEmpty | None = None


@methods.add("context.diff", ContextDiff)
async def diff(call: MethodCall, params: ContextDiff) -> Any:
    """The differences between two runs. Without ids the session's last two runs are compared."""
    gateway = call.gateway
    if params.a and params.b:
        before, after = await _run(gateway, params.a), await _run(gateway, params.b)
    elif params.a or params.b:
        raise MethodError("Provide both a and b, or neither for the last two runs of the session")
    else:
        runs = await _last_runs(gateway, params.key, 2)
        if len(runs) < 2:
            raise MethodError("There is only one run so far; nothing to compare it with")
        before, after = runs[1], runs[0]
    old, new = [await _rebuilt(gateway, run) for run in (before, after)]
    return {
        "a": {"runId": before.run_id, "at": before.at, "messages": len(old.messages)},
        "b": {"runId": after.run_id, "at": after.at, "messages": len(new.messages)},
        "exact": not old.missing and not new.missing,
        "changes": await _changes(old, new, after.transcript),
    }


class ContextFind(Params):
    phrase: Annotated[str, msgspec.Meta(min_length=2, max_length=1000)]
    key: NonEmpty = "main"
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_RUNS)] = 200


@methods.add("context.find", ContextFind)
async def find(call: MethodCall, params: ContextFind) -> Any:
    """Tells in which of the session's last runs the phrase came into the model's view, and when and why it left."""
    runs = await _last_runs(call.gateway, params.key, params.limit)
    search = PhraseSearch(params.phrase, call.gateway.runtime.stores.blobs)
    sightings = await search.sightings(runs[::-1])
    return {"runs": len(runs), "sightings": sightings, "inViewNow": bool(search.where), "where": search.where}


# Finding runs


async def _run(gateway: Gateway, ref: str) -> NotedRun:
    row = await gateway.runtime.stores.ledger.by_run(ref)
    if row is None:
        rows = await gateway.runtime.stores.ledger.runs_beginning(ref, 2)
        if len(rows) != 1:
            raise MethodError(f"{'Several runs begin' if rows else 'No run begins'} with {ref!r}")
        row = rows[0]
    if row.state == "superseded" and (by := (row.result or {}).get("answeredBy")):
        row = await gateway.runtime.stores.ledger.by_run(by) or row
    noted = await _noted(gateway, row, {})
    if noted is None:
        raise MethodError(NOT_NOTED.format(run=row.run_id))
    return noted


async def _last_runs(gateway: Gateway, key: str, count: int) -> list[NotedRun]:
    """The last runs, newest first, at least one. ``key`` may also be the session's id or label."""
    session = await gateway.directory.find(key)
    key = session.key if session else gateway.directory.target(key).key
    opened: dict[str, Transcript | None] = {}
    found: list[NotedRun] = []
    for row in await gateway.runtime.stores.ledger.recent(session_key=key, limit=MOST_RUNS):
        noted = await _noted(gateway, row, opened)
        if noted is not None:
            found.append(noted)
            if len(found) == count:
                break
    if not found:
        raise MethodError(f"Nothing was noted yet of what the runs of {key} were sent")
    return found


async def _noted(gateway: Gateway, row: LedgerRow, opened: dict[str, Transcript | None]) -> NotedRun | None:
    record = await read_record((row.result or {}).get("request"), gateway.runtime.stores.blobs)
    if record is None or not record.count:
        return None
    session_id = record.session_id
    if session_id not in opened:
        entry = await gateway.directory.entry(SessionRef(row.agent_id, row.session_key))
        file = entry.get("sessionFile") if entry and entry["sessionId"] == session_id else None
        ref = TranscriptRef(agent_id=row.agent_id, session_id=session_id, file=file)
        opened[session_id] = await gateway.runtime.stores.transcripts.open(ref, create=False)
    return NotedRun(
        run_id=row.run_id,
        session_key=row.session_key,
        at=record.calls[-1].at if record.calls else row.ended_at or row.accepted_at,
        record=record,
        transcript=opened[session_id],
    )
