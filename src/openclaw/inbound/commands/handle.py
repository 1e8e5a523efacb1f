"""Reads a message for commands and settings, carries them out, and say what goes on to the agent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from openclaw.config.agents import model_aliases
from openclaw.extensions.api import CommandCall
from openclaw.extensions.points import OwnCommand
from openclaw.inbound.commands import session, settings, status
from openclaw.inbound.commands.context import compact, context_sizes, pin, pins, unpin
from openclaw.inbound.commands.registry import settings_rights, unknown_command, usable_aliases
from openclaw.inbound.commands.session import begin_session, find_reset
from openclaw.inbound.commands.settings import honoured, settings_for_run, store_directives
from openclaw.inbound.directives import (
    KINDS,
    Directives,
    command_body,
    edits_queue,
    is_abort,
    parse_directives,
    stand_alone,
    strip_mentions,
    understands_text,
)
from openclaw.inbound.incoming import CommandContext, Continue, Facts, Handled, Handler, Outcome
from openclaw.models.catalogue import UnknownModel
from openclaw.rights import Right, scope_for

_LITERAL = re.compile(r"\s*//[A-Za-z]+(?=\s|$)", re.ASCII)
"""The beginning of a text that is sent to the agent with one slash less."""
HANDLERS: Mapping[str, Handler] = {
    "stop": session.stop,
    "send": session.send,
    "activation": session.activation,
    "usage": session.usage,
    "resume": session.resume,
    "why": session.why,
    "queue": settings.queue,
    "subagents": session.subagents,
    "models": settings.models,
    "help": status.help_text,
    "commands": status.command_list,
    "whoami": status.whoami,
    "status": status.status,
    "plan": status.plan,
    "context": context_sizes,
    "compact": compact,
    "pin": pin,
    "unpin": unpin,
    "pins": pins,
    "approve": session.approve,
    "answer": session.answer,
    "budget": session.budget,
    "config": session.config,
    "restart": session.restart,
}
"""The function of each command. ``/new`` and ``/reset`` are missing because the text after them goes on."""


async def handle_commands(facts: Facts, text: str, context: CommandContext) -> Outcome:
    """Carry out what the message asks of the Gateway. Text without commands comes back unchanged.

    ``text`` is what the person typed and not the prompt made from it.
    """
    try:
        return await _handle(facts, text, context)
    except UnknownModel as unknown:
        # The configured default names no model. Nothing that needs a model can work, and the text says what to change.
        return Handled(reply=str(unknown))


async def _handle(facts: Facts, text: str, context: CommandContext) -> Outcome:
    if "write" in facts.rights and is_abort(text, facts.listening):
        return await session.stop(context, facts)
    if reset := find_reset(text, context.config.session.reset_triggers, facts.listening):
        named = reset[0][1:] if reset[0].startswith("/") else "new"
        return _refused(facts, [(named, "session")]) or await _start_over(*reset, facts, context)
    if not text.lstrip().startswith("/") and (answered := await session.answer_in_words(context, facts, text)):
        return Handled(reply=answered)
    if "/" not in text:
        return Continue(text=text)
    body = command_body(text, facts.listening)
    called = stand_alone(body)
    if called is None and (own := context.runtime.extensions.command(body)) is not None:
        refused = _refused(facts, [(own[0].name, own[0].right)])
        return refused or Handled(later=_of_extension(*own, facts, context))
    if called is not None:
        command = called.command
        refused = _refused(facts, [(command.name, command.right_for(called.args))])
        if refused and (not command.directive or edits_queue(called)):
            return refused
        if not refused and command.name in HANDLERS and _understands(facts, context):
            if command.slow:
                return Handled(later=_reply(command.name, facts, context, called.args))
            answer = await HANDLERS[command.name](context, facts, called.args)
            if answer is not None:
                return Handled(reply=answer) if isinstance(answer, str) else answer
    elif "read" in facts.rights and _understands(facts, context):
        unknown = unknown_command(body, usable_aliases(model_aliases(context.config)))
        if unknown is not None:
            word, nearest = unknown
            meant = f" Did you mean {' or '.join(f'/{name}' for name in nearest)}?" if nearest else ""
            return Handled(
                reply=f"Unknown command /{word}.{meant} /help lists them all. To send it to the agent as text, begin "
                f"with two slashes: //{word}"
            )
        if _LITERAL.match(text):
            return Continue(text=text.lstrip().removeprefix("/"))
    return await _with_directives(text, facts, context)


def _refused(facts: Facts, needed: Iterable[tuple[str, Right]]) -> Handled | None:
    """Return the answer to somebody who gives a command without its right; None: every right is there.

    A client learns the scope that it lacks, and a guest in a direct chat whose command it is. Strangers and groups
    hear nothing.
    """
    for name, right in needed:
        if right in facts.rights:
            continue
        if facts.client:
            return Handled(reply=f"❌ /{name} needs the scope {scope_for(right)}, which this client does not have.")
        details = f"❌ /{name} is for the owner, who is named in commands.ownerAllowFrom." if facts.rights else None
        return Handled(reply=None if facts.group else details)
    return None


def _understands(facts: Facts, context: CommandContext) -> bool:
    return understands_text(context.config.commands.text, facts.channel, native=facts.native)


def is_directive_only(directives: Directives, facts: Facts) -> bool:
    """Return whether the message holds settings and nothing else, no picture either."""
    return bool(directives.kinds) and not facts.has_media and not _words(directives, facts)


def _words(directives: Directives, facts: Facts) -> str:
    rest = directives.rest
    if facts.group:
        rest = strip_mentions(rest, facts.listening.mentions, facts.listening.channel)
    return rest.strip()


async def _start_over(trigger: str, rest: str, facts: Facts, context: CommandContext) -> Outcome:
    """The words after ``/new`` are the first message, settings included. Without any the agent says hello."""
    started = await begin_session(trigger, rest, facts, context)
    first: Outcome = Handled()
    if started.rest or facts.has_media:
        first = await _with_directives(started.rest, facts, context)
    if isinstance(first, Handled):
        replies = [first.reply] if first.reply else []
        first = Continue(text=started.greeting, side_replies=replies, greeting=True)
    return msgspec.structs.replace(first, side_replies=[started.announcement, *first.side_replies])


async def _of_extension(command: OwnCommand, args: str, facts: Facts, context: CommandContext) -> str | None:
    about = CommandCall(
        args=args,
        agent_id=facts.session.agent_id,
        session_key=facts.session.key,
        channel=facts.channel,
        sender_id=facts.sender_ids[0] if facts.sender_ids else "",
        rights=facts.rights,
    )
    return await context.runtime.extensions.run_command(command, about)


async def _reply(name: str, facts: Facts, context: CommandContext, args: str = "") -> str | None:
    answer = await HANDLERS[name](context, facts, args)
    return answer.reply if isinstance(answer, Handled) else answer if isinstance(answer, str) else None


async def _with_directives(text: str, facts: Facts, context: CommandContext) -> Outcome:
    """Obey the settings that the sender may give. The others are refused when they stand alone, and else are words."""
    aliases = usable_aliases(model_aliases(context.config))
    shortcuts = "read" in facts.rights and _understands(facts, context)
    directives = parse_directives(text, aliases, shortcuts=shortcuts)
    if is_directive_only(directives, facts) and (refused := _refused(facts, settings_rights(directives.kinds))):
        return refused
    kinds = [kind for kind, right in settings_rights(KINDS, inline=True) if right in facts.rights]
    if not {*directives.kinds} <= {*kinds}:
        directives = parse_directives(text, aliases, shortcuts=shortcuts, kinds=kinds)
    directives = honoured(directives, facts)
    only_settings = is_directive_only(directives, facts)
    replies = [await store_directives(directives, facts, context)] if only_settings else []
    replies += [reply for name in directives.shortcuts if (reply := await _reply(name, facts, context))]
    if only_settings:
        return Handled(reply="\n".join(replies))
    if directives.spans and not facts.has_media and not _words(directives, facts):
        return Handled(reply="\n\n".join(replies) or None)
    wishes, complaints = await settings_for_run(directives, facts, context)
    return Continue(
        text=directives.prompt(model_known=directives.model is None or wishes.model is not None),
        wishes=wishes,
        queue=directives.queue.wish if directives.queue and directives.queue.has_content else None,
        side_replies=[*replies, *complaints],
    )
