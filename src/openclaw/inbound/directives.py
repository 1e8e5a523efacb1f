"""Parse what a person typed: commands, and directives like ``/think high``, which are removed from the text.

Only the person's own text is parsed, never a prompt made from it. A directive begins the text or follows a blank. Its
value is the whole next word on the line, without the punctuation of a sentence. An unknown value is reported and stays
in the text, and so do line breaks. Code and quoted lines are not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from openclaw.clock import duration_ms
from openclaw.code_spans import code_ranges
from openclaw.inbound.commands.registry import COMMANDS, Command, find
from openclaw.models.thinking import LEVELS, parse_level
from openclaw.patterns import BoundedPattern
from openclaw.runs.queue_settings import QueueOverrides, parse_drop, parse_mode

LevelKind: TypeAlias = Literal["think", "verbose", "reasoning", "elevated"]
ExecField: TypeAlias = Literal["host", "security", "ask", "node"]
EXEC_VALUES: dict[ExecField, tuple[str, ...]] = {
    "host": ("sandbox", "gateway", "node"),
    "security": ("deny", "allowlist", "full"),
    "ask": ("off", "on-miss", "always"),
    "node": (),
}
"""The values that each option of ``/exec`` takes. A node may have any name."""
_SLASH = r"/(?<!\S/)"
"""A slash at the start or after a blank. The literal comes first, so that long texts are searched fast."""
_BLANK = r"[^\S\n]*"
_END = r"(?=\s|:|\Z)"
_LEVEL_NAMES: dict[LevelKind, str] = {
    "think": "thinking|think|t",
    "verbose": "verbose|v",
    "reasoning": "reasoning|reason",
    "elevated": "elevated|elev",
}
_WHOLE_WORD = r"((?!/)[^\s\0]+(?!\S))"
"""A word that is not another directive or a path, and has no code in it."""
_VALUE = rf"{_BLANK}(?::{_BLANK})?{_WHOLE_WORD}?"
_LEVELS: dict[LevelKind, re.Pattern[str]] = {
    kind: re.compile(rf"{_SLASH}(?:{names}){_END}{_VALUE}", re.IGNORECASE) for kind, names in _LEVEL_NAMES.items()
}
_MODEL = re.compile(rf"{_SLASH}model{_END}{_VALUE}", re.IGNORECASE)
_EXEC = re.compile(rf"{_SLASH}exec{_END}(?:{_BLANK}:)?", re.IGNORECASE)
_EXEC_OPTION = re.compile(r"(host|security|ask|node)[=:](\S+)", re.IGNORECASE)
_QUEUE = re.compile(rf"{_SLASH}queue{_END}(?:{_BLANK}:)?", re.IGNORECASE)
_QUEUE_OPTION = re.compile(r"(debounce|cap|drop)[=:](\S+)", re.IGNORECASE)
_WORD = re.compile(_BLANK + _WHOLE_WORD)
_PUNCTUATION = ".,;:!?…。，；：！？"
"""The signs that may end a sentence after a value: ``/think high.``"""
_HIDDEN = "\0"
KINDS = tuple(command.name for command in COMMANDS if command.directive)
_SHORTCUTS = tuple(word for command in COMMANDS if command.shortcut for word in (command.name, *command.aliases))
MAX_DIRECTIVES = 50
"""The most directives read in one message. Further ones stay text."""


class Level(msgspec.Struct, frozen=True):
    value: str | None
    """None if the word is missing or unknown."""
    word: str = ""


class ExecDirective(msgspec.Struct, frozen=True):
    options: dict[ExecField, str] = {}
    invalid: dict[ExecField, str] = {}
    unknown: str = ""
    """The word in place of an option, if the directive has no option."""


class ModelDirective(msgspec.Struct, frozen=True):
    name: str
    """A model, an alias, ``list``, ``status`` or empty."""
    profile: str | None = None


class QueueDirective(msgspec.Struct, frozen=True):
    wish: QueueOverrides = QueueOverrides()
    reset: bool = False
    invalid: dict[str, str] = {}
    """The values that options do not take, by option. ``mode`` is the word in place of an option."""

    @property
    def has_content(self) -> bool:
        return self.reset or bool(self.invalid) or self.wish != QueueOverrides()


class DirectiveSpan(msgspec.Struct, frozen=True):
    start: int
    end: int
    word: str = ""
    """The end of the span, if it is not a known value. It is text."""
    is_model: bool = False


class Directives(msgspec.Struct, frozen=True, kw_only=True):
    think: Level | None = None
    verbose: Level | None = None
    reasoning: Level | None = None
    elevated: Level | None = None
    exec: ExecDirective | None = None
    model: ModelDirective | None = None
    queue: QueueDirective | None = None
    shortcuts: tuple[str, ...] = ()
    """The names of the commands found that may stand inside text, such as ``status`` and ``help``."""
    text: str = ""
    """The message as it came."""
    spans: tuple[DirectiveSpan, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the settings found."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def levels(self) -> list[tuple[LevelKind, Level]]:
        return [(kind, level) for kind in _LEVELS if (level := getattr(self, kind)) is not None]

    @property
    def rest(self) -> str:
        """The text without the directives and their words, known or not. Empty if there is nothing else."""
        return _cut(self.text, self.spans, lambda _: "")

    def prompt(self, *, model_known: bool = True) -> str:
        """Return the text for the model: without directives, with every word that is not a known value."""
        return _cut(self.text, self.spans, lambda span: span.word if not span.is_model or not model_known else "")


def parse_directives(
    text: str, aliases: Sequence[str] = (), *, shortcuts: bool = False, kinds: Collection[str] = KINDS
) -> Directives:
    """Parse the directives of a message. Of two of a kind the first counts, and both are removed.

    ``aliases`` are model names that may be written as ``/name``. With ``shortcuts``, commands such as ``/status`` are
    found too. Directives of other kinds than ``kinds`` stay text.
    """
    if "/" not in text:
        return Directives(text=text)
    return _Reader(text, tuple(aliases), shortcuts, kinds).read()


class _Reader:
    """Searches a copy of the text in which everything already claimed is blanked, so that positions stay the same."""

    def __init__(self, text: str, aliases: tuple[str, ...], shortcuts: bool, kinds: Collection[str]) -> None:
        self.text = text
        self.open = _without_code(text)
        self.kinds = kinds
        self.alias = _alias_pattern(aliases) if aliases else None
        self.shortcut = _alias_pattern(_SHORTCUTS) if shortcuts else None
        self.found: dict[str, Level | ExecDirective | ModelDirective | QueueDirective] = {}
        self.shortcuts: list[str] = []
        self.spans: list[DirectiveSpan] = []

    def read(self) -> Directives:
        for kind in _LEVELS:
            if kind in self.kinds:
                self._levels(kind)
        if "exec" in self.kinds:
            self._execs()
        self._shortcuts()
        if "model" in self.kinds:
            self._models()
        if "queue" in self.kinds:
            self._queues()
        spans = tuple(sorted(self.spans, key=lambda span: span.start))
        return msgspec.convert(
            {**self.found, "shortcuts": tuple(self.shortcuts), "text": self.text, "spans": spans}, Directives
        )

    def _search(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.search(self.open) if len(self.spans) < MAX_DIRECTIVES else None

    def _levels(self, kind: LevelKind) -> None:
        while match := self._search(_LEVELS[kind]):
            word, end = self._value(match)
            value = read_level(kind, word)
            self.found.setdefault(kind, Level(value, word))
            self._claim(match.start(), end, "" if value else word)

    def _execs(self) -> None:
        while match := self._search(_EXEC):
            directive, end = _read_exec(self.open, match.end())
            self.found.setdefault("exec", directive)
            self._claim(match.start(), end, directive.unknown)

    def _shortcuts(self) -> None:
        while self.shortcut and (match := self._search(self.shortcut)):
            command = find(match[1])
            if command is not None and command.name not in self.shortcuts:
                self.shortcuts.append(command.name)
            self._claim(match.start(), match.end())

    def _models(self) -> None:
        while match := self._search(_MODEL):
            word, end = self._value(match)
            name, _, profile = word.rpartition("@")
            self.found.setdefault("model", ModelDirective(name, profile or None) if name else ModelDirective(word))
            self._claim(match.start(), end, word, is_model=True)
        while self.alias and (match := self._search(self.alias)):
            self.found.setdefault("model", ModelDirective(match[1]))
            self._claim(match.start(), match.end())

    def _queues(self) -> None:
        while match := self._search(_QUEUE):
            directive, end = _read_queue(self.open, match.end())
            self.found.setdefault("queue", directive)
            self._claim(match.start(), end, directive.invalid.get("mode", ""))

    def _value(self, match: re.Match[str]) -> tuple[str, int]:
        """Return the word after a directive, and where the directive ends."""
        word = (match[1] or "").rstrip(_PUNCTUATION)
        return word, match.end() if word or not match[1] else match.start(1)

    def _claim(self, start: int, end: int, word: str = "", *, is_model: bool = False) -> None:
        remaining = self.text[self.text.rindex(word, start, end) : end] if word else ""
        self.spans.append(DirectiveSpan(start, end, remaining, is_model))
        blank = " " * (end - start - len(remaining)) + _HIDDEN * len(remaining)
        self.open = self.open[:start] + blank + self.open[end:]


def _without_code(text: str) -> str:
    """Blank out code and quoted lines. Positions stay the same."""
    pieces, at = list[str](), 0
    for start, end in code_ranges(text):
        pieces += [text[at:start], _HIDDEN * (end - start)]
        at = end
    return "".join([*pieces, text[at:]])


@lru_cache(maxsize=32)
def _alias_pattern(aliases: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(aliases, key=len, reverse=True)
    names = "|".join(re.escape(alias) for alias in longest_first)
    return re.compile(rf"{_SLASH}({names}){_END}(?:{_BLANK}:)?", re.IGNORECASE)


def _read_exec(text: str, at: int) -> tuple[ExecDirective, int]:
    """Read options up to the first other word. Returns them and where they end."""
    options, invalid, unknown = dict[ExecField, str](), dict[ExecField, str](), ""
    while token := _WORD.match(text, at):
        word = token[1].rstrip(_PUNCTUATION)
        if not (option := _EXEC_OPTION.fullmatch(word)):
            unknown = "" if options or invalid else word
            break
        at = token.end()
        name: ExecField = option[1].lower()  # pyright: ignore[reportAssignmentType]
        allowed = EXEC_VALUES[name]
        if not allowed:
            options[name] = option[2]
        elif option[2].lower() in allowed:
            options[name] = option[2].lower()
        else:
            invalid[name] = option[2]
    return ExecDirective(options, invalid, unknown), token.end() if token and unknown else at


def _read_queue(text: str, at: int) -> tuple[QueueDirective, int]:
    """Read options up to the first other word. Returns them and where they end."""
    wish, reset, invalid = QueueOverrides(), False, dict[str, str]()
    while token := _WORD.match(text, at):
        word = token[1].rstrip(_PUNCTUATION)
        if option := _QUEUE_OPTION.fullmatch(word):
            wish = _queue_option(wish, option[1].lower(), option[2], invalid)
        elif word.lower() in ("default", "reset", "clear"):
            reset = True
        elif wish.mode is None and (mode := parse_mode(word)):
            wish = msgspec.structs.replace(wish, mode=mode)
        elif word and not (reset or invalid) and wish == QueueOverrides():
            return QueueDirective(invalid={"mode": word}), token.end()
        else:
            break
        at = token.end()
    return QueueDirective(wish, reset, invalid), at


def _queue_option(wish: QueueOverrides, name: str, value: str, invalid: dict[str, str]) -> QueueOverrides:
    if name == "drop" and (drop := parse_drop(value)):
        return msgspec.structs.replace(wish, drop=drop)
    if name == "cap" and value.isascii() and value.isdigit() and 1 <= int(value) <= 1_000_000:
        return msgspec.structs.replace(wish, cap=int(value))
    if name == "debounce":
        try:
            return msgspec.structs.replace(wish, debounce_ms=duration_ms(value, "ms"))
        except ValueError:
            pass
    invalid[name] = value
    return wish


def _cut(text: str, spans: Sequence[DirectiveSpan], kept: Callable[[DirectiveSpan], str]) -> str:
    """Remove the spans from the text. Blanks beside a cut are joined. A line that held nothing else is removed."""
    if not spans:
        return text
    result, at, joining = "", 0, False

    def add(piece: str) -> None:
        nonlocal result, joining
        if not piece:
            return
        if joining and (not result or result.endswith("\n")) and piece.startswith("\n"):
            piece = piece[1:]
        elif joining and result and not result.endswith("\n") and not piece.startswith("\n"):
            result += " "
        result, joining = result + piece, False

    for span in spans:
        add(text[at : span.start])
        result, joining = result.rstrip(" \t") if not joining else result, True
        if word := kept(span):
            add(word)
            at = span.end
            continue
        at = span.end
        while at < len(text) and text[at] != "\n" and text[at].isspace():
            at += 1
    add(text[at:])
    return result.lstrip("\n").rstrip()


# The words of each setting

_WORDS: dict[LevelKind, dict[str, tuple[str, ...]]] = {
    "verbose": {
        "off": ("off", "false", "no"),
        "on": ("on", "minimal", "true", "yes"),
        "full": ("full", "all", "everything"),
    },
    "reasoning": {
        "on": ("on", "true", "yes", "show", "visible", "enable", "enabled"),
        "off": ("off", "false", "no", "hide", "hidden", "disable", "disabled"),
        "stream": ("stream", "streaming", "draft", "live"),
    },
    "elevated": {
        "on": ("on", "true", "yes"),
        "off": ("off", "false", "no"),
        "ask": ("ask", "prompt", "approval", "approve"),
        "full": ("full", "auto", "auto-approve", "autoapprove"),
    },
}
_MEANING = {kind: {word: value for value, words in values.items() for word in words} for kind, values in _WORDS.items()}
_USAGE = {"off": "off", "on": "tokens", "true": "tokens", "tokens": "tokens", "full": "full", "session": "full"}
ENTRY_FIELD: dict[LevelKind, str] = {
    "think": "thinkingLevel",
    "verbose": "verboseLevel",
    "reasoning": "reasoningLevel",
    "elevated": "elevatedLevel",
}
OFF_IS_ABSENCE: frozenset[str] = frozenset({"thinkingLevel", "reasoningLevel"})
""""off" removes these fields, unless the default is on. Other fields store "off" to override a default."""


def read_level(kind: LevelKind, word: str) -> str | None:
    """Return the value that a word stands for, or None."""
    return parse_level(word) if kind == "think" else _MEANING[kind].get(word.lower())


def level_values(kind: LevelKind) -> tuple[str, ...]:
    return LEVELS if kind == "think" else tuple(_WORDS[kind])


def stored(field: str, value: str, unset: str = "off") -> str | None:
    """Return what the entry holds for a value; None removes the field. ``unset`` is what counts without it."""
    return None if value == "off" == unset and field in OFF_IS_ABSENCE else value


def read_usage(word: str) -> str | None:
    """Return ``off``, ``tokens``, ``full`` or None."""
    return _USAGE.get(word.strip().lower())


def read_send_policy(word: str) -> Literal["on", "off", "inherit"] | None:
    match word.strip().lower():
        case "on" | "allow":
            return "on"
        case "off" | "deny":
            return "off"
        case "inherit" | "default" | "reset":
            return "inherit"
        case _:
            return None


# Commands

ABORT_WORDS: frozenset[str] = frozenset({"stop", "esc", "abort", "wait", "exit", "interrupt"})
NATIVE_SURFACES: frozenset[str] = frozenset({"telegram", "discord", "slack"})
"""Channels with command menus of their own. Elsewhere text is the only way to give a command."""
SEARCHED = 2000
"""Mentions are removed from this many characters. A command stands at the beginning."""
_ABORT_WORD = re.compile("|".join(sorted(ABORT_WORDS)), re.IGNORECASE)
_COMMAND = re.compile(r"/(\S+)(?:\s+(.*))?", re.DOTALL)
_COLON = re.compile(r"/([^\s:]+)\s*:\s*(.*)", re.DOTALL)
_BLANKS = re.compile(r"[^\S\n]+")
_NUMBER_MENTION = re.compile(r"@[\d+]{5,}")
_CHANNEL_MENTIONS = {"discord": re.compile(r"<@!?\d+>"), "slack": re.compile(r"<@[^<>\s]+>")}


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader of commands must know about a conversation."""

    group: bool = False
    """True for anything but a direct chat. Mentions are removed before the text is read."""
    channel: str = ""
    mentions: tuple[BoundedPattern, ...] = ()


DIRECT_CHAT = Listening()


class Called(msgspec.Struct, frozen=True):
    """A command and the words after it, in the case they were written."""

    command: Command
    args: str


def is_control_message(text: str, listening: Listening = DIRECT_CHAT) -> bool:
    """Whether the message is a command, or a word that stops the run, and nothing else. Such messages never wait.

    A setting with other text after it is an ordinary message. ``/new`` takes the first message of its session along.
    """
    if is_abort(text, listening):
        return True
    if "/" not in text or not (body := command_body(text, listening)).startswith("/"):
        return False
    first = _called(body.partition("\n")[0].strip())
    if first is None or first.command.name in ("new", "reset"):
        return first is not None
    if first.command.directive and not edits_queue(first):
        return not parse_directives(body).rest.strip()
    return stand_alone(body) is not None


def is_abort(text: str, listening: Listening = DIRECT_CHAT) -> bool:
    """Return whether the message is ``/stop`` or one single word such as "stop"."""
    if len(text) > 500 or not _ABORT_WORD.search(text):
        return False
    body = command_body(text, listening)
    called = stand_alone(body)
    return body.lower() in ABORT_WORDS or (called is not None and called.command.name == "stop")


def may_be_command(text: str) -> bool:
    """Return whether the text may hold a command. The check is quick, and its yes may be wrong."""
    return "/" in text or is_abort(text)


def edits_queue(called: Called) -> bool:
    """Return whether ``/queue`` shows or changes the list of waiting messages rather than a setting."""
    words = called.args.lower().split()
    return called.command.name == "queue" and len(words) in (1, 2) and words[0] in ("list", "drop", "now")


def stand_alone(body: str) -> Called | None:
    """Return the command that the whole message consists of. A message of several lines is never a command."""
    return None if "\n" in body else _called(body)


def _called(line: str) -> Called | None:
    """Read one line as a command. Returns None when it is none, or has words where the command takes none."""
    if colon := _COLON.fullmatch(line):
        line = f"/{colon[1]} {colon[2]}"
    words = _COMMAND.fullmatch(line)
    command = find(words[1]) if words else None
    args = (words[2] or "").strip() if words else ""
    if command is None or (args and not command.usage):
        return None
    return Called(command, args)


def understands_text(text_commands: bool, channel: str, *, native: bool) -> bool:
    """Return whether commands in text are read. Switching them off counts only on channels that have menus."""
    return native or text_commands or channel.lower() not in NATIVE_SURFACES


def command_body(text: str, listening: Listening = DIRECT_CHAT) -> str:
    """Return what was typed, without the blanks around it and, in a group, without mentions of the agent.

    Returns an empty string for a message that begins with code or a quoted line, because neither is a command.
    """
    if any(start <= len(text) - len(text.lstrip()) < end for start, end in code_ranges(text)[:1]):
        return ""
    if not listening.group:
        return text.strip()
    return strip_mentions(text, listening.mentions, listening.channel).lstrip(" \t\n:,")


def strip_mentions(text: str, patterns: Sequence[BoundedPattern] = (), channel: str = "") -> str:
    """Remove the words that only address the agent. Line breaks stay."""
    head, rest = text[:SEARCHED], text[SEARCHED:]
    for pattern in patterns:
        head = pattern.sub(" ", head)
    text = head + rest
    if native := _CHANNEL_MENTIONS.get(channel.lower()):
        text = native.sub(" ", text)
    text = _NUMBER_MENTION.sub(" ", text)
    return _BLANKS.sub(" ", text).strip()
