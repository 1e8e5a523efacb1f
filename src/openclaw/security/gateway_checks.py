"""Checks of the Gateway's doors, of its secrets and of what the log keeps.

With ``--deep`` the doors of the running Gateway are tried as an attacker would: without a secret, as a web page of
another site, and with wrong secrets in a row. The wrong secrets say that a proxy forwards them: the Gateway counts
those apart, so that their owner is not made to wait for them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from openclaw import __version__
from openclaw.config.keypath import format_path
from openclaw.config.schema import Config
from openclaw.config.secrets import secret_values
from openclaw.findings import Finding
from openclaw.security.audit import ProbeCheck, ProbeResult, Subject, finding

MIN_TOKEN = 24
MIN_PASSWORD = 12
MIN_VARIETY = 8
"""A secret with fewer different characters is easy to guess, however long it is."""
MAX_ATTEMPTS = 100
NARROWEST_IPV4, NARROWEST_IPV6 = 16, 48
"""A network of proxies with a shorter prefix is too wide."""
MAX_NAMED = 8
"""More key paths than this are counted and not named."""
_NEW_TOKEN = "openclaw config set gateway.auth.token $(openssl rand -hex 32)"


class ConfiguredSecret(NamedTuple):
    mode: str
    value: str
    written: bool
    """It is in the configuration file and not in the environment."""


def shared_secret(subject: Subject) -> ConfiguredSecret:
    """The Gateway's own secret, as the Gateway finds it."""
    auth = subject.snapshot.config.gateway.auth
    mode = auth.mode or ("password" if auth.password or _environ(subject, "password") else "token")
    if mode not in ("token", "password"):
        return ConfiguredSecret(mode, "", False)
    written = auth.password if mode == "password" else auth.token
    return ConfiguredSecret(mode, written or _environ(subject, mode), bool(written))


def _environ(subject: Subject, kind: str) -> str:
    return subject.environ.get(f"OPENCLAW_GATEWAY_{kind.upper()}", "").strip()


def is_exposed(config: Config) -> bool:
    """Whether the Gateway listens beyond this machine."""
    gateway = config.gateway
    if gateway.bind == "custom":
        return not is_loopback(gateway.custom_bind_host or "")
    return gateway.bind != "loopback"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def secret_checks(subject: Subject) -> Iterator[Finding]:
    config = subject.snapshot.config
    secret, exposed = shared_secret(subject), is_exposed(config)
    # On loopback the next start writes a token, unless another mode is asked for.
    if not secret.value and (exposed or secret.mode != "token"):
        rule = "gateway.bind_no_auth" if exposed else "gateway.loopback_no_auth"
        detail = f'gateway.bind is "{config.gateway.bind}" and there is no {secret.mode}; '
        detail += "whoever reaches the port, a web page in your browser included, could try to use the agent"
        yield finding(rule, detail, f"openclaw config set gateway.auth.mode token, then {_NEW_TOKEN}")
    if secret.value:
        least, length = MIN_PASSWORD if secret.mode == "password" else MIN_TOKEN, len(secret.value)
        if length < least or len(set(secret.value)) < MIN_VARIETY:
            detail = f"the {secret.mode} has {length} characters, {len(set(secret.value))} of them different"
            fix = _NEW_TOKEN if secret.mode == "token" else "choose a long random password"
            yield finding(f"gateway.{secret.mode}_too_short", detail, fix)
    # The secrets of the Gateway itself, and of its clients here, are meant to be equal.
    own = (("gateway", "auth"), ("gateway", "remote"), ("hooks", "token"))
    secrets = secret_values(subject.snapshot.resolved) if secret.value else ()
    same = [format_path(path) for path, value in secrets if value == secret.value and path[:2] not in own]
    if same:
        detail = f"{_named(same)} has the same value as gateway.auth.{secret.mode}; who learns one has the other"
        yield finding("gateway.secret_reused", detail, "give each its own secret")
    if secret.mode == "password" and secret.written and not _referenced(subject, "password"):
        fix = 'put it into OPENCLAW_GATEWAY_PASSWORD, or write "${NAME}" in its place'
        yield finding("config.secrets.gateway_password_in_config", "gateway.auth.password is in the file", fix)


def _referenced(subject: Subject, key: str) -> bool:
    gateway = subject.snapshot.merged.get("gateway")
    auth = gateway.get("auth") if isinstance(gateway, dict) else None
    return isinstance(auth, dict) and "${" in str(auth.get(key))


def network_checks(subject: Subject) -> Iterator[Finding]:
    gateway = subject.snapshot.config.gateway
    if is_exposed(subject.snapshot.config) and not gateway.tls.enabled:
        detail = f'gateway.bind is "{gateway.bind}" and gateway.tls.enabled is false; the secret and every word can be '
        fix = "openclaw config set gateway.tls.enabled true, or bind to loopback and use a tunnel"
        yield finding("gateway.no_tls", f"{detail}read on the network", fix)
    limit = gateway.auth.rate_limit
    if limit.max_attempts > MAX_ATTEMPTS:
        detail = f"gateway.auth.rateLimit.maxAttempts is {limit.max_attempts} in {limit.window_ms} ms"
        yield finding("gateway.rate_limit_loose", detail, "openclaw config unset gateway.auth.rateLimit")
    wide = [entry for entry in gateway.trusted_proxies if _is_wide(entry)]
    if wide:
        detail = f"gateway.trustedProxies has {', '.join(map(repr, wide))}; who is there can claim any address"
        yield finding("gateway.trusted_proxies_wide", detail, "name the exact address of each proxy")
    foreign = [origin for origin in gateway.control_ui.allowed_origins if not is_loopback(_host(origin))]
    if not gateway.trusted_proxies and not is_exposed(subject.snapshot.config) and foreign:
        detail = f"gateway.controlUi.allowedOrigins has {', '.join(foreign[:MAX_NAMED])}, so something forwards to the "
        detail += "Gateway; without gateway.trustedProxies all its clients share one address and one limit"
        yield finding("gateway.trusted_proxies_missing", detail, "set gateway.trustedProxies to the proxy's address")
    if gateway.tailscale.mode == "funnel":
        detail = "gateway.tailscale.mode is funnel, which would put the Gateway on the internet; this version does not "
        fix = "openclaw config set gateway.tailscale.mode off"
        yield finding("gateway.tailscale_funnel", f"{detail}publish itself, the original does", fix)
    if gateway.tailscale.mode == "serve":
        detail = "gateway.tailscale.mode is serve; this version does not publish itself, the original does"
        yield finding("gateway.tailscale_serve", detail)


def _is_wide(proxy: str) -> bool:
    try:
        network = ipaddress.ip_network(proxy.strip(), strict=False)
    except ValueError:
        return False  # Nobody is trusted for it.
    return network.prefixlen < (NARROWEST_IPV4 if network.version == 4 else NARROWEST_IPV6)


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def control_ui_checks(subject: Subject) -> Iterator[Finding]:
    control_ui = subject.snapshot.config.gateway.control_ui
    if control_ui.allow_insecure_auth:
        detail = "gateway.controlUi.allowInsecureAuth is true: the shared secret alone is enough for a browser"
        fix = "openclaw config unset gateway.controlUi.allowInsecureAuth; use TLS or localhost"
        yield finding("gateway.control_ui.insecure_auth", detail, fix)
    if control_ui.dangerously_disable_device_auth:
        detail = "gateway.controlUi.dangerouslyDisableDeviceAuth is true: browsers need no pairing"
        fix = "openclaw config unset gateway.controlUi.dangerouslyDisableDeviceAuth"
        yield finding("gateway.control_ui.device_auth_disabled", detail, fix)
    wide = [origin for origin in control_ui.allowed_origins if "*" in origin or origin.strip().lower() == "null"]
    if wide:
        detail = f"gateway.controlUi.allowedOrigins has {', '.join(map(repr, wide))}"
        yield finding("gateway.control_ui.origins_wide", detail, "name each origin in full: https://host:port")
    yield from _browser_checks(subject)


def _browser_checks(subject: Subject) -> Iterator[Finding]:
    browser = subject.snapshot.config.browser
    addresses = {"browser.cdpUrl": browser.cdp_url or ""}
    addresses |= {f"browser.profiles.{name}.cdpUrl": one.cdp_url or "" for name, one in browser.profiles.items()}
    for path, address in addresses.items():
        if address.startswith(("http://", "ws://")) and not is_loopback(_host(address)):
            detail = f"{path} is {address.split('@')[-1]}; who is on the way can control the browser"
            yield finding("browser.remote_cdp_http", detail, "use https or wss, or a tunnel")
    if not browser.enabled:
        return
    if own := [path for path, address in addresses.items() if address]:
        detail = f"{' and '.join(own)}: pages there can reach private addresses by WebSocket or by a name that changes"
        fix = "use it for pages that you trust, or let the Gateway start a browser of its own"
        yield finding("browser.own_network", detail, fix)
    if browser.ssrf_policy.dangerously_allow_private_network:
        detail = (
            "browser.ssrfPolicy.dangerouslyAllowPrivateNetwork is true: any page reaches this machine and your network"
        )
        fix = "openclaw config unset browser.ssrfPolicy.dangerouslyAllowPrivateNetwork; name hosts in allowedHostnames"
        yield finding("browser.private_network_open", detail, fix)
    if browser.no_sandbox:
        detail = "browser.noSandbox is true: a page that breaks the browser has the rights of the Gateway's user"
        yield finding(
            "browser.no_sandbox", detail, "run the Gateway as a user that is not root, and unset browser.noSandbox"
        )
    if browser.allow_in_groups:
        detail = (
            "browser.allowInGroups is true: members of groups can have the agent use what its browser is logged in to"
        )
        yield finding("browser.groups", detail, "openclaw config unset browser.allowInGroups")


def config_checks(subject: Subject) -> Iterator[Finding]:
    snapshot = subject.snapshot
    for issue in snapshot.issues[:MAX_NAMED]:
        yield finding("config.invalid", str(issue), f"mend it in {snapshot.path}; openclaw config validate")
    for issue in snapshot.refusals:
        yield finding("config.refused", str(issue), f"openclaw config unset '{issue.path}'")
    # The Gateway's own token belongs in this file. A password and the hooks token have findings of their own.
    own = {("gateway", "auth", "token"), ("gateway", "auth", "password"), ("hooks", "token")}
    written = [format_path(path) for path, _ in secret_values(snapshot.merged) if path not in own]
    if written:
        fix = 'keep the file at 0600, or write "${NAME}", { env }, { file } or { command } in their place'
        yield finding("config.secrets.in_config", f"{len(written)} secrets: {_named(written)}", fix)
    logging = snapshot.config.logging
    if logging.redact_sensitive == "off":
        detail = 'logging.redactSensitive is "off": tokens and keys can get into logs and tool summaries'
        yield finding("logging.redact_off", detail, "openclaw config set logging.redactSensitive tools")
    elif logging.redact_patterns is not None:
        detail = f"logging.redactPatterns has {len(logging.redact_patterns)} patterns of its own, and they replace the "
        detail += "built-in ones"
        yield finding("logging.redact_patterns", detail, "openclaw config unset logging.redactPatterns")


def hooks_checks(subject: Subject) -> Iterator[Finding]:
    hooks = subject.snapshot.config.hooks
    if not hooks.enabled:
        return
    token = hooks.token or ""
    if token and len(token) < MIN_TOKEN:
        detail = f"hooks.token has {len(token)} characters"
        yield finding("hooks.token_too_short", detail, "openclaw config set hooks.token $(openssl rand -hex 32)")
    if token and token == shared_secret(subject).value:
        detail = "hooks.token is the Gateway's own secret: who may call a webhook may do everything"
        yield finding("hooks.token_reuse_gateway_token", detail, "give webhooks a token of their own")
    if token:
        yield finding("config.secrets.hooks_token_in_config", "hooks.token is in the file")
    if hooks.path.strip("/ ") == "":
        detail = f'hooks.path is "{hooks.path}": webhooks would stand before every other address'
        yield finding("hooks.path_root", detail, "openclaw config set hooks.path /hooks")


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
    return ", ".join(paths[:MAX_NAMED]) + more


CHECKS = (secret_checks, network_checks, control_ui_checks, config_checks, hooks_checks)


# The probe of a running Gateway

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

    def __init__(self, subject: Subject, target: ProbedGateway) -> None:
        self._subject = subject
        self._target = target
        self.findings: list[Finding] = []
        self.checks: list[ProbeCheck] = []
        self.error = ""

    def result(self) -> ProbeResult:
        return ProbeResult(
            self._target.url("ws"), attempted=True, ok=not self.error, error=self.error, checks=self.checks
        )

    async def run(self) -> None:
        try:
            refused = await self._connect(self._target.secret)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            refused = str(error) or type(error).__name__
        if refused:
            self.error = refused
            fix = "openclaw gateway status, then openclaw security audit --deep again"
            self.findings.append(finding("gateway.probe_failed", f"{self._target.url('ws')}: {refused}", fix))
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
                async with session.request(method, self._target.url("http") + path, json={}, ssl=_ssl()) as answer:
                    if answer.status < 400:
                        open_.append(f"{method} {path}")
        self._note("without_secret", not open_, ", ".join(open_) or "everything asks for the secret")
        if open_:
            detail = f"answered without a secret: {', '.join(open_)}"
            self._found("gateway.probe.open", detail, "set gateway.auth.token and restart the Gateway")

    async def _foreign_page(self) -> None:
        """A page of another site that has even learnt the secret."""
        refused = await self._connect(self._target.secret, origin=FOREIGN_ORIGIN)
        self._note("foreign_origin", bool(refused), refused or "let in")
        if not refused:
            detail = f"a WebSocket with Origin {FOREIGN_ORIGIN} was let in"
            self._found("gateway.probe.foreign_origin", detail, "name only your own origins in allowedOrigins")

    async def _guessing(self) -> None:
        limit = self._subject.snapshot.config.gateway.auth.rate_limit.max_attempts
        if not self._target.local or not is_loopback(self._target.host) or limit > MAX_GUESSES:
            self._note("guessing", None, "not tried: it would lock this machine out, or the limit is too high to reach")
            return
        statuses: list[int] = []
        async with self._session() as session:
            for _ in range(limit + 2):
                headers = {**GUESSER, "Authorization": f"Bearer {secrets.token_hex(16)}"}
                url = self._target.url("http") + "/__openclaw__/rpc"
                async with session.post(url, json={}, headers=headers, ssl=_ssl()) as answer:
                    statuses.append(answer.status)
        slowed = 429 in statuses
        self._note("guessing", slowed, f"{len(statuses)} wrong secrets, {'then 429' if slowed else 'never 429'}")
        if not slowed:
            detail = f"{len(statuses)} wrong secrets in a row were answered {statuses[-1]}"
            self._found("gateway.probe.not_throttled", detail, "openclaw config unset gateway.auth.rateLimit")

    async def _reach(self) -> None:
        """Whether a Gateway that should be for this machine only is reachable at the machine's other addresses."""
        if not self._target.local or is_exposed(self._subject.snapshot.config):
            return
        reached: list[str] = []
        for address in await asyncio.to_thread(_own_addresses):
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    _, writer = await asyncio.open_connection(address, self._target.port)
            except (OSError, TimeoutError):
                continue
            writer.close()
            reached.append(address)
        self._note("reach", not reached, ", ".join(reached) or "loopback only")
        if reached:
            detail = f"gateway.bind is loopback, but port {self._target.port} answers at {', '.join(reached)}"
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
                async with session.ws_connect(self._target.url("ws"), origin=origin, ssl=_ssl()) as channel:
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
        self.checks.append(ProbeCheck(name, ok, detail))

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
