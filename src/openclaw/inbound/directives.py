"""Reads what a person typed: commands, and directives like ``/think high``, which are taken out of the text.

A directive stands at the start or after a blank. It takes its value with it and nothing else: a word that is no value
goes back into the text, and line breaks stay where they are. Code is not searched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from openclaw.clock import duration_ms
from openclaw.inbound.commands.registry import COMMANDS, Command, find
from openclaw.models.thinking import LEVELS, parse_level
from openclaw.patterns import BoundedPattern
from openclaw.runs.queue import QueueWish, parse_drop, parse_mode
from openclaw.sessions.prompt_prefix import CURRENT_MARKER

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
_LEVELS: dict[LevelKind, re.Pattern[str]] = {
    kind: re.compile(rf"{_SLASH}(?:{names}){_END}{_BLANK}(?::{_BLANK})?([A-Za-z-]*)", re.IGNORECASE)
    for kind, names in _LEVEL_NAMES.items()
}
_EXEC = re.compile(rf"{_SLASH}exec{_END}(?:{_BLANK}:)?", re.IGNORECASE)
_EXEC_OPTION = re.compile(rf"{_BLANK}(host|security|ask|node)[=:](\S+)", re.IGNORECASE)
_MODEL = re.compile(
    rf"{_SLASH}model{_END}{_BLANK}(?::{_BLANK})?([A-Za-z0-9_.:@-]+(?:/[A-Za-z0-9_.:@-]+)*)?", re.IGNORECASE
)
_QUEUE = re.compile(rf"{_SLASH}queue{_END}(?:{_BLANK}:)?", re.IGNORECASE)
_QUEUE_OPTION = re.compile(r"(debounce|cap|drop)[=:](\S+)", re.IGNORECASE)
_TOKEN = re.compile(rf"{_BLANK}(\S+)")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_HIDDEN = "\0"
KINDS = tuple(command.name for command in COMMANDS if command.directive)
_SHORTCUTS = tuple(word for command in COMMANDS if command.shortcut for word in (command.name, *command.aliases))
MAX_DIRECTIVES = 50
"""The most directives read in one message. Further ones stay text."""


class Level(msgspec.Struct, frozen=True):
    value: str | None
    """None means that no level was named, or that the word is none."""
    word: str = ""


class ExecDirective(msgspec.Struct, frozen=True):
    options: dict[ExecField, str] = {}
    invalid: dict[ExecField, str] = {}


class ModelDirective(msgspec.Struct, frozen=True):
    name: str
    """A model, an alias, ``list``, ``status`` or empty."""
    profile: str | None = None


class QueueDirective(msgspec.Struct, frozen=True):
    wish: QueueWish = QueueWish()
    reset: bool = False
    invalid: dict[str, str] = {}

    @property
    def says_something(self) -> bool:
        return self.reset or bool(self.invalid) or self.wish != QueueWish()


class DirectiveSpan(msgspec.Struct, frozen=True):
    start: int
    end: int
    word: str = ""
    """The end of the span that turned out to be no value. It is text."""
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
        """The text without the directives and every word they claimed. Empty means that there was nothing else."""
        return _cut(self.text, self.spans, lambda _: "")

    def prompt(self, *, model_known: bool = True) -> str:
        """The text for the model: without directives, with every word that turned out to be no value."""
        return _cut(self.text, self.spans, lambda span: span.word if not span.is_model or not model_known else "")


def parse_directives(
    text: str, aliases: Sequence[str] = (), *, shortcuts: bool = False, kinds: Collection[str] = KINDS
) -> Directives:
    """Reads the directives of the current message. Of two of a kind the first counts, and both are removed.

    ``aliases`` are model names that may be written as ``/name``. With ``shortcuts``, commands such as ``/status`` are
    found too. Directives of other kinds than ``kinds`` stay text. Text before the current-message marker is other
    people's and is not read.
    """
    if "/" not in text:
        return Directives(text=text)
    return _Reader(text, tuple(aliases), shortcuts, kinds).read()


class _Reader:
    """Searches a copy of the text in which everything already claimed is blanked, so that positions stay the same."""

    def __init__(self, text: str, aliases: tuple[str, ...], shortcuts: bool, kinds: Collection[str]) -> None:
        begin = text.rfind(CURRENT_MARKER)
        begin = begin + len(CURRENT_MARKER) if begin >= 0 else 0
        self.text = text
        self.open = " " * begin + _CODE.sub(lambda code: _HIDDEN * len(code[0]), text[begin:])
        self.kinds = kinds
        self.alias = _alias_pattern(aliases) if aliases else None
        self.shortcut = _alias_pattern(_SHORTCUTS) if shortcuts else None
        self.found: dict[str, Level | ExecDirective | ModelDirective | QueueDirective] = {}
        self.shortcuts: list[str] = []
        self.spans: list[DirectiveSpan] = []

    def read(self) -> Directives:
        # Removing one may uncover another ("/v on/t high"), so the search repeats until nothing is found.
        seen = -1
        while seen != len(self.spans):
            seen = len(self.spans)
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
            word = match[1]
            value = read_level(kind, word) if word else None
            self.found.setdefault(kind, Level(value, word))
            self._claim(match.start(), match.end(), word if value is None else "")

    def _execs(self) -> None:
        while match := self._search(_EXEC):
            end = match.end()
            options: dict[ExecField, str] = {}
            invalid: dict[ExecField, str] = {}
            while option := _EXEC_OPTION.match(self.open, end):
                end = option.end()
                name: ExecField = option[1].lower()  # pyright: ignore[reportAssignmentType]
                allowed = EXEC_VALUES[name]
                if not allowed:
                    options[name] = option[2]
                elif option[2].lower() in allowed:
                    options[name] = option[2].lower()
                else:
                    invalid[name] = option[2]
            self.found.setdefault("exec", ExecDirective(options, invalid))
            self._claim(match.start(), end)

    def _shortcuts(self) -> None:
        while self.shortcut and (match := self._search(self.shortcut)):
            command = find(match[1])
            if command is not None and command.name not in self.shortcuts:
                self.shortcuts.append(command.name)
            self._claim(match.start(), match.end())

    def _models(self) -> None:
        while match := self._search(_MODEL):
            word = (match[1] or "").rstrip(".:")
            end = match.start(1) + len(word) if word else match.end()
            at = word.rfind("@")
            directive = ModelDirective(word[:at], word[at + 1 :] or None) if at > 0 else ModelDirective(word)
            self.found.setdefault("model", directive)
            self._claim(match.start(), end, word, is_model=True)
        while self.alias and (match := self._search(self.alias)):
            self.found.setdefault("model", ModelDirective(match[1]))
            self._claim(match.start(), match.end())

    def _queues(self) -> None:
        while match := self._search(_QUEUE):
            directive, end = _read_queue(self.open, match.end())
            self.found.setdefault("queue", directive)
            self._claim(match.start(), end)

    def _claim(self, start: int, end: int, word: str = "", *, is_model: bool = False) -> None:
        self.spans.append(DirectiveSpan(start, end, word, is_model))
        blank = " " * (end - start - len(word)) + _HIDDEN * len(word)
        self.open = self.open[:start] + blank + self.open[end:]


@lru_cache(maxsize=32)
def _alias_pattern(aliases: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(aliases, key=len, reverse=True)
    names = "|".join(re.escape(alias) for alias in longest_first)
    return re.compile(rf"{_SLASH}({names}){_END}(?:{_BLANK}:)?", re.IGNORECASE)


def _read_queue(text: str, at: int) -> tuple[QueueDirective, int]:
    """Reads options up to the first word that is none. Returns them and the place where that word begins."""
    wish, reset, invalid = QueueWish(), False, dict[str, str]()
    while token := _TOKEN.match(text, at):
        word = token[1]
        if option := _QUEUE_OPTION.fullmatch(word):
            wish = _queue_option(wish, option[1].lower(), option[2], invalid)
        elif word.lower() in ("default", "reset", "clear"):
            reset = True
        elif wish.mode is None and (mode := parse_mode(word)):
            wish = msgspec.structs.replace(wish, mode=mode)
        else:
            break
        at = token.end()
    return QueueDirective(wish, reset, invalid), at


def _queue_option(wish: QueueWish, name: str, value: str, invalid: dict[str, str]) -> QueueWish:
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
    """Removes the spans from the text. Blanks beside a cut are joined. A line that held nothing else is removed."""
    if not spans:
        return text
    begin = text.rfind(CURRENT_MARKER)
    begin = begin + len(CURRENT_MARKER) if begin >= 0 else 0
    result, at, joining = "", begin, False

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
    return text[:begin] + result.rstrip() if begin else result.strip()


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
    """Returns the value that a word stands for, or None."""
    return parse_level(word) if kind == "think" else _MEANING[kind].get(word.lower())


def level_values(kind: LevelKind) -> tuple[str, ...]:
    return LEVELS if kind == "think" else tuple(_WORDS[kind])


def stored(field: str, value: str, unset: str = "off") -> str | None:
    """Returns what the entry holds for a value; None removes the field. ``unset`` is what counts without it."""
    return None if value == "off" == unset and field in OFF_IS_ABSENCE else value


def read_usage(word: str) -> str | None:
    """Returns ``off``, ``tokens``, ``full`` or None."""
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
_SENDER_PREFIX = re.compile(r"^[A-Za-z0-9+()\-_. \t]+:[ \t]*", re.MULTILINE)
_LEADING = re.compile(r"\s*(?:\[[^\]\n]*\]\s*)*")
_LEADING_IN_GROUP = re.compile(r"[\s:,]*(?:(?:\[[^\]\n]*\]|<@[^>\s]+>|@[\w.+-]+)[\s:,]*)*")
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
    """Whether the message begins as a command, or is a word that stops the run. Such messages never wait."""
    if is_abort(text, listening):
        return True
    return "/" in text and _called(command_body(text, listening).partition("\n")[0].strip()) is not None


def is_abort(text: str, listening: Listening = DIRECT_CHAT) -> bool:
    """Whether the message is ``/stop`` or one single word such as "stop"."""
    if len(text) > 500 and CURRENT_MARKER not in text:
        return False
    if "[" not in text and not _ABORT_WORD.search(text):
        return False  # This settles nearly every message. Only brackets could hide the word from the pattern.
    bare = structural_strip(text)
    if listening.group:
        bare = strip_mentions(bare, listening.mentions, listening.channel)
    called = _called(bare)
    return bare.lower() in ABORT_WORDS or (called is not None and called.command.name == "stop")


def may_be_command(text: str) -> bool:
    """Whether the text may hold a command. The check is quick, and its yes may be wrong."""
    return "/" in text or is_abort(text)


def stand_alone(body: str) -> Called | None:
    """Returns the command that the whole message consists of. A message of several lines is no command."""
    return None if "\n" in body else _called(body)


def _called(line: str) -> Called | None:
    """Reads one line as a command. Returns None when it is none, or has words where the command takes none."""
    if colon := _COLON.fullmatch(line):
        line = f"/{colon[1]} {colon[2]}"
    words = _COMMAND.fullmatch(line)
    command = find(words[1]) if words else None
    args = (words[2] or "").strip() if words else ""
    if command is None or (args and not command.usage):
        return None
    return Called(command, args)


def understands_text(text_commands: bool, channel: str, *, native: bool) -> bool:
    """Whether commands in text are read. Switching them off counts only on channels that have menus."""
    return native or text_commands or channel.lower() not in NATIVE_SURFACES


def command_body(text: str, listening: Listening = DIRECT_CHAT) -> str:
    """Removes what may stand before a command: stamps in brackets and mentions.

    Unlike :func:`structural_strip` it keeps the arguments as they are, brackets and line breaks included.
    """
    _, _, body = text.rpartition(CURRENT_MARKER)
    if listening.group:
        body = strip_mentions(body, listening.mentions, listening.channel)
    leading = (_LEADING_IN_GROUP if listening.group else _LEADING).match(body)
    return body[leading.end() if leading else 0 :].strip()


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
