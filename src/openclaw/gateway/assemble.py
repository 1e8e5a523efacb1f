"""Putting a Gateway together: stores, models, runs, and the doors onto them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from openclaw.agent.extensions import load_extensions
from openclaw.agent.ground import Grounds
from openclaw.agent.memory_flush import watch_compactions
from openclaw.agent.runtime import Runtime
from openclaw.channels.registry import channel_kinds
from openclaw.clock import Clock
from openclaw.config.agents import agent_ids, default_agent_id, main_key
from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore
from openclaw.gateway import spoken
from openclaw.gateway.approvals import wake, watch_approvals
from openclaw.gateway.channel_run import ChannelRun
from openclaw.gateway.channel_services import ChannelServices
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.metrics import Metered
from openclaw.gateway.receive import Reception
from openclaw.gateway.server.registry import load_methods
from openclaw.gateway.server.run_events import RunStream
from openclaw.memory.embedders import Embedders
from openclaw.memory.search import AgentMemories
from openclaw.models.base import ModelError
from openclaw.models.calls import ModelCalls
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.models.detect import FoundServer, find_servers
from openclaw.models.keys import Keys
from openclaw.outbound.reply import is_delivered
from openclaw.runs.dispatcher import Dispatcher
from openclaw.runs.run_index import Observer, RunRecord
from openclaw.storage.files.blobs import FileBlobStore
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.migrate import migrate_sessions
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript_store import FileTranscriptStore
from openclaw.tools.exec.approvals import ApprovalJournal, ApprovalRules, Approvals
from openclaw.tools.process_registry import ProcessRegistry

log = logging.getLogger("openclaw.gateway")


async def open_gateway(
    state_dir: str, config: ConfigStore, clock: Clock, environ: Mapping[str, str] = os.environ
) -> Gateway:
    """Opens the stores and wires the parts. Nothing listens yet and nothing runs."""
    load_methods()
    current = config.current
    await _migrate(state_dir, current, clock)
    sessions = await FileSessionStore.open(
        state_dir, clock=clock, store_template=current.session.store, agent_ids=agent_ids(current)
    )
    found = await _servers_here(current, environ, state_dir)

    def catalogue(config: Config) -> Catalogue:
        return Catalogue(config, environ, found=found, state_dir=state_dir)

    gateway = Gateway(
        state_dir=state_dir,
        config=config,
        clock=clock,
        sessions=sessions,
        transcripts=FileTranscriptStore(state_dir, clock=clock, store_path=sessions.path),
        ledger=await FileLedger.open(state_dir, clock=clock),
        blobs=FileBlobStore(state_dir),
        catalogue=catalogue(current),
        make_catalogue=catalogue,
        environ=environ,
    )
    keys = Keys(environ, state_dir=state_dir, clock=clock)

    def count_failure(error: ModelError) -> None:
        gateway.meter.model_errors[error.kind] += 1

    gateway.model_calls = ModelCalls(
        keys, lambda: config.current, clock, state_dir, take_turn=gateway.turnstile.enter, failed=count_failure
    )
    questions = ApprovalJournal(state_dir)
    await questions.load()
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
        call_model=gateway.model_calls.call,
        grounds=Grounds(state_dir, clock),
        approvals=Approvals(clock, questions),
        approval_rules=ApprovalRules(state_dir, clock),
        wake=lambda run_id, text: wake(gateway, run_id, text),
        memories=AgentMemories(Path(state_dir), clock, Embedders(gateway.model_calls.http, keys, environ)),
    )
    assert gateway.runtime.approvals is not None
    watch_approvals(gateway, gateway.runtime.approvals)
    watch_compactions(gateway.runtime)
    await asyncio.to_thread(load_extensions, current, gateway.runtime.hooks)
    gateway.dispatcher = Dispatcher(gateway.runtime, lambda record: observe(gateway, record))
    gateway.reception = Reception(gateway)
    gateway.channel_services = ChannelServices(
        kinds=channel_kinds(),
        config=config,
        clock=clock,
        state_dir=state_dir,
        ledger=gateway.ledger,
        blobs=gateway.blobs,
        receive=gateway.reception.receive,
        notice=gateway.reception.notice,
    )
    return gateway


async def _migrate(state_dir: str, config: Config, clock: Clock) -> None:
    report = await migrate_sessions(
        state_dir,
        default_agent=default_agent_id(config),
        main_key=main_key(config),
        scope=config.session.scope,
        clock=clock,
    )
    if report is None:
        return
    log.info("older sessions taken over: %d files, %d sessions", report.copied, report.sessions)
    for problem in report.problems:
        log.warning("older sessions: %s", problem)


async def _servers_here(config: Config, environ: Mapping[str, str], state_dir: str) -> list[FoundServer]:
    """Model servers on this machine; looked for only when nothing else says which model to use."""
    chosen = Catalogue(config, environ, state_dir=state_dir)
    try:
        explicit = chosen.default_for(config, default_agent_id(config)).api != "local"
    except UnknownModel:
        explicit = True
    return [] if explicit else await find_servers(environ)


def observe(gateway: Gateway, record: RunRecord) -> Observer:
    def verbose() -> str:
        return record.verbose or gateway.config.current.agents.defaults.verbose_default or "off"

    def notice(name: str, text: str) -> None:
        gateway.spawn(spoken.notice(gateway, record, name, text))

    shown: Observer = RunStream(record, gateway.broadcaster, gateway.clock, verbose, notice=notice)
    if gateway.channel_services is not None and is_delivered(record.row.route):
        shown = ChannelRun(record, shown, gateway.channel_services, gateway.config.current)
    return Metered(record, shown, gateway.meter)


async def close_gateway(gateway: Gateway) -> None:
    """In the order of the flow: runs first, so that everything they still write finds its store open."""
    await gateway.reception.close()
    await gateway.dispatcher.stop()
    if gateway.channel_services is not None:
        await gateway.channel_services.stop()
    await gateway.stop()
    if gateway.runtime.approvals is not None:
        await gateway.runtime.approvals.close()
    await gateway.runtime.processes.close()
    await gateway.runtime.memories.close()
    await gateway.model_calls.close()
    await gateway.transcripts.close()
    await gateway.sessions.close()
    await gateway.ledger.close()
