"""Reads ``openclaw.json``: text → values → includes → environment → schema → typed configuration.

A faulty file raises nothing. Its faults are listed in ``Snapshot.issues``, with their place. ``pyjson5`` reads the
values. The ``Outline`` finds where each key and value stands in the text, for line numbers and for edits that keep the
rest of the text, and explains syntax errors in words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from openclaw.config.keypath import KeyPath, format_path
from openclaw.config.newer_keys import translate
from openclaw.config.schema import Config
from openclaw.config.schema.channels import Channels
from openclaw.config.unsupported import unsupported_values
from openclaw.config.validate import Issue, Report, check_rules, checked, fields_of, is_safety_word, shape_of

MAX_DEPTH = 64
_SKIP = re.compile(r"(?:\s+|\ufeff|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r"\"(?:[^\"\\\n\r]|\\(?:\r\n|.))*\"|'(?:[^'\\\n\r]|\\(?:\r\n|.))*'", re.DOTALL)
_WORD = re.compile(r"[^\s,:\[\]{}\"'/]+")
_NEWLINE = re.compile(r"\r\n|\r|\n")
MAX_BYTES = 4 * 1024 * 1024
_NEAR = re.compile(r"near (\d+)")
KEY = "$include"
MAX_INCLUDES = 10
MAX_FILES = 100
REFERENCE = re.compile(r"\$(\$?)\{([A-Z_][A-Z0-9_]*)\}")
_AGENT_SECTIONS = ("sandbox", "heartbeat", "memorySearch", "humanDelay", "budget")
_AGENT_TOOL_SECTIONS = ("exec", "elevated", "fs", "sandbox")
_CHANNEL_SECTIONS = ("heartbeat",)
_NOT_INHERITED = ("accounts", "defaultAccount", "name")
_ONE_CREDENTIAL = (frozenset({"botToken", "tokenFile"}), frozenset({"accessToken", "password"}))
"""Keys of which an account needs one. Where it finds two, one of them is not used."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration file as it was at one moment."""

    path: str
    exists: bool
    raw: str | None = None
    parsed: dict[str, Any] = {}
    """The file's own content, without includes, environment and defaults."""
    resolved: dict[str, Any] = {}
    """The content with includes and environment, without defaults. It holds secrets."""
    merged: dict[str, Any] = {}
    """The content with includes, before ``${NAME}`` is replaced."""
    translated: dict[str, Any] = {}
    """The content of ``resolved`` in the keys of the schema: those of newer versions are renamed."""
    config: Config = Config()
    """The typed configuration, with defaults. When the file is not valid, it holds only the keys that are right."""
    hash: str | None = None
    """The SHA-256 of ``raw``."""
    valid: bool = True
    issues: list[Issue] = []
    warnings: list[Issue] = []
    mistakes: list[Issue] = []
    """The warnings about values that a change may not add."""
    refusals: list[Issue] = []
    """The warnings about values that promise safety which nothing gives. The Gateway does not start with them."""
    unknown: list[Issue] = []
    """The warnings about keys that nothing reads."""
    notes: list[Issue] = []
    """The keys of newer versions, and how they are read."""
    includes: list[str] = []
    """The paths of the included files, also of those that are missing or faulty: they may be mended."""


def read_config(path: str, environ: Mapping[str, str]) -> Snapshot:
    try:
        text = read_source(path)
    except SourceError as error:
        return Snapshot(path=path, exists=True, valid=False, issues=[Issue(path="", message=str(error))])
    if text is None:
        return Snapshot(path=path, exists=False)
    return parse_config(path, text, environ)


def parse_config(path: str, text: str, environ: Mapping[str, str]) -> Snapshot:
    """Returns the snapshot of a file with this text."""
    unread = Snapshot(path=path, exists=True, raw=text, hash=hashlib.sha256(text.encode()).hexdigest())
    if not text.strip():
        warning = Issue(path="", message="the file is empty; every setting has its default")
        return replace(unread, warnings=[warning])
    try:
        parsed, outline = parse_source(text)
    except Json5Error as error:
        issue = Issue(path="", message=str(error), line=line_at(text, error.offset))
        return replace(unread, valid=False, issues=[issue])
    if not isinstance(parsed, dict):
        issue = Issue(path="", message="the configuration must be an object: { … }", line=1)
        return replace(unread, valid=False, issues=[issue])
    report = Report()
    for duplicate, lost in outline.duplicates:
        if is_safety_word(str(duplicate[-1])) or any(map(is_safety_word, lost.keys())):
            report.refuse(
                duplicate, "this key is written twice, and what it restricts the first time is lost; join them"
            )
        else:
            report.warn(duplicate, "this key is written twice; the last one counts")
    includes = Includes(path, report)
    merged = includes.resolve(parsed, (), (includes.main,))
    if not isinstance(merged, dict):
        report.issue(("$include",), "the included file must hold an object")
        merged = {}
    resolved = substituted(merged, with_config_env(environ, merged), (), report)
    translation = translate(resolved)
    good = checked(translation.values, shape_of(Config), (), report)
    values: dict[str, Any] = good if isinstance(good, dict) else {}
    config = build(values)
    check_rules(translation.values, config, report)
    for where, rule in unsupported_values(translation.values):
        if rule.refused:
            report.refuse(where, rule.reason)
        else:
            report.warn(where, f"accepted, but it has no effect yet: {rule.reason}")
    sources = [Included(None, (), outline), *includes.files]

    def located(findings: Sequence[tuple[KeyPath, str]]) -> list[Issue]:
        return [_located(translation.written(path), message, sources) for path, message in findings]

    return replace(
        unread,
        parsed=parsed,
        resolved=resolved,
        merged=merged,
        translated=translation.values,
        config=config,
        valid=not report.issues,
        issues=located(report.issues),
        warnings=located(report.warnings),
        mistakes=located(report.mistakes),
        refusals=located(report.refusals),
        unknown=located(report.unknown),
        notes=[_located(path, message, sources) for path, message in translation.notes],
        includes=includes.named,
    )


def _located(path: KeyPath, message: str, sources: Sequence[Included]) -> Issue:
    """Returns the finding with the line that has most of its key path, and with the file if that is an included one."""
    best, line, file = 0, None, None
    for source in sources:
        mounted = len(source.mount)
        if path[:mounted] != source.mount:
            continue
        depth, member = source.outline.find(path[mounted:])
        if member and mounted + depth > best:
            best, line, file = mounted + depth, line_at(source.outline.text, member.start), source.file
    return Issue(path=format_path(path), message=message, line=line, file=file)


class Included(msgspec.Struct, frozen=True):
    file: str | None
    """None for the configuration file itself."""
    mount: KeyPath
    """The key path in the configuration at which the file's content stands."""
    outline: Outline


class Includes:
    """Puts the content of included files in place of their ``$include``."""

    def __init__(self, main: str, report: Report) -> None:
        self.files: list[Included] = []
        self.named: list[str] = []
        self.main = str(Path(main).resolve())
        self._root = Path(self.main).parent
        self._report = report

    def resolve(self, value: Any, path: KeyPath, chain: tuple[str, ...]) -> Any:
        """Returns the value with its includes replaced. ``chain`` are the files on the way, the main file first."""
        if isinstance(value, list):
            return [self.resolve(item, (*path, index), chain) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        rest = {key: self.resolve(item, (*path, key), chain) for key, item in value.items() if key != KEY}
        if KEY not in value:
            return rest
        names = value[KEY] if isinstance(value[KEY], list) else [value[KEY]]
        merged: Any = msgspec.UNSET
        for name in names:
            content = self._content(name, path, chain)
            if content is not msgspec.UNSET:
                merged = content if merged is msgspec.UNSET else deep_merge(merged, content)
        if merged is msgspec.UNSET:
            return rest
        if rest and not isinstance(merged, dict):
            self._report.issue((*path, KEY), "the included file must hold an object to stand beside other keys")
            return rest
        return deep_merge(merged, rest) if rest else merged

    def _content(self, name: Any, path: KeyPath, chain: tuple[str, ...]) -> Any:
        where = (*path, KEY)
        if not isinstance(name, str) or not name.strip():
            self._report.issue(where, "expected the name of a file or a list of names")
            return msgspec.UNSET
        try:
            target = Path(chain[-1]).parent.joinpath(name).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            self._report.issue(where, f"{name!r} is not a usable file name: {error}")
            return msgspec.UNSET
        file = str(target)
        if not target.is_relative_to(self._root):
            problem = f"{name} lies outside the folder of the configuration; includes must be inside it"
        elif file in chain:
            problem = f"{name} includes itself ({' → '.join(Path(link).name for link in (*chain, file))})"
        elif len(chain) > MAX_INCLUDES:
            problem = f"{name}: includes are nested more than {MAX_INCLUDES} levels deep"
        elif len(self.named) >= MAX_FILES:
            problem = f"more than {MAX_FILES} files are included"
        else:
            return self._read(name, file, path, chain)
        self._report.issue(where, problem)
        return msgspec.UNSET

    def _read(self, name: str, file: str, path: KeyPath, chain: tuple[str, ...]) -> Any:
        text = ""
        self.named.append(file)
        try:
            text = read_source(file)
            if text is None:
                raise SourceError(f"{name} does not exist")
            content, outline = parse_source(text)
        except SourceError as error:
            self._report.issue((*path, KEY), str(error))
        except Json5Error as error:
            self._report.issue((*path, KEY), f"{name}:{line_at(text or '', error.offset)}: {error}")
        else:
            self.files.append(Included(file, path, outline))
            return self.resolve(content, path, (*chain, file))
        return msgspec.UNSET


def deep_merge(below: Any, above: Any) -> Any:
    """Merges objects key by key and joins lists; of other values the one above wins."""
    if isinstance(below, dict) and isinstance(above, dict):
        merged = dict(below)
        for key, value in above.items():
            merged[key] = deep_merge(merged[key], value) if key in merged else value
        return merged
    if isinstance(below, list) and isinstance(above, list):
        return [*below, *above]
    return above


def substituted(value: Any, environ: Mapping[str, str], path: KeyPath, report: Report) -> Any:
    """Returns the value with each ``${NAME}`` replaced. Variables that are not set are reported."""
    if isinstance(value, dict):
        return {key: substituted(item, environ, (*path, key), report) for key, item in value.items()}
    if isinstance(value, list):
        return [substituted(item, environ, (*path, index), report) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def replaced(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped:
            return match[0][1:]
        if found := environ.get(name):
            return found
        report.issue(path, f"the environment variable {name} is not set; set it, or write $${{{name}}} for the text")
        return match[0]

    return REFERENCE.sub(replaced, value)


def is_reference(value: str) -> bool:
    """Whether the text is only a reference to a variable, and so no secret itself."""
    match = REFERENCE.fullmatch(value)
    return bool(match and not match[1])


def with_config_env(environ: Mapping[str, str], config: Any) -> dict[str, str]:
    """Returns the environment with what the section ``env`` adds; the real environment wins."""
    section: Any = config.get("env") if isinstance(config, dict) else None
    added: dict[str, str] = {}
    if isinstance(section, dict):
        added = {key: value for key, value in section.items() if isinstance(value, str)}
        if isinstance(variables := section.get("vars"), dict):
            added |= {key: value for key, value in variables.items() if isinstance(value, str)}
    usable = {key: value for key, value in added.items() if "${" not in value}
    return {**usable, **{key: value for key, value in environ.items() if value}}


def build(values: dict[str, Any]) -> Config:
    """Makes the typed configuration. Agents and accounts inherit the keys that they leave out."""
    values = dict(values)
    if agents := values.get("agents"):
        values["agents"] = _with_inherited_agents(agents, values.get("tools") or {})
    if channels := values.get("channels"):
        values["channels"] = _with_inherited_accounts(channels)
    return msgspec.convert(values, Config)


def _with_inherited_agents(agents: dict[str, Any], tools: dict[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = agents.get("defaults") or {}
    filled: list[dict[str, Any]] = []
    for agent in agents.get("list") or []:
        own = {**agent, **_filled(agent, defaults, _AGENT_SECTIONS)}
        if "tools" in agent:
            own["tools"] = {**agent["tools"], **_filled(agent["tools"], tools, _AGENT_TOOL_SECTIONS)}
        filled.append(own)
    return {**agents, "list": filled}


def _filled(own: dict[str, Any], defaults: dict[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    return {name: merge_patch(defaults.get(name), own[name]) for name in sections if name in own}


def _with_inherited_accounts(channels: dict[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = channels.get("defaults") or {}
    shared = {"groupPolicy": defaults["groupPolicy"]} if defaults.get("groupPolicy") else {}
    filled = dict(channels)
    for name in fields_of(Channels):
        section: dict[str, Any] | None = channels.get(name) if name != "defaults" else None
        if section is None:
            continue
        base = {**shared, **section, **_filled(section, defaults, _CHANNEL_SECTIONS)}
        inherited = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
        accounts: dict[str, Any] = {}
        for account_id, account in (section.get("accounts") or {}).items():
            # An account with a credential of its own does not use another kind of credential of the channel.
            given = {key for keys in _ONE_CREDENTIAL if not keys.isdisjoint(account) for key in keys}
            accounts[account_id] = {
                **{key: value for key, value in inherited.items() if key not in given},
                **account,
                **_filled(account, {**defaults, **inherited}, _CHANNEL_SECTIONS),
            }
        filled[name] = {**base, "accounts": accounts} if accounts else base
    return filled


def merge_patch(target: Any, patch: Any) -> Any:
    """Merges values as RFC 7386 says."""
    if not isinstance(patch, dict):
        return patch
    merged: dict[str, Any] = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


# The text


class Node(msgspec.Struct):
    """A value: the text from ``start`` to ``end``, and what is in it."""

    kind: str
    """``object``, ``array`` or ``scalar``."""
    start: int
    end: int = 0
    members: list[Member] = []

    def keys(self) -> Iterator[str]:
        """Yield the names of all keys in the value."""
        for member in self.members:
            if isinstance(member.key, str):
                yield member.key
            yield from member.value.keys()


class Member(msgspec.Struct):
    key: str | int
    start: int
    value: Node
    comma: int | None = None
    """The offset of the comma that follows, if there is one."""


class Json5Error(ValueError):
    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class Outline:
    """The positions of all keys and values in one text. Making it raises Json5Error when the text is not JSON5."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.duplicates: list[tuple[KeyPath, Node]] = []
        """The keys that are written twice, each with the value that does not count."""
        start = self._skip(0)
        self.root = self._value(start, ())
        rest = self._skip(self.root.end)
        if rest < len(text):
            raise Json5Error(f"unexpected {self._seen(rest)} after the end of the configuration", rest)

    def find(self, path: Sequence[str | int]) -> tuple[int, Member | None]:
        """Returns how many segments of the path the text has, and the member of the deepest one."""
        node, found, depth = self.root, None, 0
        for segment in path:
            if node.kind == "array" and isinstance(segment, str) and segment.isascii() and segment.isdigit():
                segment = int(segment)
            if node.kind == "object":
                segment = str(segment)
            # Of duplicate keys the last one counts.
            member = next((member for member in reversed(node.members) if member.key == segment), None)
            if member is None:
                break
            node, found, depth = member.value, member, depth + 1
        return depth, found

    def _skip(self, at: int) -> int:
        match = _SKIP.match(self.text, at)
        return match.end() if match else at

    def _seen(self, at: int) -> str:
        if at >= len(self.text):
            return "end of the file"
        if self.text.startswith("/*", at):
            return "comment that is never closed"
        if self.text[at] in "\"'":
            return "text whose closing quote is missing"
        word = _WORD.match(self.text, at)
        return f'"{(word[0] if word else self.text[at])[:20]}"'

    def _value(self, at: int, path: KeyPath) -> Node:
        if len(path) > MAX_DEPTH:
            raise Json5Error(f"nested more than {MAX_DEPTH} levels deep", at)
        opening = self.text[at : at + 1]
        if opening in ("{", "["):
            return self._container(at, path, closing="}" if opening == "{" else "]")
        match = _STRING.match(self.text, at) or _WORD.match(self.text, at)
        if match is None:
            raise Json5Error(f"expected a value, found {self._seen(at)}", at)
        return Node("scalar", at, match.end())

    def _container(self, start: int, path: KeyPath, closing: str) -> Node:
        node = Node("object" if closing == "}" else "array", start)
        values: dict[str | int, Node] = {}
        at = self._skip(start + 1)
        while not self.text.startswith(closing, at):
            begin, key = at, len(node.members)
            if closing == "}":
                key, at = self._key(at)
                if key in values:
                    self.duplicates.append(((*path, key), values[key]))
            value = self._value(at, (*path, key))
            at = self._skip(value.end)
            values[key] = value
            member = Member(key, begin, value)
            node.members.append(member)
            if self.text.startswith(",", at):
                member.comma = at
                at = self._skip(at + 1)
            elif not self.text.startswith(closing, at):
                raise Json5Error(f'expected "," or "{closing}", found {self._seen(at)}', at)
        node.end = at + 1
        return node

    def _key(self, at: int) -> tuple[str, int]:
        match = _STRING.match(self.text, at) or _WORD.match(self.text, at)
        if match is None:
            raise Json5Error(f"expected a key, found {self._seen(at)}", at)
        colon = self._skip(match.end())
        if not self.text.startswith(":", colon):
            raise Json5Error(f'expected ":" after the key {match[0][:40]}, found {self._seen(colon)}', colon)
        return _unescaped(match[0], at), self._skip(colon + 1)


def line_at(text: str, offset: int) -> int:
    """Returns the line of an offset, counted from 1."""
    return sum(1 for _ in _NEWLINE.finditer(text, 0, offset)) + 1


def _unescaped(key: str, at: int) -> str:
    if "\\" not in key:
        return key[1:-1] if key[0] in "\"'" else key
    import pyjson5

    try:
        return pyjson5.decode(key if key[0] in "\"'" else f'"{key}"')
    except pyjson5.Json5Exception:
        raise Json5Error(f"the key {key[:40]} has an escape that does not exist", at) from None


class SourceError(Exception):
    """The file cannot be read as text."""


def read_source(path: str) -> str | None:
    """Returns the text without a byte order mark, or None if the file is missing."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise SourceError(f"{path} is larger than {MAX_BYTES // 1024 // 1024} MiB; that cannot be a configuration")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not text in UTF-8 (byte {error.start})") from None


def parse_source(text: str) -> tuple[Any, Outline]:
    """Returns the value and the positions of its parts. It raises Json5Error with the position of a fault."""
    import pyjson5

    outline = Outline(text)
    try:
        return pyjson5.decode(text, MAX_DEPTH), outline
    except pyjson5.Json5Exception as error:
        message = str(error.args[0]) if error.args else "not valid JSON5"
        near = _NEAR.search(message)
        words = re.sub(r"b'([^']*)'", r"\1", message)
        raise Json5Error(f"not valid JSON5: {words}", int(near[1]) - 1 if near else 0) from None
