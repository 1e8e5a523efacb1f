"""``node.*`` and ``exec.approvals.node.*``: nodes that are paired, what they can do, and commands for them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from openclaw.gateway.auth.authorise import invoke_refusal
from openclaw.gateway.auth.node_pairing import TooManyNodes
from openclaw.gateway.nodes.connected import MAX_TIMEOUT_MS, OWN_METHODS, RULES_GET, RULES_SET, NodeAnswer, answer_of
from openclaw.gateway.nodes.events import take_event
from openclaw.gateway.nodes.nodes import LONGEST_NAME, MAX_CAPS
from openclaw.gateway.server.params import NonEmpty, NoParams, NotJson, Params, decode_any
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.tools.nodes import NodeFacts, NodeFailed, UnknownNode

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

methods = MethodTable()

LONGEST_ID = 200
Short = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]


# Pairing


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


class PairDecision(Params):
    request_id: NonEmpty


class PairVerify(Params):
    node_id: NonEmpty
    token: NonEmpty


@methods.add("node.pair.request", NodePairRequest)
async def request_pairing(call: MethodCall) -> Any:
    """Asks to be let in as a node."""
    facts: dict[str, Any] = msgspec.to_builtins(call.params)
    request, created = await call.gateway.nodes.pairing.request(facts.pop("nodeId"), facts)
    if created:
        call.gateway.broadcaster.publish("node.pair.requested", request, drop_if_slow=True)
    return {"status": "pending", "request": request, "created": created}


@methods.add("node.pair.list", NoParams)
async def list_pairing(call: MethodCall) -> Any:
    """The nodes that are let in, and those that wait."""
    await call.gateway.nodes.pairing.load()
    return call.gateway.nodes.pairing.listing()


@methods.add("node.pair.approve", PairDecision)
async def approve(call: MethodCall) -> Any:
    """Lets a node in."""
    request_id: str = call.params.request_id
    try:
        node = await call.gateway.nodes.pairing.approve(request_id)
    except TooManyNodes as many:
        raise MethodError(str(many), code="UNAVAILABLE") from None
    if node is None:
        raise MethodError("unknown requestId")
    _announce(call.gateway, request_id, node["nodeId"], "approved")
    return {"requestId": request_id, "node": node}


@methods.add("node.pair.reject", PairDecision)
async def reject(call: MethodCall) -> Any:
    """Refuses a node."""
    request = await call.gateway.nodes.pairing.reject(call.params.request_id)
    if request is None:
        raise MethodError("unknown requestId")
    _announce(call.gateway, request["requestId"], request["nodeId"], "rejected")
    return {"requestId": request["requestId"], "nodeId": request["nodeId"]}


@methods.add("node.pair.verify", PairVerify)
async def verify(call: MethodCall) -> Any:
    """Whether a node's token is the one it was given."""
    pairing = call.gateway.nodes.pairing
    await pairing.load()
    node = pairing.verify(call.params.node_id, call.params.token)
    return {"ok": True, "node": node} if node is not None else {"ok": False}


def _announce(gateway: Gateway, request_id: str, node_id: str, decision: str) -> None:
    payload = {"requestId": request_id, "nodeId": node_id, "decision": decision, "ts": gateway.runtime.clock.now_ms()}
    gateway.broadcaster.publish("node.pair.resolved", payload, drop_if_slow=True)


# Nodes


class NodeRef(Params):
    node_id: NonEmpty
    """The id, or what names one node: its name, its address, or how its id begins."""


class Rename(Params):
    node_id: NonEmpty
    display_name: NonEmpty


async def _meant(gateway: Gateway, wanted: str) -> NodeFacts:
    await gateway.devices.load()
    await gateway.nodes.pairing.load()
    try:
        return gateway.nodes.choose(wanted)
    except UnknownNode as unknown:
        # Clients know the first words.
        raise MethodError(f"unknown nodeId: {unknown}", details={"reason": str(unknown)}) from None


def _row(node: NodeFacts) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(node)
    return {"caps": [], "commands": [], **told, "paired": node.paired, "connected": node.connected}


@methods.add("node.list", NoParams)
async def list_nodes(call: MethodCall) -> Any:
    """The nodes, and whether each is connected."""
    await call.gateway.devices.load()
    await call.gateway.nodes.pairing.load()
    return {"ts": call.gateway.runtime.clock.now_ms(), "nodes": [_row(node) for node in call.gateway.nodes.all()]}


@methods.add("node.describe", NodeRef)
async def describe(call: MethodCall) -> Any:
    """One node and what it can do."""
    node = await _meant(call.gateway, call.params.node_id)
    return {"ts": call.gateway.runtime.clock.now_ms(), **_row(node)}


@methods.add("node.rename", Rename)
async def rename(call: MethodCall) -> Any:
    """Gives a node another name."""
    params: Rename = call.params
    name = " ".join(params.display_name.split())
    if not name or len(name) > LONGEST_NAME:
        raise MethodError(f"displayName must have 1 to {LONGEST_NAME} characters")
    await call.gateway.nodes.pairing.load()
    if call.gateway.nodes.pairing.paired(params.node_id) is not None:
        node_id = params.node_id
    else:
        node_id = (await _meant(call.gateway, params.node_id)).node_id
    await call.gateway.nodes.pairing.rename(node_id, name)
    return {"nodeId": node_id, "displayName": name}


# Commands


class Invoke(Params):
    node_id: NonEmpty
    command: NonEmpty
    idempotency_key: NonEmpty
    params: Any = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMEOUT_MS)] | None = None


@methods.add("node.invoke", Invoke)
async def invoke(call: MethodCall) -> Any:
    """Has a node carry out a command, and waits for its result."""
    params: Invoke = call.params
    command = params.command.strip()
    if command in OWN_METHODS:
        raise MethodError(f"node.invoke does not send {command}; use exec.approvals.node.get and .set")
    if refused := invoke_refusal(command, params.params, call.client.rights):
        raise MethodError(refused)
    node = await _meant(call.gateway, params.node_id)
    answer = await _ask(
        call.gateway, node, command, params.params, timeout_ms=params.timeout_ms, key=params.idempotency_key
    )
    told = {"ok": True, "nodeId": node.node_id, "command": command}
    return {**told, "payload": answer.payload, "payloadJSON": answer.payload_json}


async def _ask(
    gateway: Gateway, node: NodeFacts, command: str, params: Any, *, timeout_ms: int | None = None, key: str
) -> NodeAnswer:
    try:
        return await gateway.nodes.connected.invoke(node.node_id, command, params, timeout_ms=timeout_ms, key=key)
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


class RulesGet(Params):
    node_id: NonEmpty


class NodeRulesSet(Params):
    node_id: NonEmpty
    file: dict[str, Any]
    base_hash: NonEmpty | None = None


@methods.add("exec.approvals.node.get", RulesGet)
async def get_rules(call: MethodCall) -> Any:
    """The rules for commands on a node."""
    node = await _meant(call.gateway, call.params.node_id)
    return (await _ask(call.gateway, node, RULES_GET, {}, key=str(uuid.uuid4()))).payload


@methods.add("exec.approvals.node.set", NodeRulesSet)
async def set_rules(call: MethodCall) -> Any:
    """Writes the rules for commands on a node."""
    params: NodeRulesSet = call.params
    node = await _meant(call.gateway, params.node_id)
    wanted = {"file": params.file, "baseHash": params.base_hash}
    return (await _ask(call.gateway, node, RULES_SET, wanted, key=str(uuid.uuid4()))).payload


# What nodes say


class InvokeResult(Params):
    id: NonEmpty
    node_id: NonEmpty
    ok: bool
    payload: Any = None
    payload_json: str | None = msgspec.field(name="payloadJSON", default=None)
    error: dict[str, Any] | None = None


class NodeEvent(Params):
    event: NonEmpty
    payload: Any = None
    payload_json: str | None = msgspec.field(name="payloadJSON", default=None)


def _own_id(call: MethodCall) -> str:
    if call.client.device_id is None:
        raise MethodError("device identity required")
    return call.client.device_id


@methods.add("node.invoke.result", InvokeResult)
async def invoke_result(call: MethodCall) -> Any:
    """A node's result of a command."""
    params: InvokeResult = call.params
    if params.node_id != _own_id(call):
        raise MethodError("nodeId mismatch")
    end = answer_of(params.ok, params.payload, params.payload_json, params.error)
    if call.gateway.nodes.connected.answered(call.client.conn_id, params.id, end):
        return {"ok": True}
    return {"ok": True, "ignored": True}


@methods.add("node.event", NodeEvent)
async def node_event(call: MethodCall) -> Any:
    """Something that happened on a node."""
    params: NodeEvent = call.params
    node_id, payload = _own_id(call), params.payload
    if params.payload_json is not None:
        try:
            payload = decode_any(params.payload_json.encode())
        except NotJson:
            raise MethodError("invalid node.event params: payloadJSON must be valid JSON") from None
    if payload is not None and not isinstance(payload, Mapping):
        raise MethodError("invalid node.event params: the payload must be an object")
    return await take_event(call.gateway, node_id, params.event, payload)
