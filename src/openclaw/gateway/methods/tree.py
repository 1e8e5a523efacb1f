"""``sessions.tree``, ``sessions.branch`` and ``sessions.label``: a conversation as a tree, and moving about in it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method
from openclaw.gateway.targets import Target, entry_of, target_of, transcript_ref
from openclaw.runs.compactions import NothingToDo
from openclaw.sessions.keys import shown_key
from openclaw.storage.base import Transcript


class SessionsTree(Params):
    key: NonEmpty


@method("sessions.tree", SessionsTree, access="read")
async def tree(call: Call) -> Any:
    """Every entry with its parent, in the order written; ``leafId`` is where the next message goes."""
    target = target_of(call.gateway, call.params.key)
    transcript = await _transcript(call, target)
    labels = transcript.labels()
    entries = [
        {"id": id, "parentId": parent, "type": kind, **({"label": labels[id]} if id in labels else {})}
        for id, parent, kind in transcript.tree()
    ]
    return {
        "key": shown_key(target.key),
        "sessionId": transcript.session_id,
        "leafId": transcript.leaf_id,
        "entries": entries,
    }


class SessionsBranch(Params):
    key: NonEmpty
    entry_id: NonEmpty | None = None
    """Go on after this entry; without one, from the very beginning."""
    summarize: bool = True
    """Tell the agent in a few words what happened on the branch that is left."""


@method("sessions.branch", SessionsBranch, access="admin")
async def branch(call: Call) -> Any:
    params: SessionsBranch = call.params
    target = target_of(call.gateway, params.key)
    if call.gateway.dispatcher.occupied(target.key):
        raise MethodError("A message of this session is being answered; wait for it or stop it first.", "UNAVAILABLE")
    moves = call.gateway.dispatcher.compactions
    try:
        added = await moves.go_back(target.agent_id, target.key, params.entry_id, summarise=params.summarize)
    except KeyError:
        raise MethodError(f"No entry found: {params.entry_id}") from None
    except NothingToDo as nothing:
        raise MethodError(str(nothing)) from None
    return {"ok": True, "key": shown_key(target.key), "leafId": added}


class SessionsLabel(Params):
    key: NonEmpty
    entry_id: NonEmpty
    label: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    """Absent or empty: the entry loses its name."""


@method("sessions.label", SessionsLabel, access="admin")
async def label(call: Call) -> Any:
    params: SessionsLabel = call.params
    target = target_of(call.gateway, params.key)

    async def name() -> str:
        transcript = await _transcript(call, target)
        if params.entry_id not in transcript:
            raise MethodError(f"No entry found: {params.entry_id}")
        return await transcript.label(params.entry_id, (params.label or "").strip() or None)

    return {"ok": True, "key": target.key, "entryId": await call.gateway.dispatcher.exclusively(target.key, name)}


async def _transcript(call: Call, target: Target) -> Transcript:
    entry = await entry_of(call.gateway, target)
    transcript = None
    if entry is not None:
        transcript = await call.gateway.transcripts.open(transcript_ref(target, entry), create=False)
    if transcript is None:
        raise MethodError(f"No session found: {target.key}")
    return transcript
