"""How commands run: the ``tools.exec`` settings, the policy for one command, its variables and its working folder.

Four sources decide on the policy: the configuration, the session or the message (``/exec``, ``/elevated``), the rules
file of this machine, and the arguments of the call. The arguments can only make the policy stricter.

The two lists of variables name what is allowed. A variable that they do not name can make a loader, a shell or a
program run other code, or is a secret of the Gateway; nobody knows all of those names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from openclaw.tools.arguments import ToolArguments
from openclaw.tools.base import ToolError
from openclaw.tools.exec.allowlist import SAFE_USES, AllowRule

Host: TypeAlias = Literal["sandbox", "gateway", "node"]
Security: TypeAlias = Literal["deny", "allowlist", "full"]
Ask: TypeAlias = Literal["off", "on-miss", "always"]
ElevatedLevel: TypeAlias = Literal["off", "on", "ask", "full"]
Fallback: TypeAlias = Security
"""The security level that counts when nobody answers in time."""

SECURITY_LEVELS: tuple[Security, ...] = ("deny", "allowlist", "full")
"""The security levels. The strictest comes first."""
ASK_LEVELS: tuple[Ask, ...] = ("always", "on-miss", "off")
"""When a person is asked. The level that asks most often comes first."""
Level = TypeVar("Level", bound=str)


class ExecArguments(ToolArguments):
    """The arguments of ``exec``."""

    command: Annotated[str, Meta(description="Shell command to run")]
    workdir: Annotated[str, Meta(description="Directory to run in (default: the workspace)")] = ""
    env: Annotated[
        dict[str, str],
        Meta(description="Variables for language, time zone and terminal; write others into the command"),
    ] = {}
    yield_ms: Annotated[float, Meta(description="Wait this long before going to the background")] | None = None
    background: Annotated[bool, Meta(description="Go to the background at once")] = False
    timeout: Annotated[float, Meta(description="Seconds after which the command is ended")] = 0
    """With 0, the time of the configuration."""
    pty: Annotated[bool, Meta(description="Run in a terminal of 120x30")] = False
    stdin: Annotated[bool, Meta(description="Keep its input open for process write (so with background)")] = False
    host: Annotated[Host, Meta(description="Where to run")] | None = None
    security: Annotated[Security | None, Meta(extra={"hidden": True})] = None
    ask: Annotated[Ask | None, Meta(extra={"hidden": True})] = None
    node: Annotated[str, Meta(description="The node to run on, with host node")] | None = None
    elevated: Annotated[bool, Meta(description="Run on the host with elevated rights, if allowed")] | None = None


class ExecSettings(msgspec.Struct, kw_only=True, rename="camel"):
    background_ms: int = 10_000
    """A call waits this long before its command goes to the background; 10 to 120000."""
    timeout_sec: float = 1800
    """A command is ended after this time unless the call gives its own timeout."""
    cleanup_ms: int = 1_800_000
    """The process tool shows a finished command for this long; one minute to three hours."""
    notify_on_exit: bool = True
    host: Host = "sandbox"
    """Without an active sandbox, ``sandbox`` runs commands directly, as the Gateway's user."""
    security: Security | None = None
    """None means ``allowlist`` on host ``gateway``, ``full`` on ``sandbox``, and on ``node`` that its rules decide."""
    ask: Ask = "on-miss"
    node: str | None = None
    path_prepend: list[str] = []
    safe_bins: list[str] = msgspec.field(default_factory=lambda: [*SAFE_USES])
    """Filter programs that may run without being listed if they only read their input."""
    allowlist: list[str] = []
    """Globs of full program paths, for ``security: allowlist``."""
    approval_running_notice_ms: int = 10_000
    """Notify the session after this time that an approved command still runs; 0 means never."""
    max_output_chars: int = 30_000
    """Characters of an output that the model reads: a fifth from its beginning and the rest from its end; 1000 to
    200000."""
    parallel: bool = False
    """The commands of one message run at the same time."""
    allow_background: bool = True
    """False when the ``process`` tool is denied, because then nobody could control a background command."""

    def __post_init__(self) -> None:
        self.background_ms = _clamp(self.background_ms, 10, 120_000)
        self.cleanup_ms = _clamp(self.cleanup_ms, 60_000, 3 * 3_600_000)
        self.max_output_chars = _clamp(self.max_output_chars, 1000, 200_000)

    def with_environment(self, environ: Mapping[str, str]) -> ExecSettings:
        """The settings with ``PI_BASH_YIELD_MS`` and ``PI_BASH_MAX_OUTPUT_CHARS`` in place of the defaults."""
        defaults, changes = ExecSettings(), dict[str, int]()
        for variable, field in ("PI_BASH_YIELD_MS", "background_ms"), ("PI_BASH_MAX_OUTPUT_CHARS", "max_output_chars"):
            text = environ.get(variable, "").strip()
            if text.isdigit() and getattr(self, field) == getattr(defaults, field):
                changes[field] = int(text)
        return msgspec.structs.replace(self, **changes)


def strictest(levels: tuple[Level, ...], *candidates: Level | None) -> Level:
    """The strictest of the given levels, or of all levels when none is given. ``levels`` begins with the strictest."""
    return next((level for level in levels if level in candidates), levels[0])


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


class ExecOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """What a person set with ``/exec`` and ``/elevated``, for the session or for one message."""

    host: Host | None = None
    security: Security | None = None
    ask: Ask | None = None
    node: str | None = None
    elevated: ElevatedLevel | None = None
    """None when nobody set a level."""
    elevated_allowed: bool = False
    """Whether the sender of this message may use elevated commands."""


class HostRules(msgspec.Struct, frozen=True, kw_only=True):
    """What ``exec-approvals.json`` says for one agent."""

    security: Security | None = None
    ask: Ask | None = None
    ask_fallback: Fallback = "deny"
    allowlist: tuple[AllowRule, ...] = ()


class CommandPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Where one command runs, what it may run, and when a person is asked."""

    host: Host
    security: Security
    ask: Ask

    def asks_first(self, *, listed: bool) -> bool:
        """Whether a person decides. ``listed`` says that every program of the command is on the allowlist."""
        return self.ask == "always" or (self.ask == "on-miss" and self.security == "allowlist" and not listed)


def command_policy(
    settings: ExecSettings,
    overrides: ExecOverrides,
    rules: HostRules,
    *,
    requested: ExecArguments | None = None,
    sandboxed: bool = False,
) -> CommandPolicy:
    """Return the policy for one command. Raises ``ToolError`` when it may not run at all.

    ``requested`` holds the arguments of the call, which can only make the policy stricter. A sandboxed
    session runs everything in its sandbox. Only an elevated command leaves it, for the host ``gateway``.
    """
    if sandboxed:
        settings = msgspec.structs.replace(settings, host="sandbox")
        overrides = msgspec.structs.replace(overrides, host=None)
    mode = _elevated_mode(overrides, requested and requested.elevated, "sandboxed" if sandboxed else "direct")
    host = _host(settings, overrides, requested and requested.host, elevated=mode != "off")
    if host == "node":
        rules = HostRules()  # Those of this machine. The node has its own.
    if overrides.security == "deny":
        raise ToolError("exec is denied (security=deny) in this session; the owner can change that with /exec")
    if mode == "full":
        return CommandPolicy(host=host, security="full", ask="off")
    configured = overrides.security or settings.security or ("allowlist" if host == "gateway" else "full")
    security: Security = strictest(SECURITY_LEVELS, configured, requested and requested.security, rules.security)
    if security == "deny":
        raise ToolError("exec is denied (security=deny)")
    ask: Ask = strictest(ASK_LEVELS, overrides.ask or settings.ask, requested and requested.ask, rules.ask)
    return CommandPolicy(host=host, security=security, ask=ask)


def _elevated_mode(overrides: ExecOverrides, requested: bool | None, runtime: str) -> Literal["off", "ask", "full"]:
    if requested is False or (requested is None and not overrides.elevated_allowed):
        return "off"
    if requested is None:
        modes: dict[str | None, Literal["ask", "full"]] = {"on": "ask", "ask": "ask", "full": "full"}
        return modes.get(overrides.elevated, "off")
    if not overrides.elevated_allowed or overrides.elevated == "off":
        closed = "the level, which /elevated set to off" if overrides.elevated_allowed else "the sender"
        raise ToolError(
            f"elevated is not available right now (runtime={runtime}). Closed by: {closed}. It needs "
            "tools.elevated.enabled, the sender in tools.elevated.allowFrom.<channel>, and a level other than off. "
            "Leave elevated out to run the command without it."
        )
    return "full" if overrides.elevated == "full" else "ask"


def _host(settings: ExecSettings, overrides: ExecOverrides, requested: Host | None, *, elevated: bool) -> Host:
    configured = overrides.host or settings.host
    if elevated:
        return "gateway"
    if requested and requested != configured:
        raise ToolError(
            f"exec host {requested} is not allowed: the host is {configured}. Leave host out, or have the owner "
            f"change it with /exec host={requested} or tools.exec.host"
        )
    return configured


# Variables and working folder

_LOCALE = r"LANG|LANGUAGE|LC_[A-Z]+|TZ"
_INHERITED = re.compile(
    rf"{_LOCALE}|PATH|HOME|USER|LOGNAME|SHELL|TERM|COLORTERM|TMPDIR|TEMP|TMP|HOSTNAME"
    r"|XDG_(RUNTIME_DIR|CONFIG_HOME|DATA_HOME|CACHE_HOME|STATE_HOME|CURRENT_DESKTOP|SESSION_TYPE)"
    r"|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|DBUS_SESSION_BUS_ADDRESS|SSH_AUTH_SOCK|SSL_CERT_(FILE|DIR)"
    r"|(HTTPS?|FTP|ALL|NO)_PROXY|(https?|ftp|all|no)_proxy|VIRTUAL_ENV|JAVA_HOME|GOPATH|CARGO_HOME|RUSTUP_HOME|NVM_DIR"
    r"|HOMEBREW_(PREFIX|CELLAR|REPOSITORY)|OPENCLAW_(STATE_DIR|CONFIG_PATH|PROFILE)"
)
"""What a command gets of the Gateway's own environment."""
_SETTABLE = re.compile(rf"{_LOCALE}|TERM|COLORTERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR(_FORCE)?|CI|LOG_LEVEL")
"""What a call may set."""
_VALUE = re.compile(r"(?![/:.])[\w.,:@+=/ -]{0,200}", re.ASCII)
"""A value of such a variable. A path could name a file to load."""


def command_environment(
    own: Mapping[str, str], skills: Mapping[str, str], requested: Mapping[str, str], path_prepend: Sequence[str]
) -> dict[str, str]:
    """The variables of a command: those of skills, some of the Gateway's own, and the model's (``requested``).

    Later ones win. ``path_prepend`` is put before the search path, which keeps full paths only: others would be looked
    for in the working folder.
    """
    inherited = {
        name: value for name, value in own.items() if _INHERITED.fullmatch(name) and not _has_password(name, value)
    }
    environment = {**skills, **inherited, **requested}
    entries = [*path_prepend, *environment.get("PATH", os.defpath).split(os.pathsep)]
    environment["PATH"] = os.pathsep.join(dict.fromkeys(entry for entry in entries if entry.startswith("/")))
    return environment


def wanted_variables(variables: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a call sets. Raises ``ToolError`` for one that it may not set."""
    for name, value in variables.items():
        if not _SETTABLE.fullmatch(name):
            raise ToolError(
                f"env: {name[:80]!r} may not be set, since it could change which program runs. These may: LANG, LC_*, "
                "TZ, TERM, COLUMNS, LINES, NO_COLOR, FORCE_COLOR, CI, LOG_LEVEL. Write others into the command itself, "
                "where the person who allows it sees them"
            )
        if ".." in str(value) or not _VALUE.fullmatch(str(value)):
            raise ToolError(f"env: the value of {name} may have letters, digits and simple marks only, and no path")
    return {name: str(value) for name, value in variables.items()}


def _has_password(name: str, value: str) -> bool:
    return name.lower().endswith("_proxy") and "@" in value


def working_directory(workspace: Path, requested: str | None) -> tuple[str, str]:
    """The directory to run in, with all links resolved, and a warning if the wanted one is not available."""
    fallback = next((str(folder) for folder in (workspace, Path.home()) if folder.is_dir()), "/")
    if not requested or not requested.strip():
        return os.path.realpath(fallback), ""
    try:
        folder = workspace / Path(requested.strip()).expanduser()
        if folder.is_dir() and os.access(folder, os.X_OK):
            return os.path.realpath(folder), ""
    except (OSError, ValueError, RuntimeError):
        pass
    return os.path.realpath(fallback), f'Warning: workdir "{requested}" is unavailable; using "{fallback}".\n\n'
