"""``/help``, ``/commands`` and ``/whoami``."""

from __future__ import annotations

from openclaw.inbound.commands.context import CommandContext, Facts, handles
from openclaw.inbound.commands.registry import CATEGORIES, Command, listed


@handles("help")
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


@handles("commands")
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


@handles("whoami")
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
