"""The table of commands: their names, who may use them, and how help describes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from openclaw.config.schema import Config
from openclaw.rights import Right

Category: TypeAlias = Literal["Session", "Options", "Status", "Management"]
CATEGORIES: tuple[Category, ...] = ("Session", "Options", "Status", "Management")


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One command as the table describes it."""

    name: str
    right: Right
    """The right of the method that does the same."""
    words: Mapping[str, Right] = {}
    """The rights of its other uses, by the first word after the command."""
    inline: Right | None = None
    """The right of a setting that stands inside other text and counts for that message only. None: ``right``."""
    help: str
    """One line that says what the command does."""
    category: Category
    aliases: tuple[str, ...] = ()
    usage: str = ""
    """The arguments as help shows them. Empty: it takes none, and a message with more words is no command."""
    group_only: bool = False
    slow: bool = False
    """It may take as long as a model call or a run. The next message does not wait for its answer."""
    shortcut: bool = False
    """It also works inside other text. There it is answered at once and taken out."""
    directive: bool = False
    """It is a setting that may stand anywhere in a message. ``directives.py`` reads it."""
    switch: Literal["config", "restart"] | None = None
    """The setting under ``commands`` that must be true for it to work; None: it always works."""

    def right_for(self, args: str) -> Right:
        first = args.split(None, 1)[:1]
        return self.words.get(first[0].lower(), self.right) if first else self.right

    def enabled(self, config: Config) -> bool:
        match self.switch:
            case "config":
                return config.commands.config
            case "restart":
                return config.commands.restart
            case None:
                return True


def _setting(
    name: str, right: Right, usage: str, help: str, *aliases: str, inline: Right | None = None, **words: Right
) -> Command:
    return Command(
        name=name,
        right=right,
        inline=inline,
        words=words,
        usage=usage,
        help=help,
        aliases=aliases,
        category="Options",
        directive=True,
    )


COMMANDS: tuple[Command, ...] = (
    Command(
        name="new",
        right="session",
        usage="[model] [text]",
        category="Session",
        help="Start over; the old session is kept.",
    ),
    Command(name="reset", right="session", usage="[model] [text]", category="Session", help="The same as /new."),
    Command(
        name="resume",
        right="session",
        words={"list": "read"},
        usage="[list|number|id]",
        category="Session",
        help="Go back to the session before.",
    ),
    Command(name="stop", right="write", category="Session", help="Stop what is running and forget what is waiting."),
    # For one message, chat.send takes the level as a parameter.
    _setting(
        "think", "session", "<level>", "How hard the model thinks before it answers.", "thinking", "t", inline="write"
    ),
    _setting("verbose", "session", "on|full|off", "Show what the tools are doing.", "v"),
    _setting("reasoning", "session", "on|off|stream", "Show or hide the model's reasoning.", "reason"),
    _setting("elevated", "admin", "on|off|ask|full", "Let commands run outside the sandbox.", "elev"),
    _setting("exec", "admin", "host=… security=… ask=… node=…", "Where and how carefully commands run."),
    _setting("model", "session", "[name|list|status]", "Show the model or choose another."),
    _setting(
        "queue",
        "session",
        "[mode|list|drop N|now N]",
        "What waits, and what happens to messages sent during a run.",
        list="read",
        drop="write",
        now="write",
    ),
    Command(
        name="usage",
        right="session",
        words={"cost": "read"},
        usage="off|tokens|full|cost",
        category="Options",
        help="Token counts under replies; costs.",
    ),
    Command(name="help", right="read", category="Status", shortcut=True, help="A short introduction."),
    Command(name="commands", right="read", category="Status", shortcut=True, help="This list."),
    Command(
        name="status",
        right="read",
        category="Status",
        shortcut=True,
        help="Model, context, session and settings on one card.",
    ),
    Command(
        name="whoami",
        right="read",
        aliases=("id",),
        category="Status",
        shortcut=True,
        help="How the Gateway knows you.",
    ),
    Command(
        name="models",
        right="read",
        usage="[provider] [page|all]",
        category="Status",
        help="The models you can choose from.",
    ),
    Command(
        name="subagents",
        right="read",
        words={"send": "write", "stop": "write"},
        usage="[list|log|info|send|stop] [which]",
        category="Session",
        slow=True,
        help="The sub-agents of this chat.",
    ),
    Command(
        name="why",
        right="read",
        usage="[message]",
        category="Status",
        help="What became of a message, step by step.",
    ),
    Command(
        name="send", right="admin", usage="on|off|inherit", category="Management", help="Allow or stop replies."
    ),
    Command(
        name="activation",
        right="admin",
        usage="mention|always",
        category="Management",
        group_only=True,
        help="Answer in this group only when mentioned, or always.",
    ),
    Command(
        name="approve",
        right="approvals",
        usage="<id> allow-once|allow-always|deny",
        category="Management",
        help="Answer when the agent asks whether it may run a command.",
    ),
    Command(
        name="config",
        right="admin",
        usage="show|get|set|unset",
        category="Management",
        switch="config",
        help="Look at or change the configuration.",
    ),
    Command(name="restart", right="admin", category="Management", switch="restart", help="Restart the Gateway."),
    Command(
        name="budget",
        right="admin",
        usage="[override|enforce]",
        category="Management",
        help="What may still be spent; override lets this session go on for today.",
    ),
    Command(
        name="compact",
        right="session",
        usage="[preview|undo|what to keep in mind]",
        category="Session",
        slow=True,
        help="Condense the older part of the conversation; nothing is deleted.",
    ),
    Command(
        name="pin",
        right="session",
        usage="<text>",
        category="Session",
        slow=True,
        help="Keep a text word for word, whatever is condensed.",
    ),
    Command(
        name="unpin",
        right="session",
        usage="<number>",
        category="Session",
        slow=True,
        help="Take a pinned text off again.",
    ),
    Command(name="pins", right="read", category="Session", help="The pinned texts."),
    Command(
        name="context",
        right="read",
        usage="[list|detail|json]",
        category="Status",
        help="What the model is sent besides your words, with sizes.",
    ),
)  # fmt: skip

_BY_WORD: Mapping[str, Command] = {word: command for command in COMMANDS for word in (command.name, *command.aliases)}
WORDS = tuple(_BY_WORD)
"""Every name and alias."""


def find(word: str) -> Command | None:
    """The command with this name or alias, without the slash and in any case."""
    return _BY_WORD.get(word.lower())


def near_miss(text: str, aliases: Collection[str] = ()) -> str | None:
    """The command that somebody probably meant who sent one mistyped word, such as ``/stauts``."""
    word = text.strip().removeprefix("/").lower()
    if not text.strip().startswith("/") or not word.isalpha() or len(word) > 20 or word in _BY_WORD or word in aliases:
        return None
    import difflib

    found = difflib.get_close_matches(word, _BY_WORD, n=1, cutoff=0.8)
    return _BY_WORD[found[0]].name if found else None


def settings_rights(kinds: Iterable[str], *, inline: bool = False) -> list[tuple[str, Right]]:
    """The right that each setting needs, alone or inside other text."""
    found = [_BY_WORD[kind] for kind in kinds]
    return [(command.name, (command.inline if inline else None) or command.right) for command in found]


def listed(config: Config, *, group: bool = True) -> list[Command]:
    """The commands that help shows: those that would work here."""
    return [command for command in COMMANDS if command.enabled(config) and (group or not command.group_only)]


def usable_aliases(aliases: Iterable[str]) -> tuple[str, ...]:
    """The model aliases that may be written as ``/alias``: those that are no name of a command."""
    return tuple(alias for alias in aliases if alias.lower() not in _BY_WORD)
