"""The service on macOS: an agent of launchd that starts the Gateway at log-in and after a crash."""

from __future__ import annotations

import os
import sys

from openclaw import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import CompletedProcess
    from typing import Any


def label(what: str) -> str:
    """``what`` is the Gateway or a node."""
    profile = os.environ.get("OPENCLAW_PROFILE", "").strip()
    return f"ai.openclaw.{what}.{profile}" if profile and profile != "default" else f"ai.openclaw.{what}"


def plist_path(what: str) -> str:
    return os.path.join(os.path.expanduser("~"), "Library", "LaunchAgents", f"{label(what)}.plist")


def plist_text(what: str, extra: list[str], kept: dict[str, str]) -> bytes:
    """The file for launchd. It holds no keys: the Gateway reads those from its own private file."""
    import plistlib

    log = os.path.join(paths.state_dir(), "logs", f"{what}-console.log")
    return plistlib.dumps(
        {
            "Label": label(what),
            "ProgramArguments": [sys.executable, "-m", "openclaw", what, "run", *extra],
            "EnvironmentVariables": kept,
            "RunAtLoad": True,
            # launchd starts it again after a crash, and not after a clean stop.
            "KeepAlive": {"SuccessfulExit": False},
            "Umask": 0o077,
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
    )


def put_in_place(what: str, extra: list[str], *, force: bool) -> dict[str, Any]:
    """Writes the file and loads the agent. An agent that is loaded already is started anew."""
    from openclaw.cli.service import KEPT_VARIABLES, write_service_file

    path = plist_path(what)
    paths.make_private_dir(os.path.join(paths.state_dir(), "logs"))
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if os.environ.get(name)}
    write_service_file(path, plist_text(what, extra, kept).decode(), force=force)
    domain = f"gui/{os.getuid()}"
    launchctl("bootout", f"{domain}/{label(what)}")
    loaded = launchctl("bootstrap", domain, path)
    if loaded is not None and loaded.returncode == 0:
        return {"ok": True, "path": path, "enabled": True}
    return {"ok": True, "path": path, "enabled": False, "run": [f"launchctl bootstrap {domain} {path}"]}


def take_away(what: str) -> str:
    """Unloads the agent and removes its file."""
    path = plist_path(what)
    launchctl("bootout", f"gui/{os.getuid()}/{label(what)}")
    os.unlink(path)
    return path


def launchctl(*words: str) -> CompletedProcess[str] | None:
    import subprocess

    try:
        return subprocess.run(["launchctl", *words], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
