"""Putting a Gateway together: stores, models, runs, and the doors onto them."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from openclaw.agent.runtime import Runtime
from openclaw.clock import Clock
from openclaw.config.agents import agent_ids
from openclaw.config.store import ConfigStore
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.registry import load_methods
from openclaw.gateway.run_events import RunStream
from openclaw.models import http as model_http
from openclaw.models.base import ModelRequest, StreamEvent
from openclaw.models.catalogue import Catalogue
from openclaw.models.keys import Keys
from openclaw.models.providers import provider_for
from openclaw.runs.hub import RunHub
from openclaw.runs.record import RunRecord
from openclaw.storage.files.blobs import FileBlobStore
from openclaw.storage.files.ledger import FileLedger

# MIG
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript_store import FileTranscriptStore
from openclaw.tools.process_registry import ProcessRegistry

log = logging.getLogger("openclaw.gateway")


async def open_gateway(
    state_dir: str, config: ConfigStore, clock: Clock, environ: Mapping[str, str] = os.environ
) -> Gateway:
    """Opens the stores and wires the parts. Nothing listens yet and nothing runs."""
    load_methods()
    current = config.current
    # MIGC(state_dir, current, clock)
    sessions = await FileSessionStore.open(
        state_dir, clock=clock, store_template=current.session.store, agent_ids=agent_ids(current)
    )
    gateway = Gateway(
        state_dir=state_dir,
        config=config,
        clock=clock,
        sessions=sessions,
        transcripts=FileTranscriptStore(state_dir, clock=clock),
        ledger=await FileLedger.open(state_dir, clock=clock),
        blobs=FileBlobStore(state_dir),
        catalogue=Catalogue.from_config(current, environ),
        environ=environ,
    )
    keys = Keys(environ, state_dir=state_dir, clock=clock)
    gateway.runtime = Runtime(
        state_dir=Path(state_dir),
        clock=clock,
        config=config,
        sessions=gateway.sessions,
        transcripts=gateway.transcripts,
        ledger=gateway.ledger,
        blobs=gateway.blobs,
        catalogue=lambda: gateway.catalogue,
        processes=ProcessRegistry(),
        notes=gateway.system_events,
        call_model=lambda request, agent_id: call_model(gateway, keys, request, agent_id),
    )
    gateway.hub = RunHub(gateway.runtime, lambda record: observe(gateway, record))
    return gateway


def observe(gateway: Gateway, record: RunRecord) -> RunStream:
    def verbose() -> str:
        return record.verbose or gateway.config.current.agents.defaults.verbose_default or "off"

    return RunStream(record, gateway.broadcaster, gateway.clock, verbose)


async def call_model(gateway: Gateway, keys: Keys, request: ModelRequest, agent_id: str) -> AsyncIterator[StreamEvent]:
    """Finds the key at every call, so that a rotated one takes effect at once."""
    key = await keys.resolve_key(request.model, gateway.config.current, agent_id=agent_id)
    stream = provider_for(request.model).stream(request, key)
    try:
        async for event in stream:
            yield event
    finally:
        aclose = getattr(stream, "aclose", None)
        if aclose is not None:
            await aclose()


async def close_gateway(gateway: Gateway) -> None:
    """In the order of the flow: runs first, so that everything they still write finds its store open."""
    await gateway.hub.stop()
    await gateway.stop()
    await gateway.runtime.processes.close()
    await model_http.close()
    await gateway.transcripts.close()
    await gateway.sessions.close()
    await gateway.ledger.close()
