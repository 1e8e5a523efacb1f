"""Checks of the Gateway's doors, of its secrets and of what the log keeps."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from openclaw.config.keypath import format_path
from openclaw.config.schema import Config
from openclaw.config.secrets import secret_values
from openclaw.security.audit import AuditFinding, Subject, finding

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


def secret_checks(subject: Subject) -> Iterator[AuditFinding]:
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
    same = [path for path, value in _other_secrets(subject) if secret.value and value == secret.value]
    if same:
        detail = f"{_named(same)} has the same value as gateway.auth.{secret.mode}; who learns one has the other"
        yield finding("gateway.secret_reused", detail, "give each its own secret")
    if secret.mode == "password" and secret.written and not _referenced(subject, "password"):
        fix = 'put it into OPENCLAW_GATEWAY_PASSWORD, or write "${NAME}" in its place'
        yield finding("config.secrets.gateway_password_in_config", "gateway.auth.password is in the file", fix)


def _other_secrets(subject: Subject) -> Iterator[tuple[str, str]]:
    """The secrets of other services. Those of the Gateway itself, and of its clients here, are meant to be equal."""
    for path, value in secret_values(subject.snapshot.resolved):
        if path[:2] not in (("gateway", "auth"), ("gateway", "remote"), ("hooks", "token")):
            yield format_path(path), value


def _referenced(subject: Subject, key: str) -> bool:
    gateway = subject.snapshot.merged.get("gateway")
    auth = gateway.get("auth") if isinstance(gateway, dict) else None
    return isinstance(auth, dict) and "${" in str(auth.get(key))


def network_checks(subject: Subject) -> Iterator[AuditFinding]:
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


def control_ui_checks(subject: Subject) -> Iterator[AuditFinding]:
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


def _browser_checks(subject: Subject) -> Iterator[AuditFinding]:
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


def config_checks(subject: Subject) -> Iterator[AuditFinding]:
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


def hooks_checks(subject: Subject) -> Iterator[AuditFinding]:
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
