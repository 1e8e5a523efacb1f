"""Checks a configuration against the schema and its rules, and reports every finding with its place.

Wrong values are left out of the result, so that one bad key does not hide the findings behind it. ``Shape`` and
``fields_of`` are the schema as a tree that can be walked.
"""

from __future__ import annotations

import collections.abc
import difflib
import functools
import ipaddress
import re
import types
import typing
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from openclaw.clock import duration_ms, named_zone
from openclaw.config.keypath import KeyPath, format_path, get_path
from openclaw.config.schema import Config
from openclaw.config.schema.channels import Channels, DmPolicy, GroupPolicy
from openclaw.paths import normalize_agent_id
from openclaw.patterns import BoundedPattern, PatternRefused, mention_pattern, redact_pattern
from openclaw.variables import is_refused_variable, refused_variable

_MOVED = {
    "agent": "it is called agents.defaults now",
    "identity": "it is called agents.list[].identity now",
    "routing": "it is called bindings, messages.groupChat and messages.queue now",
    "whatsapp": "it is called channels.whatsapp now",
    "telegram": "it is called channels.telegram now",
    "discord": "it is called channels.discord now",
    "slack": "it is called channels.slack now",
    "signal": "it is called channels.signal now",
    "imessage": "it is called channels.imessage now",
    "bridge": "it is called gateway now",
}
"""Keys of other versions → what to do about them."""
_NOTES = frozenset({"meta", "wizard", "$schema"})
"""Sections about the file itself. They set nothing."""
_SAFETY_PREFIXES = ("sandbox", "deny", "denied", "allow", "disallow", "security", "owner", "elevated", "auth")
_SAFETY_NAMES = ("dmpolicy", "grouppolicy", "allowfrom", "allowlist", "denylist", "sandbox")
_SAFETY_VALUES = frozenset({"deny", "denylist", "allowlist", "sandbox"})
_KEY_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# fmt: off
KNOWN_CHANNELS = frozenset((
    *(field.encode_name for field in msgspec.structs.fields(Channels) if field.name not in ("defaults", "others")),
    "googlechat", "msteams", "mattermost", "line", "zalo", "zalouser", "nostr", "twitch", "tlon", "nextcloud-talk",
    "feishu", "webchat", "voice-call",
))
# fmt: on
"""The channels that a configuration may name: ours, and those that other packages bring."""
LONGEST_NAME = 100
"""For a longer name no similar one is looked for."""
MOST_PATTERNS = 200
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d|24:00")


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """The dotted key path. It is empty for the file as a whole."""
    message: str
    line: int | None = None
    file: str | None = None
    """The included file that the key stands in; None for the configuration file itself."""

    def __str__(self) -> str:
        where = f"line {self.line}" if self.line else ""
        if self.file:
            where = f"{self.file}:{self.line}" if self.line else self.file
        place = f"{self.path} ({where})" if where and self.path else self.path or where
        return f"{place}: {self.message}" if place else self.message


class Report:
    """Collects findings while the configuration is read. It is bounded, because a file may be hostile."""

    LIMIT = 100
    HINTS = 20
    """How many findings get a hint such as "did you mean". To look for a similar name takes milliseconds."""

    def __init__(self) -> None:
        self.issues: list[tuple[KeyPath, str]] = []
        self.warnings: list[tuple[KeyPath, str]] = []
        self.mistakes: list[tuple[KeyPath, str]] = []
        self.refusals: list[tuple[KeyPath, str]] = []
        self.unknown: list[tuple[KeyPath, str]] = []

    @property
    def may_hint(self) -> bool:
        return len(self.issues) + len(self.warnings) < self.HINTS

    def _add(self, path: KeyPath, message: str, *places: list[tuple[KeyPath, str]]) -> None:
        for place in places:
            if len(place) < self.LIMIT:
                place.append((path, message))

    def issue(self, path: KeyPath, message: str) -> None:
        self._add(path, message, self.issues)

    def warn(self, path: KeyPath, message: str) -> None:
        self._add(path, message, self.warnings)

    def mistake(self, path: KeyPath, message: str) -> None:
        """Reports a value that is a warning when the file has it, and refused when a change would add it."""
        self._add(path, message, self.warnings, self.mistakes)

    def warn_unknown(self, path: KeyPath, advice: str) -> None:
        """Reports a key that is ignored. ``openclaw config set`` does not add one."""
        message = f"unknown key, ignored; {advice}" if advice else "unknown key, ignored"
        self._add(path, message, self.warnings, self.unknown)

    def refuse(self, path: KeyPath, reason: str) -> None:
        """Reports a value that promises safety which nothing enforces."""
        self._add(path, f"the Gateway does not start with this value: {reason}", self.warnings, self.refusals)


class ConfigError(Exception):
    """Something the caller asked for cannot be done with the configuration."""


class ConfigConflict(ConfigError):
    """The file is not the one the caller has seen."""


class ConfigInvalid(ConfigError):
    """The configuration is not valid, or would not be after the change."""

    def __init__(self, issues: list[Issue]) -> None:
        super().__init__("invalid config: " + "; ".join(map(str, issues[:5])))
        self.issues = issues


class UnknownConfigKey(ConfigInvalid):
    """The change would add a key that nothing reads."""


def checked(value: Any, shape: Shape, path: KeyPath, report: Report) -> Any:
    """Returns the value without what is wrong in it; UNSET when nothing is left."""
    if isinstance(value, dict) and shape.record:
        return _checked_record(value, shape.record, path, report)
    if isinstance(value, dict) and shape.values:
        items = {key: checked(item, shape.values, (*path, key), report) for key, item in value.items()}
        return {key: item for key, item in items.items() if item is not msgspec.UNSET and item is not None}
    if isinstance(value, list) and shape.items:
        items = [checked(item, shape.items, (*path, index), report) for index, item in enumerate(value)]
        return [item for item in items if item is not msgspec.UNSET]
    try:
        msgspec.convert(value, shape.type)
    except msgspec.ValidationError:
        report.issue(path, f"expected {expected(shape.type)}, got {_seen(value, shape)}")
        return msgspec.UNSET
    return value


def _checked_record(value: dict[str, Any], record: type[msgspec.Struct], path: KeyPath, report: Report) -> Any:
    fields, free = fields_of(record), free_keys(record)
    good: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    before = len(report.issues)
    for key, item in value.items():
        where = (*path, key)
        if item is None:
            continue
        if field := fields.get(key):
            if (kept := checked(item, field.shape, where, report)) is not msgspec.UNSET:
                good[key] = kept
        elif free and free.shape.values:
            if (kept := checked(item, free.shape.values, where, report)) is not msgspec.UNSET:
                extra[key] = kept
        else:
            _report_unknown(where, item, fields, report)
    if free and extra:
        good[free.key] = extra
    missing = [field.key for field in fields.values() if field.required and field.key not in good]
    for key in missing:
        if value.get(key) is None:
            report.issue((*path, key), "this key is required and missing")
    if missing:
        return msgspec.UNSET
    if len(report.issues) == before and hasattr(record, "__post_init__"):
        try:
            msgspec.convert(good, record)  # The record checks its own rule.
        except msgspec.ValidationError as error:
            report.issue(path, str(error))
            return msgspec.UNSET
    return good


def _report_unknown(path: KeyPath, value: Any, fields: dict[str, FieldShape], report: Report) -> None:
    """Report a key that is not a field. One that reads like a safety setting is refused: nothing enforces it."""
    key = str(path[-1])
    advice = _MOVED.get(format_path(path), "")
    by_folded = {_folded(name): name for name in fields}
    may_hint = report.may_hint and len(key) <= LONGEST_NAME
    close = difflib.get_close_matches(_folded(key), by_folded, n=1, cutoff=0.6) if may_hint else []
    if not advice and close:
        advice = f'did you mean "{by_folded[close[0]]}"?'
    promise = None if path[0] in _NOTES else _safety_promise(path, value)
    if promise is None and any(is_safety_word(str(section)) for section in path[1:-1]):
        promise = path  # In a section such as ``sandbox``, where every key restricts something.
    if promise is None and close and is_safety_word(by_folded[close[0]]) and _is_misspelt(key, close[0]):
        promise = path
    if promise is None:
        report.warn_unknown(path, advice)
        return
    named = f" ({format_path(promise)} reads like a safety setting)"
    report.refuse(
        path, f"unknown key{named}, and nothing would enforce it; {advice or 'remove it, or correct its name'}"
    )


def _safety_promise(path: KeyPath, value: Any) -> KeyPath | None:
    """Return the path of the first key or value in the subtree that reads like a safety setting."""
    if is_safety_word(str(path[-1])) or (isinstance(value, str) and value.strip().lower() in _SAFETY_VALUES):
        return path
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((promise for key, item in below if (promise := _safety_promise((*path, key), item))), None)


def is_safety_word(key: str) -> bool:
    """Whether a key is named like a setting that restricts what somebody may do: ``groupAllowFrom``, ``exec-ask``."""
    words = [word.lower() for word in _KEY_WORD.findall(key)]
    return (
        "ask" in words
        or any(word.startswith(_SAFETY_PREFIXES) and word not in ("author", "authors") for word in words)
        or any(name in _folded(key) for name in _SAFETY_NAMES)
    )


def _is_misspelt(key: str, name: str) -> bool:
    return len(name) > 3 and difflib.SequenceMatcher(None, _folded(key), name).ratio() >= 0.85


def _folded(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def expected(type_: Any) -> str:
    """Describes a type in words."""
    origin, args = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Annotated:
        return _constrained(args[0], args[1:])
    if origin is typing.Union or origin is types.UnionType:
        words = [expected(part) for part in args if part is not type(None)]
        return " or ".join(dict.fromkeys(words))
    if origin is typing.Literal:
        return " or ".join(f'"{item}"' if isinstance(item, str) else str(item).lower() for item in args)
    if origin is list:
        return "a list"
    if origin is dict or (isinstance(type_, type) and issubclass(type_, msgspec.Struct)):
        return "an object"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(type_, "another value")


def _constrained(base: Any, metas: tuple[Any, ...]) -> str:
    word = expected(base)
    for meta in metas:
        if meta.pattern and meta.examples:
            word = " or ".join(f'"{example}"' for example in meta.examples)
        if meta.ge is not None and meta.le is not None:
            word += f" from {meta.ge} to {meta.le}"
        elif meta.ge is not None:
            word += f" of at least {meta.ge}"
        elif meta.le is not None:
            word += f" of at most {meta.le}"
        if meta.min_length:
            word += " that is not empty"
    return word


def _seen(value: Any, shape: Shape) -> str:
    """Describes the value that was found. It never shows a secret."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return "a number" if shape.sensitive else str(value)
        case str():
            if shape.sensitive or len(value) > 60:
                return "text"
            return f'"{value}"'
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "null"


def check_rules(values: dict[str, Any], config: Config, report: Report) -> None:
    """Checks rules between keys. ``values`` is what was written, of any type; ``config`` is what was right."""
    agents = _list(values, "agents", "list")
    owners: list[KeyPath] = [("agents", "defaults"), *(("agents", "list", index) for index in range(len(agents)))]
    _agent_ids(values, agents, report)
    _times(values, owners, report)
    _zones(values, owners, report)
    for owner in [("tools",), *((*owner, "tools") for owner in owners[1:])]:
        if get_path(values, (*owner, "allow")) and get_path(values, (*owner, "alsoAllow")):
            report.issue((*owner, "alsoAllow"), "allow and alsoAllow exclude each other; put everything in one of them")
    _channels(values, report)
    _approvals(values, report)
    _patterns(values, owners, report)
    _skill_variables(config, report)
    _gateway(config, report)


def _skill_variables(config: Config, report: Report) -> None:
    for skill, settings in config.skills.entries.items():
        for name, value in settings.env.items():
            if is_refused_variable(name, value):
                report.mistake(("skills", "entries", skill, "env", name), refused_variable(name))


def _list(values: dict[str, Any], *path: str) -> list[Any]:
    found = get_path(values, path)
    return found if isinstance(found, list) else []


def _agent_ids(values: dict[str, Any], agents: list[Any], report: Report) -> None:
    seen: dict[str, int] = {}
    defaults = 0
    for index, agent in enumerate(agents):
        name = get_path(agent, ("id",))
        if not isinstance(name, str):
            continue
        first = seen.setdefault(normalize_agent_id(name), index)
        if first != index:
            problem = f'the id "{name}" is already that of agents.list[{first}]; ids must differ'
            report.issue(("agents", "list", index, "id"), problem)
        defaults += get_path(agent, ("default",)) is True
    if defaults > 1:
        report.warn(("agents", "list"), "several agents are marked default; the first of them is used")
    known = {normalize_agent_id(str(get_path(agent, ("id",)))) for agent in agents}
    for index, binding in enumerate(_list(values, "bindings")):
        name = get_path(binding, ("agentId",))
        if known and isinstance(name, str) and normalize_agent_id(name) not in known:
            problem = f'there is no agent "{name}" in agents.list; the default agent gets these messages'
            report.warn(("bindings", index, "agentId"), problem)


def _times(values: dict[str, Any], owners: list[KeyPath], report: Report) -> None:
    """Checks durations, and the hours in which heartbeats run."""
    places: list[tuple[KeyPath, str]] = [
        (("agents", "defaults", "heartbeat", "every"), "m"),
        (("agents", "defaults", "contextPruning", "ttl"), "m"),
        (("session", "maintenance", "pruneAfter"), "d"),
        (("cron", "sessionRetention"), "d"),
        *(((*owner, "heartbeat", "every"), "m") for owner in owners[1:]),
    ]
    for path, unit in places:
        value = get_path(values, path)
        if isinstance(value, bool) or not isinstance(value, str | int):
            continue
        try:
            duration_ms(value, unit)
        except ValueError as error:
            report.issue(path, str(error))
    for owner in owners:
        for key in ("start", "end"):
            path = (*owner, "heartbeat", "activeHours", key)
            value = get_path(values, path)
            if isinstance(value, str) and (not _TIME.fullmatch(value) or (key == "start" and value == "24:00")):
                report.issue(path, f'"{value}" is not a time of day; write HH:MM, such as 08:30')


def _zones(values: dict[str, Any], owners: list[KeyPath], report: Report) -> None:
    places: list[tuple[KeyPath, tuple[str, ...]]] = [
        (("agents", "defaults", "userTimezone"), ()),
        (("agents", "defaults", "envelopeTimezone"), ("local", "host", "utc", "gmt", "user")),
        *(((*owner, "heartbeat", "activeHours", "timezone"), ("user", "local")) for owner in owners),
    ]
    for path, words in places:
        value = get_path(values, path)
        if isinstance(value, str) and value.strip().lower() not in ("", *words) and named_zone(value.strip()) is None:
            others = f"{', '.join(words)} or " if words else ""
            like = _like(value) if report.may_hint and len(value) <= LONGEST_NAME else ""
            report.mistake(
                path, f'"{value}" is not a time zone; write {others}an IANA name such as Europe/Madrid{like}'
            )


def _like(name: str) -> str:
    from zoneinfo import available_timezones

    known = sorted(available_timezones())
    lowered = {zone.lower(): zone for zone in known} | {zone.lower().rpartition("/")[2]: zone for zone in known}
    found = difflib.get_close_matches(name.strip().lower(), lowered, n=3, cutoff=0.75)
    near = list(dict.fromkeys(lowered[one] for one in found))
    return f" (near it: {', '.join(near)})" if near else ""


def _patterns(values: dict[str, Any], owners: list[KeyPath], report: Report) -> None:
    """Checks regular expressions. One that may be slow would stop the Gateway for a message of a stranger."""
    places: list[tuple[KeyPath, Callable[[str], BoundedPattern]]] = [
        (("logging", "redactPatterns"), redact_pattern),
        (("messages", "groupChat", "mentionPatterns"), mention_pattern),
        *(((*owner, "groupChat", "mentionPatterns"), mention_pattern) for owner in owners[1:]),
    ]
    for path, compiled in places:
        given = get_path(values, path)
        if isinstance(given, list) and len(given) > MOST_PATTERNS:
            report.issue(path, f"at most {MOST_PATTERNS} expressions are possible; each is tried on every text")
            continue
        for index, pattern in enumerate(given) if isinstance(given, list) else ():
            try:
                if isinstance(pattern, str):
                    compiled(pattern)
            except PatternRefused as refused:
                report.mistake((*path, index), f"this expression is not used: {refused}")


def _channels(values: dict[str, Any], report: Report) -> None:
    channels = get_path(values, ("channels",))
    for name, section in channels.items() if isinstance(channels, dict) else ():
        if name == "defaults" or not isinstance(section, dict):
            continue
        may_be_wrong = name not in KNOWN_CHANNELS and len(name) <= LONGEST_NAME and report.may_hint
        close = difflib.get_close_matches(name.lower(), KNOWN_CHANNELS, n=1, cutoff=0.8) if may_be_wrong else ()
        if close:
            report.warn(("channels", name), f'unknown channel; did you mean "{close[0]}"?')
        if name not in fields_of(Channels):
            _known_policies(("channels", name), section, report)
        _open_policy(("channels", name), section, section, report)
        accounts = section.get("accounts")
        for account, own in accounts.items() if isinstance(accounts, dict) else ():
            if isinstance(own, dict):
                _open_policy(("channels", name, "accounts", account), own, {**section, **own}, report)


def _approvals(values: dict[str, Any], report: Report) -> None:
    """Checks a section without a schema, of which only ``exec.enabled`` is read."""
    section = get_path(values, ("approvals",))
    if isinstance(section, dict) and (promise := _safety_promise(("approvals",), section)):
        report.refuse(
            promise, "this section only says where questions are shown; remove it, and set tools.exec instead"
        )


def _known_policies(path: KeyPath, own: dict[str, Any], report: Report) -> None:
    """Checks the policies of channels without a schema. At run time an unknown policy shuts the channel."""
    for key, allowed in (
        (("dmPolicy",), get_args(DmPolicy)),
        (("dm", "policy"), get_args(DmPolicy)),
        (("groupPolicy",), get_args(GroupPolicy)),
    ):
        value = get_path(own, key)
        if isinstance(value, str) and value not in allowed:
            report.issue((*path, *key), f'"{value}" is not a policy; use one of {", ".join(allowed)}')


def _open_policy(path: KeyPath, own: dict[str, Any], effective: dict[str, Any], report: Report) -> None:
    nested = own.get("dm")
    if isinstance(nested, dict) and nested.get("policy") == "open" and not _open_to_all(nested.get("allowFrom")):
        report.issue((*path, "dm", "policy"), 'the policy "open" needs "*" in allowFrom beside it')
    if own.get("dmPolicy") == "open" and not _open_to_all(effective.get("allowFrom")):
        report.issue((*path, "dmPolicy"), 'the policy "open" needs "*" in allowFrom beside it')


def _open_to_all(senders: Any) -> bool:
    return isinstance(senders, list) and "*" in senders


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return False
    return True


def _gateway(config: Config, report: Report) -> None:
    gateway = config.gateway
    if gateway.bind == "custom" and not (gateway.custom_bind_host or "").strip():
        report.refuse(
            ("gateway", "bind"), '"custom" needs an address of this machine; set gateway.customBindHost to it'
        )
    for index, proxy in enumerate(gateway.trusted_proxies):
        if not _is_network(proxy):
            path = ("gateway", "trustedProxies", index)
            report.mistake(path, f"{proxy!r} is neither an address nor a network, so no proxy is trusted for it")
    if gateway.tailscale.mode != "off" and gateway.bind != "loopback":
        report.issue(("gateway", "tailscale", "mode"), 'publishing through Tailscale needs gateway.bind "loopback"')
    if gateway.tailscale.mode == "funnel" and gateway.auth.mode != "password":
        report.issue(("gateway", "tailscale", "mode"), 'funnel needs gateway.auth.mode "password"')
    if config.hooks.enabled and not config.hooks.token:
        report.issue(("hooks", "token"), "webhooks need a token; set hooks.token or switch hooks.enabled off")
    if config.hooks.path.strip("/") == "":
        report.issue(("hooks", "path"), 'the path of webhooks cannot be "/"; use something like /hooks')


# The schema as a tree


class Shape(msgspec.Struct, frozen=True):
    """The type of one value. A union may be a record, a list, a mapping and a plain value at the same time."""

    type: Any
    record: type[msgspec.Struct] | None = None
    items: Shape | None = None
    values: Shape | None = None
    sensitive: bool = False


class FieldShape(msgspec.Struct, frozen=True):
    name: str
    """The name in Python."""
    key: str
    """The key in the file."""
    shape: Shape
    required: bool
    default: Any


@functools.cache
def fields_of(record: type[msgspec.Struct]) -> dict[str, FieldShape]:
    """Returns the fields by their key in the file, without the one that takes free keys."""
    hidden = catch_all(record)
    return {field.encode_name: _field(field) for field in msgspec.structs.fields(record) if field.name != hidden}


@functools.cache
def free_keys(record: type[msgspec.Struct]) -> FieldShape | None:
    """Returns the field that takes the keys which are no fields, if the record has one."""
    hidden = catch_all(record)
    return next((_field(field) for field in msgspec.structs.fields(record) if field.name == hidden), None)


def catch_all(record: type[msgspec.Struct]) -> str:
    return getattr(record, "catch_all", "")


def shape_of(type_: Any) -> Shape:
    origin = typing.get_origin(type_)
    if origin is typing.Annotated:
        base, *metas = typing.get_args(type_)
        extras = [getattr(meta, "extra_json_schema", None) or {} for meta in metas]
        sensitive = any(extra.get("format") == "password" for extra in extras)
        return msgspec.structs.replace(shape_of(base), type=type_, sensitive=sensitive)
    if origin is typing.Union or origin is types.UnionType:
        parts = [shape_of(part) for part in typing.get_args(type_) if part is not type(None)]
        return Shape(
            type=type_,
            record=next((part.record for part in parts if part.record), None),
            items=next((part.items for part in parts if part.items), None),
            values=next((part.values for part in parts if part.values), None),
            sensitive=any(part.sensitive for part in parts),
        )
    if origin is list:
        return Shape(type=type_, items=shape_of(typing.get_args(type_)[0]))
    if origin in (dict, collections.abc.Mapping):
        return Shape(type=type_, values=shape_of(typing.get_args(type_)[1]))
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return Shape(type=type_, record=type_)
    return Shape(type=type_)


def _field(field: msgspec.structs.FieldInfo) -> FieldShape:
    if field.default is not msgspec.NODEFAULT:
        default = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    else:
        default = msgspec.UNSET
    return FieldShape(field.name, field.encode_name, shape_of(field.type), field.required, default)


def record_in(shape: Shape) -> tuple[type[msgspec.Struct] | None, str]:
    """The record that a value holds, also within lists and maps, and how its path goes on: ``[]``, ``.*`` or ""."""
    if shape.record is not None:
        return shape.record, ""
    for inner, mark in ((shape.items, "[]"), (shape.values, ".*")):
        if inner is not None:
            record, below = record_in(inner)
            return record, mark + below
    return None, ""
