"""Checks a configuration against the schema: every finding with its place, not just the first.

What is wrong is left out of the result, so that one bad key does not hide the findings behind it.
"""

from __future__ import annotations

import difflib
import types
import typing
from typing import Any

import msgspec

from openclaw.config.issues import Report
from openclaw.config.keypath import KeyPath
from openclaw.config.shape import FieldShape, Shape, fields_of, free_keys

_MOVED = {
    "agent": "agents.defaults",
    "identity": "agents.list[].identity",
    "routing": "bindings, messages.groupChat and messages.queue",
    "whatsapp": "channels.whatsapp",
    "telegram": "channels.telegram",
    "discord": "channels.discord",
    "slack": "channels.slack",
    "signal": "channels.signal",
    "imessage": "channels.imessage",
    "bridge": "gateway",
}


def checked(value: Any, shape: Shape, path: KeyPath, report: Report) -> Any:
    """The value without what is wrong in it; UNSET when nothing is left."""
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
            report.warn(where, _unknown(key, fields, path))
    if free and extra:
        good[free.key] = extra
    missing = [field.key for field in fields.values() if field.required and field.key not in good]
    for key in missing:
        if value.get(key) is None:
            report.issue((*path, key), "this key is required and missing")
    if missing or len(report.issues) > before:
        return msgspec.UNSET if missing else good
    return _obeys_own_rule(good, record, path, report)


def _obeys_own_rule(good: dict[str, Any], record: type[msgspec.Struct], path: KeyPath, report: Report) -> Any:
    if not hasattr(record, "__post_init__"):
        return good
    try:
        msgspec.convert(good, record)
    except msgspec.ValidationError as error:
        report.issue(path, str(error))
        return msgspec.UNSET
    return good


def _unknown(key: str, fields: dict[str, FieldShape], path: KeyPath) -> str:
    if not path and key in _MOVED:
        return f"unknown key; it is called {_MOVED[key]} now"
    by_folded = {_folded(name): name for name in fields}
    close = difflib.get_close_matches(_folded(key), by_folded, n=1, cutoff=0.6)
    return f'unknown key, ignored; did you mean "{by_folded[close[0]]}"?' if close else "unknown key, ignored"


def _folded(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def expected(type_: Any) -> str:
    """The type in words."""
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
    """What stands there instead. Never the value of a secret."""
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
