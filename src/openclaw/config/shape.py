"""The schema as a tree that can be walked: the type, the record, the items and the values of each key."""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from typing import Any

import msgspec


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
