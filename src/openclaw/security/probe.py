"""``openclaw security audit --deep``: tries the doors of the running Gateway as an attacker would.

It asks without a secret, as a web page of another site, and with wrong secrets in a row. The wrong secrets say that a
proxy forwards them: the Gateway counts those apart, so that their owner is not made to wait for them.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from openclaw import __version__
from openclaw.security.audit import AuditFinding, Subject, finding
from openclaw.security.gateway_checks import is_exposed, is_loopback

TIMEOUT_S = 5
MAX_GUESSES = 30
MAX_FRAMES = 20
FOREIGN_ORIGIN = "https://attacker.example"
GUESSER = {"X-Forwarded-For": "192.0.2.77"}
CLOSED_PATHS = (
    ("POST", "/__openclaw__/rpc"),
    ("GET", "/__openclaw__/events?sessionKey=main"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("POST", "/tools/invoke"),
    ("GET", "/metrics"),
)
"""What must not be answered without the secret."""


class ProbedGateway(msgspec.Struct, frozen=True, kw_only=True):
    """The Gateway to examine."""

    host: str
    port: int
    tls: bool
    local: bool
    """It runs on this machine."""
    secret: str

    def url(self, scheme: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}{'s' if self.tls else ''}://{host}:{self.port}"


class Probe:
    """One examination. ``findings`` and ``checks`` are filled while it goes on."""

    def __init__(self, subject: Subject, place: ProbedGateway) -> None:
        self._subject = subject
        self._place = place
        self.findings: list[AuditFinding] = []
        self.checks: list[dict[str, Any]] = []
        self.error = ""

    def view(self) -> dict[str, Any]:
        gateway: dict[str, Any] = {"attempted": True, "url": self._place.url("ws"), "ok": not self.error}
        return {"gateway": {**gateway, **({"error": self.error} if self.error else {}), "checks": self.checks}}

    async def run(self) -> None:
        try:
            refused = await self._connect(self._place.secret)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            refused = str(error) or type(error).__name__
        if refused:
            self.error = refused
            fix = "openclaw gateway status, then openclaw security audit --deep again"
            self.findings.append(finding("gateway.probe_failed", f"{self._place.url('ws')}: {refused}", fix))
            return
        for check in (self._without_secret, self._foreign_page, self._guessing, self._reach):
            try:
                await check()
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                self._note(check.__name__.strip("_"), None, f"could not be tried: {error or type(error).__name__}")

    async def _without_secret(self) -> None:
        open_ = [] if await self._connect("") else ["the WebSocket"]
        async with self._session() as session:
            for method, path in CLOSED_PATHS:
                async with session.request(method, self._place.url("http") + path, json={}, ssl=_ssl()) as answer:
                    if answer.status < 400:
                        open_.append(f"{method} {path}")
        self._note("without_secret", not open_, ", ".join(open_) or "everything asks for the secret")
        if open_:
            detail = f"answered without a secret: {', '.join(open_)}"
            self._found("gateway.probe.open", detail, "set gateway.auth.token and restart the Gateway")

    async def _foreign_page(self) -> None:
        """A page of another site that has even learnt the secret."""
        refused = await self._connect(self._place.secret, origin=FOREIGN_ORIGIN)
        self._note("foreign_origin", bool(refused), refused or "let in")
        if not refused:
            detail = f"a WebSocket with Origin {FOREIGN_ORIGIN} was let in"
            self._found("gateway.probe.foreign_origin", detail, "name only your own origins in allowedOrigins")

    async def _guessing(self) -> None:
        limit = self._subject.snapshot.config.gateway.auth.rate_limit.max_attempts
        if not self._place.local or not is_loopback(self._place.host) or limit > MAX_GUESSES:
            self._note("guessing", None, "not tried: it would lock this machine out, or the limit is too high to reach")
            return
        statuses: list[int] = []
        async with self._session() as session:
            for _ in range(limit + 2):
                headers = {**GUESSER, "Authorization": f"Bearer {secrets.token_hex(16)}"}
                url = self._place.url("http") + "/__openclaw__/rpc"
                async with session.post(url, json={}, headers=headers, ssl=_ssl()) as answer:
                    statuses.append(answer.status)
        slowed = 429 in statuses
        self._note("guessing", slowed, f"{len(statuses)} wrong secrets, {'then 429' if slowed else 'never 429'}")
        if not slowed:
            detail = f"{len(statuses)} wrong secrets in a row were answered {statuses[-1]}"
            self._found("gateway.probe.not_throttled", detail, "openclaw config unset gateway.auth.rateLimit")

    async def _reach(self) -> None:
        """Whether a Gateway that should be for this machine only is reachable at the machine's other addresses."""
        if not self._place.local or is_exposed(self._subject.snapshot.config):
            return
        reached: list[str] = []
        for address in await asyncio.to_thread(_own_addresses):
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    _, writer = await asyncio.open_connection(address, self._place.port)
            except (OSError, TimeoutError):
                continue
            writer.close()
            reached.append(address)
        self._note("reach", not reached, ", ".join(reached) or "loopback only")
        if reached:
            detail = f"gateway.bind is loopback, but port {self._place.port} answers at {', '.join(reached)}"
            self._found(
                "gateway.probe.exposed", detail, "restart the Gateway; look for a program that forwards the port"
            )

    async def _connect(self, secret: str, origin: str | None = None) -> str:
        """Connects as a client would. Returns why it was refused, or "" when it was let in."""
        client = {"id": "openclaw-probe", "version": __version__, "platform": "cli", "mode": "probe"}
        params: dict[str, Any] = {"minProtocol": 3, "maxProtocol": 3, "client": client, "scopes": ["operator.read"]}
        if secret:
            params["auth"] = {"token": secret, "password": secret}
        async with self._session() as session:
            try:
                async with session.ws_connect(self._place.url("ws"), origin=origin, ssl=_ssl()) as channel:
                    await channel.send_json({"type": "req", "id": "1", "method": "connect", "params": params})
                    for _ in range(MAX_FRAMES):
                        message = await channel.receive(TIMEOUT_S)
                        if message.type is not aiohttp.WSMsgType.TEXT:
                            return f"closed ({channel.close_code})"
                        frame = msgspec.json.decode(message.data)
                        if frame.get("type") == "res":
                            return "" if frame.get("ok") else str(frame["error"]["message"])
                    return "no answer to connect"
            except aiohttp.WSServerHandshakeError as error:
                return f"HTTP {error.status}"

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield session

    def _note(self, name: str, ok: bool | None, detail: str) -> None:
        self.checks.append({"check": name, "ok": ok, "detail": detail})

    def _found(self, rule: str, detail: str, fix: str) -> None:
        self.findings.append(finding(rule, detail, fix))


def _ssl() -> ssl.SSLContext:
    """Accepts any certificate: what is examined is who is let in, and certificates of our own are usual here."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _own_addresses() -> list[str]:
    """The addresses under which the network knows this machine. Nothing is sent to find them."""
    found: set[str] = set()
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((anywhere, 9))
                found.add(probe.getsockname()[0])
        except OSError:
            continue
    return sorted(address for address in found if not is_loopback(address))
