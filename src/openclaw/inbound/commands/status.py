"""``/status``: one card with the model, the context, the session and its settings. Unknown is shown as unknown."""

from __future__ import annotations

import msgspec

from openclaw import __version__
from openclaw.inbound.commands.context import CommandContext, Cost, Facts
from openclaw.inbound.commands.models import current_model
from openclaw.inbound.commands.registry import CATEGORIES, Command, listed
from openclaw.inbound.commands.settings import effective_levels
from openclaw.inbound.directives import LevelKind
from openclaw.models.catalogue import UnknownModel
from openclaw.models.cost import has_price
from openclaw.outbound.usage_text import ago, cache_share, percent, token_count
from openclaw.runs.queue import queue_settings
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import shown_key


class Status(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    auth: str
    input_tokens: int | None
    output_tokens: int | None
    cost: Cost | None
    """Of the session so far; None where calls are not paid one by one."""
    cache_read: int
    cache_write: int
    context_used: int | None
    context_window: int | None
    compactions: int
    session_key: str
    updated_at: int | None
    runtime: str
    levels: dict[LevelKind, str]
    activation: str | None
    """None in direct chats."""
    queue_mode: str
    running: bool
    waiting: int


async def status(context: CommandContext) -> str:
    return status_card(await gather(context), context.services.clock.now_ms())


async def gather(context: CommandContext) -> Status:
    services, session = context.services, context.session
    entry = context.entry or SessionEntry(sessionId="")
    try:
        model = current_model(entry, services.config, services.catalogue, session.agent_id)
        profile = entry.get("authProfileOverride")
        auth = f"profile {profile}" if profile else services.auth_label(model, session.agent_id)
        name = model.ref
    except UnknownModel:
        model = services.catalogue.default_for(services.config, session.agent_id)
        name, auth = f"{entry.get('providerOverride')}/{entry.get('modelOverride')} (unknown)", ""
    queue = services.queue(session)
    return Status(
        model=name,
        auth=auth,
        input_tokens=entry.get("inputTokens"),
        output_tokens=entry.get("outputTokens"),
        cost=await services.session_cost(session) if has_price(model.cost) and "oauth" not in auth.lower() else None,
        cache_read=entry.get("cacheRead", 0),
        cache_write=entry.get("cacheWrite", 0),
        context_used=entry.get("totalTokens"),
        context_window=entry.get("contextTokens") or model.context_window,
        compactions=entry.get("compactionCount", 0),
        session_key=shown_key(session.key),
        updated_at=entry.get("updatedAt"),
        runtime=services.runtime(session),
        levels=effective_levels(context.facts, services, context.entry, model),
        activation=entry.get("groupActivation", "mention") if context.facts.group else None,
        queue_mode=queue_settings(services.config.messages.queue, entry, context.facts.channel).mode,
        running=queue.running is not None,
        waiting=len(queue.waiting),
    )


def status_card(status: Status, now_ms: int) -> str:
    lines = [f"🦞 OpenClaw {__version__}"]
    lines.append(f"🧠 Model: {status.model}" + (f" · 🔑 {status.auth}" if status.auth else ""))
    cost = f" · 💵 Cost: {status.cost.text}" if status.cost is not None and status.cost.dollars else ""
    if status.input_tokens is not None or status.output_tokens is not None or cost:
        tokens = f"{token_count(status.input_tokens)} in / {token_count(status.output_tokens)} out"
        lines.append(f"🧮 Tokens: {tokens}{cost}")
    if share := cache_share(status.cache_read, status.cache_write, status.input_tokens or 0):
        kept, new = token_count(status.cache_read), token_count(status.cache_write)
        lines.append(f"🗄️ Cache: {share} hit · {kept} cached, {new} new")
    lines.append(f"📚 Context: {_fullness(status)} · 🧹 Compactions: {status.compactions}")
    age = f"updated {ago(status.updated_at, now_ms)}" if status.updated_at is not None else "not begun"
    lines.append(f"🧵 Session: {status.session_key} • {age}")
    lines.append(_settings_line(status))
    activation = f"👥 Activation: {status.activation} · " if status.activation else ""
    running = "running, " if status.running else ""
    lines.append(f"{activation}🪢 Queue: {status.queue_mode} ({running}depth {status.waiting})")
    return "\n".join(lines)


def _fullness(status: Status) -> str:
    text = f"{token_count(status.context_used)}/{token_count(status.context_window)}"
    if status.context_used is None or not status.context_window:
        return text
    return f"{text} ({percent(status.context_used, status.context_window)})"


def _settings_line(status: Status) -> str:
    levels = status.levels
    parts = [f"⚙️ Runtime: {status.runtime}", f"Think: {levels['think']}"]
    if levels["verbose"] != "off":
        parts.append("verbose" if levels["verbose"] == "on" else f"verbose:{levels['verbose']}")
    if levels["reasoning"] != "off":
        parts.append(f"Reasoning: {levels['reasoning']}")
    if levels["elevated"] != "off":
        parts.append("elevated" if levels["elevated"] == "on" else f"elevated:{levels['elevated']}")
    return " · ".join(parts)


async def help_text(context: CommandContext) -> str:
    return "\n".join(
        [
            "ℹ️ Write as you would to a person. A message that begins with a slash is a command:",
            "",
            "/new starts over; /resume goes back.",
            "/stop ends what is running.",
            "/status shows the model, the context and the settings; /queue what is waiting; /why what happened.",
            "/model chooses a model, /think how hard it thinks.",
            "",
            "Settings such as /think high also work inside a message, for that message only.",
            "/commands lists everything.",
        ]
    )


async def command_list(context: CommandContext) -> str:
    commands = listed(context.services.config, group=context.facts.group)
    parts: list[str] = []
    for category in CATEGORIES:
        rows = [_row(command) for command in commands if command.category == category]
        if rows:
            parts.append("\n".join([category, *rows]))
    return "ℹ️ Commands\n\n" + "\n\n".join(parts)


def _row(command: Command) -> str:
    names = ", ".join(f"/{name}" for name in (command.name, *command.aliases))
    return f"  {names}{f' {command.usage}' if command.usage else ''} — {command.help}"


async def whoami(context: CommandContext) -> str:
    return whoami_card(context.facts)


def whoami_card(facts: Facts) -> str:
    lines = ["🧭 Identity", f"Channel: {facts.channel}"]
    if facts.account_id and facts.account_id != "default":
        lines.append(f"Account: {facts.account_id}")
    if facts.sender_ids:
        lines.append(f"User id: {facts.sender_ids[0]}")
    if facts.sender_username:
        lines.append(f"Username: @{facts.sender_username.lstrip('@')}")
    elif facts.sender_name:
        lines.append(f"Name: {facts.sender_name}")
    if facts.chat:
        lines.append(f"Chat: {facts.chat}")
    if facts.thread_id is not None:
        lines.append(f"Thread: {facts.thread_id}")
    if facts.sender_ids:
        lines.append(f"AllowFrom: {facts.sender_ids[0]}")
    return "\n".join(lines)
