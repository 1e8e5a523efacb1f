"""From a ledger row back to a turn that can run: everything a crash could not take along is in the row."""

from __future__ import annotations

import base64
from typing import Any

from openclaw.agent.runtime import Runtime, Turn
from openclaw.messages import ImageBlock
from openclaw.runs.run_index import RunRecord
from openclaw.storage.base import LedgerRow, MessageBody


async def turn_of(record: RunRecord, runtime: Runtime) -> Turn:
    row, body = record.row, record.row.body
    if body.prompt is None:
        raise ValueError("what was stored of this message is damaged; send it again")
    entry = await runtime.sessions.get(row.agent_id, row.session_key)
    record.verbose = body.verbose or (entry.get("verboseLevel") if entry else None)
    record.reasoning = body.reasoning or (entry.get("reasoningLevel") if entry else None) or "off"
    resumed = row.attempts > 0
    session_id = row.session_id if resumed or entry is None else entry.get("sessionId", row.session_id)
    return Turn(
        ledger_id=row.id,
        run_id=row.run_id,
        agent_id=row.agent_id,
        session_key=row.session_key,
        session_id=session_id,
        source=row.source,
        prompt=body.prompt,
        images=await images_of(row, runtime),
        thinking=body.thinking,
        model=body.model,
        reasoning=body.reasoning,
        auth_profile=body.auth_profile,
        exec=exec_of(body),
        timeout_s=body.timeout_seconds,
        extra_system_prompt=body.extra_system_prompt,
        client_tools=body.client_tools,
        tool_outputs=body.tool_outputs,
        tool_choice=body.tool_choice,
        max_tokens=body.max_tokens,
        resumed=resumed,
        # Who waited behind another run begins from what that run left.
        came=record.ticket.arrived_at if record.ticket is not None and not record.queued else None,
    )


def exec_of(body: MessageBody) -> dict[str, Any]:
    """What the message itself says about commands, under the names that ``exec_overrides`` knows."""
    told = {"exec": body.exec, "elevated": body.elevated, "elevatedAllowed": body.elevated_allowed}
    return {name: value for name, value in told.items() if value}


async def images_of(row: LedgerRow, runtime: Runtime) -> list[ImageBlock]:
    images: list[ImageBlock] = []
    for image in row.body.images:
        data = await runtime.blobs.get(image.blob)
        if data is None:
            raise FileNotFoundError(f"an attached image is gone from the blob store ({image.blob[:12]})")
        images.append(ImageBlock(data=base64.b64encode(data).decode(), mime_type=image.mime_type))
    return images
