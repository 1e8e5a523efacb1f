"""What a command is started with: its environment variables and its working directory.

Both lists are positive. A variable that is not named here can make a loader, a shell or a program run other code, or is
a secret of the Gateway; nobody knows all of those names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw.tools.base import ToolError

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
    own: Mapping[str, str], skills: Mapping[str, str], wanted: Mapping[str, str], path_prepend: Sequence[str]
) -> dict[str, str]:
    """The variables of a command: those of skills, some of the Gateway's own, and the model's (``wanted``).

    Later ones win. ``path_prepend`` is put before the search path, which keeps full paths only: others would be looked
    for in the working folder.
    """
    kept = {name: value for name, value in own.items() if _INHERITED.fullmatch(name) and not _has_password(name, value)}
    environment = {**skills, **kept, **wanted}
    entries = [*path_prepend, *environment.get("PATH", os.defpath).split(os.pathsep)]
    environment["PATH"] = os.pathsep.join(dict.fromkeys(entry for entry in entries if entry.startswith("/")))
    return environment


def wanted_variables(given: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a call sets. Raises ``ToolError`` for one that it may not set."""
    for name, value in given.items():
        if not _SETTABLE.fullmatch(name):
            raise ToolError(
                f"env: {name[:80]!r} may not be set, since it could change which program runs. These may: LANG, LC_*, "
                "TZ, TERM, COLUMNS, LINES, NO_COLOR, FORCE_COLOR, CI, LOG_LEVEL. Write others into the command itself, "
                "where the person who allows it sees them"
            )
        if ".." in str(value) or not _VALUE.fullmatch(str(value)):
            raise ToolError(f"env: the value of {name} may have letters, digits and simple marks only, and no path")
    return {name: str(value) for name, value in given.items()}


def _has_password(name: str, value: str) -> bool:
    return name.lower().endswith("_proxy") and "@" in value


def working_directory(workspace: Path, wanted: str | None) -> tuple[str, str]:
    """The directory to run in, with all links resolved, and a warning if the wanted one is not available."""
    fallback = next((str(place) for place in (workspace, Path.home()) if place.is_dir()), "/")
    if not wanted or not wanted.strip():
        return os.path.realpath(fallback), ""
    try:
        place = workspace / Path(wanted.strip()).expanduser()
        if place.is_dir() and os.access(place, os.X_OK):
            return os.path.realpath(place), ""
    except (OSError, ValueError, RuntimeError):
        pass
    return os.path.realpath(fallback), f'Warning: workdir "{wanted}" is unavailable; using "{fallback}".\n\n'
