"""The first request of a connection, refusal by refusal."""

import json
from pathlib import Path

import pytest

from openclaw.gateway.server.registry import ADVERTISED
from tests.gateway.support import Running, connect_params, running_gateway


async def test_a_first_frame_that_is_not_json_closes_the_connection_without_an_answer(running: Running) -> None:
    async with running.socket() as socket:
        await socket.send("hello")
        assert (await socket.closed())[0] == 1000
        assert socket.unread == []


async def test_a_first_frame_that_is_no_request_is_an_invalid_request_frame(running: Running) -> None:
    async with running.socket() as socket:
        await socket.send({"type": "event", "event": "x"})
        assert await socket.closed() == (1008, "invalid request frame")


async def test_the_first_request_must_be_connect(running: Running) -> None:
    async with running.socket() as socket:
        await socket.send({"type": "req", "id": "1", "method": "health"})
        answer = await socket.answer("1")
        assert answer["error"]["code"] == "INVALID_REQUEST"
        assert answer["error"]["message"] == "invalid handshake: first request must be connect"
        assert (await socket.closed())[0] == 1008


async def test_bad_connect_params_are_all_named(running: Running) -> None:
    async with running.socket() as socket:
        answer = await socket.call("connect", {"minProtocol": 3})
        expected = "must have required property 'maxProtocol'; must have required property 'client'"
        assert answer["error"]["message"] == f"invalid connect params: {expected}"
        assert (await socket.closed())[0] == 1008


async def test_unknown_properties_of_connect_are_refused_at_every_level(running: Running) -> None:
    params = connect_params()
    params["client"]["colour"] = "red"
    async with running.socket() as socket:
        answer = await socket.call("connect", params)
        assert answer["error"]["message"] == "invalid connect params: at /client: unexpected property 'colour'"


async def test_another_protocol_is_a_mismatch_and_a_range_that_holds_three_is_not(running: Running) -> None:
    async with running.socket() as socket:
        answer = await socket.call("connect", connect_params(protocol=(2, 2)))
        assert answer["error"]["message"] == "protocol mismatch: this Gateway serves protocols 3 and 4"
        details = answer["error"]["details"]
        assert details["code"] == "PROTOCOL_MISMATCH"
        assert (details["clientMinProtocol"], details["clientMaxProtocol"]) == (2, 2)
        assert (details["expectedProtocol"], details["minimumProbeProtocol"]) == (3, 3)
        assert details["servedProtocols"] == [3, 4]
        assert (await socket.closed())[0] == 1002
    async with running.client(protocol=(1, 3)) as socket:
        assert socket.hello["protocol"] == 3
    async with running.client(protocol=(1, 9)) as socket:
        assert socket.hello["protocol"] == 4


async def test_the_token_alone_lets_a_client_in_with_admin_scope_by_default(running: Running) -> None:
    async with running.client() as socket:
        assert socket.hello["type"] == "hello-ok"
        assert "auth" not in socket.hello
        mine = [entry for entry in socket.hello["snapshot"]["presence"] if entry["mode"] == "test"]
        assert mine[0]["scopes"] == ["operator.admin"]


async def test_hello_has_the_recorded_shape(running: Running) -> None:
    async with running.client() as socket:
        hello = socket.hello
        assert list(hello) == ["type", "protocol", "server", "features", "snapshot", "policy"]
        assert hello["policy"] == {"maxPayload": 524288, "maxBufferedBytes": 1572864, "tickIntervalMs": 30000}
        assert hello["features"]["methods"][: len(ADVERTISED)] == list(ADVERTISED)
        snapshot = hello["snapshot"]
        assert snapshot["sessionDefaults"] == {
            "defaultAgentId": "main",
            "mainKey": "main",
            "mainSessionKey": "agent:main:main",
            "scope": "per-sender",
        }
        assert snapshot["health"]["ok"] is True
        assert set(snapshot["stateVersion"]) == {"presence", "health"}
        health = await socket.event("health")
        assert health["payload"]["agents"][0]["sessions"]["count"] == 0
        assert health["stateVersion"]["health"] > snapshot["stateVersion"]["health"]
        assert isinstance(health["seq"], int)


async def test_without_secret_and_device_a_device_identity_is_required(running: Running) -> None:
    async with running.socket() as socket:
        answer = await socket.call("connect", connect_params(token=None))
        assert answer["error"]["code"] == "NOT_PAIRED"
        assert answer["error"]["message"] == "device identity required"
        assert await socket.closed() == (1008, "device identity required")


@pytest.mark.parametrize(
    ("client_id", "mode", "headers", "hint"),
    [
        ("cli", "cli", {}, "set gateway.remote.token to match gateway.auth.token"),
        ("test", "test", {}, "provide gateway auth token"),
        (
            "webchat-ui",
            "webchat",
            {"Origin": "http://localhost:5173"},
            "open the dashboard URL and paste the token in Control UI settings",
        ),
    ],
)
async def test_a_wrong_token_is_refused_with_a_hint_for_that_client(
    running: Running, client_id: str, mode: str, headers: dict[str, str], hint: str
) -> None:
    async with running.socket(**headers) as socket:
        answer = await socket.call("connect", connect_params(token="wrong", client_id=client_id, mode=mode))
        assert answer["error"]["message"] == f"unauthorized: gateway token mismatch ({hint})"
        assert (await socket.closed())[0] == 1008


async def test_a_password_does_not_stand_in_for_the_token(running: Running) -> None:
    async with running.socket() as socket:
        params = connect_params(token=None, auth={"password": "a-long-enough-test-token"})
        answer = await socket.call("connect", params)
        assert answer["error"]["message"].startswith("unauthorized: gateway token missing")


async def test_password_mode_takes_the_password(tmp_path: Path) -> None:
    auth = {"gateway": {"auth": {"mode": "password", "token": None, "password": "correct horse battery"}}}
    async with running_gateway(tmp_path, config=auth) as running:
        async with running.client(token=None, auth={"password": "correct horse battery"}) as socket:
            assert socket.hello["protocol"] == 3
        async with running.socket() as socket:
            answer = await socket.call("connect", connect_params(token="x"))
            assert answer["error"]["message"].startswith("unauthorized: gateway password missing")


async def test_an_unknown_role_is_invalid(running: Running) -> None:
    async with running.socket() as socket:
        answer = await socket.call("connect", connect_params(role="emperor"))
        assert answer["error"]["message"] == "invalid role"


async def test_a_second_connect_is_refused_and_the_connection_stays(running: Running) -> None:
    async with running.client() as socket:
        answer = await socket.call("connect", connect_params())
        assert answer["error"]["message"] == "connect is only valid as the first request"
        assert (await socket.call("health"))["ok"]


async def test_a_control_ui_without_device_needs_a_secure_context(running: Running) -> None:
    async with running.socket(Origin=running.url) as socket:
        answer = await socket.call("connect", connect_params(client_id="openclaw-control-ui", mode="ui"))
        assert answer["error"]["message"] == "control ui requires HTTPS or localhost (secure context)"


async def test_the_insecure_auth_flag_lets_a_control_ui_in_with_the_secret_alone(tmp_path: Path) -> None:
    flag = {"gateway": {"controlUi": {"allowInsecureAuth": True}}}
    async with running_gateway(tmp_path, config=flag) as running, running.socket(Origin=running.url) as socket:
        answer = await socket.call("connect", connect_params(client_id="openclaw-control-ui", mode="ui"))
        assert answer["ok"]


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://127.0.0.1.evil.example"])
async def test_web_clients_of_other_origins_are_refused(running: Running, origin: str | None) -> None:
    async with running.socket(**({"Origin": origin} if origin else {})) as socket:
        answer = await socket.call("connect", connect_params(client_id="webchat-ui", mode="webchat"))
        assert answer["error"]["code"] == "INVALID_REQUEST"
        assert answer["error"]["message"].startswith("origin not allowed (")


async def test_an_idle_connection_is_closed_when_the_handshake_takes_too_long(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, handshake_timeout_s=0.05) as running, running.socket() as socket:
        assert await socket.closed() == (1000, "")


async def test_a_close_reason_is_cut_to_what_a_close_frame_may_carry(running: Running) -> None:
    async with running.socket() as socket:
        await socket.send({"type": "req", "id": "1", "method": "connect", "params": {"é" * 200: 1}})
        code, reason = await socket.closed()
        assert code == 1008
        assert 0 < len(reason.encode()) <= 120


async def test_secrets_of_the_environment_count_when_the_file_has_none(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text(json.dumps({"gateway": {"mode": "local", "auth": {"mode": "token"}}}))
    async with running_gateway(tmp_path) as running:
        generated = running.gateway.runtime.config.current.gateway.auth.token
        assert generated
        async with running.client(token=generated) as socket:
            assert socket.hello["protocol"] == 3
