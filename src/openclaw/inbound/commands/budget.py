"""``/budget``: how far the limits are used up, and an owner's word to go on past them."""

from __future__ import annotations

from openclaw.agent.spend.budget import OVERRIDE, Limit, end_of_day_ms, overridden
from openclaw.config.agents import user_zone
from openclaw.inbound.commands.context import CommandContext, handles
from openclaw.inbound.commands.registry import Command, add

add(
    Command(
        name="budget",
        usage="[override|enforce]",
        category="Management",
        access="owner",
        help="What may still be spent; override lets this session go on for today.",
    )
)


@handles("budget")
async def budget(context: CommandContext) -> str:
    services, session = context.services, context.session
    now = services.clock.now_ms()
    match context.args.strip().lower():
        case "":
            return budget_text(await services.limits(session), overridden=overridden(context.entry, now))
        case "override":
            until = end_of_day_ms(now, user_zone(services.config))
            await services.patch_session(session, {OVERRIDE: until})
            return "⚙️ The limits do not hold in this session until the day ends. /budget enforce puts them back."
        case "enforce":
            await services.patch_session(session, {OVERRIDE: None})
            return "⚙️ The limits hold again."
        case _:
            return "⚙️ Usage: /budget [override|enforce]"


def budget_text(limits: list[Limit], *, overridden: bool) -> str:
    if not limits:
        return "💰 No limits are set (agents.defaults.budget)."
    lines = [f"{limit.key}: {limit.text}{' — used up' if limit.reached else ''}" for limit in limits]
    note = ["This session may go on past them today."] if overridden else []
    return "\n".join(["💰 Budget", *lines, *note])
