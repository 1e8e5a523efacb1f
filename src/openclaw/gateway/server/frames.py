"""The frames of the protocol: requests with their parameters, answers and events, as they are read and written.

Parameters are checked as a whole: the error lists every problem.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import inspect

from openclaw.json_text import is_deep, may_be_deep
from openclaw.text import clipped

T = TypeVar("T")
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
MAX_NUMBER = 2**53 - 1
"""The largest whole number that every client can hold. Our sizes and counts fit into it."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
OLDEST_PROTOCOL = 3
NEWEST_PROTOCOL = 4
PROTOCOLS = tuple(range(OLDEST_PROTOCOL, NEWEST_PROTOCOL + 1))
"""The versions of the protocol that are served. Each connection agrees on one."""
MAX_FRAME_BYTES = 512 * 1024
"""The largest inbound frame. A larger one closes the connection with code 1009."""
CLOSE_REASON_BYTES = 120
MAX_PROBLEMS = 20
"""The most problems listed in one error message, so that bad input cannot make it arbitrarily long."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="req"):
    id: NonEmpty
    method: NonEmpty
    params: msgspec.Raw = msgspec.Raw()


class ErrorShape(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    code: str
    message: str
    details: Any = None
    retryable: bool | None = None
    retry_after_ms: int | None = None


class _Response(msgspec.Struct, frozen=True, tag_field="type", tag="res", omit_defaults=True):
    id: str
    ok: bool
    payload: Any = None
    error: ErrorShape | None = None


class _Event(msgspec.Struct, frozen=True, tag_field="type", tag="event", omit_defaults=True, rename="camel"):
    event: str
    payload: Any
    seq: int | None = None
    state_version: dict[str, int] | None = None


class BadFrame(Exception):
    """The frame is JSON but not a request. ``id`` is the id in it, so that the sender knows which frame it was."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(reason)
        self.id = id


class NotJson(Exception):
    """The frame is not JSON."""


_encoder = msgspec.json.Encoder()
_request_decoder = msgspec.json.Decoder(Request)
_any_decoder = msgspec.json.Decoder()
_NULL = msgspec.Raw(b"null")
encode = _encoder.encode


def decode_request(raw: bytes) -> Request:
    """The request in a frame. Raises ``NotJson`` or ``BadFrame``."""
    try:
        return _request_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    text = mended_json(raw)
    try:
        return _request_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    value = decode_any(text)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        id, is_request = fields.get("id"), fields.get("type") == "req"
    else:
        id, is_request = None, True
    reason = "; ".join(problems(value, Request)) if is_request else "at /type: must be equal to constant"
    raise BadFrame(id if isinstance(id, str) and id else "invalid", reason or "must be a request")


def mended_json(raw: bytes) -> bytes:
    """The same JSON without half surrogate pairs, which JavaScript may send and UTF-8 cannot hold."""
    try:
        text = raw.decode("utf-8")
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise NotJson from None
    if "\\u" not in text:
        return raw
    mended = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return mended.encode()


def decode_any(raw: bytes) -> Any:
    """Decodes JSON into plain values. Raises ``NotJson``, also for values that are nested too deeply."""
    try:
        value = _any_decoder.decode(raw)
    except RecursionError:
        raise NotJson from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        try:
            value = json.loads(mended_json(raw))
        except (ValueError, RecursionError):
            raise NotJson from None
    if may_be_deep(raw) and is_deep(value):
        raise NotJson
    return value


def encode_response(id: str, payload: Any) -> bytes:
    # A plain None would be left out, and an answer without a payload differs from one with the payload null.
    return _encoder.encode(_Response(id, True, _NULL if payload is None else payload))


def encode_error(id: str, error: ErrorShape, payload: Any = None) -> bytes:
    return _encoder.encode(_Response(id, False, payload, error))


def encode_event(
    event: str, payload: Any, seq: int | None = None, state_version: dict[str, int] | None = None
) -> bytes:
    return _encoder.encode(_Event(event, payload, seq, state_version))


def close_reason(text: str) -> bytes:
    """Shorten the reason to what a close frame can hold, and never cut inside a character."""
    return text.encode()[:CLOSE_REASON_BYTES].decode("utf-8", "ignore").encode()


# Parameters


class Params(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Parameters of a method: camelCase on the wire, and no unknown fields."""


class NoParams(Params):
    """For methods without parameters."""


class InvalidParams(Exception):
    """Everything that is wrong with the parameters, in one text."""


@cache
def _decoder(shape: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def decode_params(method: str, raw: bytes | msgspec.Raw, shape: type[T], *, tolerant: bool = False) -> T:
    """The parameters as a record. Absent and ``null`` count as ``{}``. Raises ``InvalidParams``.

    ``tolerant`` ignores parameters that the record does not have. Protocol 4 adds some that only refine a display.
    """
    data = bytes(raw).strip()
    if tolerant:
        data = _known_fields(data, shape)
    if not data or data == b"null":
        data = b"{}"
    if may_be_deep(data):
        try:
            decode_any(data)
        except NotJson:
            raise InvalidParams(f"invalid {method} params: must be valid JSON, not nested too deeply") from None
    try:
        return _decoder(shape).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        first = str(error)
    try:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return _decoder(shape).decode(mended_json(data))
        value = _whole_numbers(decode_any(data))
        errors = problems(value, shape)
        if not errors:
            return msgspec.convert(value, shape)
    except (NotJson, RecursionError):
        raise InvalidParams(f"invalid {method} params: must be valid JSON") from None
    except msgspec.MsgspecError:
        errors = [first]
    raise InvalidParams(f"invalid {method} params: {'; '.join(errors)}")


def _known_fields(data: bytes, shape: type[Any]) -> bytes:
    """Return the same JSON object with only the fields of the record, at every level."""
    try:
        value = _any_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return data  # The decoder of the record says what is wrong.
    return _encoder.encode(_without_unknown(value, _info(shape)))


def _without_unknown(value: Any, kind: inspect.Type) -> Any:
    match kind:
        case inspect.Metadata():
            return _without_unknown(value, kind.type)
        case inspect.StructType() if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            known = {field.encode_name: field.type for field in kind.fields}
            return {name: _without_unknown(fields[name], known[name]) for name in fields if name in known}
        case inspect.UnionType() if isinstance(value, dict):
            records = [member for member in kind.types if isinstance(member, inspect.StructType)]
            return _without_unknown(value, records[0]) if len(records) == 1 else value
        case _:
            return value


def problems(value: Any, shape: type[Any]) -> list[str]:
    """The problems of a plain value, in the order of the schema and without repeats."""
    errors: list[str] = []
    _check(value, _info(shape), "", errors)
    return list(dict.fromkeys(errors))[:MAX_PROBLEMS]


@cache
def _info(shape: type[Any]) -> inspect.Type:
    return inspect.type_info(shape)


def _whole_numbers(value: Any) -> Any:
    """Convert whole floats to integers, because JSON has one kind of number."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    return value


def _report(errors: list[str], path: str, text: str) -> None:
    if len(errors) < MAX_PROBLEMS * 4:
        errors.append(f"at {path}: {text}" if path else text)


def _check(value: Any, kind: inspect.Type, path: str, errors: list[str]) -> None:
    match kind:
        case inspect.Metadata():
            _check(value, kind.type, path, errors)
        case inspect.StructType():
            _check_struct(value, kind, path, errors)
        case inspect.StrType():
            _check_string(value, kind, path, errors)
        case inspect.BoolType():
            if not isinstance(value, bool):
                _report(errors, path, "must be boolean")
        case inspect.NoneType():
            if value is not None:
                _report(errors, path, "must be null")
        case inspect.IntType() | inspect.FloatType():
            _check_number(value, kind, path, errors)
        case inspect.LiteralType() | inspect.EnumType():
            allowed = kind.values if isinstance(kind, inspect.LiteralType) else [member.value for member in kind.cls]
            if not any(value == choice and type(value) is type(choice) for choice in allowed):
                _report(errors, path, "must be equal to one of the allowed values")
        case inspect.UnionType():
            _check_union(value, kind, path, errors)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            _check_list(value, kind, path, errors)
        case inspect.DictType():
            if not isinstance(value, dict):
                _report(errors, path, "must be object")
                return
            for name, item in value.items():
                _check(item, kind.value_type, f"{path}/{clipped(str(name), 81)}", errors)
        case _:
            pass


def _check_struct(value: Any, kind: inspect.StructType, path: str, errors: list[str]) -> None:
    if not isinstance(value, dict):
        _report(errors, path, "must be object")
        return
    fields = {field.encode_name: field for field in kind.fields}
    for name, field in fields.items():
        if field.required and name not in value:
            _report(errors, path, f"must have required property '{name}'")
    if kind.forbid_unknown_fields:
        for name in value:
            if name not in fields and name != kind.tag_field:
                _report(errors, path or "root", f"unexpected property '{clipped(name, 81)}'")
    for name, field in fields.items():
        if name in value:
            _check(value[name], field.type, f"{path}/{name}", errors)


def _check_string(value: Any, kind: inspect.StrType, path: str, errors: list[str]) -> None:
    if not isinstance(value, str):
        _report(errors, path, "must be string")
        return
    if kind.max_length is not None and len(value) > kind.max_length:
        _report(errors, path, f"must NOT have more than {kind.max_length} characters")
    if kind.min_length is not None and len(value) < kind.min_length:
        _report(errors, path, f"must NOT have fewer than {kind.min_length} characters")
    if kind.pattern is not None and not re.search(kind.pattern, value):
        _report(errors, path, f'must match pattern "{kind.pattern}"')


def _check_number(value: Any, kind: inspect.IntType | inspect.FloatType, path: str, errors: list[str]) -> None:
    whole = isinstance(kind, inspect.IntType)
    allowed = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, allowed):
        _report(errors, path, "must be integer" if whole else "must be number")
        return
    for bound, holds, sign in (
        (kind.le, lambda limit: value <= limit, "<="),
        (kind.ge, lambda limit: value >= limit, ">="),
        (kind.lt, lambda limit: value < limit, "<"),
        (kind.gt, lambda limit: value > limit, ">"),
    ):
        if bound is not None and not holds(bound):
            _report(errors, path, f"must be {sign} {bound}")


def _check_union(value: Any, kind: inspect.UnionType, path: str, errors: list[str]) -> None:
    members = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
    if value is None and len(members) < len(kind.types):
        return
    if isinstance(value, dict):
        # Records that a field tells apart: the others have nothing to say about this one.
        told_apart = [one for one in members if isinstance(one, inspect.StructType) and one.tag_field is not None]
        members = [one for one in told_apart if value.get(one.tag_field) == one.tag] or members
    attempts: list[list[str]] = []
    for member in members:
        attempt: list[str] = []
        _check(value, member, path, attempt)
        if not attempt:
            return
        attempts.append(attempt)
    for attempt in attempts:
        errors.extend(attempt)
    if len(members) > 1:
        _report(errors, path, "must match a schema in anyOf")


def _check_list(value: Any, kind: Any, path: str, errors: list[str]) -> None:
    if not isinstance(value, list):
        _report(errors, path, "must be array")
        return
    if kind.max_length is not None and len(value) > kind.max_length:
        _report(errors, path, f"must NOT have more than {kind.max_length} items")
    if kind.min_length is not None and len(value) < kind.min_length:
        _report(errors, path, f"must NOT have fewer than {kind.min_length} items")
    for index, item in enumerate(value):
        _check(item, kind.item_type, f"{path}/{index}", errors)
