"""From a ledger row back to a turn that can run: everything a crash could not take along is in the row."""

from __future__ import annotations

import base64

import msgspec

from openclaw.agent.runtime import Runtime, Turn
from openclaw.messages import ImageBlock, ToolResultMessage
from openclaw.models.base import ToolSpec
from openclaw.runs.queue import RIGHTS
from openclaw.runs.record import RunRecord
from openclaw.storage.base import LedgerRow


async def turn_of(record: RunRecord, runtime: Runtime) -> Turn:
    row, body = record.row, record.row.body
    if "prompt" not in body:
        raise ValueError("what was stored of this message is damaged; send it again")
    entry = await runtime.sessions.get(row.agent_id, row.session_key)
    record.verbose = body.get("verbose") or (entry.get("verboseLevel") if entry else None)
    record.reasoning = body.get("reasoning") or (entry.get("reasoningLevel") if entry else None) or "off"
    resumed = row.attempts > 0
    session_id = row.session_id if resumed or entry is None else entry.get("sessionId", row.session_id)
    return Turn(
        ledger_id=row.id,
        run_id=row.run_id,
        agent_id=row.agent_id,
        session_key=row.session_key,
        session_id=session_id,
        source=row.source,
        prompt=body["prompt"],
        images=await images_of(row, runtime) if "images" in body else [],
        thinking=body.get("thinking"),
        model=body.get("model"),
        reasoning=body.get("reasoning"),
        auth_profile=body.get("authProfile"),
        exec={name: body[name] for name in RIGHTS if name in body},
        timeout_s=body.get("timeoutSeconds"),
        extra_system_prompt=body.get("extraSystemPrompt", ""),
        client_tools=msgspec.convert(body["clientTools"], list[ToolSpec]) if "clientTools" in body else [],
        tool_outputs=msgspec.convert(body["toolOutputs"], list[ToolResultMessage]) if "toolOutputs" in body else [],
        tool_choice=body.get("toolChoice"),
        max_tokens=body.get("maxTokens"),
        resumed=resumed,
        # Who waited behind another run begins from what that run left.
        came=record.guest.came if record.guest is not None and not record.queued else None,
    )


async def images_of(row: LedgerRow, runtime: Runtime) -> list[ImageBlock]:
    images: list[ImageBlock] = []
    for image in row.body.get("images", []):
        data = await runtime.blobs.get(image["blob"])
        if data is None:
            raise FileNotFoundError(f"an attached image is gone from the blob store ({image['blob'][:12]})")
        images.append(ImageBlock(data=base64.b64encode(data).decode(), mime_type=image["mimeType"]))
    return images
