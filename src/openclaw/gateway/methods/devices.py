"""``device.*``: letting devices in, and taking their tokens away. ``signIn.create``: letting the web page in once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from openclaw.gateway.auth.authorise import beyond
from openclaw.gateway.auth.devices import summary, token_scopes
from openclaw.gateway.http.sign_in import LIFETIME_MS
from openclaw.gateway.server.params import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable

methods = MethodTable()

Role = Literal["operator", "node"]


class PairRequest(Params):
    request_id: NonEmpty


class PairedDevice(Params):
    device_id: NonEmpty


class TokenRotate(Params):
    device_id: NonEmpty
    role: Role
    scopes: list[NonEmpty] | None = None


class TokenRevoke(Params):
    device_id: NonEmpty
    role: Role


def _check_hands_out(call: MethodCall, scopes: Collection[str]) -> None:
    """Nobody gives, renews or takes away more than they have themselves."""
    if refused := beyond(call.client.scopes, scopes):
        raise MethodError(f"{refused} (the device has it or would get it; ask a client that has it)")


@methods.add("device.pair.list", NoParams)
async def list_devices(call: MethodCall) -> Any:
    """The paired devices, and those that wait to be let in."""
    await call.gateway.devices.load()
    return call.gateway.devices.listing()


@methods.add("device.pair.approve", PairRequest)
async def approve(call: MethodCall) -> Any:
    """Lets a device in."""
    request_id: str = call.params.request_id
    await call.gateway.devices.load()
    request = call.gateway.devices.waiting(request_id)
    _check_hands_out(call, (request or {}).get("scopes") or ())
    device = await call.gateway.devices.approve(request_id)
    if device is None:
        raise MethodError("unknown requestId")
    call.gateway.announce_pairing({"requestId": request_id, "deviceId": device["deviceId"]}, "approved")
    return {"requestId": request_id, "device": summary(device)}


@methods.add("device.pair.reject", PairRequest)
async def reject(call: MethodCall) -> Any:
    """Refuses a device."""
    request = await call.gateway.devices.reject(call.params.request_id)
    if request is None:
        raise MethodError("unknown requestId")
    call.gateway.announce_pairing(request, "rejected")
    return {"requestId": request["requestId"], "deviceId": request["deviceId"]}


@methods.add("device.token.rotate", TokenRotate)
async def rotate(call: MethodCall) -> Any:
    """Gives a device a new token; the old one no longer counts."""
    params: TokenRotate = call.params
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


@methods.add("device.token.revoke", TokenRevoke)
async def revoke(call: MethodCall) -> Any:
    """Takes a device's token away and closes its connections."""
    params: TokenRevoke = call.params
    await call.gateway.devices.load()
    _check_hands_out(call, token_scopes(call.gateway.devices.paired(params.device_id), params.role))
    token = await call.gateway.devices.revoke_token(params.device_id, params.role)
    if token is None:
        raise MethodError("unknown deviceId/role")
    call.gateway.end_device(params.device_id, params.role, "device token revoked", last=call.client)
    return {"deviceId": params.device_id, "role": params.role, "revokedAtMs": token["revokedAtMs"]}


@methods.add("device.pair.remove", PairedDevice)
async def remove(call: MethodCall) -> Any:
    """Forgets a paired device and closes its connections."""
    device_id: str = call.params.device_id
    await call.gateway.devices.load()
    _check_hands_out(call, (call.gateway.devices.paired(device_id) or {}).get("scopes") or ())
    if not await call.gateway.devices.remove(device_id):
        raise MethodError("unknown deviceId")
    call.gateway.end_device(device_id, None, "device removed", last=call.client)
    return {"deviceId": device_id}


class SignInCreate(Params):
    secret: NonEmpty


@methods.add("signIn.create", SignInCreate)
async def create_sign_in(call: MethodCall) -> Any:
    """Puts a secret that the caller knows behind a ticket, with which a web page signs in once."""
    return {"ticket": call.gateway.sign_in_tickets.issue(call.params.secret), "expiresInMs": LIFETIME_MS}
