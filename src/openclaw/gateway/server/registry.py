"""The table of methods, and how a call is answered: ``answer`` finds the method, checks the caller and calls it.

A method is a name, its parameters, who may call it, and the function that answers. Frames and parameters are read by
``frames.py``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from openclaw.gateway.auth.authorise import EVENT_RIGHTS, METHOD_RIGHTS, param_refusal, refusal, right_of
from openclaw.gateway.server.frames import (
    OLDEST_PROTOCOL,
    ErrorShape,
    InvalidParams,
    NoParams,
    NotJson,
    decode_any,
    decode_params,
    encode_error,
    encode_response,
)
from openclaw.rights import Right
from openclaw.runs.session_change import StillActive
from openclaw.storage.disk_errors import refusal_text
from openclaw.storage.errors import Fenced
from openclaw.text import clipped, redact_urls

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.events import Client

log = logging.getLogger("openclaw.gateway.ws")
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
exec.approval.requested exec.approval.resolved question.opened question.closed
"""
EVENTS: tuple[str, ...] = tuple(_EVENTS.split())
EVENTS_SINCE_4: tuple[str, ...] = ("sessions.changed", "session.message", "models.snapshot")
CAPABILITIES = ("published-model-catalog", "session-scoped-model-catalog")
"""What ``hello-ok`` of protocol 4 promises besides methods and events."""
# METHOD_RIGHTS has methods besides the advertised ones: those that protocol v3 does not know.
if unruled := (set(ADVERTISED) - set(METHOD_RIGHTS)) | ({*EVENTS, *EVENTS_SINCE_4} ^ set(EVENT_RIGHTS)):
    raise ValueError(f"gateway/auth/authorise.py has no rule for {', '.join(sorted(unruled))}, or a rule too many")


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
        """Send an early ``res`` with the same id. The handler's return value follows as the last one."""
        self.client.note_answer(payload)
        self.client.send_frame(encode_response(self.id, payload))


Handler = Callable[..., Awaitable[Any]]
"""It gets the call, and its parameters as a record if the method has such a record. Its annotation names the result."""
OpenObject = dict[str, Any]
"""The result of a method whose keys the Gateway does not define: configuration, JSON Schema, another program's JSON."""
H = TypeVar("H", bound=Handler)


def events_of(protocol: int) -> list[str]:
    """Return the names of the events that ``hello-ok`` announces to a client of this version."""
    return [*EVENTS, *EVENTS_SINCE_4] if protocol > OLDEST_PROTOCOL else list(EVENTS)


class Method(msgspec.Struct, frozen=True):
    name: str
    params: type[Any] | None
    handler: Handler
    right: Right | None = None
    """The right that it needs. None: ``METHOD_RIGHTS`` has it."""
    since: int = OLDEST_PROTOCOL
    """The first version of the protocol in which the method has this form."""

    @property
    def result(self) -> Any:
        """Return the type that the handler's annotation promises: a record, several, or ``OpenObject``."""
        return inspect.get_annotations(self.handler, eval_str=True).get("return", Any)

    def answer(self, call: MethodCall) -> Awaitable[Any]:
        return self.handler(call) if self.params in (None, NoParams) else self.handler(call, call.params)


class MethodTable:
    """Methods by name. Each family module fills a table of its own; the Gateway has one that unites them."""

    def __init__(self, *families: MethodTable) -> None:
        self._methods: dict[str, Method] = {}
        self._newer: dict[str, Method] = {}
        """The methods that protocol 4 adds, and those to which it gives another form."""
        for family in families:
            for method in family.registered():
                self._add(method)

    def add(self, name: str, params: type[Any] | None = None, *, since: int = OLDEST_PROTOCOL) -> Callable[[H], H]:
        """Decorate the function that answers ``name``. The right that it needs is in ``METHOD_RIGHTS``.

        ``params`` is the record that its parameters decode into; the handler gets it beside the call. Without one, the
        call has plain values. The handler's return annotation is the type of the result, which ``docs/methods.md``
        describes: a ``Result``, a union of them, or ``OpenObject``.

        ``since`` is the first version of the protocol that has the method. A name may be registered once for protocol 3
        and once for protocol 4; each connection gets the one of its version.
        """
        if name not in METHOD_RIGHTS:
            raise ValueError(f"method {name} needs a right: add it to gateway/auth/authorise.py")

        def register(handler: H) -> H:
            self._add(Method(name, params, handler, since=since))
            return handler

        return register

    def add_own(self, name: str, right: Right, handler: Handler) -> None:
        """Add a method of an extension, which says itself who may call it."""
        self._add(Method(name, None, handler, right))

    def _add(self, method: Method) -> None:
        table = self._methods if method.since == OLDEST_PROTOCOL else self._newer
        if method.name in table:
            raise ValueError(f"method {method.name} is registered twice")
        table[method.name] = method

    def advertised(self, protocol: int = OLDEST_PROTOCOL) -> list[str]:
        """The names for ``hello-ok``: those of protocol v3 first, then ours.

        Protocol 4 names only what answers, because its clients call what is named.
        """
        if protocol > OLDEST_PROTOCOL:
            return list(self._methods | self._newer)
        return [*ADVERTISED, *(name for name in self._methods if name not in ADVERTISED)]

    def registered(self) -> list[Method]:
        """Every method that has a handler, in each of its forms."""
        return [*self._methods.values(), *self._newer.values()]

    def find(self, client: Client, name: str) -> Method:
        """The method, once the caller is known to be allowed to call it. Raises ``MethodError``."""
        if name == "connect":
            raise MethodError("connect is only valid as the first request")
        newer = self._newer.get(name) if client.protocol > OLDEST_PROTOCOL else None
        method = newer or self._methods.get(name)
        right = method.right if method is not None else None
        if right is None:
            # A method of protocol 4 does not exist for a client of protocol 3.
            right = right_of(name) if method is not None or name in ADVERTISED else "admin"
        if refused := refusal(client.role, client.rights, right):
            raise MethodError(refused)
        if method is not None:
            return method
        shown = clipped(name, 81)
        if name in ADVERTISED:
            raise MethodError(f"{shown} is not available in this version", code="UNAVAILABLE")
        raise MethodError(f"unknown method: {shown}")


def open_call(
    gateway: Gateway, client: Client, id: str, name: str, raw: msgspec.Raw | bytes, hops: int = 0
) -> tuple[Method, MethodCall]:
    """Authorise the call and decode its parameters. Raises ``MethodError``."""
    method = gateway.methods.find(client, name)
    try:
        if method.params is not None:
            params = decode_params(name, raw, method.params, tolerant=client.protocol > OLDEST_PROTOCOL)
        else:
            params = decode_any(bytes(raw)) if bytes(raw).strip() else {}
    except InvalidParams as error:
        raise MethodError(str(error)) from None
    except NotJson:
        raise MethodError(f"invalid {name} params: must be valid JSON") from None
    if refused := param_refusal(name, params, client.rights):
        raise MethodError(refused)
    return method, MethodCall(gateway, client, id, name, params if params is not None else {}, hops)


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
    """Run the call and return its answer, even if the handler fails."""
    try:
        method, call = open_call(gateway, client, id, name, raw, hops)
        if (elsewhere := await gateway.cluster.answer_elsewhere(call, raw)) is not None:
            return elsewhere
        payload = await method.answer(call)
        client.note_answer(payload)
        return Answer(encode_response(id, payload), True)
    except MethodError as error:
        client.note_answer(error.payload)
        return Answer(encode_error(id, error.shape, error.payload), False, str(error))
    except Fenced:
        shape = ErrorShape(code="UNAVAILABLE", message="the session changes its node; try again", retryable=True)
        return Answer(encode_error(id, shape), False, shape.message)
    except StillActive as active:
        shape = ErrorShape(code="UNAVAILABLE", message=str(active))
        return Answer(encode_error(id, shape), False, shape.message)
    except Exception as error:
        log.exception("method %s failed", name[:80], extra={"fields": {"conn": client.conn_id, "id": id[:80]}})
        # The client learns a cause only when its reader can act on it.
        message = refusal_text(error) or "internal error (see logs)"
        return Answer(encode_error(id, ErrorShape(code="UNAVAILABLE", message=message)), False, message)
