"""How commands run: the ``tools.exec`` settings, and the decisions that follow from them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.tools.base import ToolError
from openclaw.tools.exec_security import SAFE_USES

Host: TypeAlias = Literal["sandbox", "gateway", "node"]
Security: TypeAlias = Literal["deny", "allowlist", "full"]
Ask: TypeAlias = Literal["off", "on-miss", "always"]

SECURITY_LEVELS: tuple[Security, ...] = ("deny", "allowlist", "full")
"""Strictest first."""
ASK_LEVELS: tuple[Ask, ...] = ("off", "on-miss", "always")
"""Strongest last."""

_DANGEROUS = re.compile(
    r"LD_.*|DYLD_.*|BASH_FUNC_.*|PATH|NODE_OPTIONS|NODE_PATH|PYTHON(PATH|HOME|STARTUP)|PERL5(LIB|OPT)|RUBY(LIB|OPT)"
    r"|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|IFS|GCONV_PATH|SSLKEYLOGFILE|GIT_(SSH|SSH_COMMAND|EXTERNAL_DIFF)",
    re.IGNORECASE,
)
"""Variables that make the loader, an interpreter or the shell run something else than the command says."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_SECRETS = ("OPENCLAW_GATEWAY_TOKEN", "OPENCLAW_GATEWAY_PASSWORD")


class ExecSettings(msgspec.Struct, kw_only=True, rename="camel"):
    background_ms: int = 10_000
    """How long a call waits before the command goes on in the background; 10 to 120000."""
    timeout_sec: float = 1800
    """When a command that named no timeout of its own is ended."""
    cleanup_ms: int = 1_800_000
    """How long finished background commands can still be looked at; one minute to three hours."""
    notify_on_exit: bool = True
    host: Host = "sandbox"
    """``sandbox`` without an active sandbox runs directly, as the Gateway's user."""
    security: Security | None = None
    """Unset: ``allowlist`` on host ``gateway``, no limit on host ``sandbox``."""
    ask: Ask = "on-miss"
    node: str | None = None
    path_prepend: list[str] = []
    safe_bins: list[str] = msgspec.field(default_factory=lambda: [*SAFE_USES])
    """Filters that may run without being listed, as long as they only read their input."""
    allowlist: list[str] = []
    """Globs of full program paths, for ``security: allowlist``."""
    approval_running_notice_ms: int = 10_000
    """When to say that a command somebody approved is still running; 0: never."""
    max_output_chars: int = 200_000
    """Kept per command, from the end; 1000 to 200000."""
    allow_background: bool = True
    """False when the ``process`` tool is denied: nobody could look after a background command."""

    def __post_init__(self) -> None:
        self.background_ms = _clamp(self.background_ms, 10, 120_000)
        self.cleanup_ms = _clamp(self.cleanup_ms, 60_000, 3 * 3_600_000)
        self.max_output_chars = _clamp(self.max_output_chars, 1000, 200_000)

    def with_environment(self, environ: Mapping[str, str]) -> ExecSettings:
        """``PI_BASH_YIELD_MS`` and ``PI_BASH_MAX_OUTPUT_CHARS`` override."""
        changes: dict[str, Any] = {}
        for variable, field in (
            ("PI_BASH_YIELD_MS", "background_ms"),
            ("PI_BASH_MAX_OUTPUT_CHARS", "max_output_chars"),
        ):
            if (text := environ.get(variable, "").strip()).isdigit():
                changes[field] = int(text)
        return msgspec.structs.replace(self, **changes)


def command_environment(
    base: Mapping[str, str], wanted: Mapping[str, Any], path_prepend: Sequence[str]
) -> dict[str, str]:
    """The Gateway's environment without its own secrets, the model's additions, and the configured search path."""
    for name, value in wanted.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in str(value):
            raise ToolError(f'env: "{name}" is not a valid variable name or value')
        if _DANGEROUS.fullmatch(name):
            raise ToolError(
                f"env: {name} may not be set, since it can change which program runs; put it in the command if needed"
            )
    environment = {name: value for name, value in base.items() if name not in _OWN_SECRETS}
    environment |= {name: str(value) for name, value in wanted.items()}
    if path_prepend:
        entries = [*path_prepend, *environment.get("PATH", os.defpath).split(os.pathsep)]
        environment["PATH"] = os.pathsep.join(dict.fromkeys(entry for entry in entries if entry))
    return environment


def working_directory(workspace: Path, wanted: str | None) -> tuple[str, str]:
    """Where the command runs, and a warning when that is not where it was asked to."""
    fallback = next((str(place) for place in (workspace, Path.home()) if place.is_dir()), "/")
    if not wanted or not wanted.strip():
        return fallback, ""
    try:
        place = workspace / Path(wanted.strip()).expanduser()
        if place.is_dir() and os.access(place, os.X_OK):
            return str(place), ""
    except (OSError, ValueError, RuntimeError):
        pass
    return fallback, f'Warning: workdir "{wanted}" is unavailable; using "{fallback}".\n\n'


def effective_security(configured: Security, requested: Security | None) -> Security:
    """The stricter one: a model may tie its own hands, never untie them."""
    levels = (SECURITY_LEVELS.index(level) for level in (configured, requested or configured))
    return SECURITY_LEVELS[min(levels)]


def effective_ask(configured: Ask, requested: Ask | None) -> Ask:
    """The stronger one."""
    levels = (ASK_LEVELS.index(level) for level in (configured, requested or configured))
    return ASK_LEVELS[max(levels)]


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))
