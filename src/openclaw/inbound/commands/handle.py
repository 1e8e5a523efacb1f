"""The one entry: is this message a command, does it carry settings, and what goes on to the agent?"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from openclaw.config.agents import model_aliases
from openclaw.inbound.command_text import (
    Called,
    command_body,
    is_abort,
    stand_alone,
    strip_mentions,
    structural_strip,
    understands_text,
)
from openclaw.inbound.commands import context_command, management, models, queue, session, status
from openclaw.inbound.commands.context import (
    CommandContext,
    CommandServices,
    Continue,
    Facts,
    Handled,
    Handler,
    Outcome,
)
from openclaw.inbound.commands.queue import edits_queue
from openclaw.inbound.commands.registry import Command, find, usable_aliases
from openclaw.inbound.commands.session import find_reset, start_over
from openclaw.inbound.commands.settings import elevated_allowed, hints_of, honoured, store_directives
from openclaw.inbound.directives import Directives, parse_directives
from openclaw.models.catalogue import UnknownModel

HANDLERS: Mapping[str, Handler] = {
    "stop": session.stop,
    "send": session.send,
    "activation": session.activation,
    "usage": session.usage,
    "resume": session.resume,
    "why": session.why,
    "queue": queue.queue,
    "models": models.models,
    "help": status.help_text,
    "commands": status.command_list,
    "whoami": status.whoami,
    "status": status.status,
    "context": context_command.context,
    "compact": context_command.compact,
    "pin": context_command.pin,
    "unpin": context_command.unpin,
    "pins": context_command.pins,
    "approve": management.approve,
    "budget": management.budget,
    "config": management.config,
    "restart": management.restart,
}
"""What carries out each command. ``/new`` and ``/reset`` are not here: the text after them goes on."""


async def handle_commands(facts: Facts, text: str, services: CommandServices) -> Outcome:
    """``text`` is what the person typed (never the wrapped body). Text without commands comes back unchanged."""
    try:
        outcome = await _handle(facts, text, services)
        if isinstance(outcome, Continue) and elevated_allowed(services.config, facts):
            hints = msgspec.structs.replace(outcome.hints, elevated_allowed=True)
            return msgspec.structs.replace(outcome, hints=hints)
        return outcome
    except UnknownModel as unknown:
        # The configured default names no model: nothing that needs one can work, and the text says what to change.
        return Handled(reply=str(unknown))


async def _handle(facts: Facts, text: str, services: CommandServices) -> Outcome:
    if facts.authorised and is_abort(text, facts.listening) and (stopped := await _answer("stop", facts, services)):
        return stopped
    reset = find_reset(text, services.config.session.reset_triggers, facts.listening)
    if not reset and "/" not in text:
        return Continue(text=text)
    if not facts.authorised:
        return _from_a_stranger(facts, text, is_reset=reset is not None)
    if reset:
        return await _start_over(*reset, facts, services)
    if _understands(facts, services) and (
        called := stand_alone(command_body(text, facts.listening), facts.listening.bot_username)
    ):
        outcome = await _stand_alone(called, facts, services)
        if outcome is not None:
            return outcome
    return await _with_directives(_directives(text, facts, services), facts, services)


def _understands(facts: Facts, services: CommandServices) -> bool:
    return understands_text(services.config.commands.text, facts.channel, native=facts.native)


def _directives(text: str, facts: Facts, services: CommandServices) -> Directives:
    aliases = usable_aliases(model_aliases(services.config))
    return honoured(parse_directives(text, aliases, shortcuts=_understands(facts, services)), facts)


def may_use(command: Command, facts: Facts) -> bool:
    """The one rule of who may give a command."""
    return facts.authorised and (command.access != "owner" or facts.owner)


def is_directive_only(directives: Directives, facts: Facts) -> bool:
    """Settings and nothing else. A picture is something else."""
    return directives.any_setting and not facts.has_media and not _words(directives, facts)


def _words(directives: Directives, facts: Facts) -> str:
    rest = directives.rest
    if facts.group:
        rest = strip_mentions(rest, facts.listening.mentions, facts.listening.channel)
    return structural_strip(rest)


def _from_a_stranger(facts: Facts, text: str, *, is_reset: bool) -> Outcome:
    """A message that is only a command is met with silence; inside other text the words are just words."""
    called = stand_alone(command_body(text, facts.listening), facts.listening.bot_username)
    if is_reset or (called and (not called.command.directive or edits_queue(called))):
        return Handled()
    return Handled() if is_directive_only(parse_directives(text), facts) else Continue(text=text)


async def _start_over(trigger: str, rest: str, facts: Facts, services: CommandServices) -> Outcome:
    """The words after ``/new`` are the first message, settings included; without any the agent says hello."""
    started = await start_over(trigger, rest, facts, services)
    first: Outcome = Handled()
    if started.rest or facts.has_media:
        first = await _with_directives(_directives(started.rest, facts, services), facts, services)
    if isinstance(first, Handled):
        replies = [first.reply] if first.reply else []
        first = Continue(text=started.greeting, side_replies=replies, greeting=True)
    return msgspec.structs.replace(first, new_session=True, side_replies=[started.announcement, *first.side_replies])


async def _stand_alone(called: Called, facts: Facts, services: CommandServices) -> Outcome | None:
    if called.command.name not in HANDLERS:
        return None
    if not may_use(called.command, facts):
        return Handled()
    if called.command.slow:
        return Handled(later=_reply(called.command.name, facts, services, called.args))
    return await _answer(called.command.name, facts, services, called.args)


async def _reply(name: str, facts: Facts, services: CommandServices, args: str) -> str | None:
    outcome = await _answer(name, facts, services, args)
    return outcome.reply if isinstance(outcome, Handled) else None


async def _answer(name: str, facts: Facts, services: CommandServices, args: str = "") -> Outcome | None:
    command = find(name)
    assert command is not None
    entry = await services.entry(facts.session)
    context = CommandContext(command=command, args=args, facts=facts, entry=entry, services=services)
    answer = await HANDLERS[name](context)
    return Handled(reply=answer) if isinstance(answer, str) else answer


async def _with_directives(directives: Directives, facts: Facts, services: CommandServices) -> Outcome:
    if is_directive_only(directives, facts):
        replies = [await store_directives(directives, facts, services)]
        return Handled(reply="\n".join([*replies, *await _shortcuts(directives, facts, services)]))
    replies = await _shortcuts(directives, facts, services)
    if directives.spans and not facts.has_media and not _words(directives, facts):
        return Handled(reply="\n\n".join(replies) or None)
    hints, complaints, model_known = await hints_of(directives, facts, services)
    return Continue(text=directives.prompt(model_known=model_known), hints=hints, side_replies=[*replies, *complaints])


async def _shortcuts(directives: Directives, facts: Facts, services: CommandServices) -> list[str]:
    replies: list[str] = []
    for name in directives.shortcuts:
        outcome = await _answer(name, facts, services)
        if isinstance(outcome, Handled) and outcome.reply:
            replies.append(outcome.reply)
    return replies
