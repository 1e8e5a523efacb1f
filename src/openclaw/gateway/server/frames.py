"""The three frames of protocol v3 (request, response, event) as bytes, and back.

Requests are strict: an unknown top-level property is refused.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

import msgspec

PROTOCOL_VERSION = 3
MAX_FRAME_BYTES = 512 * 1024
"""The largest inbound frame. A larger one closes the connection with code 1009."""
CLOSE_REASON_BYTES = 120

Text = Annotated[str, msgspec.Meta(min_length=1)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="req"):
    id: Text
    method: Text
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
    from openclaw.gateway.server.params import problems

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
    """Decodes JSON into plain values. Raises ``NotJson``."""
    try:
        return _any_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(mended_json(raw))
    except (ValueError, RecursionError):
        raise NotJson from None


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
    """Shortens the reason to what a close frame can hold, and never cuts inside a character."""
    return text.encode()[:CLOSE_REASON_BYTES].decode("utf-8", "ignore").encode()
