"""The table of methods, and what every method shares: its frames, its parameters and its errors.

A method is a name, its parameters, who may call it, and the function that answers. Parameters are checked as a whole:
a caller is told everything that is wrong with them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import msgspec
from msgspec import inspect

from openclaw.config.agents import default_agent_id, main_key
from openclaw.gateway.auth.authorise import EVENT_RIGHTS, METHOD_RIGHTS, param_refusal, refusal, right_of
from openclaw.json_text import is_deep, may_be_deep
from openclaw.rights import Right
from openclaw.runs.session_change import StillActive
from openclaw.sessions.entry import SessionEntry, is_blocked
from openclaw.sessions.keys import LONGEST_KEY, REMEMBERED_KEYS, SessionRef, agent_of, canonical_key, key_problem
from openclaw.storage.base import SessionRow
from openclaw.storage.disk_errors import in_words, is_disk_trouble
from openclaw.storage.session_query import SessionQuery
from openclaw.text import clipped, redact_urls

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.events import Client

log = logging.getLogger("openclaw.gateway.ws")
T = TypeVar("T")
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
MAX_NUMBER = 2**53 - 1
"""The largest whole number that every client can hold. Sizes and counts of ours fit into it, too."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
PROTOCOL_VERSION = 3
MAX_FRAME_BYTES = 512 * 1024
"""The largest inbound frame. A larger one closes the connection with code 1009."""
CLOSE_REASON_BYTES = 120
MAX_PROBLEMS = 20
"""The most problems listed in one error message, so that bad input cannot make it arbitrarily long."""
_METHODS = """
health logs.tail channels.status channels.logout status usage.status usage.cost tts.status tts.providers tts.enable
tts.disable tts.convert tts.setProvider config.get config.set config.apply config.patch config.schema
exec.approvals.get exec.approvals.set exec.approvals.node.get exec.approvals.node.set exec.approval.request
exec.approval.resolve wizard.start wizard.next wizard.cancel wizard.status talk.mode models.list agents.list
agents.create agents.update agents.delete agents.files.list agents.files.get agents.files.set skills.status
skills.bins skills.install skills.update update.run voicewake.get voicewake.set sessions.list sessions.preview
sessions.patch sessions.reset sessions.delete sessions.compact last-heartbeat set-heartbeats wake node.pair.request
node.pair.list node.pair.approve node.pair.reject node.pair.verify device.pair.list device.pair.approve
device.pair.reject device.token.rotate device.token.revoke node.rename node.list node.describe node.invoke
node.invoke.result node.event cron.list cron.status cron.add cron.update cron.remove cron.run cron.runs
system-presence system-event send agent agent.identity.get agent.wait browser.request chat.history chat.abort
chat.send sessions.resolve sessions.usage sessions.usage.timeseries sessions.usage.logs chat.inject poll
connect
"""
ADVERTISED: tuple[str, ...] = tuple(_METHODS.split())
"""The method names of protocol v3. A name without a handler here answers UNAVAILABLE."""
_EVENTS = """
connect.challenge agent chat presence tick talk.mode shutdown health heartbeat cron node.pair.requested
node.pair.resolved node.invoke.request node.invoke.cancel device.pair.requested device.pair.resolved voicewake.changed
exec.approval.requested exec.approval.resolved
"""
EVENTS: tuple[str, ...] = tuple(_EVENTS.split())
# METHOD_RIGHTS has methods besides the advertised ones: those that protocol v3 does not know.
if unruled := (set(ADVERTISED) - set(METHOD_RIGHTS)) | (set(EVENTS) ^ set(EVENT_RIGHTS)):
    raise ValueError(f"gateway/auth/authorise.py has no rule for {', '.join(sorted(unruled))}, or a rule too many")


class Params(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Parameters of a method: camelCase on the wire, and no unknown fields."""


class NoParams(Params):
    """For methods without parameters."""


class MethodError(Exception):
    """An error answer. ``payload`` is sent beside the error, for methods whose failures carry a result."""

    def __init__(
        self,
        message: str,
        code: str = "INVALID_REQUEST",
        details: Any = None,
        payload: Any = None,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        message = redact_urls(message)
        super().__init__(message)
        self.payload = payload
        self.shape = ErrorShape(
            code=code, message=message, details=details, retryable=retryable, retry_after_ms=retry_after_ms
        )


class MethodCall:
    """One request that is being answered. ``hops`` counts the nodes that have handed it on."""

    def __init__(self, gateway: Gateway, client: Client, id: str, method: str, params: Any, hops: int = 0) -> None:
        self.hops = hops
        self.gateway = gateway
        self.client = client
        self.id = id
        self.method = method
        self.params = params

    def respond(self, payload: Any) -> None:
        """Sends an early ``res`` with the same id. The handler's return value follows as the last one."""
        self.client.note_answer(payload)
        self.client.send_frame(encode_response(self.id, payload))


Handler = Callable[..., Awaitable[Any]]
"""It gets the call, and its parameters as a record if the method has such a record."""
H = TypeVar("H", bound=Handler)


class Method(msgspec.Struct, frozen=True):
    name: str
    params: type[Any] | None
    handler: Handler
    right: Right | None = None
    """The right that it needs. None: ``METHOD_RIGHTS`` has it."""

    def answer(self, call: MethodCall) -> Awaitable[Any]:
        return self.handler(call) if self.params in (None, NoParams) else self.handler(call, call.params)


class MethodTable:
    """Methods by name. Each family module fills a table of its own; the Gateway has one that unites them."""

    def __init__(self, *families: MethodTable) -> None:
        self._methods: dict[str, Method] = {}
        for family in families:
            for found in family._methods.values():
                self._add(found)

    def add(self, name: str, params: type[Any] | None = None) -> Callable[[H], H]:
        """Decorates the function that answers ``name``. The right that it needs is in ``METHOD_RIGHTS``.

        ``params`` is the record that its parameters decode into; the handler gets it beside the call. Without one, the
        call has plain values.
        """
        if name not in METHOD_RIGHTS:
            raise ValueError(f"method {name} needs a right: add it to gateway/auth/authorise.py")

        def register(handler: H) -> H:
            self._add(Method(name, params, handler))
            return handler

        return register

    def add_own(self, name: str, right: Right, handler: Handler) -> None:
        """Adds a method of an extension, which says itself who may call it."""
        self._add(Method(name, None, handler, right))

    def _add(self, method: Method) -> None:
        if method.name in self._methods:
            raise ValueError(f"method {method.name} is registered twice")
        self._methods[method.name] = method

    def advertised(self) -> list[str]:
        """The names for ``hello-ok``: those of protocol v3 first, then ours."""
        return [*ADVERTISED, *(name for name in self._methods if name not in ADVERTISED)]

    def registered(self) -> list[Method]:
        """Every method that has a handler."""
        return list(self._methods.values())

    def find(self, client: Client, name: str) -> Method:
        """The method, once the caller is known to be allowed to call it. Raises ``MethodError``."""
        if name == "connect":
            raise MethodError("connect is only valid as the first request")
        found = self._methods.get(name)
        right = found.right if found is not None else None
        if refused := refusal(client.role, client.rights, right or right_of(name)):
            raise MethodError(refused)
        if found is not None:
            return found
        shown = clipped(name, 81)
        if name in ADVERTISED:
            raise MethodError(f"{shown} is not available in this version", code="UNAVAILABLE")
        raise MethodError(f"unknown method: {shown}")


def open_call(
    gateway: Gateway, client: Client, id: str, name: str, raw: msgspec.Raw | bytes, hops: int = 0
) -> tuple[Method, MethodCall]:
    """Authorises the call and decodes its parameters. Raises ``MethodError``."""
    found = gateway.methods.find(client, name)
    try:
        if found.params is not None:
            params = decode_params(name, raw, found.params)
        else:
            params = decode_any(bytes(raw)) if bytes(raw).strip() else {}
    except InvalidParams as error:
        raise MethodError(str(error)) from None
    except NotJson:
        raise MethodError(f"invalid {name} params: must be valid JSON") from None
    if refused := param_refusal(name, params, client.rights):
        raise MethodError(refused)
    return found, MethodCall(gateway, client, id, name, params if params is not None else {}, hops)


class Answer(msgspec.Struct, frozen=True):
    """The last ``res`` of a call and how it went."""

    frame: bytes
    ok: bool
    message: str = ""
    sent: bool = False
    """The client has it already."""


async def answer(
    gateway: Gateway, client: Client, id: str, name: str, raw: msgspec.Raw | bytes, hops: int = 0
) -> Answer:
    """Runs the call and makes its answer, also when the handler fails."""
    try:
        found, call = open_call(gateway, client, id, name, raw, hops)
        if gateway.cluster is not None and (elsewhere := await gateway.cluster.answer_elsewhere(call, raw)) is not None:
            return elsewhere
        payload = await found.answer(call)
        client.note_answer(payload)
        return Answer(encode_response(id, payload), True)
    except MethodError as error:
        client.note_answer(error.payload)
        return Answer(encode_error(id, error.shape, error.payload), False, str(error))
    except StillActive as active:
        shape = ErrorShape(code="UNAVAILABLE", message=str(active))
        return Answer(encode_error(id, shape), False, shape.message)
    except Exception as error:
        log.exception("method %s failed", name[:80], extra={"fields": {"conn": client.conn_id, "id": id[:80]}})
        # The client learns a cause only when its reader can act on it.
        message = "internal error (see logs)"
        if isinstance(error, OSError) and is_disk_trouble(error):
            message = f"not done: {in_words(error)}, then try again"
        return Answer(encode_error(id, ErrorShape(code="UNAVAILABLE", message=message)), False, message)


# Sessions that a call names


def target_of(gateway: Gateway, key: str, agent_id: str | None = None) -> SessionRef:
    """Returns the session that a key means. Raises ``MethodError`` for an invalid key.

    A key without an agent prefix belongs to ``agent_id``, or to the default agent.
    """
    if len(key) > LONGEST_KEY:
        raise MethodError(f"invalid session key: {key_problem(key)}")
    config = gateway.runtime.config.current
    return _target(key, agent_id or default_agent_id(config), main_key(config), config.session.scope)


@lru_cache(maxsize=REMEMBERED_KEYS)
def _target(key: str, default_agent: str, main_key: str, scope: str) -> SessionRef:
    if problem := key_problem(key):
        raise MethodError(f"invalid session key: {problem}")
    canonical = canonical_key(key, default_agent=default_agent, main_key=main_key, scope=scope)
    return SessionRef(agent_of(canonical, default_agent=default_agent), canonical)


def require_configured(gateway: Gateway, target: SessionRef) -> None:
    """Raises ``MethodError`` for a session of an unknown agent, if the configuration lists agents."""
    config = gateway.runtime.config.current
    if config.agents.list and target.agent_id not in gateway.agent_ids():
        known = ", ".join(gateway.agent_ids())
        raise MethodError(f'unknown agent id "{target.agent_id}" in the session key; there are: {known}')


async def entry_of(gateway: Gateway, target: SessionRef) -> SessionEntry | None:
    return await gateway.runtime.sessions.get(target.agent_id, target.key)


def require_agent(gateway: Gateway, agent_id: str) -> None:
    """Raises ``MethodError`` for an unknown agent. An agent that only has sessions left is known."""
    if agent_id not in gateway.agent_ids():
        raise MethodError(f'unknown agent id "{agent_id}"')


def check_send_policy(
    gateway: Gateway, target: SessionRef, entry: SessionEntry | None, channel: str | None = None
) -> None:
    if is_blocked(gateway.runtime.config.current.session.send_policy, target.key, entry, channel=channel):
        raise MethodError("send blocked by session policy")


async def find_row(gateway: Gateway, text: str) -> SessionRow | None:
    """Finds a session by key, then by session id, then by a label that only one session has."""
    if key_problem(text) is None:
        target = target_of(gateway, text)
        entry = await entry_of(gateway, target)
        if entry is not None:
            return SessionRow(target.agent_id, target.key, entry)
    found = await gateway.runtime.sessions.find_session_id(text.strip())
    if found is not None:
        return found
    labelled = await gateway.runtime.sessions.select(SessionQuery(label=text.strip(), limit=2))
    return labelled.rows[0] if len(labelled.rows) == 1 else None


# Frames


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
    """Shortens the reason to what a close frame can hold, and never cuts inside a character."""
    return text.encode()[:CLOSE_REASON_BYTES].decode("utf-8", "ignore").encode()


# Parameters


class InvalidParams(Exception):
    """Everything that is wrong with the parameters, in one text."""


@cache
def _decoder(shape: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def decode_params(method: str, raw: bytes | msgspec.Raw, shape: type[T]) -> T:
    """The parameters as a record. Absent and ``null`` count as ``{}``. Raises ``InvalidParams``."""
    data = bytes(raw).strip()
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
        value = _whole_numbers(decode_any(data))
        found = problems(value, shape)
        if not found:
            return msgspec.convert(value, shape)
    except (NotJson, RecursionError):
        raise InvalidParams(f"invalid {method} params: must be valid JSON") from None
    except msgspec.MsgspecError:
        found = [first]
    raise InvalidParams(f"invalid {method} params: {'; '.join(found)}")


def problems(value: Any, shape: type[Any]) -> list[str]:
    """The problems of a plain value, in the order of the schema and without repeats."""
    found: list[str] = []
    _check(value, _info(shape), "", found)
    return list(dict.fromkeys(found))[:MAX_PROBLEMS]


@cache
def _info(shape: type[Any]) -> inspect.Type:
    return inspect.type_info(shape)


def _whole_numbers(value: Any) -> Any:
    """Turns whole floats into integers, because JSON has one kind of number."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    return value


def _report(found: list[str], path: str, text: str) -> None:
    if len(found) < MAX_PROBLEMS * 4:
        found.append(f"at {path}: {text}" if path else text)


def _check(value: Any, kind: inspect.Type, path: str, found: list[str]) -> None:
    match kind:
        case inspect.Metadata():
            _check(value, kind.type, path, found)
        case inspect.StructType():
            _check_struct(value, kind, path, found)
        case inspect.StrType():
            _check_string(value, kind, path, found)
        case inspect.BoolType():
            if not isinstance(value, bool):
                _report(found, path, "must be boolean")
        case inspect.NoneType():
            if value is not None:
                _report(found, path, "must be null")
        case inspect.IntType() | inspect.FloatType():
            _check_number(value, kind, path, found)
        case inspect.LiteralType() | inspect.EnumType():
            allowed = kind.values if isinstance(kind, inspect.LiteralType) else [member.value for member in kind.cls]
            if not any(value == choice and type(value) is type(choice) for choice in allowed):
                _report(found, path, "must be equal to one of the allowed values")
        case inspect.UnionType():
            _check_union(value, kind, path, found)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            _check_list(value, kind, path, found)
        case inspect.DictType():
            if not isinstance(value, dict):
                _report(found, path, "must be object")
                return
            for name, item in value.items():
                _check(item, kind.value_type, f"{path}/{clipped(str(name), 81)}", found)
        case _:
            pass


def _check_struct(value: Any, kind: inspect.StructType, path: str, found: list[str]) -> None:
    if not isinstance(value, dict):
        _report(found, path, "must be object")
        return
    fields = {field.encode_name: field for field in kind.fields}
    for name, field in fields.items():
        if field.required and name not in value:
            _report(found, path, f"must have required property '{name}'")
    if kind.forbid_unknown_fields:
        for name in value:
            if name not in fields and name != kind.tag_field:
                _report(found, path or "root", f"unexpected property '{clipped(name, 81)}'")
    for name, field in fields.items():
        if name in value:
            _check(value[name], field.type, f"{path}/{name}", found)


def _check_string(value: Any, kind: inspect.StrType, path: str, found: list[str]) -> None:
    if not isinstance(value, str):
        _report(found, path, "must be string")
        return
    if kind.max_length is not None and len(value) > kind.max_length:
        _report(found, path, f"must NOT have more than {kind.max_length} characters")
    if kind.min_length is not None and len(value) < kind.min_length:
        _report(found, path, f"must NOT have fewer than {kind.min_length} characters")
    if kind.pattern is not None and not re.search(kind.pattern, value):
        _report(found, path, f'must match pattern "{kind.pattern}"')


def _check_number(value: Any, kind: inspect.IntType | inspect.FloatType, path: str, found: list[str]) -> None:
    whole = isinstance(kind, inspect.IntType)
    allowed = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, allowed):
        _report(found, path, "must be integer" if whole else "must be number")
        return
    for bound, holds, sign in (
        (kind.le, lambda limit: value <= limit, "<="),
        (kind.ge, lambda limit: value >= limit, ">="),
        (kind.lt, lambda limit: value < limit, "<"),
        (kind.gt, lambda limit: value > limit, ">"),
    ):
        if bound is not None and not holds(bound):
            _report(found, path, f"must be {sign} {bound}")


def _check_union(value: Any, kind: inspect.UnionType, path: str, found: list[str]) -> None:
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
        found.extend(attempt)
    if len(members) > 1:
        _report(found, path, "must match a schema in anyOf")


def _check_list(value: Any, kind: Any, path: str, found: list[str]) -> None:
    if not isinstance(value, list):
        _report(found, path, "must be array")
        return
    if kind.max_length is not None and len(value) > kind.max_length:
        _report(found, path, f"must NOT have more than {kind.max_length} items")
    if kind.min_length is not None and len(value) < kind.min_length:
        _report(found, path, f"must NOT have fewer than {kind.min_length} items")
    for index, item in enumerate(value):
        _check(item, kind.item_type, f"{path}/{index}", found)
