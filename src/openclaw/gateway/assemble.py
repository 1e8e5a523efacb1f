"""Builds a Gateway: opens the stores, and makes every part from those before it.

Where two parts need each other, one of them gets a registry or a signal that is made first: ``FollowerSources``,
``AddedTools``, ``PromptLines``, ``Wakeups`` and the event that wakes the delivery.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from openclaw.agent.compaction.compaction import CompactionHooks, CompactionsUnderWay
from openclaw.agent.compaction.memory_flush import watch_compactions
from openclaw.agent.prompt.report import ReportStore
from openclaw.agent.prompt.system_prompt import PromptCache
from openclaw.agent.prompt.workspace_snapshot import WorkspaceSnapshots
from openclaw.agent.runtime import AddedTools, ModelParts, PromptLines, PromptParts, Runtime, Stores, ToolParts, Wakeups
from openclaw.agent.spend.budget import BilledSpeech
from openclaw.agent.spend.spend import Spending
from openclaw.agent.window.history_cleaner import Hygiene
from openclaw.agent.window.tokens import TokenMeasures
from openclaw.channels.base import BUILT_IN, ChannelKinds, NativeCommand
from openclaw.channels.manager import ChannelManager
from openclaw.clock import Clock
from openclaw.config.agents import default_agent_id, user_zone
from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore, Derived
from openclaw.extensions.points import ExtensionPoints, Taken, load_extensions
from openclaw.gateway.auth.authorise import FailedAuthLimiter, SharedSecret
from openclaw.gateway.auth.devices import Devices
from openclaw.gateway.channels import ChannelRun, ChannelServices
from openclaw.gateway.cluster.single import Cluster, SchedulerParts
from openclaw.gateway.disk_check import DiskCheck
from openclaw.gateway.event_loop import LoopFairness, LoopLag
from openclaw.gateway.extension_adapters import SentMessages, extension_method
from openclaw.gateway.gateway import Gateway, OpenCalls
from openclaw.gateway.health import Health, HealthSources
from openclaw.gateway.http.control_ui import SignInTickets
from openclaw.gateway.http.routes import reserved_names
from openclaw.gateway.logs import RunLog
from openclaw.gateway.messenger import ChannelMessenger, MessageSender
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
    protocol4,
    questions,
    system,
    usage,
)
from openclaw.gateway.methods import config as config_methods
from openclaw.gateway.methods import sessions as sessions_methods
from openclaw.gateway.methods.exec_approvals import ApprovalEvents
from openclaw.gateway.methods.questions import QuestionEvents, QuestionNotices
from openclaw.gateway.metrics import Metrics, RunMetrics
from openclaw.gateway.nodes import Nodes
from openclaw.gateway.presence import Presence
from openclaw.gateway.restart import Restart
from openclaw.gateway.server.events import Broadcaster, RunStream
from openclaw.gateway.server.registry import MethodTable
from openclaw.gateway.server.server import Sockets
from openclaw.gateway.server.subscriptions import SessionSubscriptions
from openclaw.gateway.session_directory import SessionDirectory
from openclaw.gateway.session_maintenance import Maintenance
from openclaw.gateway.session_views import read_history
from openclaw.gateway.storage import open_storage
from openclaw.inbound.commands.registry import WORDS, listed
from openclaw.inbound.commands.status import status
from openclaw.inbound.incoming import client_facts
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
from openclaw.questions.desk import QuestionDesk
from openclaw.rights import OWNER
from openclaw.routing import carry_over
from openclaw.runs.run import Follower, FollowerSources, Run, RunEvent, RunFinished, RunStopping
from openclaw.runs.runs import Runs
from openclaw.scheduler.cron import Cron, CronTool
from openclaw.scheduler.heartbeat import Heartbeats
from openclaw.scheduler.hooks import HookRuns
from openclaw.scheduler.turns import ScheduledTurns
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.search import SearchIndex, TranscriptSearch
from openclaw.sessions.system_events import SessionNotes
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.errors import Fenced
from openclaw.storage.files.newer_state import StateWatch
from openclaw.storage.message_ledger import END_STATES, Ledger
from openclaw.teamwork.session_tools import SessionViews
from openclaw.teamwork.subagents import SubagentIndex, SubagentsCommand
from openclaw.teamwork.team import Team
from openclaw.tools.ask_user import AskUserTool
from openclaw.tools.base import Tool
from openclaw.tools.browser.browsers import Browsers
from openclaw.tools.browser.tool import BrowserTool
from openclaw.tools.exec.approvals import ApprovalRules
from openclaw.tools.message import MessagingTool
from openclaw.tools.process import ProcessRegistry
from openclaw.tools.sandbox.launch import PLACES
from openclaw.tools.web import WebFetchTool, WebSearchTool

if TYPE_CHECKING:
    from openclaw.gateway.tls import ServerTls
    from openclaw.tools.nodes import NodeCalls

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
    questions,
    sessions_methods,
    usage,
    system,
    protocol4,
)
"""``hello-ok`` lists the methods that are not part of protocol v3 in this order."""


class StartOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What the process decides about its Gateway."""

    secret: SharedSecret | None = None
    """The secret from the command line."""
    owner_key: str = ""
    """The key in the lock file."""
    tls: ServerTls | None = None
    only_reads: bool = False
    """For a command that inspects the folder. No older sessions are migrated, and no extension is loaded."""


class Counters(msgspec.Struct, frozen=True):
    metrics: Metrics
    loop_lag: LoopLag
    loop_fairness: LoopFairness

    def count_failure(self, error: ModelError) -> None:
        self.metrics.model_errors[error.kind] += 1


async def open_gateway(
    state_dir: str,
    config: ConfigStore,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
    options: StartOptions | None = None,
) -> Gateway:
    """Open the stores and build the parts, each from those before it. Nothing listens and nothing runs yet."""
    options = options or StartOptions()
    repairs, counters = Repairs(), Counters(Metrics(), LoopLag(clock), LoopFairness())
    if config.restored:
        repairs.note(config.restored)
    storage = await open_storage(state_dir, config, clock, environ, repairs, only_reads=options.only_reads)
    stores, cluster = storage.stores, storage.cluster
    broadcaster, devices = Broadcaster(cluster.relay), Devices(stores.documents, clock)
    nodes = Nodes(stores.documents, clock, devices, broadcaster, lambda: config.current.gateway.nodes)
    desk = QuestionDesk(stores.ledger, clock, stores.claims.node)
    mcp = McpServers(lambda: config.current, clock, environ, desk)
    methods = MethodTable(*(family.methods for family in METHOD_FAMILIES))
    extensions = ExtensionPoints()
    if not options.only_reads:
        extensions = await load_extensions(config.current, state_dir, _taken(methods))
    runtime = await build_runtime(state_dir, config, clock, environ, stores, nodes, desk, mcp, extensions, counters)
    for method in extensions.methods.values():
        methods.add_own(method.name, method.right, extension_method(method))
    gateway = build_gateway(
        runtime, cluster, environ, options, repairs, counters, broadcaster, devices, nodes, mcp, methods
    )
    cluster.serve(gateway)
    return gateway


def _taken(methods: MethodTable) -> Taken:
    """Return the names that extensions cannot take."""
    return Taken(
        tools=frozenset(PLACES),
        commands=frozenset(WORDS),
        methods=frozenset(methods.advertised()),
        channels=frozenset({*BUILT_IN, "webchat"}),
    )


async def build_runtime(
    state_dir: str,
    config: ConfigStore,
    clock: Clock,
    environ: Mapping[str, str],
    stores: Stores,
    nodes: NodeCalls,
    desk: QuestionDesk,
    mcp: McpServers,
    extensions: ExtensionPoints,
    counters: Counters,
) -> Runtime:
    """Build the parts that runs use."""
    keys = Keys(environ, state_dir=state_dir, clock=clock)
    await keys.load(config.current)
    calls = ModelCalls(
        keys,
        lambda: config.current,
        clock,
        state_dir,
        take_turn=counters.loop_fairness.enter,
        failed=counters.count_failure,
    )
    for api, provider in extensions.providers.items():
        calls.add_provider(api, provider)
    catalogue = CurrentCatalogue(config, environ, await _models_here(config.current, environ, state_dir), state_dir)
    hooks, derived = CompactionHooks(), Derived()
    notes = SessionNotes(clock, lambda: user_zone(config.current), stores.documents)
    await notes.load(partial(has_ended, stores.ledger))
    runtime = Runtime(
        state_dir=Path(state_dir),
        clock=clock,
        config=config,
        stores=stores,
        models=ModelParts(
            catalogue=catalogue,
            rescan=catalogue.look_again,
            calls=calls,
            failover=Failover(keys, lambda: config.current, catalogue, derived),
            measures=TokenMeasures(),
            hygiene=Hygiene(),
            spending=Spending(stores.lines),
        ),
        prompting=PromptParts(
            snapshots=WorkspaceSnapshots(state_dir, clock, stores.documents),
            cache=PromptCache(),
            reports=ReportStore(stores.blobs),
            derived=derived,
            hooks=hooks,
            compacting=CompactionsUnderWay(),
            lines=PromptLines(),
        ),
        tools=ToolParts(
            processes=ProcessRegistry(spill_folder=Path(state_dir)),
            questions=desk,
            approval_rules=ApprovalRules(stores.documents, clock),
            nodes=nodes,
            mcp=mcp,
            memories=AgentMemories(Path(state_dir), clock, Embedders(calls.http, keys, environ)),
            added=AddedTools(),
            wakeups=Wakeups(),
        ),
        notes=notes,
        search=TranscriptSearch(SearchIndex(state_dir, visible_text), stores.lines),
        extensions=extensions,
    )
    watch_compactions(runtime)
    for name, hook in extensions.compaction:
        hooks.on(name, hook)
    return runtime


def build_gateway(
    runtime: Runtime,
    cluster: Cluster,
    environ: Mapping[str, str],
    options: StartOptions,
    repairs: Repairs,
    counters: Counters,
    broadcaster: Broadcaster,
    devices: Devices,
    nodes: Nodes,
    mcp: McpServers,
    methods: MethodTable,
) -> Gateway:
    """Build the way of a message through the Gateway, and the parts that serve clients and channels."""
    clock, config, stores, state_dir = runtime.clock, runtime.config, runtime.stores, str(runtime.state_dir)
    calls, parts_ready, followers = OpenCalls(), asyncio.Event(), FollowerSources()
    directory, restart, presence = SessionDirectory(runtime), Restart(state_dir, clock), Presence(clock)
    pairing, names = PairingStore(stores.documents, clock), ResolvedNames(stores.documents)
    runs = Runs(runtime, followers.of, cluster.messages)
    notices = Notices(runtime, runs, publish=broadcaster.publish, wake_delivery=parts_ready.set, spawn=calls.spawn)
    subagents = SubagentIndex(stores.ledger, runs)
    runtime.prompting.lines.add(subagents.lines)
    pipeline = Pipeline(
        runtime,
        runs,
        pairing,
        names,
        notices,
        SubagentsCommand(runtime, subagents, runs),
        restart.schedule,
        environ,
        calls.spawn,
        Transcriber(lambda: config.current, stores.blobs, runtime.models.calls.keys, environ, BilledSpeech(runtime)),
        cluster.messages,
    )

    def wake(run_id: str, text: str) -> None:
        calls.spawn(pipeline.wake(run_id, text, str(uuid.uuid4())))

    runtime.tools.wakeups.subscribe(wake)
    desk = runtime.tools.questions
    desk.follow(QuestionEvents(broadcaster))
    desk.follow(ApprovalEvents(broadcaster))
    desk.follow(QuestionNotices(runtime, runs.index, notices, calls.spawn))
    channels = _build_channels(runtime, cluster, environ, pipeline, calls)
    channel_services = ChannelServices(runtime, channels, parts_ready)
    follow_runs(followers, runtime, broadcaster, notices, calls, counters.metrics, channel_services)
    subscriptions = SessionSubscriptions(runtime, broadcaster, calls.spawn)
    followers.add(subscriptions.follow_run)

    async def status_card(session: SessionRef) -> str:
        return await status(pipeline.commands, client_facts(session, OWNER), "")

    views = SessionViews(runtime, partial(read_history, public=False), status_card)
    team = Team(runtime, runs, pipeline, notices, views, subagents)
    publish = partial(broadcaster.publish, drop_if_slow=True)
    turns = ScheduledTurns(runtime, runs, pipeline, notices, partial(unreachable, channels))
    heartbeats = Heartbeats(turns, partial(publish, "heartbeat"))
    off = environ.get("OPENCLAW_SKIP_CRON") == "1"
    cron = Cron(turns, heartbeats, partial(publish, "cron"), stores.documents, switched_off=off)
    hook_runs = HookRuns(turns, heartbeats)
    scheduler = cluster.scheduler(
        SchedulerParts(
            runtime=runtime, pipeline=pipeline, heartbeats=heartbeats, hook_runs=hook_runs, cron=cron, cluster=cluster
        )
    )
    browsers = Browsers(lambda: config.current.browser, runtime.state_dir, environ, clock)
    browser_tool = BrowserTool(browsers, clock)

    def browser_changed(_old: Config, _new: Config, paths: list[str]) -> None:
        if any(path.startswith("browser") for path in paths):
            calls.spawn(browsers.settings_changed())

    config.subscribe(browser_changed)
    web_search = WebSearchTool(lambda: config.current.tools.web.search, environ, clock)
    web_fetch = WebFetchTool(lambda: config.current.tools.web.fetch, clock)
    messenger = MessageSender(runtime, notices, channel_services)
    always: list[Tool] = [
        CronTool(cron, heartbeats, runtime),
        MessagingTool(ChannelMessenger(runtime, messenger, team.jobs)),
        AskUserTool(desk),
    ]

    def tools() -> list[Tool]:
        rules = config.current.tools.web
        web: list[Tool] = [
            *([web_search] if rules.search.enabled else []),
            *([web_fetch] if rules.fetch.enabled else []),
        ]
        used: list[Tool] = [browser_tool] if browsers.offered() else []
        return [*team.tools(), *always, *web, *used]

    runtime.tools.added.add(tools)
    transcripts = stores.transcripts
    state_watch = StateWatch(runtime.state_dir, lambda agent: Path(transcripts.folder(agent)))
    disk = DiskCheck(state_dir, clock)
    sources = HealthSources(
        runtime=runtime,
        directory=directory,
        channels=channels,
        heartbeats=heartbeats,
        runs=runs,
        state_watch=state_watch,
    )
    return Gateway(
        runtime=runtime,
        directory=directory,
        environ=environ,
        methods=methods,
        broadcaster=broadcaster,
        subscriptions=subscriptions,
        presence=presence,
        devices=devices,
        nodes=nodes,
        pairing=pairing,
        names=names,
        health=Health(clock, disk, sources, broadcaster, presence),
        disk=disk,
        auth_limiter=FailedAuthLimiter(clock, lambda: config.current.gateway.auth.rate_limit),
        sign_in_tickets=SignInTickets(clock),
        sockets=Sockets(),
        restart=restart,
        metrics=counters.metrics,
        loop_lag=counters.loop_lag,
        loop_fairness=counters.loop_fairness,
        channel_services=channel_services,
        runs=runs,
        maintenance=Maintenance(runtime, runs, directory),
        notices=notices,
        calls=calls,
        cluster=cluster,
        pipeline=pipeline,
        team=team,
        heartbeats=heartbeats,
        cron=cron,
        hook_runs=hook_runs,
        scheduler=scheduler,
        turns=turns,
        browsers=browsers,
        browser_tool=browser_tool,
        messenger=messenger,
        mcp=mcp,
        repairs=repairs,
        state_watch=state_watch,
        given_secret=options.secret,
        owner_key=options.owner_key,
        tls=options.tls,
        started_at=clock.now_ms(),
    )


def _build_channels(
    runtime: Runtime,
    cluster: Cluster,
    environ: Mapping[str, str],
    pipeline: Pipeline,
    calls: OpenCalls,
) -> ChannelManager:
    kinds, config = ChannelKinds(environ), runtime.config
    for kind in runtime.extensions.channels.values():
        kinds.add(kind)

    async def moved(chat: MovedChat) -> None:
        if await carry_over(runtime, chat):
            # The channel itself may be restarted by this, so it does not wait for it.
            calls.spawn(config.reload())

    return ChannelManager(
        kinds=kinds,
        config=lambda: config.current,
        clock=runtime.clock,
        state_dir=str(runtime.state_dir),
        blobs=runtime.stores.blobs,
        documents=runtime.stores.documents,
        claims=runtime.stores.claims,
        others=cluster.channels,
        receive=pipeline.receive,
        admits=pipeline.admits,
        notice=pipeline.notice,
        edited=pipeline.edited,
        deleted=pipeline.deleted,
        moved=moved,
        commands=lambda: native_commands(config.current),
        environ=environ,
        reserved_names=lambda: reserved_names(config.current, runtime.extensions),
    )


def unreachable(channels: ChannelManager, channel: str, to: str, account_id: str | None) -> str | None:
    """Return why nothing can be sent there, or None if it can."""
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


async def start_scheduler(gateway: Gateway) -> None:
    """Resume what the last Gateway left, then wait for what is due and for what other nodes change."""
    await gateway.scheduler.start()
    gateway.cluster.follow_changes()


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


def follow_runs(
    followers: FollowerSources,
    runtime: Runtime,
    broadcaster: Broadcaster,
    notices: Notices,
    calls: OpenCalls,
    metrics: Metrics,
    channel_services: ChannelServices,
) -> None:
    """Let the metrics, the log, the clients, the extensions and the channel of its reply follow every run."""

    def clients(run: Run) -> Follower:
        def verbose() -> str:
            return run.verbose or runtime.config.current.agents.defaults.verbose_default or "off"

        def notice(name: str, text: str) -> None:
            calls.spawn(notices.notify_run(run, name, text))

        return RunStream(run, broadcaster, runtime.clock, verbose, notice=notice).event

    def extensions(run: Run) -> Follower | None:
        if not runtime.extensions.hooks["message_sent"]:
            return None
        return SentMessages(run, runtime.extensions).event

    def channel(run: Run) -> Follower | None:
        if not run.row.route.is_delivered:
            return None
        return ChannelRun(run, channel_services, runtime.config.current).event

    def open_questions(run: Run) -> Follower:
        desk = runtime.tools.questions

        def event(event: RunEvent) -> None:
            # Nobody needs an answer for a run that is being stopped or has ended.
            if isinstance(event, RunStopping | RunFinished) and desk.waits(run.run_id):
                calls.spawn(desk.withdraw_run(run.run_id))

        return event

    followers.add(lambda run: RunMetrics(run, metrics).event)
    followers.add(open_questions)
    followers.add(lambda run: RunLog(run).event)
    followers.add(clients)
    followers.add(extensions)
    followers.add(channel)


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
    """Close the parts in the order of the flow: runs first, because they still write to the stores."""
    runtime = gateway.runtime
    gateway.restart.stop()
    gateway.health.stop()
    gateway.presence.stop()
    for close in (
        gateway.cluster.stop_following,
        gateway.scheduler.stop,
        partial(runtime.extensions.tell_all, "gateway_stopping"),
        gateway.pipeline.close,
        gateway.team.close,
        gateway.runs.stop,
        gateway.channel_services.stop,
        gateway.cluster.close,
        runtime.tools.questions.close,
        runtime.tools.mcp.close,
        runtime.extensions.close,
        runtime.tools.processes.close,
        gateway.browsers.close,
        runtime.tools.memories.close,
        runtime.models.calls.close,
    ):
        with contextlib.suppress(Fenced):  # A node that was given up writes nothing more, and is closed all the same.
            await close()
    with contextlib.suppress(OSError, Fenced):
        await runtime.notes.synced()
    await runtime.stores.close()
