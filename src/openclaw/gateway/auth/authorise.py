"""Authorisation: the rights of methods, parameters and events, and the Gateway's shared secret.

Every method that is registered and every event that is published must be in its table; the Gateway does not start
with a name that was forgotten. A name that no table knows needs ``admin``. The secret is a token or a password. Wrong
ones are slowed down (``FailedAuthLimiter``).
"""

from __future__ import annotations

import hmac
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Set
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from openclaw.clock import Clock
from openclaw.rights import ADMIN, Right, rights_of_client, scope_for

if TYPE_CHECKING:
    from openclaw.config.schema import Config
    from openclaw.config.schema.gateway import RateLimit


_METHODS: dict[Right, str] = {
    "read": """
        health logs.tail channels.status status usage.status usage.cost tts.status tts.providers models.list
        agents.list agent.identity.get skills.status voicewake.get sessions.list sessions.preview cron.list cron.status
        cron.runs system-presence last-heartbeat node.list node.describe chat.history
        sessions.archived sessions.tree sessions.versions sessions.search sessions.export messages.list messages.get
        messages.why
        memory.status memory.search events.replay chat.view chat.commands chat.media sessions.entries
        mcp.status plugins.list
        models.status
        outbox.list
        cluster.status
        sessions.subscribe sessions.unsubscribe sessions.messages.subscribe sessions.messages.unsubscribe
        sessions.describe sessions.branches.list chat.startup chat.metadata commands.list models.authStatus cron.get
        tasks.list taskSuggestions.list progressCard.get sessions.companion.state sessions.observer.visibility
        update.status
    """,
    "write": """
        send agent agent.wait wake talk.mode tts.enable tts.disable tts.convert tts.setProvider voicewake.set
        node.invoke chat.send chat.abort browser.request
        memory.index chat.drop chat.reword chat.promote
    """,
    "pairing": """
        node.pair.request node.pair.list node.pair.approve node.pair.reject node.pair.verify device.pair.list
        device.pair.approve device.pair.reject device.token.rotate device.token.revoke node.rename
        device.pair.remove pairing.list pairing.approve channels.pairing.list
    """,
    "approvals": """
        exec.approval.request exec.approval.resolve exec.approval.list question.list question.answer
        plugin.approval.list openclaw.approval.list
    """,
    "node": "node.invoke.result node.event skills.bins",
    "admin": """
        connect channels.logout config.get config.set config.apply config.patch config.schema exec.approvals.get
        exec.approvals.set exec.approvals.node.get exec.approvals.node.set wizard.start wizard.next wizard.cancel
        wizard.status agents.create agents.update agents.delete agents.files.list agents.files.get agents.files.set
        skills.install skills.update update.run sessions.patch sessions.reset sessions.delete sessions.compact
        set-heartbeats cron.add cron.update cron.remove cron.run system-event sessions.resolve sessions.usage
        sessions.usage.timeseries sessions.usage.logs chat.inject poll
        sessions.resume sessions.branch sessions.fork sessions.label sessions.import sessions.importFolder
        sessions.archive
        agents.bind context.get context.diff context.find mcp.test models.probe
        outbox.retry outbox.drop
        sessions.compaction sessions.create sessions.rewind
        signIn.create
    """,
}
METHOD_RIGHTS: Mapping[str, Right] = {name: right for right, names in _METHODS.items() for name in names.split()}

PARAM_RIGHTS: Mapping[str, Mapping[str, Right]] = {
    # It writes into the transcript of that session, as chat.inject does.
    "send": {"session_key": "admin"},
    # With these a program speaks with the voice of the system, or changes what sessions.patch changes.
    "agent": dict.fromkeys(
        ("extra_system_prompt", "lane", "label", "spawned_by", "group_id", "group_channel", "group_space"), "admin"
    ),
}
"""Parameters that do more than their method does, by the name of their field."""

NODE_PARAM_RIGHTS: Mapping[str, Mapping[str, Right]] = {
    # A caller that reports an approval answers in the place of the person who approves.
    "system.run": {"approved": "approvals", "approvalDecision": "approvals"},
}
"""Parameters of commands for nodes that do more than ``node.invoke`` does."""

Everyone: TypeAlias = Literal["everyone"]
EVENT_RIGHTS: Mapping[str, Right | Everyone] = {
    "connect.challenge": "everyone",
    "tick": "everyone",
    "shutdown": "everyone",
    "agent": "read",
    "chat": "read",
    "presence": "read",
    "health": "read",
    "heartbeat": "read",
    "cron": "read",
    "talk.mode": "read",
    "voicewake.changed": "read",
    "exec.approval.requested": "approvals",
    "exec.approval.resolved": "approvals",
    "question.opened": "approvals",
    "question.closed": "approvals",
    "device.pair.requested": "pairing",
    "device.pair.resolved": "pairing",
    "node.pair.requested": "pairing",
    "node.pair.resolved": "pairing",
    "node.invoke.request": "node",
    "node.invoke.cancel": "node",
    "sessions.changed": "read",
    "session.message": "read",
    "models.snapshot": "read",
}
"""Who gets an event, live or replayed."""


def right_of(method: str) -> Right:
    return METHOD_RIGHTS.get(method, "admin")


def refusal(role: str, rights: Set[Right], right: Right) -> str | None:
    """Why a caller with these rights may not cause an effect that needs this one, or None."""
    if right in rights:
        return None
    if (role == "node") != (right == "node"):
        return f"unauthorized role: {role}"
    return f"missing scope: {scope_for(right)}"


def param_refusal(method: str, params: Any, rights: Set[Right]) -> str | None:
    """Why the caller of a method may not give one of its parameters, or None."""
    for field, right in PARAM_RIGHTS.get(method, {}).items():
        if getattr(params, field) and right not in rights:
            wire = params.__struct_encode_fields__[params.__struct_fields__.index(field)]
            return f"missing scope: {scope_for(right)} (for {wire})"
    return None


def invoke_refusal(command: str, params: Any, rights: Set[Right]) -> str | None:
    """Why the caller of ``node.invoke`` may not give one of the parameters of a node's command, or None."""
    for name, right in NODE_PARAM_RIGHTS.get(command, {}).items():
        if right not in rights and isinstance(params, dict) and params.get(name):
            return f"missing scope: {scope_for(right)} (for params.{name})"
    return None


def may_receive(rights: Set[Right], event: str) -> bool:
    """Whether a client with these rights gets an event. An event that no table knows is for the owner."""
    right = EVENT_RIGHTS.get(event, "admin")
    return right == "everyone" or right in rights


def beyond(scopes: Set[str], handed_out: Collection[str]) -> str | None:
    """Why a caller with these scopes may not give those to a device, or None: it has every one of them itself."""
    own = rights_of_client("operator", scopes)
    for scope in handed_out:
        granted = rights_of_client("operator", (scope,))
        if scope not in scopes and ADMIN not in scopes and not (granted and granted <= own):
            return f"missing scope: {scope}"
    return None


# The shared secret

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
    reason: Literal["", "missing", "mismatch", "unset", "limited"] = ""
    wait_ms: int = 0
    """How long a caller that is ``limited`` has to wait."""
    by_device_token: bool = False
    """True when the device's own token was right, and not the shared secret."""


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
    if not same_secret(presented, secret.value):
        return SecretCheck(False, "mismatch")
    return SecretCheck(True)


def same_secret(first: str, second: str) -> bool:
    """Compares in constant time. A caller may send bytes that are no text; they are simply wrong."""
    return hmac.compare_digest(first.encode("utf-8", "surrogatepass"), second.encode("utf-8", "surrogatepass"))


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


MAX_CALLERS = 4096
GENTLE_PAUSE_S = 1.0


class FailedAuthLimiter:
    """Slows wrong secrets down, for each caller (see ``caller_key``). The number of remembered callers is bounded.

    A right secret always passes, however many wrong ones came from the same address: behind a tunnel everybody has the
    same address, and a stranger must not keep out those who hold the secret. So a short secret is guarded by its
    length alone; ``start_problem`` and the audit ask for a long one.
    """

    def __init__(self, clock: Clock, limits: Callable[[], RateLimit]) -> None:
        self._clock = clock
        self._limits = limits
        """The limits of the configuration in use."""
        self._failures: dict[str, deque[float]] = {}

    def guard(self, caller: str, check: Callable[[], SecretCheck], *, gently: bool = False) -> SecretCheck:
        """Return the result of ``check``, or ``limited`` for a wrong secret of a caller that has to wait.

        Wrong secrets are counted, except while the caller waits. A caller that is treated gently waits a second.
        """
        verdict = check()
        if verdict.ok:
            return verdict
        if wait_ms := self.wait_ms(caller, gently=gently):
            return SecretCheck(False, "limited", wait_ms)
        if verdict.reason == "mismatch":
            self.count(caller)
        return verdict

    def is_gentle_to_local(self) -> bool:
        return self._limits().exempt_loopback

    def count(self, caller: str) -> None:
        """Counts a wrong secret that somebody else compared, as channels do with those of their platforms."""
        failures = self._failures.pop(caller, None) or deque[float]()
        failures.append(self._clock.monotonic())
        while len(failures) > self._limits().max_attempts:
            failures.popleft()
        self._failures[caller] = failures
        while len(self._failures) > MAX_CALLERS:
            del self._failures[next(iter(self._failures))]

    def wait_ms(self, caller: str, *, gently: bool = False) -> int:
        """The milliseconds that this caller must wait; 0 when it need not wait."""
        failures, limits, now = self._failures.get(caller), self._limits(), self._clock.monotonic()
        if failures is None or len(failures) < limits.max_attempts:
            return 0
        window_ends = failures[-limits.max_attempts] + limits.window_ms / 1000
        if gently:
            ends = failures[-1] + GENTLE_PAUSE_S if now < window_ends else now
        elif limits.lockout_ms is None:
            ends = window_ends
        else:
            ends = failures[-1] + limits.lockout_ms / 1000 if failures[-1] < window_ends else now
        return max(0, math.ceil((ends - now) * 1000))
