"""Builds a Gateway: opens the stores, makes every part and gives each part what it needs.

At the end stand the adapters that make methods, routes and followers of what extensions add.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from openclaw import __version__
from openclaw.agent.compaction.compaction import CompactionHooks, CompactionsUnderWay
from openclaw.agent.compaction.memory_flush import watch_compactions
from openclaw.agent.prompt.report import ReportStore
from openclaw.agent.prompt.system_prompt import PromptCache
from openclaw.agent.prompt.workspace_snapshot import WorkspaceSnapshots
from openclaw.agent.runtime import ModelParts, PromptParts, Runtime, Stores
from openclaw.agent.spend.budget import BilledSpeech
from openclaw.agent.spend.spend import Spending
from openclaw.agent.window.history_cleaner import Hygiene
from openclaw.agent.window.tokens import TokenMeasures
from openclaw.channels.base import BUILT_IN, ChannelKinds, NativeCommand
from openclaw.channels.manager import ChannelManager
from openclaw.clock import Clock
from openclaw.cluster.claims import SESSION, SoleClaims, session_name
from openclaw.config.agents import agent_ids, default_agent_id, main_key, user_zone
from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore, Derived
from openclaw.extensions.api import MessageSent, MethodRequest
from openclaw.extensions.points import LONGEST_COMMAND_S, ExtensionPoints, OwnMethod, Taken, load_extensions
from openclaw.gateway.auth.authorise import FailedAuthLimiter
from openclaw.gateway.auth.devices import Devices
from openclaw.gateway.channels import ChannelRun, ChannelServices
from openclaw.gateway.cluster.service import ClusterService, SchedulerService, SharedState
from openclaw.gateway.disk_check import DiskCheck
from openclaw.gateway.event_loop import LoopFairness, LoopLag
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.health import Health, build_health
from openclaw.gateway.http.control_ui import SignInTickets
from openclaw.gateway.http.routes import reserved_names
from openclaw.gateway.logs import RunLog
from openclaw.gateway.messenger import ChannelMessenger
from openclaw.gateway.methods import (
    agents,
    browser,
    channels,
    chat,
    context,
    cron,
    exec_approvals,
    extensions,
    memory,
    messages,
    models,
    nodes,
    system,
    usage,
)
from openclaw.gateway.methods import config as config_methods
from openclaw.gateway.methods import sessions as sessions_methods
from openclaw.gateway.methods.exec_approvals import watch_approvals
from openclaw.gateway.metrics import Metrics, RunMetrics
from openclaw.gateway.nodes import Nodes
from openclaw.gateway.presence import Presence
from openclaw.gateway.restart import Restart
from openclaw.gateway.server.events import Broadcaster, RunStream
from openclaw.gateway.server.registry import Handler, MethodCall, MethodError, MethodTable
from openclaw.gateway.session_directory import SessionDirectory
from openclaw.gateway.session_maintenance import Maintenance
from openclaw.gateway.session_views import read_history
from openclaw.inbound.commands.registry import WORDS, listed
from openclaw.inbound.commands.status import status
from openclaw.inbound.incoming import CommandContext, client_facts
from openclaw.inbound.message import MovedChat
from openclaw.inbound.names import ResolvedNames
from openclaw.inbound.notices import Notices
from openclaw.inbound.pairing import PairingStore
from openclaw.inbound.pipeline import Pipeline
from openclaw.inbound.transcription import Transcriber
from openclaw.mcp.servers import McpServers
from openclaw.memory.embedders import Embedders
from openclaw.memory.index import AgentMemories
from openclaw.models.base import Model, ModelError
from openclaw.models.calls import Failover, ModelCalls
from openclaw.models.catalogue import LOCAL_SERVERS, Catalogue, CurrentCatalogue, UnknownModel, find_models
from openclaw.models.keys import Keys
from openclaw.outbound.answer_filter import visible_text
from openclaw.outbound.reply import SendFailed
from openclaw.rights import OWNER
from openclaw.routing import carry_over
from openclaw.runs.run import Follower, Run, RunEvent, RunFinished
from openclaw.runs.runs import Runs
from openclaw.scheduler.cron import Cron, CronTool
from openclaw.scheduler.heartbeat import Heartbeats
from openclaw.scheduler.hooks import HookRuns
from openclaw.scheduler.turns import ScheduledTurns
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.search import SearchIndex, TranscriptSearch
from openclaw.sessions.system_events import SessionNotes
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.errors import Fenced, StorageRefused
from openclaw.storage.files.disk import FileBlobStore, FileDocuments
from openclaw.storage.files.import_sessions import migrate_sessions
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.inspection import storage_url
from openclaw.storage.message_ledger import END_STATES, Ledger
from openclaw.teamwork.session_tools import SessionViews
from openclaw.teamwork.team import Team
from openclaw.tools.base import Tool
from openclaw.tools.browser.browsers import Browsers
from openclaw.tools.browser.tool import BrowserTool
from openclaw.tools.exec.approvals import ApprovalJournal, ApprovalRules, Approvals
from openclaw.tools.message import MessagingTool
from openclaw.tools.process import ProcessRegistry
from openclaw.tools.sandbox.launch import PLACES
from openclaw.tools.web import WebFetchTool, WebSearchTool

if TYPE_CHECKING:
    from openclaw.cluster.postgres_claims import PostgresClaims
    from openclaw.storage.postgres.ledger import PostgresLedger
    from openclaw.storage.postgres.session_store import PostgresSessionStore

log = logging.getLogger("openclaw.gateway")

METHOD_FAMILIES = (
    agents,
    browser,
    chat,
    config_methods,
    context,
    cron,
    exec_approvals,
    memory,
    messages,
    models,
    extensions,
    channels,
    nodes,
    sessions_methods,
    usage,
    system,
)
"""``hello-ok`` lists the methods that are not part of protocol v3 in this order."""


async def open_gateway(
    state_dir: str,
    config: ConfigStore,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
    *,
    only_reads: bool = False,
) -> Gateway:
    """Opens the stores and builds the parts. Nothing listens and nothing runs yet.

    With ``only_reads``, for a command that looks at the folder, older sessions are not taken over and no extension is
    loaded.
    """
    if not only_reads and storage_url(config.current, environ) is None:
        await _migrate(state_dir, config.current, clock)
    repairs = Repairs()
    if config.restored:
        repairs.note(config.restored)
    keys = Keys(environ, state_dir=state_dir, clock=clock)
    await keys.load(config.current)
    metrics, loop_fairness = Metrics(), LoopFairness()

    def count_failure(error: ModelError) -> None:
        metrics.model_errors[error.kind] += 1

    model_calls = ModelCalls(
        keys, lambda: config.current, clock, state_dir, take_turn=loop_fairness.enter, failed=count_failure
    )
    memories = AgentMemories(Path(state_dir), clock, Embedders(model_calls.http, keys, environ))
    runtime = await open_runtime(
        state_dir, config, clock, environ, model_calls, memories, repairs, only_reads=only_reads
    )
    gateway = build_gateway(runtime, metrics, loop_fairness, environ)
    gateway.repairs = repairs
    gateway.mcp = McpServers(lambda: config.current, clock, environ, runtime.approvals)
    runtime.foreign_tools = gateway.mcp

    def wake(run_id: str, text: str) -> None:
        gateway.spawn(gateway.pipeline.wake(run_id, text, str(uuid.uuid4())))

    runtime.wake = wake
    await runtime.notes.load(partial(has_ended, runtime.stores.ledger))
    watch_compactions(runtime)
    if not only_reads:
        await add_extensions(gateway)
    add_message_flow(gateway)
    watch_approvals(runtime, gateway.broadcaster, gateway.runs.index, gateway.notices, gateway.spawn)
    return gateway


async def open_runtime(
    state_dir: str,
    config: ConfigStore,
    clock: Clock,
    environ: Mapping[str, str],
    model_calls: ModelCalls,
    memories: AgentMemories,
    repairs: Repairs,
    *,
    only_reads: bool = False,
) -> Runtime:
    """Opens the stores, and makes what runs use beside them."""
    current = config.current
    stores = await open_stores(state_dir, current, clock, environ, repairs, only_reads=only_reads)
    found = await _models_here(current, environ, state_dir)
    catalogue = CurrentCatalogue(config, environ, found, state_dir)
    questions = ApprovalJournal(stores.documents, stores.claims.node)
    await questions.load()
    derived = Derived()
    return Runtime(
        state_dir=Path(state_dir),
        clock=clock,
        config=config,
        stores=stores,
        models=ModelParts(
            catalogue=catalogue,
            rescan=catalogue.look_again,
            calls=model_calls,
            failover=Failover(model_calls.keys, lambda: config.current, catalogue, derived),
            measures=TokenMeasures(),
            hygiene=Hygiene(),
            spending=Spending(stores.lines),
        ),
        prompting=PromptParts(
            snapshots=WorkspaceSnapshots(state_dir, clock, stores.documents),
            cache=PromptCache(),
            reports=ReportStore(stores.blobs),
            derived=derived,
            hooks=CompactionHooks(),
            compacting=CompactionsUnderWay(),
        ),
        processes=ProcessRegistry(),
        notes=SessionNotes(clock, lambda: user_zone(config.current), stores.documents),
        approvals=Approvals(clock, questions),
        approval_rules=ApprovalRules(stores.documents, clock),
        wake=None,
        memories=memories,
        search=TranscriptSearch(SearchIndex(state_dir, visible_text), stores.lines),
    )


async def open_stores(
    state_dir: str,
    config: Config,
    clock: Clock,
    environ: Mapping[str, str],
    repairs: Repairs,
    *,
    only_reads: bool = False,
) -> Stores:
    """Opens the stores on files, or on the database that the configuration names."""
    if (url := storage_url(config, environ)) is not None:
        return await _open_postgres(url, state_dir, config, clock, only_reads=only_reads)
    sessions = await FileSessionStore.open(
        state_dir, clock=clock, store_template=config.session.store, agent_ids=agent_ids(config), repairs=repairs
    )
    transcripts = FileTranscriptStore(state_dir, clock=clock, store_path=sessions.path)
    ledger = await FileLedger.open(state_dir, clock=clock, repairs=repairs)

    async def close() -> None:
        await transcripts.close()
        await sessions.close()
        await ledger.close()

    blobs, documents = FileBlobStore(state_dir), FileDocuments(state_dir, repairs)
    return Stores(
        sessions=sessions,
        transcripts=transcripts,
        ledger=ledger,
        blobs=blobs,
        documents=documents,
        close=close,
        claims=SoleClaims(),
    )


async def _open_postgres(url: str, state_dir: str, config: Config, clock: Clock, *, only_reads: bool) -> Stores:
    try:
        from openclaw.cluster.membership import Membership
        from openclaw.cluster.postgres_claims import PostgresClaims
        from openclaw.storage.postgres.database import ClaimEpoch, PostgresDatabase
        from openclaw.storage.postgres.documents import PostgresBlobStore, PostgresDocuments
        from openclaw.storage.postgres.ledger import PostgresLedger
        from openclaw.storage.postgres.session_store import PostgresSessionStore
        from openclaw.storage.postgres.transcript import PostgresTranscriptStore
    except ImportError:
        raise StorageRefused(
            "storage.url names a PostgreSQL database, and the package for it is missing. "
            "Install it with: openclaw extras add postgres"
        ) from None
    settings = config.storage
    # A command that only looks is no node.
    node = "" if only_reads else Membership.new_id()
    database = await PostgresDatabase.open(url, schema=settings.schema, pool_size=settings.pool_size, node=node)
    membership = Membership(database, lease_s=config.cluster.lease_seconds, version=__version__)
    claims = PostgresClaims(database, membership)

    def claim_of(agent_id: str, key: str) -> ClaimEpoch:
        name = session_name(agent_id, key)
        return ClaimEpoch(name, claims.epoch(name))

    try:
        if not only_reads:
            await membership.join()
        sessions = await PostgresSessionStore.open(database, claim_of)
        transcripts = PostgresTranscriptStore(database, state_dir, clock=clock, claim_of=sessions.transcript_claim)
        shared = only_reads or bool(membership.peers)
        ledger = await PostgresLedger.open(
            database, clock=clock, only_reads=shared, claim_of=None if only_reads else claim_of
        )
    except BaseException:
        await membership.leave()
        await database.close()
        raise

    documents = PostgresDocuments(database)

    async def settle(name: str) -> None:
        agent_id, _, key = name.removeprefix(SESSION).partition(":")
        await sessions.settle(agent_id, key)

    async def close() -> None:
        await documents.close()
        if not membership.fenced:
            await transcripts.close()
            with contextlib.suppress(OSError, Fenced):  # A change that waited for its message was not acknowledged.
                await sessions.close()
        await membership.leave()
        await database.close()

    claims.on_lost(SESSION, settle)
    blobs = PostgresBlobStore(database, state_dir)
    return Stores(
        sessions=sessions,
        transcripts=transcripts,
        ledger=ledger,
        blobs=blobs,
        documents=documents,
        close=close,
        claims=claims,
        lines=transcripts,
    )


def build_gateway(
    runtime: Runtime, metrics: Metrics, loop_fairness: LoopFairness, environ: Mapping[str, str]
) -> Gateway:
    """The parts that serve clients and channels, without runs."""
    clock, state_dir = runtime.clock, str(runtime.state_dir)
    broadcaster, disk, known_devices = (
        Broadcaster(),
        DiskCheck(state_dir, clock),
        Devices(runtime.stores.documents, clock),
    )

    def publish_health(health: dict[str, Any]) -> None:
        broadcaster.publish("health", health, state_version=gateway.state_version())

    gateway = Gateway(
        runtime=runtime,
        directory=SessionDirectory(runtime),
        environ=environ,
        methods=MethodTable(*(family.methods for family in METHOD_FAMILIES)),
        broadcaster=broadcaster,
        presence=Presence(clock),
        devices=known_devices,
        nodes=Nodes(
            runtime.stores.documents, clock, known_devices, broadcaster, lambda: runtime.config.current.gateway.nodes
        ),
        pairing=PairingStore(runtime.stores.documents, clock),
        names=ResolvedNames(runtime.stores.documents),
        health=Health(clock, disk, lambda: build_health(gateway), publish_health),
        disk=disk,
        auth_limiter=FailedAuthLimiter(clock, lambda: runtime.config.current.gateway.auth.rate_limit),
        sign_in_tickets=SignInTickets(clock),
        restart=Restart(state_dir, clock),
        metrics=metrics,
        loop_lag=LoopLag(clock),
        loop_fairness=loop_fairness,
        search=runtime.search,
    )

    async def moved(chat: MovedChat) -> None:
        if await carry_over(runtime, chat):
            # The channel itself may be restarted by this, so it does not wait for it.
            gateway.spawn(runtime.config.reload())

    channels = ChannelManager(
        kinds=ChannelKinds(environ),
        config=lambda: runtime.config.current,
        clock=runtime.clock,
        state_dir=str(runtime.state_dir),
        blobs=runtime.stores.blobs,
        documents=runtime.stores.documents,
        claims=runtime.stores.claims,
        receive=lambda inbound: gateway.pipeline.receive(inbound),
        admits=lambda inbound: gateway.pipeline.admits(inbound),
        notice=lambda inbound: gateway.pipeline.notice(inbound),
        edited=lambda inbound: gateway.pipeline.edited(inbound),
        deleted=lambda inbound: gateway.pipeline.deleted(inbound),
        moved=moved,
        commands=lambda: native_commands(runtime.config.current),
        environ=environ,
        reserved_names=lambda: reserved_names(runtime.config.current, runtime.extensions),
    )
    gateway.channel_services = ChannelServices(runtime, channels)
    return gateway


async def add_extensions(gateway: Gateway) -> None:
    """Loads the extensions that the configuration names, and puts what they add in its places."""
    runtime, kinds = gateway.runtime, gateway.channel_services.channels.kinds
    taken = Taken(
        tools=frozenset(PLACES),
        commands=frozenset(WORDS),
        methods=frozenset(gateway.methods.advertised()),
        channels=frozenset({*BUILT_IN, "webchat"}),
    )
    points = runtime.extensions = await load_extensions(runtime.config.current, str(runtime.state_dir), taken)
    for name, hook in points.compaction:
        runtime.prompting.hooks.on(name, hook)
    for kind in points.channels.values():
        kinds.add(kind)
    for api, provider in points.providers.items():
        gateway.runtime.models.calls.add_provider(api, provider)
    for method in points.methods.values():
        gateway.methods.add_own(method.name, method.right, extension_method(method))


def add_message_flow(gateway: Gateway) -> None:
    """Makes the way of a message through the Gateway: the pipeline, the runs and the notices."""
    runtime = gateway.runtime
    runs = Runs(runtime, lambda run: followers_of(gateway, run))
    notices = Notices(
        runtime,
        runs,
        publish=gateway.broadcaster.publish,
        wake_delivery=lambda: gateway.channel_services.delivery.wake(),
        spawn=gateway.spawn,
    )
    commands = CommandContext(
        runtime=runtime,
        runs=runs,
        notices=notices,
        restart=gateway.restart.schedule,
        environ=gateway.environ,
        subagents=lambda *asked: gateway.team.command.answer(*asked),
        stop_subagents=lambda key: gateway.team.subagents.stop_all(key),
    )
    gateway.runs, gateway.notices = runs, notices
    gateway.maintenance = Maintenance(runtime, runs, gateway.transcript_folders)
    if not runtime.stores.claims.alone and runtime.stores.claims.node:
        # Only the stores in PostgreSQL have such claims, and a command that looks at them is no node.
        stores = cast("PostgresSessionStore", runtime.stores.sessions), cast("PostgresLedger", runtime.stores.ledger)
        gateway.cluster = ClusterService(gateway, cast("PostgresClaims", runtime.stores.claims), stores)
    transcriber = Transcriber(
        lambda: runtime.config.current,
        runtime.stores.blobs,
        gateway.runtime.models.calls.keys,
        gateway.environ,
        BilledSpeech(runtime),
    )
    gateway.pipeline = Pipeline(
        runtime, runs, gateway.pairing, gateway.names, notices, commands, gateway.spawn, transcriber
    )

    if gateway.cluster is not None:
        gateway.cluster.attach()

    async def status_card(session: SessionRef) -> str:
        return await status(commands, client_facts(session, OWNER), "")

    views = SessionViews(runtime, partial(read_history, public=False), status_card)
    team = gateway.team = Team(runtime, runs, gateway.pipeline, notices, views)
    runtime.children = team.subagents.lines
    add_scheduler(gateway)
    message = MessagingTool(ChannelMessenger(gateway, team.jobs))
    web_fetch = WebFetchTool(lambda: runtime.config.current.tools.web.fetch, runtime.clock)

    web_search = WebSearchTool(lambda: runtime.config.current.tools.web.search, gateway.environ, runtime.clock)

    browser_tool = add_browser(gateway)

    def tools() -> list[Tool]:
        rules = runtime.config.current.tools.web
        web: list[Tool] = [
            *([web_search] if rules.search.enabled else []),
            *([web_fetch] if rules.fetch.enabled else []),
        ]
        used: list[Tool] = [browser_tool] if gateway.browsers.offered() else []
        return [*team.tools(), CronTool(gateway.cron, gateway.heartbeats, runtime), message, *web, *used]

    runtime.team_tools = tools
    runtime.nodes, runtime.has_nodes = gateway.nodes, lambda: gateway.nodes.any


def add_browser(gateway: Gateway) -> BrowserTool:
    """Makes the browsers of the Gateway. None is started before it is used."""
    runtime = gateway.runtime
    gateway.browsers = Browsers(
        lambda: runtime.config.current.browser, runtime.state_dir, gateway.environ, runtime.clock
    )

    def changed(_old: Config, _new: Config, paths: list[str]) -> None:
        if any(path.startswith("browser") for path in paths):
            gateway.spawn(gateway.browsers.settings_changed())

    runtime.config.subscribe(changed)
    gateway.browser_tool = BrowserTool(gateway.browsers, runtime.clock)
    return gateway.browser_tool


def add_scheduler(gateway: Gateway) -> None:
    """Makes what runs without a message: heartbeats, scheduled jobs and the turns of webhooks."""

    def reach(channel: str, to: str, account_id: str | None) -> str | None:
        channels = gateway.channel_services.channels
        if not channels.accounts(channel):
            return f"channel {channel} is not configured"
        running = channels.find(channel, account_id)
        if running is None:
            return f"channel {channel} has no account {account_id}"
        try:
            running.kind.peer(to)
        except SendFailed as problem:
            return str(problem)
        return None

    publish = partial(gateway.broadcaster.publish, drop_if_slow=True)
    turns = gateway.turns = ScheduledTurns(gateway.runtime, gateway.runs, gateway.pipeline, gateway.notices, reach)
    gateway.heartbeats = Heartbeats(turns, partial(publish, "heartbeat"))
    off = gateway.environ.get("OPENCLAW_SKIP_CRON") == "1"
    documents = gateway.runtime.stores.documents
    gateway.cron = Cron(turns, gateway.heartbeats, partial(publish, "cron"), documents, switched_off=off)
    gateway.hook_runs = HookRuns(turns, gateway.heartbeats)
    gateway.scheduler, gateway.shared_state = SchedulerService(gateway), SharedState(gateway)


async def start_scheduler(gateway: Gateway) -> None:
    """Goes on with what the last Gateway left, then waits for what is due and for what other nodes change."""
    await gateway.scheduler.start()
    gateway.shared_state.start()


def native_commands(config: Config) -> list[NativeCommand]:
    """The commands for the menus of platforms."""
    if config.commands.native is False:
        return []
    return [
        NativeCommand(name=command.name, description=command.help, takes_text=bool(command.usage))
        for command in listed(config)
    ]


async def has_ended(ledger: Ledger, run_id: str) -> bool:
    row = await ledger.by_run(run_id)
    return row is None or row.state in END_STATES


def followers_of(gateway: Gateway, run: Run) -> list[Follower]:
    """Return those who follow a run: the metrics, the log, the clients, and the channel that its reply goes to."""

    def verbose() -> str:
        return run.verbose or gateway.runtime.config.current.agents.defaults.verbose_default or "off"

    def notice(name: str, text: str) -> None:
        gateway.spawn(gateway.notices.notify_run(run, name, text))

    stream = RunStream(run, gateway.broadcaster, gateway.runtime.clock, verbose, notice=notice)
    followers: list[Follower] = [RunMetrics(run, gateway.metrics).event, RunLog(run).event, stream.event]
    if gateway.runtime.extensions.hooks["message_sent"]:
        followers.append(SentMessages(run, gateway.runtime.extensions).event)
    if run.row.route.is_delivered:
        followers.append(ChannelRun(run, gateway.channel_services, gateway.runtime.config.current).event)
    return followers


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


async def _models_here(config: Config, environ: Mapping[str, str], state_dir: str) -> list[Model]:
    """The models of servers on this machine. They are searched for only where one of them may answer."""
    chosen = Catalogue(config, environ, state_dir=state_dir)
    try:
        default = chosen.default_for(config, default_agent_id(config))
    except UnknownModel:
        return []
    wanted = default.api == "local" or default.provider in LOCAL_SERVERS
    return await find_models(environ) if wanted else []


async def close_gateway(gateway: Gateway) -> None:
    """Closes the parts in the order of the flow: runs first, because they still write to the stores."""
    runtime = gateway.runtime
    for close in (
        gateway.shared_state.stop,
        gateway.scheduler.stop,
        partial(runtime.extensions.tell_all, "gateway_stopping"),
        gateway.pipeline.close,
        gateway.team.close,
        gateway.runs.stop,
        gateway.channel_services.stop,
        *([gateway.cluster.close] if gateway.cluster is not None else []),
        gateway.stop,
        runtime.approvals.close,
        gateway.mcp.close,
        runtime.extensions.close,
        runtime.processes.close,
        gateway.browsers.close,
        runtime.memories.close,
        gateway.runtime.models.calls.close,
    ):
        with contextlib.suppress(Fenced):  # A node that was given up writes nothing more, and is closed all the same.
            await close()
    with contextlib.suppress(OSError, Fenced):
        await runtime.notes.synced()
    await runtime.stores.close()


# Extensions


def extension_method(method: OwnMethod) -> Handler:
    async def answer(call: MethodCall) -> Any:
        params = call.params if isinstance(call.params, dict) else {}
        try:
            async with asyncio.timeout(LONGEST_COMMAND_S):
                said = method.function(MethodRequest(params=params, rights=call.client.rights))
                return await said if inspect.isawaitable(said) else said
        except ValueError as problem:
            raise MethodError(str(problem)) from None
        except TimeoutError:
            raise MethodError(f"{method.name} gave no answer", code="UNAVAILABLE") from None

    return answer


class SentMessages:
    """Follows a run and notifies extensions of its answer."""

    def __init__(self, run: Run, points: ExtensionPoints) -> None:
        self._run = run
        self._points = points

    def event(self, event: RunEvent) -> None:
        if not isinstance(event, RunFinished):
            return
        run = self._run
        said = run.result.shown if run.result is not None else []
        self._points.message_sent(
            MessageSent(
                agent_id=run.row.agent_id,
                session_key=run.row.session_key,
                channel=run.row.route.channel or run.row.source,
                run_id=run.run_id,
                state=run.state,
                text="\n\n".join(one.text for one in said if one.text),
            )
        )
