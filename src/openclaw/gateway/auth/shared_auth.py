"""The Gateway's shared secret: a token or a password, its check, and the limit on wrong attempts."""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from openclaw.clock import Clock

if TYPE_CHECKING:
    from openclaw.config.schema import Config
    from openclaw.config.schema.gateway import RateLimit

Mode: TypeAlias = Literal["token", "password"]
MIN_EXPOSED_SECRET = 16
"""The characters that a secret needs before the Gateway listens beyond this machine."""
_PLACEHOLDERS = frozenset(
    """undefined|null|none|nan|true|false|token|password|secret|changeme|change-me|change_me|example|test|your-token|
    your_token|your-token-here|your_token_here|your-password|your-secret|replace-me|replaceme|placeholder|<token>|
    <password>|xxx|xxxx|xxxxxxxx|todo|123456|12345678|[object object]""".replace("\n    ", "").split("|")
)


class SharedSecret(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode
    token: str = ""
    password: str = ""

    @property
    def value(self) -> str:
        return self.token if self.mode == "token" else self.password


class SecretCheck(msgspec.Struct, frozen=True):
    ok: bool
    reason: Literal["", "missing", "mismatch", "unset"] = ""


def shared_secret(config: Config, environ: Mapping[str, str]) -> SharedSecret:
    """The configured secret; the environment fills in what the file leaves out."""
    auth = config.gateway.auth
    token = auth.token or environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip()
    password = auth.password or environ.get("OPENCLAW_GATEWAY_PASSWORD", "").strip()
    mode: Mode = "password" if (auth.mode == "password" or (auth.mode is None and password)) else "token"
    return SharedSecret(mode=mode, token=token, password=password)


def check(secret: SharedSecret, token: str | None, password: str | None) -> SecretCheck:
    presented = token if secret.mode == "token" else password
    if not secret.value:
        return SecretCheck(False, "unset")
    if not presented:
        return SecretCheck(False, "missing")
    if not hmac.compare_digest(presented.encode(), secret.value.encode()):
        return SecretCheck(False, "mismatch")
    return SecretCheck(True)


def refusal_text(mode: Mode, reason: str, client_id: str, client_mode: str) -> str:
    if reason == "unset":
        return f"unauthorized: no gateway {mode} is configured (set gateway.auth.{mode} and restart the Gateway)"
    hint = f"provide gateway auth {mode}"
    if client_id == "cli" or client_mode == "cli":
        hint = f"set gateway.remote.{mode} to match gateway.auth.{mode}"
    elif is_control_ui(client_id) or is_webchat(client_id, client_mode):
        hint = "open the dashboard URL and paste the token in Control UI settings"
        if mode == "password":
            hint = "enter the password in Control UI settings"
    return f"unauthorized: gateway {mode} {reason} ({hint})"


def is_control_ui(client_id: str) -> bool:
    return client_id == "openclaw-control-ui"


def is_webchat(client_id: str, client_mode: str) -> bool:
    return client_mode == "webchat" or client_id == "webchat-ui"


def start_problem(secret: SharedSecret, *, exposed: bool) -> str | None:
    """Why a Gateway must not start with this secret, or None. ``exposed`` means that it listens beyond loopback."""
    where = f"gateway.auth.{secret.mode}"
    if not secret.value:
        if exposed:
            return f"the Gateway would listen beyond this machine without a secret; set {where} (or bind to loopback)"
        return None
    if secret.value.strip().lower() in _PLACEHOLDERS:
        return f"{where} is a placeholder ({secret.value!r}), not a secret; set a long random value"
    if exposed and len(secret.value) < MIN_EXPOSED_SECRET:
        return (
            f"{where} is shorter than {MIN_EXPOSED_SECRET} characters, too weak to listen beyond this machine; "
            "set a long random value"
        )
    return None


MAX_ADDRESSES = 4096


class FailedAuthLimiter:
    """Allows so many failures in a window for each address. The number of remembered addresses is bounded."""

    def __init__(self, clock: Clock, limits: RateLimit) -> None:
        self._clock = clock
        self._limits = limits
        self._failures: dict[str, deque[float]] = {}

    def failed(self, ip: str) -> None:
        failures = self._failures.pop(ip, None) or deque[float](maxlen=self._limits.max_attempts)
        failures.append(self._clock.monotonic())
        self._failures[ip] = failures
        while len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def wait_ms(self, ip: str) -> int:
        """The milliseconds that this address must wait; 0 when it need not wait."""
        failures, limits = self._failures.get(ip), self._limits
        if failures is None or len(failures) < limits.max_attempts:
            return 0
        if limits.lockout_ms is None:
            ends = failures[0] + limits.window_ms / 1000
        elif failures[-1] - failures[0] < limits.window_ms / 1000:
            ends = failures[-1] + limits.lockout_ms / 1000
        else:
            return 0
        return max(0, int((ends - self._clock.monotonic()) * 1000))

    def exempts(self, *, local: bool) -> bool:
        """Whether a right secret from there is let in despite earlier failures."""
        return local and self._limits.exempt_loopback
