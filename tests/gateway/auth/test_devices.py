"""Devices with real keys: identity, signature, pairing, tokens."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from openclaw.clock import SystemClock
from openclaw.gateway.auth import devices as device_keys
from openclaw.gateway.auth.devices import Devices
from tests.gateway.support import TOKEN, Running, Socket, connect_params, running_gateway
from tests.support.clock import HeldClock

REMOTE = {"Host": "gw.example.com"}


class Device:
    def __init__(self, seed: bytes | None = None) -> None:
        self.key = Ed25519PrivateKey.from_private_bytes(seed) if seed else Ed25519PrivateKey.generate()
        raw = self.key.public_key().public_bytes_raw()
        self.public_key = device_keys.encode_base64url(raw)
        self.id = device_keys.device_id(raw)

    def pem(self) -> str:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def sign(self, text: str) -> str:
        return device_keys.encode_base64url(self.key.sign(text.encode()))

    def connect(
        self,
        *,
        nonce: str | None = None,
        token: str | None = TOKEN,
        scopes: list[str] | None = None,
        role: str = "operator",
        signed_at: int | None = None,
        **device: Any,
    ) -> dict[str, Any]:
        at = signed_at or SystemClock().now_ms()
        text = device_keys.signed_text(
            device_id=self.id,
            client_id="test",
            client_mode="test",
            role=role,
            scopes=scopes or [],
            signed_at=at,
            token=token,
            nonce=nonce,
        )
        block: dict[str, Any] = {"id": self.id, "publicKey": self.public_key, "signature": self.sign(text)}
        block["signedAt"] = at
        if nonce is not None:
            block["nonce"] = nonce
        params = connect_params(token=token, role=role, device={**block, **device})
        return {**params, "scopes": scopes} if scopes is not None else params


SEEDED = Device(bytes(range(32)))


def test_the_published_identity_vector() -> None:
    assert SEEDED.public_key == "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"
    assert SEEDED.id == "56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c"
    assert device_keys.raw_public_key(SEEDED.pem()) == device_keys.raw_public_key(SEEDED.public_key)


@pytest.mark.parametrize(
    ("nonce", "signature"),
    [
        (None, "sE5VTIi3OMJOBWcTu57W-s4hwcJroyX8uXxfy2GYlQe7tTcK8f9an0U-5Wkvsmo5wB6OJexTlTjurR67pj0OBA"),
        ("nonce-1", "HvCLqVL7QJpbIR_xOAss42O7ObKufZpJcO9ORSMhcfjVPnPIpVYcLZzlPqS_0WKaBP-kbaNa_AAljU8-g3ioDw"),
    ],
)
def test_the_published_signature_vectors(nonce: str | None, signature: str) -> None:
    text = device_keys.signed_text(
        device_id=SEEDED.id,
        client_id="cli",
        client_mode="cli",
        role="operator",
        scopes=["operator.read", "operator.write"],
        signed_at=1737264000000,
        token="tok-abc",
        nonce=nonce,
    )
    raw = device_keys.raw_public_key(SEEDED.public_key)
    assert raw is not None
    assert SEEDED.sign(text) == signature
    assert device_keys.signature_is_valid(raw, text, signature)
    assert not device_keys.signature_is_valid(raw, text + "x", signature)


@pytest.mark.parametrize("key", ["", "!!!", "abcd", "-----BEGIN PUBLIC KEY-----\nnope\n-----END PUBLIC KEY-----"])
def test_what_is_no_key_is_none(key: str) -> None:
    assert device_keys.raw_public_key(key) is None


async def test_a_local_device_needs_no_nonce_and_is_paired_at_once(running: Running) -> None:
    device = Device()
    async with running.socket() as socket:
        answer = await socket.call("connect", device.connect(scopes=["operator.read"]))
        auth = answer["payload"]["auth"]
        assert re.fullmatch("[0-9a-f]{32}", auth["deviceToken"])
        assert (auth["role"], auth["scopes"]) == ("operator", ["operator.read"])
    paired = json.loads((Path(running.gateway.runtime.state_dir) / "devices/paired.json").read_text())
    assert paired[device.id]["publicKey"] == device.public_key


async def test_device_files_are_for_their_owner_only(running: Running) -> None:
    async with running.socket() as socket:
        await socket.call("connect", Device().connect())
    folder = Path(running.gateway.runtime.state_dir) / "devices"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("headers", [REMOTE, {"X-Forwarded-For": "203.0.113.9"}], ids=["host", "forwarded"])
async def test_a_caller_that_is_not_local_needs_a_nonce(running: Running, headers: dict[str, str]) -> None:
    async with running.socket(**headers) as socket:
        answer = await socket.call("connect", Device().connect())
        assert answer["error"]["message"] == "device nonce required"


async def refused(socket: Socket, params: dict[str, Any]) -> str:
    answer = await socket.call("connect", params)
    assert not answer["ok"]
    assert (await socket.closed())[0] == 1008
    return answer["error"]["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "0" * 64}, "device identity mismatch"),
        ({"publicKey": "short"}, "device identity mismatch"),
        ({"signature": "AAAA"}, "device signature invalid"),
    ],
)
async def test_a_device_that_does_not_prove_itself_is_refused(
    running: Running, change: dict[str, Any], message: str
) -> None:
    async with running.socket() as socket:
        assert await refused(socket, Device().connect(nonce=socket.nonce, **change)) == message


async def test_a_signature_over_another_nonce_is_refused(running: Running) -> None:
    async with running.socket() as socket:
        assert await refused(socket, Device().connect(nonce="another")) == "device nonce mismatch"


@pytest.mark.parametrize("minutes", [-11, 11])
async def test_a_signature_of_another_time_has_expired(running: Running, minutes: int) -> None:
    at = SystemClock().now_ms() + minutes * 60_000
    async with running.socket() as socket:
        assert await refused(socket, Device().connect(signed_at=at)) == "device signature expired"


async def test_the_signature_covers_the_requested_scopes(running: Running) -> None:
    params = Device().connect(scopes=["operator.read"])
    params["scopes"] = ["operator.admin"]
    async with running.socket() as socket:
        assert await refused(socket, params) == "device signature invalid"


async def test_a_remote_device_is_let_in_after_someone_approves_it(running: Running) -> None:
    device = Device()
    async with running.client(scopes=["operator.pairing", "operator.read"]) as owner:
        ids: list[str] = []
        for _ in range(2):
            async with running.socket(**REMOTE) as socket:
                params = device.connect(nonce=socket.nonce, scopes=["operator.read"])
                answer = await socket.call("connect", params)
                assert (answer["error"]["code"], answer["error"]["message"]) == ("NOT_PAIRED", "pairing required")
                ids.append(answer["error"]["details"]["requestId"])
        assert ids[0] == ids[1]
        requested = await owner.event("device.pair.requested")
        assert requested["payload"]["requestId"] == ids[0]
        assert requested["payload"]["silent"] is False
        listing = (await owner.call("device.pair.list"))["payload"]
        assert [request["requestId"] for request in listing["pending"]] == [ids[0]]
        approved = (await owner.call("device.pair.approve", {"requestId": ids[0]}))["payload"]
        assert approved["device"]["tokens"][0]["scopes"] == ["operator.read"]
        assert "token" not in approved["device"]["tokens"][0]
        resolved = await owner.event("device.pair.resolved")
        assert resolved["payload"]["decision"] == "approved"
        assert not [frame for frame in owner.unread if frame.get("event") == "device.pair.requested"]
        async with running.socket(**REMOTE) as socket:
            answer = await socket.call("connect", device.connect(nonce=socket.nonce, scopes=["operator.read"]))
            assert re.fullmatch("[0-9a-f]{32}", answer["payload"]["auth"]["deviceToken"])


async def paired(running: Running, device: Device, scopes: list[str]) -> str:
    async with running.socket() as socket:
        answer = await socket.call("connect", device.connect(scopes=scopes))
        return answer["payload"]["auth"]["deviceToken"]


async def test_a_device_token_opens_the_door_within_its_scopes_only(running: Running) -> None:
    device = Device()
    token = await paired(running, device, ["operator.read"])
    async with running.socket() as socket:
        answer = await socket.call("connect", device.connect(token=token, scopes=["operator.read"]))
        assert answer["ok"]
        assert (await socket.call("health"))["ok"]
    async with running.socket() as socket:
        message = await refused(socket, device.connect(token=token, scopes=["operator.admin"]))
        assert message.startswith("unauthorized: gateway token mismatch")
    async with running.socket() as socket:
        assert "mismatch" in await refused(socket, Device().connect(token=token, scopes=["operator.read"]))


async def test_rotating_a_token_returns_it_once_and_ends_the_old_one(running: Running) -> None:
    device = Device()
    old = await paired(running, device, ["operator.read"])
    async with running.client() as owner:
        rotated = (await owner.call("device.token.rotate", {"deviceId": device.id, "role": "operator"}))["payload"]
        assert rotated["token"] != old
        assert rotated["scopes"] == ["operator.read"]
        assert "token" not in json.dumps((await owner.call("device.pair.list"))["payload"]).replace('"tokens"', "")
    async with running.socket() as socket:
        assert "mismatch" in await refused(socket, device.connect(token=old, scopes=["operator.read"]))
    async with running.socket() as socket:
        params = device.connect(token=rotated["token"], scopes=["operator.read"])
        assert (await socket.call("connect", params))["ok"]


async def test_a_rotated_token_cannot_gain_scopes_nobody_approved(running: Running) -> None:
    device = Device()
    await paired(running, device, ["operator.read"])
    async with running.client() as owner:
        wider = {"deviceId": device.id, "role": "operator", "scopes": ["operator.admin"]}
        assert (await owner.call("device.token.rotate", wider))["error"]["message"] == "unknown deviceId/role"


async def test_revoking_a_token_ends_connections_that_came_in_with_it(running: Running) -> None:
    device = Device()
    token = await paired(running, device, ["operator.read"])
    async with running.client() as owner, running.socket() as socket:
        assert (await socket.call("connect", device.connect(token=token, scopes=["operator.read"])))["ok"]
        revoked = await owner.call("device.token.revoke", {"deviceId": device.id, "role": "operator"})
        assert revoked["payload"]["revokedAtMs"] > 0
        assert await socket.closed() == (1008, "device token revoked")


async def test_a_rejected_request_is_gone(running: Running) -> None:
    async with running.client() as owner, running.socket(**REMOTE) as socket:
        answer = await socket.call("connect", Device().connect(nonce=socket.nonce))
        request = {"requestId": answer["error"]["details"]["requestId"]}
        assert (await owner.call("device.pair.reject", request))["ok"]
        assert (await owner.event("device.pair.resolved"))["payload"]["decision"] == "rejected"
        assert (await owner.call("device.pair.approve", request))["error"]["message"] == "unknown requestId"


async def test_pairing_events_go_only_to_those_who_may_pair(running: Running) -> None:
    async with running.client(scopes=["operator.read"]) as reader, running.client() as owner:
        async with running.socket(**REMOTE) as socket:
            await socket.call("connect", Device().connect(nonce=socket.nonce))
        await owner.event("device.pair.requested")
        await reader.call("health")
        assert "device.pair.requested" not in [frame.get("event") for frame in reader.unread]


async def test_requests_expire_after_five_minutes(tmp_path: Path) -> None:
    clock = HeldClock()
    devices = Devices(str(tmp_path), clock)
    facts = {"role": "operator", "roles": ["operator"], "scopes": [], "silent": False}
    request, created = await devices.request_pairing("d", "k", facts)
    assert created
    clock.advance(301)
    assert devices.listing()["pending"] == []
    assert await devices.approve(request["requestId"]) is None


async def test_existing_device_files_open_unchanged_and_keep_unknown_fields(tmp_path: Path) -> None:
    device = Device()
    token = {"token": "f" * 32, "role": "operator", "scopes": ["operator.read"], "createdAtMs": 1}
    record = {"deviceId": device.id, "publicKey": device.public_key, "role": "operator", "roles": ["operator"]}
    record |= {"scopes": ["operator.read"], "tokens": {"operator": token}, "createdAtMs": 1, "approvedAtMs": 1}
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices/paired.json").write_text(json.dumps({device.id: {**record, "future": {"kept": True}}}))
    async with running_gateway(tmp_path) as running, running.socket() as socket:
        params = device.connect(token="f" * 32, scopes=["operator.read"])
        assert (await socket.call("connect", params))["payload"]["auth"]["deviceToken"] == "f" * 32
    stored = json.loads((tmp_path / "devices/paired.json").read_text())
    assert stored[device.id]["future"] == {"kept": True}


async def test_a_device_that_comes_before_the_services_run_costs_no_other_its_pairing(tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices/paired.json").write_text(json.dumps({"other": {"deviceId": "other"}}))
    async with running_gateway(tmp_path, services=False) as running, running.socket() as socket:
        assert (await socket.call("connect", Device().connect()))["ok"]
    stored = json.loads((tmp_path / "devices/paired.json").read_text())
    assert len(stored) == 2
    assert "other" in stored


async def test_a_damaged_device_file_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices/paired.json").write_text("{oops")
    async with running_gateway(tmp_path) as running, running.client() as socket:
        assert (await socket.call("device.pair.list"))["payload"] == {"pending": [], "paired": []}
    assert (tmp_path / "devices/paired.json.corrupt").read_text() == "{oops"
