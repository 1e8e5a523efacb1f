"""Commands that tell what is: ``/status``, ``/help``, ``/commands`` and ``/whoami``."""

from __future__ import annotations

from openclaw import __version__
from openclaw.agent.model_choice import current_model
from openclaw.agent.plan import SessionPlans, plan_of_entry
from openclaw.agent.prompt.report import left_out_lines, stored_report
from openclaw.agent.spend.spend import cost_text, session_totals
from openclaw.agent.tool_set import plan_of
from openclaw.agent.window.tool_share import SMALL_WINDOW
from openclaw.inbound.commands.registry import CATEGORIES, Command, listed
from openclaw.inbound.commands.settings import effective_levels, key_label, running_and_waiting
from openclaw.inbound.directives import LevelKind
from openclaw.inbound.incoming import CommandContext, Facts
from openclaw.models.base import Model, has_price
from openclaw.models.catalogue import UnknownModel
from openclaw.models.errors import failure_text
from openclaw.outbound.reply import cache_share, percent, token_count
from openclaw.runs.queue_settings import queue_settings
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import shown_key
from openclaw.text import age, duration
from openclaw.tools.plan import plan_lines, plan_summary
from openclaw.tools.sandbox.launch import SandboxPlan


async def status(context: CommandContext, facts: Facts, _: str) -> str:
    config, catalogue, session = context.config, context.catalogue, facts.session
    stored = await context.entry(session)
    entry = stored or SessionEntry(sessionId="")
    try:
        model = current_model(entry, config, catalogue, session.agent_id)
        profile = entry.get("authProfileOverride")
        name, auth = model.ref, f"profile {profile}" if profile else key_label(model, context)
    except UnknownModel as unknown:
        model = catalogue.default_for(config, session.agent_id)
        name, auth = f"{unknown.name} (unknown)", ""
    lines = [f"🦞 OpenClaw {__version__}", f"🧠 Model: {name}" + (f" · 🔑 {auth}" if auth else "")]
    lines += await _fallback_lines(context, session.agent_id, entry, model)
    lines += await _token_lines(context, facts, entry, paid=has_price(model.cost) and "oauth" not in auth.lower())
    used, window = entry.get("totalTokens"), entry.get("contextTokens") or model.context_window
    share = f" ({percent(used, window)})" if used is not None and window else ""
    fullness = f"{token_count(used)}/{token_count(window)}{share}"
    lines.append(f"📚 Context: {fullness} · 🧹 Compactions: {entry.get('compactionCount', 0)}")
    updated = entry.get("updatedAt")
    activity = f"updated {age(context.runtime.clock.now_ms() - updated)}" if updated is not None else "not begun"
    lines.append(f"🧵 Session: {shown_key(session.key)} • {activity}")
    if steps := plan_of_entry(stored):
        lines.append(f"📋 Plan: {plan_summary(steps)}")
    if model.context_window < SMALL_WINDOW and (report := await stored_report(stored, context.runtime.stores.blobs)):
        lines += [f"🧰 {line}" for line in left_out_lines(report)]
    sandbox = await plan_of(context.runtime, session.agent_id, session.key, stored)
    lines.append(_settings_line(effective_levels(config, facts, stored, model), sandbox))
    answers = entry.get("groupActivation") or ("mention" if facts.mention_needed else "always")
    activation = f"👥 Activation: {answers} · " if facts.group else ""
    mode = queue_settings(config.messages.queue, entry, facts.channel).mode
    running, waiting = running_and_waiting(context, facts)
    depth = f"{'running, ' if running else ''}depth {len(waiting)}"
    lines.append(f"{activation}🪢 Queue: {mode} ({depth})")
    if "admin" in facts.rights:
        lines += [f"🔌 MCP {line}" for line in context.runtime.tools.mcp.lines()]
    return "\n".join(lines)


async def plan(context: CommandContext, facts: Facts, args: str) -> str:
    steps = plan_of_entry(await context.entry(facts.session))
    match args.strip().lower():
        case "clear":
            await SessionPlans(context.runtime.stores.sessions).save(facts.session.agent_id, facts.session.key, [])
            return "📋 The plan is removed." if steps else "📋 There is no plan."
        case "":
            return (
                "\n".join([f"📋 Plan: {plan_summary(steps)}", *plan_lines(steps)]) if steps else "📋 There is no plan."
            )
        case _:
            return "⚙️ Usage: /plan [clear]"


async def _fallback_lines(context: CommandContext, agent_id: str, entry: SessionEntry, model: Model) -> list[str]:
    """Say that the session's model rests after a failure, how long, and who answered in its place."""
    resting = await context.runtime.models.failover.cooldown_of(model, agent_id)
    if resting is None:
        return []
    left = duration(resting.cooldown_until - context.runtime.clock.now_ms())
    active = entry.get("fallbackNoticeActiveModel") if entry.get("fallbackNoticeSelectedModel") == model.ref else None
    answers = f"{active} answers; " if active else ""
    return [f"↪️ {model.ref}: {failure_text(resting.kind)} · {answers}asked again in {left}"]


async def _token_lines(context: CommandContext, facts: Facts, entry: SessionEntry, *, paid: bool) -> list[str]:
    """Return the tokens and the cost of the session, and how much came from the provider's cache.

    ``paid`` False: calls are not paid one by one, and no cost is shown.
    """
    lines: list[str] = []
    value, answered = entry.get("inputTokens"), entry.get("outputTokens")
    cost = ""
    if paid:
        totals = await session_totals(context.runtime, facts.session, entry)
        cost = f" · 💵 Cost: {cost_text(totals)}" if totals.known and totals.total_cost else ""
    if value is not None or answered is not None or cost:
        lines.append(f"🧮 Tokens: {token_count(value)} in / {token_count(answered)} out{cost}")
    read, written = entry.get("cacheRead", 0), entry.get("cacheWrite", 0)
    if share := cache_share(read, written, value or 0):
        lines.append(f"🗄️ Cache: {share} hit · {token_count(read)} cached, {token_count(written)} new")
    return lines


def _settings_line(levels: dict[LevelKind, str], sandbox: SandboxPlan | None) -> str:
    where = f"{sandbox.backend}/{sandbox.mode}" if sandbox else "direct"
    parts = [f"⚙️ Runtime: {where}", f"Think: {levels['think']}"]
    if levels["verbose"] != "off":
        parts.append("verbose" if levels["verbose"] == "on" else f"verbose:{levels['verbose']}")
    if levels["reasoning"] != "off":
        parts.append(f"Reasoning: {levels['reasoning']}")
    if levels["elevated"] != "off":
        parts.append("elevated" if levels["elevated"] == "on" else f"elevated:{levels['elevated']}")
    return " · ".join(parts)


async def help_text(_context: CommandContext, _facts: Facts, _: str) -> str:
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


async def command_list(context: CommandContext, facts: Facts, _: str) -> str:
    commands = listed(context.config, group=facts.group)
    parts = ["ℹ️ Commands"]
    for category in CATEGORIES:
        rows = [_row(command) for command in commands if command.category == category]
        if rows:
            parts.append("\n".join([category, *rows]))
    if own := context.runtime.extensions.commands:
        parts.append("\n".join(["Extensions", *(_line(item.name, item.usage, item.help) for item in own.values())]))
    return "\n\n".join(parts)


def _row(command: Command) -> str:
    return _line(", /".join((command.name, *command.aliases)), command.usage, command.help)


def _line(names: str, usage: str, help: str) -> str:
    return f"  /{names}{f' {usage}' if usage else ''} — {help}"


async def whoami(_context: CommandContext, facts: Facts, _: str) -> str:
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
