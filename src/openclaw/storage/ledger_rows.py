"""The rows of the ledger as records. The ledgers in SQLite and in PostgreSQL have the same columns.

A column has the name of its field; only a ``Reason`` takes two columns, ``code`` and ``detail``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from openclaw.json_text import encode
from openclaw.storage.base import (
    Accept,
    DeliveryCode,
    LedgerRow,
    MessageBody,
    OutboxRow,
    Reason,
    ReasonCode,
    ToolCallRow,
)

ACCEPT_COLUMNS = tuple(name for name in Accept.__struct_fields__ if name != "dedupe_keys")
accept_fields = attrgetter(*ACCEPT_COLUMNS)
"""Returns the fields of a message in the order of ``ACCEPT_COLUMNS``."""
_JSON_COLUMNS = frozenset({"route", "body"})
_MESSAGE_COLUMNS = (
    *(name for name in LedgerRow.__struct_fields__ if name not in ("dedupe_keys", "reason")),
    "code",
    "detail",
)
SELECT_MESSAGES = f"SELECT {', '.join(_MESSAGE_COLUMNS)} FROM messages"
SELECT_TOOL_CALLS = f"SELECT {', '.join(ToolCallRow.__struct_fields__)} FROM tool_calls"
SELECT_PARTS = f"SELECT {', '.join(OutboxRow.__struct_fields__)} FROM outbox"
_decode_body = msgspec.json.Decoder(MessageBody).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def accept_values(message: Accept) -> list[Any]:
    """Returns the values of ``ACCEPT_COLUMNS``."""
    values = zip(ACCEPT_COLUMNS, accept_fields(message), strict=True)
    return [encode(value) if name in _JSON_COLUMNS else value for name, value in values]


def message_of(row: tuple[Any, ...]) -> LedgerRow:
    """Makes a message of a row. What is damaged is read as empty, so that other messages can be read."""
    fields = dict(zip(_MESSAGE_COLUMNS, row, strict=True))
    reason, result = reason_of(fields.pop("code"), fields.pop("detail")), fields["result"]
    fields["route"] = _object(fields["route"]) or {}
    fields["result"] = None if result is None else _object(result)
    try:
        fields["body"] = _decode_body(fields["body"])
    except (msgspec.MsgspecError, UnicodeError):
        fields["body"] = MessageBody()
    return LedgerRow(reason=reason, **fields)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        return _decode_object(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def reason_of(code: str, detail: str) -> Reason:
    """A code written by a newer version is read as ``other``."""
    try:
        return Reason(ReasonCode(code), detail)
    except ValueError:
        return Reason(ReasonCode.OTHER, detail or code)


def tool_call_of(row: tuple[Any, ...]) -> ToolCallRow:
    call = ToolCallRow(**dict(zip(ToolCallRow.__struct_fields__, row, strict=True)))
    call.ok = None if call.ok is None else bool(call.ok)
    return call


def part_of(row: tuple[Any, ...]) -> OutboxRow:
    """Makes a part of a row. One whose payload is damaged cannot be sent, and ends with that reason."""
    fields = dict(zip(OutboxRow.__struct_fields__, row, strict=True))
    fields["route"] = _object(fields["route"]) or {}
    payload = _object(fields["payload"])
    fields["payload"] = {"text": None} if payload is None else payload
    codes = frozenset(DeliveryCode)
    fields["code"] = DeliveryCode(fields["code"]) if fields["code"] in codes else DeliveryCode.NONE
    return OutboxRow(**fields)
