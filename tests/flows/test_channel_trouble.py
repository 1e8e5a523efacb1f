"""What is wrong with an account is one clear line, never a secret, and no other account's trouble: all channels."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw.channels import base as kinds
from openclaw.channels.base import BUILT_IN, built_in_kind
from openclaw.channels.manager import ChannelManager
from openclaw.config.load import parse_config
from tests.support.channel_account import running_channel
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.ircv3_server import Ircv3Server
from tests.support.model_server import ModelServer
from tests.support.ports import KeptPort
from tests.support.signal_daemon import SignalDaemon
from tests.support.vendor_server import VendorServer

CANARY = "canary0123456789abcdefghijk"
US = "+15550000001"
SHAPES = {
    "telegram.botToken": f"110201543:{CANARY}",
    "discord.token": f"{CANARY}.abcdef.{CANARY}",
    "slack.botToken": f"xoxb-{CANARY}",
    "slack.appToken": f"xapp-{CANARY}",
}
REFUSALS: dict[str, tuple[int, Any]] = {
    "telegram": (401, {"ok": False, "error_code": 401, "description": "Unauthorized"}),
    "discord": (401, {"message": "401: Unauthorized", "code": 0}),
    "slack": (200, {"ok": False, "error": "invalid_auth"}),
    "whatsapp": (401, {"error": {"code": 190, "message": "Invalid OAuth access token", "type": "OAuthException"}}),
    "bluebubbles": (401, {"status": 401, "message": "Unauthorized", "error": {"message": "wrong"}}),
    "imessage": (401, {"status": 401, "message": "Unauthorized", "error": {"message": "wrong"}}),
    "matrix": (401, {"errcode": "M_UNKNOWN_TOKEN", "error": "Unrecognised access token"}),
}


class RefusingServer(VendorServer):
    """Every platform under its own path. Each refuses whatever credential it is shown."""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{channel}/{path:.*}", self._refuse)
        return app

    async def _refuse(self, request: web.Request) -> web.StreamResponse:
        status, body = REFUSALS[request.match_info["channel"]]
        return web.json_response(body, status=status)


def sections(port: int, irc_port: int) -> dict[str, dict[str, Any]]:
    """All channels with secrets, at a server on this machine."""
    root = f"http://127.0.0.1:{port}"
    where: dict[str, dict[str, Any]] = {
        "telegram": {"apiRoot": f"{root}/telegram"},
        "discord": {"apiRoot": f"{root}/discord"},
        "slack": {"apiRoot": f"{root}/slack/"},
        "whatsapp": {"apiRoot": f"{root}/whatsapp", "phoneNumberId": "106540352242922"},
        "bluebubbles": {"serverUrl": f"{root}/bluebubbles"},
        "imessage": {"serverUrl": f"{root}/imessage", "webhookPath": "/imessage-webhook"},
        "matrix": {"homeserver": f"{root}/matrix", "userId": "@claw:test"},
        "irc": {"host": "127.0.0.1", "port": irc_port, "tls": False, "nick": "claw", "sasl": {"password": CANARY}},
    }
    for channel, section in where.items():
        for one in built_in_kind(channel).credentials:
            if one.secret and one.key != "webhookSecret":
                section[one.key] = SHAPES.get(f"{channel}.{one.key}", CANARY)
    return where


async def told(manager: ChannelManager, channels: list[str], done: Callable[[str], bool] = bool) -> dict[str, str]:
    """The line of each channel, once each has one."""
    async with asyncio.timeout(60):
        while True:
            lines = {one.kind.id: one.status.last_error or "" for one in manager.accounts() if one.kind.id in channels}
            if all(map(done, lines.values())):
                return lines
            await asyncio.sleep(0.02)


def test_every_channel_names_its_secrets() -> None:
    named = {channel: {one.key for one in built_in_kind(channel).credentials if one.secret} for channel in BUILT_IN}
    assert named.pop("signal") == set()
    assert all(named.values())


@pytest.mark.parametrize("trouble", ["the credential is refused", "the server is dead"])
async def test_trouble_with_every_account_is_one_line_without_a_secret_and_others_go_on(
    trouble: str, tmp_path: Path, models: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with RefusingServer() as vendors, Ircv3Server(accounts={"claw": "other"}) as irc, SignalDaemon(US) as signal:
        dead = trouble == "the server is dead"
        nobody = KeptPort()
        channels = sections(*((nobody.number, nobody.number) if dead else (vendors.port, irc.port)))
        healthy = {"account": US, "httpUrl": signal.url, "autoStart": False, "dmPolicy": "open", "allowFrom": ["*"]}
        config = model_config(models.base_url, models.api_key, channels={**channels, "signal": healthy})
        async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
            lines = await told(gateway.gateway.channel_services.channels, list(channels))
            await signal.connected()
            await signal.say("hello [[reply:still here]]")
            await signal.called("send")
            status = await client.call("channels.status", {"probe": True})
            shown = json.dumps([status, await client.call("config.get", {}), lines])
        logs = "".join(path.read_text() for path in (tmp_path / "state").rglob("*.log"))
        written = "".join(path.read_text() for path in (tmp_path / "state" / "agents").rglob("*.json*"))
        everything = shown + caplog.text + gateway.errors_path.read_text() + logs + written
    assert CANARY not in everything
    assert [call["message"] for call in signal.of("send")] == ["still here"]
    for channel, line in lines.items():
        assert line.strip() and "\n" not in line and len(line) < 300, (channel, line)
        assert "Traceback" not in line
    accounts = status["channelAccounts"]
    assert all(not accounts[channel][0]["connected"] for channel in channels)
    if not dead:
        # Trying again cannot help, so nothing does, until somebody changes the configuration.
        assert not any(accounts[channel][0]["running"] for channel in channels), lines


async def test_a_missing_library_is_one_line_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {channel: made.library for channel in BUILT_IN if (made := built_in_kind(channel)).library}
    hidden = set(needed.values())
    monkeypatch.setattr(kinds, "find_spec", lambda name: None if name in hidden else find_spec(name))
    async with Ircv3Server() as irc:
        nobody = KeptPort()
        everywhere = sections(nobody.number, irc.port)
        del everywhere["irc"]["sasl"], everywhere["irc"]["password"]
        async with running_channel(tmp_path, "irc", everywhere.pop("irc"), others=everywhere) as channel:
            lines = await told(channel.manager, list(needed), lambda line: "extras add" in line)
            await channel.connected()
    assert lines == {
        channel: f"install the library of this channel: openclaw extras add {channel}" for channel in needed
    }


@pytest.mark.parametrize("channel", sections(1, 1))
def test_what_a_platform_gives_out_has_its_shape_and_other_things_do_not(channel: str) -> None:
    kind, section = built_in_kind(channel)({}), sections(1, 1)[channel]

    def odd(**changed: str) -> list[str]:
        text = json.dumps({"channels": {channel: {**section, **changed}}})
        (account,) = kind.accounts(parse_config("openclaw.json", text, {}).config)
        assert account.problem == ""
        return kind.malformed_credentials(account)

    assert odd() == []
    for one in kind.credentials:
        if one.secret and one.shape and one.key in section:
            assert odd(**{one.key: "no token"}) == [one.key]
