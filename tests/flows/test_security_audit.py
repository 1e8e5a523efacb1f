"""``openclaw security audit`` as a person runs it, and its probe of a running Gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw.security.audit import subject_of
from openclaw.security.gateway_checks import Probe, ProbedGateway
from tests.support.gateway import TOKEN
from tests.support.gateway_in_process import InProcessGateway


async def probe(state: Path, port: int, secret: str = TOKEN) -> Probe:
    subject = subject_of(str(state / "openclaw.json"), str(state), {})
    place = ProbedGateway(host="127.0.0.1", port=port, tls=False, local=True, secret=secret)
    examined = Probe(subject, place)
    await examined.run()
    return examined


async def test_the_doors_of_a_running_gateway_hold(gateway: InProcessGateway) -> None:
    examined = await probe(gateway.state_dir, gateway.port)
    checks = {check.check: check.ok for check in examined.checks}
    assert checks == {"without_secret": True, "foreign_origin": True, "guessing": True, "reach": True}
    assert examined.findings == []
    async with gateway.client() as client:
        assert await client.call("health"), "its owner was not locked out by the guesses"


async def test_the_command_prints_the_report_with_its_exit_code(gateway: InProcessGateway) -> None:
    (gateway.state_dir / "openclaw.json").chmod(0o644)
    done = await gateway.command("security", "audit", "--deep", "--json")
    report = json.loads(done.stdout)
    assert set(report) == {"ts", "summary", "findings", "deep"}
    assert report["deep"]["gateway"]["ok"] is True
    critical = [one["checkId"] for one in report["findings"] if one["severity"] == "critical"]
    assert critical == ["fs.config.perms_world_readable"] and done.returncode == 1
    done = await gateway.command("security", "audit", "--fix", "--json")
    fixed = json.loads(done.stdout)
    assert (done.returncode, fixed["fix"]["ok"], fixed["report"]["summary"]["critical"]) == (0, True, 0)
    text = (await gateway.command("security", "audit")).stdout
    assert "Summary: 0 critical" in text and "tools.exec.unrestricted" in text
    for output in (json.dumps(report), json.dumps(fixed), text):
        assert TOKEN not in output


async def test_a_gateway_that_does_not_answer_is_a_finding(tmp_path: Path) -> None:
    examined = await probe(tmp_path, 9)
    assert [one.code for one in examined.findings] == ["gateway.probe_failed"]
    assert examined.result().ok is False


async def test_a_wrong_secret_of_ours_is_a_finding(gateway: InProcessGateway) -> None:
    examined = await probe(gateway.state_dir, gateway.port, "wrong")
    assert [one.code for one in examined.findings] == ["gateway.probe_failed"]


asked: list[str] = []


@pytest.fixture
async def careless(tmp_path: Path) -> Any:
    """A server that lets everybody in, at every address of this machine."""

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if request.headers.get("upgrade", "").lower() != "websocket":
            return web.json_response({})
        channel = web.WebSocketResponse()
        await channel.prepare(request)
        frame = await channel.receive_json()
        await channel.send_json({"type": "res", "id": frame["id"], "ok": True, "payload": {}})
        await channel.close()
        return channel

    asked.clear()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0)
    await site.start()
    yield site
    await runner.cleanup()


async def test_a_careless_gateway_fails_every_probe(careless: web.TCPSite, tmp_path: Path) -> None:
    port: int = careless._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    examined = await probe(tmp_path, port)
    told = {one.code for one in examined.findings}
    probes = {"open", "foreign_origin", "not_throttled", "exposed"}
    assert told == {f"gateway.probe.{name}" for name in probes}


async def test_the_secret_is_not_given_to_what_listens_in_the_place_of_the_gateway(
    careless: web.TCPSite, tmp_path: Path
) -> None:
    port: int = careless._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    idle = InProcessGateway(tmp_path / "state", {"gateway": {"port": port, "auth": {"token": TOKEN}}})
    report = json.loads((await idle.command("security", "audit", "--deep", "--json")).stdout)
    assert report["deep"]["gateway"]["attempted"] is False
    assert "gateway.probe_failed" in [one["checkId"] for one in report["findings"]]
    assert asked == []
