"""Finds commands in what a person typed. Nothing here changes what the model sees."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from openclaw.inbound.commands.registry import Command, find
from openclaw.patterns import BoundedPattern
from openclaw.sessions.prompt_prefix import CURRENT_MARKER

ABORT_WORDS: frozenset[str] = frozenset({"stop", "esc", "abort", "wait", "exit", "interrupt"})
NATIVE_SURFACES: frozenset[str] = frozenset({"telegram", "discord", "slack"})
"""Channels with command menus of their own. Elsewhere text is the only way to give a command."""

SEARCHED = 2000
"""Mentions are removed from this many characters. A command stands at the beginning."""

_ABORT_WORD = re.compile("|".join(sorted(ABORT_WORDS)), re.IGNORECASE)
_SENDER_PREFIX = re.compile(r"^[A-Za-z0-9+()\-_. \t]+:[ \t]*", re.MULTILINE)
_LEADING = re.compile(r"\s*(?:\[[^\]\n]*\]\s*)*")
_LEADING_IN_GROUP = re.compile(r"[\s:,]*(?:(?:\[[^\]\n]*\]|<@[^>\s]+>|@[\w.+-]+)[\s:,]*)*")
_COMMAND = re.compile(r"/(\S+)(?:\s+(.*))?", re.DOTALL)
_COLON = re.compile(r"/([^\s:]+)\s*:\s*(.*)", re.DOTALL)
_ADDRESSED = re.compile(r"/([^\s@]+)@(\S+)(.*)", re.DOTALL)
_BLANKS = re.compile(r"[^\S\n]+")
_NUMBER_MENTION = re.compile(r"@[\d+]{5,}")
_CHANNEL_MENTIONS = {"discord": re.compile(r"<@!?\d+>"), "slack": re.compile(r"<@[^<>\s]+>")}


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader of commands must know about a conversation."""

    group: bool = False
    """True for anything but a direct chat. Mentions are removed before the text is read."""
    channel: str = ""
    mentions: tuple[BoundedPattern, ...] = ()
    bot_username: str | None = None


DIRECT_CHAT = Listening()


class Called(msgspec.Struct, frozen=True):
    """A command and the words after it, in the case they were written."""

    command: Command
    args: str


# Normal forms


def structural_strip(text: str) -> str:
    """Returns the bare words of a message, without wrappers, stamps, sender prefixes and line breaks."""
    _, _, current = text.rpartition(CURRENT_MARKER)
    bare = _SENDER_PREFIX.sub("", _without_brackets(current))
    return " ".join(bare.replace("\\n", " ").split())


def _without_brackets(text: str) -> str:
    """Removes ``[...]`` with the blanks behind it. The time is linear in the length of any text."""
    parts: list[str] = []
    at = 0
    while (opened := text.find("[", at)) >= 0 and (closed := text.find("]", opened)) >= 0:
        if closed == opened + 1:
            parts.append(text[at : closed + 1])
            at = closed + 1
            continue
        parts.append(text[at:opened])
        at = closed + 1
        while at < len(text) and text[at].isspace():
            at += 1
    parts.append(text[at:])
    return "".join(parts)


def strip_mentions(text: str, patterns: Sequence[BoundedPattern] = (), channel: str = "") -> str:
    """Removes the words that only address the agent. Line breaks stay."""
    head, rest = text[:SEARCHED], text[SEARCHED:]
    for pattern in patterns:
        head = pattern.sub(" ", head)
    text = head + rest
    if native := _CHANNEL_MENTIONS.get(channel.lower()):
        text = native.sub(" ", text)
    text = _NUMBER_MENTION.sub(" ", text)
    return _BLANKS.sub(" ", text).strip()


def normalize_command_body(text: str, bot_username: str | None = None) -> str:
    """``/Id`` → ``/whoami``, ``/send: on`` → ``/send on``, ``/help@us`` → ``/help``; other text is left as it is."""
    trimmed = text.strip()
    if not trimmed.startswith("/"):
        return trimmed
    line = trimmed.partition("\n")[0].strip()
    called = _called(line, bot_username)
    if called is None:
        return line
    return f"/{called.command.name} {called.args}".rstrip()


def _called(line: str, bot_username: str | None) -> Called | None:
    """Reads one line as a command. Returns None when it is none, or has words where the command takes none."""
    if colon := _COLON.fullmatch(line):
        line = f"/{colon[1]} {colon[2]}"
    if addressed := _ADDRESSED.fullmatch(line):
        if not _is_us(addressed[2], bot_username):
            return None
        line = f"/{addressed[1]}{addressed[3]}"
    words = _COMMAND.fullmatch(line)
    command = find(words[1]) if words else None
    args = (words[2] or "").strip() if words else ""
    if command is None or (args and not command.usage):
        return None
    return Called(command, args)


# Questions


def is_control_message(text: str, listening: Listening = DIRECT_CHAT) -> bool:
    """Whether the message begins as a command, or is a word that stops the run. Such messages never wait."""
    if is_abort(text, listening):
        return True
    line = command_body(text, listening).partition("\n")[0] if "/" in text else ""
    return _called(line.strip(), listening.bot_username) is not None


def is_abort(text: str, listening: Listening = DIRECT_CHAT) -> bool:
    """Whether the message is ``/stop`` or one single word such as "stop"."""
    if len(text) > 500 and CURRENT_MARKER not in text:
        return False
    if "[" not in text and not _ABORT_WORD.search(text):
        return False  # This settles nearly every message. Only brackets could hide the word from the pattern.
    bare = structural_strip(text)
    if listening.group:
        bare = strip_mentions(bare, listening.mentions, listening.channel)
    if bare.lower() in ABORT_WORDS:
        return True
    return bare.startswith("/") and normalize_command_body(bare, listening.bot_username).lower() == "/stop"


def may_be_command(text: str) -> bool:
    """Whether the text may hold a command. The check is quick, and its yes may be wrong."""
    return "/" in text or is_abort(text)


def command_body(text: str, listening: Listening = DIRECT_CHAT) -> str:
    """Removes what may stand before a command: stamps in brackets and mentions.

    Unlike :func:`structural_strip` it keeps the arguments as they are, brackets and line breaks included.
    """
    _, _, body = text.rpartition(CURRENT_MARKER)
    if listening.group:
        body = strip_mentions(body, listening.mentions, listening.channel)
    leading = (_LEADING_IN_GROUP if listening.group else _LEADING).match(body)
    body = body[leading.end() if leading else 0 :].strip()
    if (
        body.startswith("/")
        and (addressed := _ADDRESSED.fullmatch(body))
        and _is_us(addressed[2], listening.bot_username)
    ):
        return f"/{addressed[1]}{addressed[3]}"
    return body


def _is_us(name: str, bot_username: str | None) -> bool:
    return bot_username is not None and name.lower() == bot_username.lstrip("@").lower()


def stand_alone(body: str, bot_username: str | None = None) -> Called | None:
    """Returns the command that the whole message consists of. A message of several lines is no command."""
    return None if "\n" in body else _called(body, bot_username)


def understands_text(text_commands: bool, channel: str, *, native: bool) -> bool:
    """Whether commands in text are read. Switching them off counts only on channels that have menus."""
    return native or text_commands or channel.lower() not in NATIVE_SURFACES
