"""Devices with real keys: identity, signature, pairing, tokens."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from openclaw import device_keys
from openclaw.clock import SystemClock
from openclaw.gateway.auth.authorise import SharedSecret
from openclaw.gateway.auth.devices import Devices
from openclaw.storage.files.disk import FileDocuments
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


TOKEN_CALLS = [
    ("device.token.rotate", {"role": "operator"}, "device token rotated"),
    ("device.token.revoke", {"role": "operator"}, "device token revoked"),
    ("device.pair.remove", {}, "device removed"),
]


@pytest.mark.parametrize(("method", "params", "reason"), TOKEN_CALLS)
async def test_what_a_device_was_let_in_with_ends_its_connections_when_it_ends(
    running: Running, method: str, params: dict[str, Any], reason: str
) -> None:
    device, other = Device(), Device()
    token = await paired(running, device, ["operator.read"])
    async with (
        running.client() as owner,
        running.socket() as by_token,
        running.socket() as by_secret,
        running.socket() as stranger,
    ):
        assert (await by_token.call("connect", device.connect(token=token, scopes=["operator.read"])))["ok"]
        assert (await by_secret.call("connect", device.connect(scopes=["operator.read"])))["ok"]
        assert (await stranger.call("connect", other.connect()))["ok"]
        assert (await owner.call(method, {"deviceId": device.id, **params}))["ok"]
        assert await by_token.closed() == (1008, reason)
        assert await by_secret.closed() == (1008, reason)
        assert (await stranger.call("health"))["ok"] and (await owner.call("health"))["ok"]
    async with running.socket() as socket:
        assert "mismatch" in await refused(socket, device.connect(token=token, scopes=["operator.read"]))


@pytest.mark.parametrize(("method", "params", "reason"), TOKEN_CALLS)
async def test_a_device_that_ends_its_own_token_gets_its_answer_first(
    running: Running, method: str, params: dict[str, Any], reason: str
) -> None:
    device = Device()
    async with running.socket() as socket:
        assert (await socket.call("connect", device.connect()))["ok"]
        assert (await socket.call(method, {"deviceId": device.id, **params}))["ok"]
        assert await socket.closed() == (1008, reason)


async def test_a_removed_device_is_a_stranger(running: Running) -> None:
    device = Device()
    await paired(running, device, ["operator.read"])
    async with running.client() as owner:
        assert (await owner.call("device.pair.remove", {"deviceId": device.id}))["payload"] == {"deviceId": device.id}
        again = await owner.call("device.pair.remove", {"deviceId": device.id})
        assert again["error"]["message"] == "unknown deviceId"
    async with running.socket(**REMOTE) as socket:
        answer = await socket.call("connect", device.connect(nonce=socket.nonce, scopes=["operator.read"]))
        assert answer["error"]["message"] == "pairing required"


@pytest.mark.parametrize("change", [{"token": "another-long-enough-token"}, {"mode": "password", "password": "p" * 20}])
async def test_a_changed_secret_ends_what_the_old_one_let_in(tmp_path: Path, change: dict[str, str]) -> None:
    async with running_gateway(tmp_path, config={"gateway": {"reload": {"mode": "hot"}}}) as running:
        device = Device()
        token = await paired(running, device, ["operator.read"])
        async with running.client() as by_secret, running.socket() as by_token:
            assert (await by_token.call("connect", device.connect(token=token, scopes=["operator.read"])))["ok"]
            url, bearer = f"{running.url}/__openclaw__/events", {"Authorization": f"Bearer {TOKEN}"}
            async with running.http.get(url, headers=bearer) as events:
                path = tmp_path / "openclaw.json"
                config = json.loads(path.read_text())
                config["gateway"]["auth"] |= change
                path.write_text(json.dumps(config))
                assert await running.gateway.runtime.config.reload()
                code, reason = await by_secret.closed()
                assert code == 1008 and reason.startswith("gateway") and "changed" in reason
                await events.content.read()  # The stream has ended.
            assert (await by_token.call("health"))["ok"]
            assert (await running.rpc("health"))[0] == 401


async def test_who_changes_the_secret_gets_the_answer_and_nobody_can_do_more(tmp_path: Path) -> None:
    hot = {"gateway": {"reload": {"mode": "hot"}}}
    async with running_gateway(tmp_path, config=hot) as running, running.client() as owner, running.client() as thief:
        found = (await owner.call("config.get"))["payload"]
        patch = {"raw": json.dumps({"gateway": {"auth": {"token": "another-long-enough-token"}}})}
        await owner.send(
            {"type": "req", "id": "p", "method": "config.patch", "params": {**patch, "baseHash": found["hash"]}}
        )
        assert (await owner.answer("p"))["ok"]
        await thief.send({"type": "req", "id": "t", "method": "sessions.list", "params": {}})
        for client in (owner, thief):
            assert (await client.closed())[0] == 1008
        assert [frame for frame in thief.unread if frame.get("id") == "t" and frame["ok"]] == []


async def test_other_changes_of_the_configuration_end_no_connection(tmp_path: Path) -> None:
    hot = {"gateway": {"reload": {"mode": "hot"}}}
    async with running_gateway(tmp_path, config=hot) as running, running.client() as client:
        path = tmp_path / "openclaw.json"
        config = json.loads(path.read_text())
        config["gateway"]["auth"]["password"] = "unused in token mode"
        path.write_text(json.dumps(config))
        assert await running.gateway.runtime.config.reload()
        assert (await client.call("health"))["ok"]


async def test_a_secret_that_changes_during_the_handshake_does_not_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as running, running.socket() as socket:
        ensure = running.gateway.devices.ensure_token

        async def ensure_and_change(*args: Any) -> Any:
            running.gateway.given_secret = SharedSecret(mode="token", token="another-long-enough-token")
            return await ensure(*args)

        monkeypatch.setattr(running.gateway.devices, "ensure_token", ensure_and_change)
        assert "mismatch" in await refused(socket, Device().connect())


P = 2**255 - 19
ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
SMALL = [0, 1, P - 1, ORDER_8, P - ORDER_8]


def encoded(y: int, sign: int) -> bytes:
    return (y | sign << 255).to_bytes(32, "little")


def test_the_listed_points_are_all_of_small_order() -> None:
    """Doubling three times on the curve gives the neutral point: so eight times the point is nothing."""
    d = -121665 * pow(121666, P - 2, P) % P

    def x_of(y: int) -> int:
        square = (y * y - 1) * pow(d * y * y + 1, P - 2, P) % P
        x = pow(square, (P + 3) // 8, P)
        x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
        assert x * x % P == square
        return x

    for y in SMALL:
        x = x_of(y)
        for _ in range(3):
            product = d * x * x * y * y % P
            x, y = (
                2 * x * y * pow(1 + product, P - 2, P) % P,
                (y * y + x * x) * pow(1 - product, P - 2, P) % P,
            )
        assert (x, y) == (0, 1)


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("y", [*SMALL, P, P + 1, 2**255 - 1])
async def test_a_key_that_proves_nothing_is_refused(running: Running, y: int, sign: int) -> None:
    raw = encoded(y, sign)
    assert device_keys.raw_public_key(device_keys.encode_base64url(raw)) is None
    block = {"id": device_keys.device_id(raw), "publicKey": device_keys.encode_base64url(raw)}
    # With the neutral point as R and 0 as S, such keys "sign" every text.
    signature = device_keys.encode_base64url(encoded(1, 0) + bytes(32))
    async with running.socket() as socket:
        params = Device().connect(nonce=socket.nonce, **block, signature=signature)
        assert await refused(socket, params) == "device identity mismatch"


@pytest.mark.parametrize("key", ["{key}!!", "{key}\n", " {key}", "{key}A", "{key}===="])
def test_a_key_is_written_in_one_way(key: str) -> None:
    text = key.format(key=SEEDED.public_key)
    assert (device_keys.raw_public_key(text) is None) is (text.rstrip("=") != SEEDED.public_key)


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
    devices = Devices(FileDocuments(tmp_path), clock)
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


async def test_nobody_renews_takes_away_or_lets_in_more_than_they_have(running: Running) -> None:
    strong, weak = Device(), Device()
    await paired(running, strong, ["operator.admin"])
    await paired(running, weak, ["operator.pairing"])
    async with running.socket(**REMOTE) as socket:
        asked = await socket.call("connect", Device().connect(nonce=socket.nonce, scopes=["operator.admin"]))
    request = {"requestId": asked["error"]["details"]["requestId"]}
    token = {"deviceId": strong.id, "role": "operator"}
    own = {"deviceId": weak.id, "role": "operator"}
    attacks: list[tuple[str, dict[str, Any]]] = [
        ("device.pair.approve", request),
        ("device.token.rotate", token),
        ("device.token.rotate", {**token, "scopes": ["operator.pairing"]}),
        ("device.token.rotate", {**own, "scopes": ["operator.admin"]}),
        ("device.token.rotate", {**own, "scopes": ["operator.pairing", "operator.read"]}),
        ("device.token.revoke", token),
        ("device.pair.remove", {"deviceId": strong.id}),
    ]
    async with running.client(scopes=["operator.pairing"]) as socket:
        for method, params in attacks:
            answer = await socket.call(method, params)
            assert answer["error"]["message"].startswith("missing scope: operator."), (method, params, answer)
        listing = (await socket.call("device.pair.list"))["payload"]
        assert [one["requestId"] for one in listing["pending"]] == [request["requestId"]]
        assert (await socket.call("device.token.rotate", own))["ok"]
        assert (await socket.call("device.pair.reject", request))["ok"], "to say no needs no more"
    async with running.client() as admin:
        for method, params in (("device.token.rotate", token), ("device.pair.remove", {"deviceId": strong.id})):
            assert (await admin.call(method, params))["ok"]
