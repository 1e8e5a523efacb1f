"""Every door of the Gateway × every kind of caller, against one table. A route without a row fails here."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import aiohttp
import pytest
import pytest_asyncio

from openclaw.gateway.http.routes import reserved_names
from openclaw.gateway.server.events import ClientId, ClientMode
from openclaw.gateway.server.server import failure_response
from tests.gateway.auth.test_devices import Device
from tests.gateway.http.served import ENDPOINTS
from tests.gateway.support import Socket, connect_params
from tests.support.gateway import TOKEN, model_config
from tests.support.gateway_in_process import InProcessGateway

Door = Literal["open", "secret", "own"]
DOORS: dict[tuple[str, str], Door] = {
    ("GET", "/healthz"): "open",
    ("HEAD", "/healthz"): "open",
    ("GET", "/readyz"): "open",
    ("HEAD", "/readyz"): "open",
    ("GET", "/metrics"): "secret",
    ("POST", "/__openclaw__/rpc"): "secret",
    ("GET", "/__openclaw__/events"): "secret",
    ("POST", "/__openclaw__/sign-in"): "own",
    ("POST", "/tools/invoke"): "secret",
    ("POST", "/v1/chat/completions"): "secret",
    ("GET", "/v1/models"): "secret",
    ("GET", "/v1/models/*"): "secret",
    ("POST", "/v1/responses"): "secret",
    ("*", "/hooks"): "own",
    ("*", ""): "open",
}
"""Verb and path of every route → who may ask. What only says that the Gateway is there is open, and so is the page.

Webhooks and the sign-in of the page have secrets of their own, and the Gateway's does not open them.
"""

OLD = "the-token-before-it-was-rotated-0123456789"
CREDENTIALS: dict[str, str | None] = {
    "none": None,
    "empty": "Bearer ",
    "wrong": "Bearer wrong",
    "rotated": f"Bearer {OLD}",
    "another scheme": f"Basic {TOKEN}",
    "right": f"Bearer {TOKEN}",
}
ORIGINS = {
    "none": None,
    "own": "http://127.0.0.1:{port}",
    "foreign": "https://evil.example",
    "sandboxed": "null",
    "rebound": "http://evil.example:{port}",
    "lookalike": "http://127.0.0.1.evil.example",
}
HOSTS = {"own": None, "foreign": "evil.example:{port}"}
PROXIES = {"direct": None, "proxied": "127.0.0.1"}


class Caller(NamedTuple):
    credential: str
    origin: str
    host: str
    proxy: str

    def headers(self, port: int) -> dict[str, str]:
        found = {
            "Authorization": CREDENTIALS[self.credential],
            "Origin": ORIGINS[self.origin],
            "Host": HOSTS[self.host],
            "X-Forwarded-For": PROXIES[self.proxy],
        }
        return {name: value.format(port=port) for name, value in found.items() if value is not None}


CALLERS = [Caller(*each) for each in itertools.product(CREDENTIALS, ORIGINS, HOSTS, PROXIES)]


def expected(door: Door, caller: Caller) -> int | None:
    """The status of a refusal, or None when the caller is let in."""
    if caller.origin not in ("none", "own"):
        return 403
    if caller.host == "foreign" and (door == "secret" or caller.origin != "none"):
        return 403
    if door == "own" or (door == "secret" and caller.credential != "right"):
        return 401
    return None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessGateway]:
    """A Gateway with every endpoint on, whose token has been changed since it started."""
    config = model_config("http://127.0.0.1:9", hooks={"enabled": True, "token": "a-token-for-webhooks-only"})
    config["gateway"] |= {"http": {"endpoints": ENDPOINTS}, "reload": {"mode": "hot"}}
    config["gateway"]["auth"] |= {"token": OLD, "rateLimit": {"maxAttempts": 1000}}
    async with InProcessGateway(tmp_path_factory.mktemp("doors") / "state", config) as running:
        await change_token(running, TOKEN)
        yield running


async def change_token(running: InProcessGateway, token: str) -> None:
    path = running.state_dir / "openclaw.json"
    config = json.loads(path.read_text())
    config["gateway"]["auth"]["token"] = token
    path.write_text(json.dumps(config))
    assert await running.gateway.runtime.config.reload()


@pytest.mark.asyncio(loop_scope="module")
async def test_every_route_has_a_row(gateway: InProcessGateway) -> None:
    config = gateway.gateway.runtime.config.current
    listed = [(verb, path, refuse) for verb, path, _, refuse in gateway.server.routes]
    routes = {(verb, path if isinstance(path, str) else path(config)): refuse for verb, path, refuse in listed}
    assert set(routes) == set(DOORS), "a new route needs a row in DOORS; a route that is gone has none"
    for kind in ("open", "own"):
        assert {route for route, refuse in routes.items() if refuse == kind} == {
            route for route, door in DOORS.items() if door == kind
        }
    assert len(gateway.server.routes) == len(routes)


@pytest.mark.asyncio(loop_scope="module")
async def test_no_channel_gets_a_path_of_the_gateway(gateway: InProcessGateway) -> None:
    runtime = gateway.gateway.runtime
    names = reserved_names(runtime.config.current, runtime.extensions)
    paths = [route.path for route in gateway.server.routes]
    served = [path if isinstance(path, str) else path(runtime.config.current) or "" for path in paths]
    assert {path.strip("/*").split("/")[0] for path in served} <= names


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("verb", "path"), DOORS)
async def test_every_route_lets_in_whom_the_table_says(gateway: InProcessGateway, verb: str, path: str) -> None:
    door, wrong = DOORS[verb, path], []
    async with aiohttp.ClientSession() as http:
        for caller in CALLERS:
            url = gateway.url + path.replace("*", "openclaw")
            verb = "POST" if verb == "*" else verb
            async with http.request(verb, url, headers=caller.headers(gateway.port), data=b"") as response:
                refused = response.status if response.status in (401, 403, 429) else None
                if refused != expected(door, caller):
                    wrong.append((caller, response.status))
                text = await response.text() if refused else ""
                assert TOKEN not in text and OLD not in text
                assert "Access-Control-Allow-Origin" not in response.headers
    assert wrong == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("verb", "path"), [("POST", "/nothing"), ("OPTIONS", "/__openclaw__/rpc"), ("POST", "/healthz"), ("GET", "/v1/x")]
)
async def test_what_is_no_route_tells_pages_of_other_sites_nothing(
    gateway: InProcessGateway, verb: str, path: str
) -> None:
    async with aiohttp.ClientSession() as http:
        for caller in CALLERS:
            async with http.request(verb, gateway.url + path, headers=caller.headers(gateway.port)) as response:
                assert response.status in ((404, 405) if expected("open", caller) is None else (403,)), caller


SECRETS = {"none": None, "empty": "", "wrong": "wrong", "rotated": OLD, "right": TOKEN}
PATHS = ["/", "/__openclaw__/ws", "/healthz", "/v1/models"]


async def connect(gateway: InProcessGateway, path: str, caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
    headers = caller.headers(gateway.port)
    headers.pop("Authorization", None)
    async with aiohttp.ClientSession() as http, http.ws_connect(gateway.url + path, headers=headers) as ws:
        socket = Socket(ws)
        socket.nonce = (await socket.event("connect.challenge"))["payload"]["nonce"]
        return await socket.call("connect", params)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", PATHS)
async def test_every_upgrade_lets_in_whom_the_table_says(gateway: InProcessGateway, path: str) -> None:
    wrong = []
    for secret, origin, host, proxy in itertools.product(SECRETS, ORIGINS, HOSTS, PROXIES):
        caller = Caller(secret, origin, host, proxy)
        answer = await connect(gateway, path, caller, connect_params(token=SECRETS[secret]))
        page = origin not in ("none", "own") or (origin == "own" and host == "foreign")
        as_page = str(answer.get("error", {}).get("message")).startswith("origin not allowed (")
        if (answer["ok"], as_page) != (secret == "right" and not page, page):
            wrong.append((caller, answer))
    assert wrong == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("client_id", get_args(ClientId))
async def test_a_page_is_known_by_its_origin_whatever_it_calls_itself(
    gateway: InProcessGateway, client_id: str
) -> None:
    for mode, origin in itertools.product(get_args(ClientMode), ("foreign", "sandboxed", "rebound")):
        host = "foreign" if origin == "rebound" else "own"
        for device in (None, Device()):
            params = connect_params(token=TOKEN, client_id=client_id, mode=mode)
            if device is not None:
                params["device"] = device.connect(token=TOKEN)["device"]
            answer = await connect(gateway, "/", Caller("right", origin, host, "direct"), params)
            assert not answer["ok"] and answer["error"]["message"].startswith("origin not allowed ("), (mode, origin)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_signature_that_expired_lets_nobody_in(gateway: InProcessGateway, proxy: str) -> None:
    device = Device()
    caller = Caller("right", "none", "own", proxy)
    old = gateway.clock.now_ms() - 601_000
    answer = await connect(gateway, "/", caller, device.connect(token=TOKEN, signed_at=old))
    assert answer["error"]["message"] == "device signature expired"
    fresh = await connect(gateway, "/", caller, device.connect(token=TOKEN))
    assert fresh["ok"] is (proxy == "direct"), "what is proxied is not local: it needs a nonce, and a yes"


def test_an_answer_to_a_failure_tells_no_secret() -> None:
    assert b"boom" not in (failure_response("/v1/x", RuntimeError("boom")).body or b"")  # type: ignore[operator]


async def test_the_state_folder_keeps_the_key_of_the_owner_to_itself(tmp_path: Path) -> None:
    async with InProcessGateway(tmp_path / "state", model_config("http://127.0.0.1:9")) as running:
        lock = json.loads((running.state_dir / "gateway.lock").read_text())
        assert running.gateway.is_owner_process(lock["ownerKey"])
        assert not running.gateway.is_owner_process("") and not running.gateway.is_owner_process("x" * 32)
