"""``/context``: what the model is shown, by part and size."""

from __future__ import annotations

from openclaw.agent.prompt.report import context_detail, context_help, context_json, context_list
from openclaw.inbound.commands.context import CommandContext, handles
from openclaw.inbound.commands.registry import Command, add
from openclaw.models.base import ModelError
from openclaw.models.catalogue import UnknownModel
from openclaw.sessions.entry import SessionEntry

add(
    Command(
        name="context",
        usage="[list|detail|json]",
        category="Status",
        help="What the model is sent besides your words, with sizes.",
    )
)
_VIEWS = {
    "list": context_list,
    "show": context_list,
    "detail": context_detail,
    "deep": context_detail,
    "json": context_json,
}


@handles("context")
async def context(context: CommandContext) -> str:
    wish = context.args.strip().removeprefix(":").strip().lower()
    if wish in ("", "help"):
        return context_help()
    view = _VIEWS.get(wish)
    if view is None:
        return (
            f"Unknown /context mode. Use: /context, /context list, /context detail, or /context json.\n{context_help()}"
        )
    try:
        report = await context.services.prompt_report(context.session)
    except (ModelError, UnknownModel) as problem:
        return f"⚙️ {problem}"
    entry = dict(context.entry or SessionEntry(sessionId=""))
    if entry.get("contextTokens") is None:
        entry["contextTokens"] = await context.services.context_window(context.session)
    return view(report, entry)
