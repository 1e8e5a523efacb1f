"""What a command is started with: its environment variables and its working directory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw.tools.base import ToolError

_DANGEROUS = re.compile(
    r"LD_.*|DYLD_.*|BASH_FUNC_.*|PATH|NODE_OPTIONS|NODE_PATH|PYTHON(PATH|HOME|STARTUP)|PERL5(LIB|OPT)|RUBY(LIB|OPT)"
    r"|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|IFS|GCONV_PATH|SSLKEYLOGFILE|GIT_(SSH|SSH_COMMAND|EXTERNAL_DIFF)",
    re.IGNORECASE,
)
"""Variables that can make the loader, an interpreter or the shell run other code than the command names."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_SECRETS = ("OPENCLAW_GATEWAY_TOKEN", "OPENCLAW_GATEWAY_PASSWORD")


def command_environment(
    own: Mapping[str, str], skills: Mapping[str, str], wanted: Mapping[str, Any], path_prepend: Sequence[str]
) -> dict[str, str]:
    """The variables of a command: those of skills, the Gateway's own without its secrets, and the model's (``wanted``).

    Later ones win. ``path_prepend`` is put before the search path. Raises ``ToolError`` for a refused variable.
    """
    for name, value in wanted.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in str(value):
            raise ToolError(f'env: "{name}" is not a valid variable name or value')
        if _DANGEROUS.fullmatch(name):
            raise ToolError(
                f"env: {name} may not be set, since it can change which program runs; put it in the command if needed"
            )
    environment = {name: value for name, value in {**skills, **own}.items() if name not in _OWN_SECRETS}
    environment |= {name: str(value) for name, value in wanted.items()}
    if path_prepend:
        entries = [*path_prepend, *environment.get("PATH", os.defpath).split(os.pathsep)]
        environment["PATH"] = os.pathsep.join(dict.fromkeys(entry for entry in entries if entry))
    return environment


def working_directory(workspace: Path, wanted: str | None) -> tuple[str, str]:
    """The directory to run in, and a warning if the wanted one is not available."""
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
