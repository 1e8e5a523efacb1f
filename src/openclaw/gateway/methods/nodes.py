"""``node.*``, ``device.*`` and ``signIn.create``: the paired devices, and those of them that are nodes.

A device is a client with a key of its own. A node is a device that carries out commands for the agent.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from openclaw.gateway.auth.authorise import beyond, invoke_refusal
from openclaw.gateway.auth.devices import TooManyNodes, announce_pairing, summary, token_scopes
from openclaw.gateway.http.control_ui import TICKET_TTL_MS
from openclaw.gateway.nodes import (
    LONGEST_NAME,
    MAX_CAPS,
    MAX_TIMEOUT_MS,
    OWN_METHODS,
    RULES_GET,
    RULES_SET,
    NodeAck,
    NodeAnswer,
    NodeEvents,
    answer_of,
)
from openclaw.gateway.server.frames import NonEmpty, NoParams, NotJson, Params, decode_any
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.protocol.result import Result
from openclaw.tools.nodes import NodeFacts, NodeFailed, UnknownNode

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

methods = MethodTable()
LONGEST_ID = 200
Short = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]


# Nodes


class NodeRef(Params):
    node_id: NonEmpty
    """The id, or what names one node: its name, its address, or how its id begins."""


class NodeView(Result, kw_only=True):
    ts: int | msgspec.UnsetType = msgspec.UNSET
    """The time of the answer of ``node.describe``."""
    caps: tuple[str, ...]
    commands: tuple[str, ...]
    """The commands that it may be asked for."""
    node_id: str
    display_name: str | None = None
    platform: str | None = None
    version: str | None = None
    device_family: str | None = None
    model_identifier: str | None = None
    remote_ip: str | None = None
    path_env: str | None = None
    permissions: dict[str, bool] | None = None
    connected_at_ms: int = 0
    paired: bool
    connected: bool


class NodeList(Result):
    ts: int
    nodes: list[NodeView]


@methods.add("node.list", NoParams)
async def list_nodes(call: MethodCall) -> NodeList:
    """The nodes, and whether each is connected."""
    await call.gateway.devices.load()
    await call.gateway.nodes.pairing.load()
    return NodeList(call.gateway.runtime.clock.now_ms(), [_row(node) for node in call.gateway.nodes.all()])


@methods.add("node.describe", NodeRef)
async def describe(call: MethodCall, params: NodeRef) -> NodeView:
    """One node and what it can do."""
    node = await _choose(call, params.node_id)
    return msgspec.structs.replace(_row(node), ts=call.gateway.runtime.clock.now_ms())


class Rename(NodeRef):
    display_name: NonEmpty


class NodeRenamed(Result):
    node_id: str
    display_name: str


@methods.add("node.rename", Rename)
async def rename(call: MethodCall, params: Rename) -> NodeRenamed:
    """Gives a node another name."""
    name = " ".join(params.display_name.split())
    if not name or len(name) > LONGEST_NAME:
        raise MethodError(f"displayName must have 1 to {LONGEST_NAME} characters")
    await call.gateway.nodes.pairing.load()
    if call.gateway.nodes.pairing.paired(params.node_id) is not None:
        node_id = params.node_id
    else:
        node_id = (await _choose(call, params.node_id)).node_id
    await call.gateway.nodes.pairing.rename(node_id, name)
    return NodeRenamed(node_id, name)


def _row(node: NodeFacts) -> NodeView:
    return NodeView(**msgspec.structs.asdict(node))


async def _choose(call: MethodCall, name: str, *, to_invoke: bool = False) -> NodeFacts:
    """Return the node that a name means. With ``to_invoke`` the error has the code of a command that failed."""
    gateway = call.gateway
    await gateway.devices.load()
    await gateway.nodes.pairing.load()
    try:
        return gateway.nodes.choose(name)
    except UnknownNode as unknown:
        # Clients know the first words.
        text, details = f"unknown nodeId: {unknown}", {"reason": str(unknown)}
        if to_invoke:
            raise MethodError(text, code="UNAVAILABLE", details={"code": "NOT_CONNECTED", **details}) from None
        raise MethodError(text, details=details) from None


# Commands for nodes


class Invoke(NodeRef):
    command: NonEmpty
    idempotency_key: NonEmpty
    params: Any = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMEOUT_MS)] | None = None


class NodeInvoked(Result):
    ok: bool
    node_id: str
    command: str
    payload: Any
    payload_json: str | None = msgspec.field(name="payloadJSON")
    """The payload as the node wrote it, if it came as text."""


@methods.add("node.invoke", Invoke)
async def invoke(call: MethodCall, params: Invoke) -> NodeInvoked:
    """Runs a command on a node, and waits for its result."""
    command = params.command.strip()
    if command in OWN_METHODS:
        raise MethodError(f"node.invoke does not send {command}; use exec.approvals.node.get and .set")
    if refused := invoke_refusal(command, params.params, call.client.rights):
        raise MethodError(refused)
    node = await _choose(call, params.node_id, to_invoke=True)
    answer = await _invoke(call, node, command, params.params, timeout_ms=params.timeout_ms, key=params.idempotency_key)
    return NodeInvoked(True, node.node_id, command, answer.payload, answer.payload_json)


@methods.add("exec.approvals.node.get", NodeRef)
async def get_rules(call: MethodCall, params: NodeRef) -> OpenObject:
    """The rules for commands on a node."""
    node = await _choose(call, params.node_id)
    return (await _invoke(call, node, RULES_GET, {}, key=str(uuid.uuid4()))).payload


class NodeRulesSet(NodeRef):
    file: dict[str, Any]
    base_hash: NonEmpty | None = None


@methods.add("exec.approvals.node.set", NodeRulesSet)
async def set_rules(call: MethodCall, params: NodeRulesSet) -> OpenObject:
    """Writes the rules for commands on a node."""
    node = await _choose(call, params.node_id)
    rules = {"file": params.file, "baseHash": params.base_hash}
    return (await _invoke(call, node, RULES_SET, rules, key=str(uuid.uuid4()))).payload


async def _invoke(call: MethodCall, node: NodeFacts, command: str, params: Any, **how: Any) -> NodeAnswer:
    try:
        return await call.gateway.nodes.connected.invoke(node.node_id, command, params, **how)
    except NodeFailed as failed:
        raise _as_error(failed, command) from None


def _as_error(failed: NodeFailed, command: str) -> MethodError:
    text = str(failed)
    if failed.failure == "NOT_ALLOWED":
        return MethodError("node command not allowed", details={"reason": text, "command": command})
    if failed.failure == "INVALID":
        return MethodError(text)
    if failed.failure == "NODE":
        return MethodError(text, code="UNAVAILABLE", details={"nodeError": failed.node_error})
    retryable = True if failed.failure == "BUSY" else None
    return MethodError(text, code="UNAVAILABLE", details={"code": failed.failure}, retryable=retryable)


# Reports of nodes


class InvokeResult(Params):
    id: NonEmpty
    node_id: NonEmpty
    ok: bool
    payload: Any = None
    payload_json: str | None = msgspec.field(name="payloadJSON", default=None)
    error: dict[str, Any] | None = None


@methods.add("node.invoke.result", InvokeResult)
async def invoke_result(call: MethodCall, params: InvokeResult) -> NodeAck:
    """A node's result of a command."""
    if params.node_id != _own_id(call):
        raise MethodError("nodeId mismatch")
    end = answer_of(params.ok, params.payload, params.payload_json, params.error)
    return NodeAck(True, ignored=not call.gateway.nodes.connected.answered(call.client.conn_id, params.id, end))


class NodeEvent(Params):
    event: NonEmpty
    payload: Any = None
    payload_json: str | None = msgspec.field(name="payloadJSON", default=None)


@methods.add("node.event", NodeEvent)
async def node_event(call: MethodCall, params: NodeEvent) -> NodeAck:
    """Something that happened on a node."""
    node_id, payload = _own_id(call), params.payload
    if params.payload_json is not None:
        try:
            payload = decode_any(params.payload_json.encode())
        except NotJson:
            raise MethodError("invalid node.event params: payloadJSON must be valid JSON") from None
    if payload is not None and not isinstance(payload, Mapping):
        raise MethodError("invalid node.event params: the payload must be an object")
    return await node_events(call.gateway).receive(node_id, params.event, payload)


def node_events(gateway: Gateway) -> NodeEvents:
    return NodeEvents(gateway.nodes, gateway.directory, gateway.runtime.notes, gateway.pipeline, gateway.turns)


def _own_id(call: MethodCall) -> str:
    if call.client.device_id is None:
        raise MethodError("device identity required")
    return call.client.device_id


# Pairing of nodes


class NodePairRequest(Params):
    node_id: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ID)]
    display_name: Short | None = None
    platform: Short | None = None
    version: Short | None = None
    core_version: Short | None = None
    ui_version: Short | None = None
    device_family: Short | None = None
    model_identifier: Short | None = None
    caps: Annotated[list[Short], msgspec.Meta(max_length=MAX_CAPS)] | None = None
    commands: Annotated[list[Short], msgspec.Meta(max_length=256)] | None = None
    remote_ip: Short | None = None
    silent: bool | None = None


class NodePairingRequested(Result):
    status: Literal["pending"]
    request: OpenObject
    created: bool
    """Whether the request is new."""


@methods.add("node.pair.request", NodePairRequest)
async def request_pairing(call: MethodCall, params: NodePairRequest) -> NodePairingRequested:
    """Asks to be paired as a node."""
    facts: dict[str, Any] = msgspec.to_builtins(params)
    request, created = await call.gateway.nodes.pairing.request(facts.pop("nodeId"), facts)
    if created:
        call.gateway.broadcaster.publish("node.pair.requested", request, drop_if_slow=True)
    return NodePairingRequested("pending", request, created)


class Pairings(Result):
    """Records of requests and of paired devices or nodes. They keep the fields of other versions."""

    pending: list[OpenObject]
    paired: list[OpenObject]


@methods.add("node.pair.list", NoParams)
async def list_pairing(call: MethodCall) -> Pairings:
    """The paired nodes, and the requests that wait."""
    await call.gateway.nodes.pairing.load()
    return Pairings(**call.gateway.nodes.pairing.listing())


class PairDecision(Params):
    request_id: NonEmpty


class NodeApproved(Result):
    request_id: str
    node: OpenObject


class NodeRejected(Result):
    request_id: str
    node_id: str


@methods.add("node.pair.approve", PairDecision)
async def approve_node(call: MethodCall, params: PairDecision) -> NodeApproved:
    """Pairs a node."""
    request_id = params.request_id
    try:
        node = await call.gateway.nodes.pairing.approve(request_id)
    except TooManyNodes as many:
        raise MethodError(str(many), code="UNAVAILABLE") from None
    if node is None:
        raise MethodError("unknown requestId")
    _announce(call, request_id, node["nodeId"], "approved")
    return NodeApproved(request_id, node)


@methods.add("node.pair.reject", PairDecision)
async def reject_node(call: MethodCall, params: PairDecision) -> NodeRejected:
    """Rejects a node."""
    request = await call.gateway.nodes.pairing.reject(params.request_id)
    if request is None:
        raise MethodError("unknown requestId")
    _announce(call, request["requestId"], request["nodeId"], "rejected")
    return NodeRejected(request["requestId"], request["nodeId"])


class NodePairResolved(Result):
    request_id: str
    node_id: str
    decision: Literal["approved", "rejected"]
    ts: int


def _announce(call: MethodCall, request_id: str, node_id: str, decision: Literal["approved", "rejected"]) -> None:
    event = NodePairResolved(request_id, node_id, decision, call.gateway.runtime.clock.now_ms())
    call.gateway.broadcaster.publish("node.pair.resolved", event, drop_if_slow=True)


class PairVerify(Params):
    node_id: NonEmpty
    token: NonEmpty


class NodeVerified(Result):
    ok: bool
    node: OpenObject | msgspec.UnsetType = msgspec.UNSET


@methods.add("node.pair.verify", PairVerify)
async def verify(call: MethodCall, params: PairVerify) -> NodeVerified:
    """Whether a node's token is the one it was given."""
    pairing = call.gateway.nodes.pairing
    await pairing.load()
    node = pairing.verify(params.node_id, params.token)
    return NodeVerified(True, node) if node is not None else NodeVerified(False)


# Devices


@methods.add("device.pair.list", NoParams)
async def list_devices(call: MethodCall) -> Pairings:
    """The paired devices, and the requests that wait."""
    await call.gateway.devices.load()
    return Pairings(**call.gateway.devices.listing())


class DeviceApproved(Result):
    request_id: str
    device: OpenObject


class DeviceRejected(Result):
    request_id: str
    device_id: str


@methods.add("device.pair.approve", PairDecision)
async def approve_device(call: MethodCall, params: PairDecision) -> DeviceApproved:
    """Pairs a device."""
    request_id = params.request_id
    await call.gateway.devices.load()
    request = call.gateway.devices.waiting(request_id)
    _check_hands_out(call, (request or {}).get("scopes") or ())
    device = await call.gateway.devices.approve(request_id)
    if device is None:
        raise MethodError("unknown requestId")
    announce_pairing(
        call.gateway.broadcaster, call.gateway.runtime.clock, {**device, "requestId": request_id}, "approved"
    )
    return DeviceApproved(request_id, summary(device))


@methods.add("device.pair.reject", PairDecision)
async def reject_device(call: MethodCall, params: PairDecision) -> DeviceRejected:
    """Rejects a device."""
    request = await call.gateway.devices.reject(params.request_id)
    if request is None:
        raise MethodError("unknown requestId")
    announce_pairing(call.gateway.broadcaster, call.gateway.runtime.clock, request, "rejected")
    return DeviceRejected(request["requestId"], request["deviceId"])


class PairedDevice(Params):
    device_id: NonEmpty


class DeviceRemoved(Result):
    device_id: str


@methods.add("device.pair.remove", PairedDevice)
async def remove(call: MethodCall, params: PairedDevice) -> DeviceRemoved:
    """Forgets a paired device and closes its connections."""
    device_id = params.device_id
    await call.gateway.devices.load()
    _check_hands_out(call, (call.gateway.devices.paired(device_id) or {}).get("scopes") or ())
    if not await call.gateway.devices.remove(device_id):
        raise MethodError("unknown deviceId")
    call.gateway.end_device(device_id, None, "device removed", last=call.client)
    return DeviceRemoved(device_id)


class DeviceToken(Params):
    device_id: NonEmpty
    role: Literal["operator", "node"]


class TokenRotate(DeviceToken):
    scopes: list[NonEmpty] | None = None


class TokenRotated(Result):
    device_id: str
    role: str
    token: str
    scopes: list[str]
    rotated_at_ms: int


class TokenRevoked(Result):
    device_id: str
    role: str
    revoked_at_ms: int


@methods.add("device.token.rotate", TokenRotate)
async def rotate(call: MethodCall, params: TokenRotate) -> TokenRotated:
    """Gives a device a new token; the old one is invalid from then on."""
    await call.gateway.devices.load()
    old_scopes = token_scopes(call.gateway.devices.paired(params.device_id), params.role)
    scopes = old_scopes if params.scopes is None else params.scopes
    _check_hands_out(call, [*old_scopes, *scopes])
    token = await call.gateway.devices.rotate_token(params.device_id, params.role, scopes)
    if token is None:
        raise MethodError("unknown deviceId/role")
    call.gateway.end_device(params.device_id, params.role, "device token rotated", last=call.client)
    rotated_at_ms = token.get("rotatedAtMs") or token["createdAtMs"]
    return TokenRotated(params.device_id, params.role, token["token"], token["scopes"], rotated_at_ms)


@methods.add("device.token.revoke", DeviceToken)
async def revoke(call: MethodCall, params: DeviceToken) -> TokenRevoked:
    """Revokes a device's token and closes its connections."""
    await call.gateway.devices.load()
    _check_hands_out(call, token_scopes(call.gateway.devices.paired(params.device_id), params.role))
    token = await call.gateway.devices.revoke_token(params.device_id, params.role)
    if token is None:
        raise MethodError("unknown deviceId/role")
    call.gateway.end_device(params.device_id, params.role, "device token revoked", last=call.client)
    return TokenRevoked(params.device_id, params.role, token["revokedAtMs"])


def _check_hands_out(call: MethodCall, scopes: Collection[str]) -> None:
    """Refuse a caller that grants, renews or revokes more than it has itself."""
    if refused := beyond(call.client.scopes, scopes):
        raise MethodError(f"{refused} (the device has it or would get it; ask a client that has it)")


class SignInCreate(Params):
    secret: NonEmpty


class SignInTicket(Result):
    ticket: str
    expires_in_ms: int


@methods.add("signIn.create", SignInCreate)
async def create_sign_in(call: MethodCall, params: SignInCreate) -> SignInTicket:
    """Puts a secret that the caller knows behind a ticket, with which a web page signs in once."""
    return SignInTicket(call.gateway.sign_in_tickets.issue(params.secret), TICKET_TTL_MS)
