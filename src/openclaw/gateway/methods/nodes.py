"""``node.*``, ``device.*`` and ``signIn.create``: the devices that are let in, and those of them that are nodes.

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
    NodeAnswer,
    NodeEvents,
    answer_of,
)
from openclaw.gateway.server.frames import NonEmpty, NoParams, NotJson, Params, decode_any
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
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


@methods.add("node.list", NoParams)
async def list_nodes(call: MethodCall) -> Any:
    """The nodes, and whether each is connected."""
    await call.gateway.devices.load()
    await call.gateway.nodes.pairing.load()
    return {"ts": call.gateway.runtime.clock.now_ms(), "nodes": [_row(node) for node in call.gateway.nodes.all()]}


@methods.add("node.describe", NodeRef)
async def describe(call: MethodCall, params: NodeRef) -> Any:
    """One node and what it can do."""
    node = await _choose(call, params.node_id)
    return {"ts": call.gateway.runtime.clock.now_ms(), **_row(node)}


class Rename(NodeRef):
    display_name: NonEmpty


@methods.add("node.rename", Rename)
async def rename(call: MethodCall, params: Rename) -> Any:
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
    return {"nodeId": node_id, "displayName": name}


def _row(node: NodeFacts) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(node)
    return {"caps": [], "commands": [], **told, "paired": node.paired, "connected": node.connected}


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


@methods.add("node.invoke", Invoke)
async def invoke(call: MethodCall, params: Invoke) -> Any:
    """Has a node carry out a command, and waits for its result."""
    command = params.command.strip()
    if command in OWN_METHODS:
        raise MethodError(f"node.invoke does not send {command}; use exec.approvals.node.get and .set")
    if refused := invoke_refusal(command, params.params, call.client.rights):
        raise MethodError(refused)
    node = await _choose(call, params.node_id, to_invoke=True)
    answer = await _invoke(call, node, command, params.params, timeout_ms=params.timeout_ms, key=params.idempotency_key)
    told = {"ok": True, "nodeId": node.node_id, "command": command}
    return {**told, "payload": answer.payload, "payloadJSON": answer.payload_json}


@methods.add("exec.approvals.node.get", NodeRef)
async def get_rules(call: MethodCall, params: NodeRef) -> Any:
    """The rules for commands on a node."""
    node = await _choose(call, params.node_id)
    return (await _invoke(call, node, RULES_GET, {}, key=str(uuid.uuid4()))).payload


class NodeRulesSet(NodeRef):
    file: dict[str, Any]
    base_hash: NonEmpty | None = None


@methods.add("exec.approvals.node.set", NodeRulesSet)
async def set_rules(call: MethodCall, params: NodeRulesSet) -> Any:
    """Writes the rules for commands on a node."""
    node = await _choose(call, params.node_id)
    wanted = {"file": params.file, "baseHash": params.base_hash}
    return (await _invoke(call, node, RULES_SET, wanted, key=str(uuid.uuid4()))).payload


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


# What nodes say


class InvokeResult(Params):
    id: NonEmpty
    node_id: NonEmpty
    ok: bool
    payload: Any = None
    payload_json: str | None = msgspec.field(name="payloadJSON", default=None)
    error: dict[str, Any] | None = None


@methods.add("node.invoke.result", InvokeResult)
async def invoke_result(call: MethodCall, params: InvokeResult) -> Any:
    """A node's result of a command."""
    if params.node_id != _own_id(call):
        raise MethodError("nodeId mismatch")
    end = answer_of(params.ok, params.payload, params.payload_json, params.error)
    if call.gateway.nodes.connected.answered(call.client.conn_id, params.id, end):
        return {"ok": True}
    return {"ok": True, "ignored": True}


class NodeEvent(Params):
    event: NonEmpty
    payload: Any = None
    payload_json: str | None = msgspec.field(name="payloadJSON", default=None)


@methods.add("node.event", NodeEvent)
async def node_event(call: MethodCall, params: NodeEvent) -> Any:
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


# Letting nodes in


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


@methods.add("node.pair.request", NodePairRequest)
async def request_pairing(call: MethodCall, params: NodePairRequest) -> Any:
    """Asks to be let in as a node."""
    facts: dict[str, Any] = msgspec.to_builtins(params)
    request, created = await call.gateway.nodes.pairing.request(facts.pop("nodeId"), facts)
    if created:
        call.gateway.broadcaster.publish("node.pair.requested", request, drop_if_slow=True)
    return {"status": "pending", "request": request, "created": created}


@methods.add("node.pair.list", NoParams)
async def list_pairing(call: MethodCall) -> Any:
    """The nodes that are let in, and those that wait."""
    await call.gateway.nodes.pairing.load()
    return call.gateway.nodes.pairing.listing()


class PairDecision(Params):
    request_id: NonEmpty


@methods.add("node.pair.approve", PairDecision)
async def approve_node(call: MethodCall, params: PairDecision) -> Any:
    """Lets a node in."""
    request_id = params.request_id
    try:
        node = await call.gateway.nodes.pairing.approve(request_id)
    except TooManyNodes as many:
        raise MethodError(str(many), code="UNAVAILABLE") from None
    if node is None:
        raise MethodError("unknown requestId")
    _announce(call, request_id, node["nodeId"], "approved")
    return {"requestId": request_id, "node": node}


@methods.add("node.pair.reject", PairDecision)
async def reject_node(call: MethodCall, params: PairDecision) -> Any:
    """Refuses a node."""
    request = await call.gateway.nodes.pairing.reject(params.request_id)
    if request is None:
        raise MethodError("unknown requestId")
    _announce(call, request["requestId"], request["nodeId"], "rejected")
    return {"requestId": request["requestId"], "nodeId": request["nodeId"]}


def _announce(call: MethodCall, request_id: str, node_id: str, decision: str) -> None:
    payload = {
        "requestId": request_id,
        "nodeId": node_id,
        "decision": decision,
        "ts": call.gateway.runtime.clock.now_ms(),
    }
    call.gateway.broadcaster.publish("node.pair.resolved", payload, drop_if_slow=True)


class PairVerify(Params):
    node_id: NonEmpty
    token: NonEmpty


@methods.add("node.pair.verify", PairVerify)
async def verify(call: MethodCall, params: PairVerify) -> Any:
    """Whether a node's token is the one it was given."""
    pairing = call.gateway.nodes.pairing
    await pairing.load()
    node = pairing.verify(params.node_id, params.token)
    return {"ok": True, "node": node} if node is not None else {"ok": False}


# Devices


@methods.add("device.pair.list", NoParams)
async def list_devices(call: MethodCall) -> Any:
    """The paired devices, and those that wait to be let in."""
    await call.gateway.devices.load()
    return call.gateway.devices.listing()


@methods.add("device.pair.approve", PairDecision)
async def approve_device(call: MethodCall, params: PairDecision) -> Any:
    """Lets a device in."""
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
    return {"requestId": request_id, "device": summary(device)}


@methods.add("device.pair.reject", PairDecision)
async def reject_device(call: MethodCall, params: PairDecision) -> Any:
    """Refuses a device."""
    request = await call.gateway.devices.reject(params.request_id)
    if request is None:
        raise MethodError("unknown requestId")
    announce_pairing(call.gateway.broadcaster, call.gateway.runtime.clock, request, "rejected")
    return {"requestId": request["requestId"], "deviceId": request["deviceId"]}


class PairedDevice(Params):
    device_id: NonEmpty


@methods.add("device.pair.remove", PairedDevice)
async def remove(call: MethodCall, params: PairedDevice) -> Any:
    """Forgets a paired device and closes its connections."""
    device_id = params.device_id
    await call.gateway.devices.load()
    _check_hands_out(call, (call.gateway.devices.paired(device_id) or {}).get("scopes") or ())
    if not await call.gateway.devices.remove(device_id):
        raise MethodError("unknown deviceId")
    call.gateway.end_device(device_id, None, "device removed", last=call.client)
    return {"deviceId": device_id}


class DeviceToken(Params):
    device_id: NonEmpty
    role: Literal["operator", "node"]


class TokenRotate(DeviceToken):
    scopes: list[NonEmpty] | None = None


@methods.add("device.token.rotate", TokenRotate)
async def rotate(call: MethodCall, params: TokenRotate) -> Any:
    """Gives a device a new token; the old one no longer counts."""
    await call.gateway.devices.load()
    had = token_scopes(call.gateway.devices.paired(params.device_id), params.role)
    wanted = had if params.scopes is None else params.scopes
    _check_hands_out(call, [*had, *wanted])
    token = await call.gateway.devices.rotate_token(params.device_id, params.role, wanted)
    if token is None:
        raise MethodError("unknown deviceId/role")
    call.gateway.end_device(params.device_id, params.role, "device token rotated", last=call.client)
    answer: dict[str, Any] = {"deviceId": params.device_id, "role": params.role, "token": token["token"]}
    return {**answer, "scopes": token["scopes"], "rotatedAtMs": token.get("rotatedAtMs") or token["createdAtMs"]}


@methods.add("device.token.revoke", DeviceToken)
async def revoke(call: MethodCall, params: DeviceToken) -> Any:
    """Takes a device's token away and closes its connections."""
    await call.gateway.devices.load()
    _check_hands_out(call, token_scopes(call.gateway.devices.paired(params.device_id), params.role))
    token = await call.gateway.devices.revoke_token(params.device_id, params.role)
    if token is None:
        raise MethodError("unknown deviceId/role")
    call.gateway.end_device(params.device_id, params.role, "device token revoked", last=call.client)
    return {"deviceId": params.device_id, "role": params.role, "revokedAtMs": token["revokedAtMs"]}


def _check_hands_out(call: MethodCall, scopes: Collection[str]) -> None:
    """Nobody gives, renews or takes away more than they have themselves."""
    if refused := beyond(call.client.scopes, scopes):
        raise MethodError(f"{refused} (the device has it or would get it; ask a client that has it)")


class SignInCreate(Params):
    secret: NonEmpty


@methods.add("signIn.create", SignInCreate)
async def create_sign_in(call: MethodCall, params: SignInCreate) -> Any:
    """Puts a secret that the caller knows behind a ticket, with which a web page signs in once."""
    return {"ticket": call.gateway.sign_in_tickets.issue(params.secret), "expiresInMs": TICKET_TTL_MS}
