"""The table of commands: their names, who may use them, and how help describes them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from openclaw.config.schema import Config
from openclaw.rights import Right

Category: TypeAlias = Literal["Session", "Options", "Status", "Management"]
CATEGORIES: tuple[Category, ...] = get_args(Category)


class Command(msgspec.Struct, frozen=True):
    """One command as the table describes it."""

    name: str
    right: Right
    """The right of the method that does the same."""
    category: Category
    help: str
    """One line that says what the command does."""
    usage: str = ""
    """The arguments as help shows them. Empty if it takes none; then a message with more words is not this command."""
    aliases: tuple[str, ...] = ()
    words: Mapping[str, Right] = {}
    """The rights of its other uses, by the first word after the command."""
    inline: Right | None = None
    """The right of a setting that stands inside other text and counts for that message only. None: ``right``."""
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
        return self.switch is None or getattr(config.commands, self.switch)


def _setting(name: str, right: Right, usage: str, help: str, **more: Any) -> Command:
    return Command(name, right, "Options", help, usage=usage, directive=True, **more)


COMMANDS: tuple[Command, ...] = (
    Command("new", "session", "Session", "Start over; the old session is kept.", usage="[model] [text]"),
    Command("reset", "session", "Session", "The same as /new.", usage="[model] [text]"),
    Command("resume", "session", "Session", "Go back to the session before.", usage="[list|number|id]",
            words={"list": "read"}),
    Command("stop", "write", "Session", "Stop what is running and forget what is waiting."),
    # For one message, chat.send takes the level as a parameter.
    _setting("think", "session", "<level>", "How hard the model thinks before it answers.", aliases=("thinking", "t"),
             inline="write"),
    _setting("verbose", "session", "on|full|off", "Show what the tools are doing.", aliases=("v",)),
    _setting("reasoning", "session", "on|off|stream", "Show or hide the model's reasoning.", aliases=("reason",)),
    _setting("elevated", "admin", "on|off|ask|full", "Let commands run outside the sandbox.", aliases=("elev",)),
    _setting("exec", "admin", "host=… security=… ask=… node=…", "Where and how carefully commands run."),
    _setting("model", "session", "[name|list|status]", "Show the model or choose another."),
    _setting("queue", "session", "[mode|list|drop N|now N]",
             "What waits, and what happens to messages sent during a run.",
             words={"list": "read", "drop": "write", "now": "write"}),
    Command("usage", "session", "Options", "Token counts under replies; costs.", usage="off|tokens|full|cost",
            words={"cost": "read"}),
    Command("help", "read", "Status", "A short introduction.", shortcut=True),
    Command("commands", "read", "Status", "This list.", shortcut=True),
    Command("status", "read", "Status", "Model, context, session and settings on one card.", shortcut=True),
    Command("plan", "read", "Status", "The agent's plan and the state of its steps.", usage="[clear]",
            words={"clear": "session"}),
    Command("whoami", "read", "Status", "How the Gateway knows you.", aliases=("id",), shortcut=True),
    Command("models", "read", "Status", "The models you can choose from.", usage="[provider] [page|all]"),
    Command("subagents", "read", "Session", "The sub-agents of this chat.", usage="[list|log|info|send|stop] [which]",
            words={"send": "write", "stop": "write"}, slow=True),
    Command("why", "read", "Status", "What became of a message, step by step.", usage="[message]"),
    Command("send", "admin", "Management", "Allow or stop replies.", usage="on|off|inherit"),
    Command("activation", "admin", "Management", "Answer in this group only when mentioned, or always.",
            usage="mention|always", group_only=True),
    Command("approve", "approvals", "Management", "Answer when the agent asks whether it may run a command.",
            usage="[id] allow-once|allow-always|deny"),
    Command("answer", "write", "Management", "Answer a question of the agent.", usage="[id] <number or text>"),
    Command("config", "admin", "Management", "Look at or change the configuration.", usage="show|get|set|unset",
            switch="config"),
    Command("restart", "admin", "Management", "Restart the Gateway.", switch="restart"),
    Command("budget", "admin", "Management",
            "What may still be spent; override lets this session go on for today.", usage="[override|enforce]"),
    Command("compact", "session", "Session", "Condense the older part of the conversation; nothing is deleted.",
            usage="[preview|undo|what to keep in mind]", slow=True),
    Command("pin", "session", "Session", "Keep a text word for word, whatever is condensed.", usage="<text>",
            slow=True),
    Command("unpin", "session", "Session", "Take a pinned text off again.", usage="<number>", slow=True),
    Command("pins", "read", "Session", "The pinned texts."),
    Command("context", "read", "Status", "What the model is sent besides your words, with sizes.",
            usage="[list|detail|json]"),
)  # fmt: skip

_BY_WORD: Mapping[str, Command] = {word: command for command in COMMANDS for word in (command.name, *command.aliases)}
WORDS = tuple(_BY_WORD)
"""Every name and alias."""


def find(word: str) -> Command | None:
    """Return the command with this name or alias, without the slash and in any case."""
    return _BY_WORD.get(word.lower())


_UNKNOWN = re.compile(r"/([A-Za-z]{1,32})(?:@\w+)?(?=\s|$)", re.ASCII)
MOST_GUESSES = 3


def unknown_command(text: str, aliases: Collection[str] = ()) -> tuple[str, list[str]] | None:
    """Return the unknown command that a message begins with, and the nearest names. Paths are not commands."""
    match = _UNKNOWN.match(text.strip())
    if match is None or (word := match[1].lower()) in _BY_WORD or word in (alias.lower() for alias in aliases):
        return None
    import difflib

    nearest = difflib.get_close_matches(word, _BY_WORD, n=MOST_GUESSES, cutoff=0.6)
    return match[1], list(dict.fromkeys(_BY_WORD[name].name for name in nearest))


def settings_rights(kinds: Iterable[str], *, inline: bool = False) -> list[tuple[str, Right]]:
    """Return the right that each setting needs, alone or inside other text."""
    matches = [_BY_WORD[kind] for kind in kinds]
    return [(command.name, (command.inline if inline else None) or command.right) for command in matches]


def listed(config: Config, *, group: bool = True) -> list[Command]:
    """Return the commands that help shows: those that would work here."""
    return [command for command in COMMANDS if command.enabled(config) and (group or not command.group_only)]


def usable_aliases(aliases: Iterable[str]) -> tuple[str, ...]:
    """Return the model aliases that may be written as ``/alias``: those that are no name of a command."""
    return tuple(alias for alias in aliases if alias.lower() not in _BY_WORD)
