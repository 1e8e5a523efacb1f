"""The table of commands: their names, who may use them, and how help describes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from openclaw.config.schema import Config

Category: TypeAlias = Literal["Session", "Options", "Status", "Management"]
Access: TypeAlias = Literal["authorised", "owner"]
CATEGORIES: tuple[Category, ...] = ("Session", "Options", "Status", "Management")


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One command as the table describes it."""

    name: str
    help: str
    """One line that says what the command does."""
    category: Category
    aliases: tuple[str, ...] = ()
    usage: str = ""
    """The arguments as help shows them. Empty: it takes none, and a message with more words is no command."""
    access: Access = "authorised"
    group_only: bool = False
    slow: bool = False
    """It may take as long as a model call or a run. The next message does not wait for its answer."""
    shortcut: bool = False
    """It also works inside other text. There it is answered at once and taken out."""
    directive: bool = False
    """It is a setting that may stand anywhere in a message. ``directives.py`` reads it."""
    switch: Literal["config", "restart"] | None = None
    """The setting under ``commands`` that must be true for it to work; None: it always works."""

    def enabled(self, config: Config) -> bool:
        match self.switch:
            case "config":
                return config.commands.config
            case "restart":
                return config.commands.restart
            case None:
                return True


def _setting(name: str, usage: str, help: str, *aliases: str) -> Command:
    return Command(name=name, usage=usage, help=help, aliases=aliases, category="Options", directive=True)


COMMANDS: tuple[Command, ...] = (
    Command(name="new", usage="[model] [text]", category="Session", help="Start over; the old session is kept."),
    Command(name="reset", usage="[model] [text]", category="Session", help="The same as /new."),
    Command(name="resume", usage="[list|number|id]", category="Session", help="Go back to the session before."),
    Command(name="stop", category="Session", help="Stop what is running and forget what is waiting."),
    _setting("think", "<level>", "How hard the model thinks before it answers.", "thinking", "t"),
    _setting("verbose", "on|full|off", "Show what the tools are doing.", "v"),
    _setting("reasoning", "on|off|stream", "Show or hide the model's reasoning.", "reason"),
    _setting("elevated", "on|off|ask|full", "Let commands run outside the sandbox.", "elev"),
    _setting("exec", "host=… security=… ask=… node=…", "Where and how carefully commands run."),
    _setting("model", "[name|list|status]", "Show the model or choose another."),
    _setting("queue", "[mode|list|drop N|now N]", "What waits, and what happens to messages sent during a run."),
    Command(name="usage", usage="off|tokens|full|cost", category="Options", help="Token counts under replies; costs."),
    Command(name="help", category="Status", shortcut=True, help="A short introduction."),
    Command(name="commands", category="Status", shortcut=True, help="This list."),
    Command(name="status", category="Status", shortcut=True, help="Model, context, session and settings on one card."),
    Command(name="whoami", aliases=("id",), category="Status", shortcut=True, help="How the Gateway knows you."),
    Command(name="models", usage="[provider] [page|all]", category="Status", help="The models you can choose from."),
    Command(name="why", usage="[message]", category="Status", help="What became of a message, step by step."),
    Command(name="send", usage="on|off|inherit", category="Management", access="owner", help="Allow or stop replies."),
    Command(
        name="activation",
        usage="mention|always",
        category="Management",
        access="owner",
        group_only=True,
        help="Answer in this group only when mentioned, or always.",
    ),
    Command(
        name="approve",
        usage="<id> allow-once|allow-always|deny",
        category="Management",
        access="owner",
        help="Answer when the agent asks whether it may run a command.",
    ),
    Command(
        name="config",
        usage="show|get|set|unset",
        category="Management",
        access="owner",
        switch="config",
        help="Look at or change the configuration.",
    ),
    Command(name="restart", category="Management", access="owner", switch="restart", help="Restart the Gateway."),
    Command(
        name="budget",
        usage="[override|enforce]",
        category="Management",
        access="owner",
        help="What may still be spent; override lets this session go on for today.",
    ),
    Command(
        name="compact",
        usage="[preview|undo|what to keep in mind]",
        category="Session",
        slow=True,
        help="Condense the older part of the conversation; nothing is deleted.",
    ),
    Command(
        name="pin",
        usage="<text>",
        category="Session",
        slow=True,
        help="Keep a text word for word, whatever is condensed.",
    ),
    Command(name="unpin", usage="<number>", category="Session", slow=True, help="Take a pinned text off again."),
    Command(name="pins", category="Session", help="The pinned texts."),
    Command(
        name="context",
        usage="[list|detail|json]",
        category="Status",
        help="What the model is sent besides your words, with sizes.",
    ),
)  # fmt: skip

_BY_WORD: Mapping[str, Command] = {word: command for command in COMMANDS for word in (command.name, *command.aliases)}


def find(word: str) -> Command | None:
    """The command with this name or alias, without the slash and in any case."""
    return _BY_WORD.get(word.lower())


def listed(config: Config, *, group: bool = True) -> list[Command]:
    """The commands that help shows: those that would work here."""
    return [command for command in COMMANDS if command.enabled(config) and (group or not command.group_only)]


def usable_aliases(aliases: Iterable[str]) -> tuple[str, ...]:
    """The model aliases that may be written as ``/alias``: those that are no name of a command."""
    return tuple(alias for alias in aliases if alias.lower() not in _BY_WORD)
