"""The ``connect`` request: what a client declares, how the request is judged, and what it is granted.

A caller is admitted when it knows the secret, or has a token of its own, and its device is paired.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from openclaw.clock import Clock
from openclaw.config.store import ConfigStore
from openclaw.device_keys import device_id, encode_base64url, raw_public_key, signature_is_valid, signed_text
from openclaw.gateway.auth.authorise import (
    FailedAuthLimiter,
    SecretCheck,
    SharedSecret,
    check,
    is_control_ui,
    is_webchat,
    refusal_text,
)
from openclaw.gateway.auth.devices import MAX_SKEW_MS, Devices, announce_pairing
from openclaw.gateway.auth.origin import PeerAddress, caller_key, site_refusal
from openclaw.gateway.server.events import ClientInfo
from openclaw.gateway.server.frames import (
    NEWEST_PROTOCOL,
    OLDEST_PROTOCOL,
    PROTOCOLS,
    InvalidParams,
    NonEmpty,
    Params,
    decode_params,
)
from openclaw.rights import ADMIN

if TYPE_CHECKING:
    from openclaw.gateway.nodes import ConnectedNodes
    from openclaw.gateway.server.events import Broadcaster

Version = Annotated[int, msgspec.Meta(ge=1)]


class ConnectDevice(Params):
    id: NonEmpty
    public_key: NonEmpty
    signature: NonEmpty
    signed_at: Annotated[int, msgspec.Meta(ge=0)]
    nonce: NonEmpty | None = None


class ConnectAuth(Params):
    token: str | None = None
    password: str | None = None
    device_token: str | None = None
    """The device's own token, under the name that it has in protocol 4."""


class ConnectParams(Params):
    min_protocol: Version
    max_protocol: Version
    client: ClientInfo
    caps: list[NonEmpty] = []
    commands: list[NonEmpty] = []
    permissions: dict[str, bool] = {}
    path_env: str | None = None
    role: NonEmpty | None = None
    scopes: list[NonEmpty] | None = None
    device: ConnectDevice | None = None
    auth: ConnectAuth | None = None
    model_catalog: dict[str, Any] | None = None
    """The target for which a client of protocol 4 wants the model catalogue."""
    locale: str | None = None
    user_agent: str | None = None
    last_seq: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The last broadcast that the client handled on an earlier connection. It gets the later ones."""
    epoch: NonEmpty | None = None
    """The epoch that the ``hello-ok`` of that connection named."""


class _Versions(Params):
    min_protocol: Version = OLDEST_PROTOCOL
    max_protocol: Version = OLDEST_PROTOCOL


def decode_connect(raw: bytes | msgspec.Raw) -> ConnectParams:
    """Decode the parameters. Fields that protocol 3 does not know are ignored from newer clients only.

    Raises ``InvalidParams``.
    """
    versions = _Versions()
    with suppress(InvalidParams):
        versions = decode_params("connect", raw, _Versions, tolerant=True)
    return decode_params("connect", raw, ConnectParams, tolerant=versions.max_protocol > OLDEST_PROTOCOL)


def agreed_protocol(connect: ConnectParams) -> int:
    """Return the newest version that both sides serve. Raises ``ConnectRefused`` if there is none."""
    newest = min(connect.max_protocol, NEWEST_PROTOCOL)
    if newest >= max(connect.min_protocol, OLDEST_PROTOCOL):
        return newest
    served = " and ".join(map(str, PROTOCOLS))
    details = {
        "code": "PROTOCOL_MISMATCH",
        "clientMinProtocol": connect.min_protocol,
        "clientMaxProtocol": connect.max_protocol,
        "expectedProtocol": OLDEST_PROTOCOL if connect.max_protocol < OLDEST_PROTOCOL else NEWEST_PROTOCOL,
        "minimumProbeProtocol": OLDEST_PROTOCOL,
        "servedProtocols": list(PROTOCOLS),
    }
    raise ConnectRefused(f"protocol mismatch: this Gateway serves protocols {served}", details=details, close_code=1002)


class ConnectRefused(Exception):
    """The connection is answered with an error and closed."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "INVALID_REQUEST",
        details: Any = None,
        close_code: int = 1008,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        self.close_code = close_code
        self.retry_after_ms = retry_after_ms


class ConnectGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller asked for, and the role, the scopes and the device token that it gets on this connection."""

    connect: ConnectParams
    role: str
    scopes: tuple[str, ...]
    protocol: int
    """The version of the protocol that both sides have agreed on."""
    device_token: dict[str, Any] | None = None
    by_device_token: bool = False
    """True when the device's own token was accepted instead of the shared secret."""

    @property
    def auth_block(self) -> dict[str, Any] | None:
        """The ``auth`` of ``hello-ok``, the only place where a device learns its token."""
        token = self.device_token
        if token is None:
            granted = {"role": self.role, "scopes": list(self.scopes)}
            return granted if self.protocol > OLDEST_PROTOCOL else None
        issued = token.get("rotatedAtMs") or token["createdAtMs"]
        return {"deviceToken": token["token"], "role": token["role"], "scopes": token["scopes"], "issuedAtMs": issued}


class ClientGate:
    """Decides on the ``connect`` requests of a Gateway."""

    def __init__(
        self,
        config: ConfigStore,
        clock: Clock,
        limiter: FailedAuthLimiter,
        secret: Callable[[], SharedSecret],
        devices: Devices,
        nodes: ConnectedNodes,
        broadcaster: Broadcaster,
    ) -> None:
        self.config = config
        self.clock = clock
        self.limiter = limiter
        self.secret = secret
        self.devices = devices
        self.nodes = nodes
        self.broadcaster = broadcaster

    async def admit(self, connect: ConnectParams, peer: PeerAddress, nonce: str) -> ConnectGrant:
        """Decide on a well-formed ``connect``. Raises ``ConnectRefused``."""
        protocol = agreed_protocol(connect)
        role = connect.role or "operator"
        if role not in ("operator", "node"):
            raise ConnectRefused("invalid role")
        asked = tuple(connect.scopes or ())
        # A node has no scopes. Stored for its device, they would apply once the device is also an operator's.
        scopes = (asked or (ADMIN,)) if role == "operator" else ()
        client = connect.client
        allowed = self.config.current.gateway.control_ui.allowed_origins
        is_page = is_control_ui(client.id) or is_webchat(client.id, client.mode)
        if refused := site_refusal(peer, allowed, is_page=is_page):
            raise ConnectRefused(refused)
        await self.devices.load()
        attempt = _Attempt(self, connect, peer, role, asked, scopes)
        if connect.device is None:
            attempt.without_device()
            return ConnectGrant(connect=connect, role=role, scopes=scopes, protocol=protocol)
        attempt.verify_device(connect.device, nonce)
        verdict = attempt.prove()
        if not attempt.pairing_is_bypassed(verdict):
            await attempt.ensure_paired(connect.device)
        if role == "node" and not self.nodes.has_room(connect.device.id):
            raise ConnectRefused(
                "too many nodes are connected", code="UNAVAILABLE", close_code=1013, retry_after_ms=30_000
            )
        issued = await self.devices.ensure_token(connect.device.id, role, scopes)
        attempt.check_still_valid(verdict)
        return ConnectGrant(
            connect=connect,
            role=role,
            scopes=scopes,
            protocol=protocol,
            device_token=issued,
            by_device_token=verdict.by_device_token,
        )


class _Attempt:
    """One ``connect`` request while it is checked."""

    def __init__(
        self,
        gate: ClientGate,
        connect: ConnectParams,
        peer: PeerAddress,
        role: str,
        asked: tuple[str, ...],
        scopes: tuple[str, ...],
    ) -> None:
        self.gate = gate
        self.connect = connect
        self.peer = peer
        self.role = role
        self.asked = asked
        self.scopes = scopes
        self.secret: SharedSecret = gate.secret()
        self.token = (connect.auth.token or connect.auth.device_token) if connect.auth else None
        self.password = connect.auth.password if connect.auth else None
        self.device_id = ""
        """The device, once its signature has been checked."""

    def prove(self) -> SecretCheck:
        """Check the secret. Raises ``ConnectRefused`` if it is wrong, or this caller sent too many wrong ones.

        Nothing here waits, so that many attempts at once are counted one by one. A device that is paired and has signed
        is counted apart: nobody else at its address can keep it out.
        """
        limiter = self.gate.limiter
        caller, gently = caller_key(self.peer), False
        if self.device_id and self.gate.devices.paired(self.device_id) is not None:
            caller, gently = f"device {self.device_id}", True
        elif self.peer.is_local and self.peer.origin is None:
            gently = limiter.is_gentle_to_local()
        verdict = limiter.guard(caller, self._check_secret, gently=gently)
        if verdict.ok:
            return verdict
        if verdict.reason == "limited":
            text = f"unauthorized: too many failed attempts; try again in {verdict.wait_ms // 1000 + 1} s"
            raise ConnectRefused(text, retry_after_ms=verdict.wait_ms)
        client = self.connect.client
        raise ConnectRefused(refusal_text(self.secret.mode, verdict.reason, client.id, client.mode))

    def _check_secret(self) -> SecretCheck:
        verdict = check(self.secret, self.token, self.password)
        if verdict.ok or not self._device_token_is_valid():
            return verdict
        return SecretCheck(True, by_device_token=True)

    def _device_token_is_valid(self) -> bool:
        token, devices = self.token, self.gate.devices
        return bool(self.device_id and token and devices.token_is_valid(self.device_id, token, self.role, self.scopes))

    def check_still_valid(self, verdict: SecretCheck) -> None:
        """Refuses a secret that was changed or revoked while the device files were written."""
        valid = self._device_token_is_valid() if verdict.by_device_token else self.secret == self.gate.secret()
        if not valid:
            client = self.connect.client
            raise ConnectRefused(refusal_text(self.secret.mode, "mismatch", client.id, client.mode))

    def pairing_is_bypassed(self, verdict: SecretCheck) -> bool:
        """Whether settings exempt a Control UI that cannot have a device key, because its context is not secure."""
        flags = self.gate.config.current.gateway.control_ui
        bypass = flags.allow_insecure_auth or flags.dangerously_disable_device_auth
        return bypass and is_control_ui(self.connect.client.id) and not verdict.by_device_token

    def without_device(self) -> None:
        flags = self.gate.config.current.gateway.control_ui
        bypass = flags.allow_insecure_auth or flags.dangerously_disable_device_auth
        if is_control_ui(self.connect.client.id) and not bypass:
            raise ConnectRefused("control ui requires HTTPS or localhost (secure context)")
        if not (self.token or self.password):
            raise ConnectRefused("device identity required", code="NOT_PAIRED")
        self.prove()

    def verify_device(self, device: ConnectDevice, nonce: str) -> None:
        raw = raw_public_key(device.public_key)
        if raw is None or device_id(raw) != device.id:
            raise ConnectRefused("device identity mismatch")
        if abs(self.gate.clock.now_ms() - device.signed_at) > MAX_SKEW_MS:
            raise ConnectRefused("device signature expired")
        if device.nonce is None and not self.peer.is_local:
            raise ConnectRefused("device nonce required")
        if device.nonce is not None and device.nonce != nonce:
            raise ConnectRefused("device nonce mismatch")
        client = self.connect.client
        signed = partial(
            signed_text,
            device_id=device.id,
            client_id=client.id,
            client_mode=client.mode,
            role=self.role,
            scopes=self.asked,
            signed_at=device.signed_at,
            token=self.token,
            nonce=device.nonce,
        )
        texts = [signed()]
        if device.nonce is not None:  # A newer node signs its platform even when it speaks protocol 3.
            texts.append(signed(machine=(client.platform, client.device_family or "")))
        if not any(signature_is_valid(raw, text, device.signature) for text in texts):
            raise ConnectRefused("device signature invalid")
        self.device_id = device.id

    async def ensure_paired(self, device: ConnectDevice) -> None:
        devices = self.gate.devices
        raw = raw_public_key(device.public_key)
        public_key = encode_base64url(raw) if raw else device.public_key
        client = self.connect.client
        facts: dict[str, Any] = {"displayName": client.display_name, "platform": client.platform}
        facts |= {"clientId": client.id, "clientMode": client.mode}
        facts["remoteIp"] = None if self.peer.is_local else self.peer.ip
        if devices.covers(device.id, public_key, self.role, self.scopes):
            await devices.refresh(device.id, facts)
            return
        facts |= {"role": self.role, "roles": [self.role], "scopes": list(self.scopes), "silent": self.peer.is_local}
        request, created = await devices.request_pairing(device.id, public_key, facts)
        if self.peer.is_local:
            await devices.approve(request["requestId"])
            announce_pairing(self.gate.broadcaster, self.gate.clock, request, "approved")
            return
        if created:
            self.gate.broadcaster.publish("device.pair.requested", request, drop_if_slow=True)
        raise ConnectRefused("pairing required", code="NOT_PAIRED", details={"requestId": request["requestId"]})
