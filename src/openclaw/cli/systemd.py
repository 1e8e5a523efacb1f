"""The Gateway as a systemd user service: the unit file, and ``systemctl --user`` where it works."""

from __future__ import annotations

import os
import sys

from openclaw.cli.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import CompletedProcess

KEPT_VARIABLES = ("OPENCLAW_STATE_DIR", "OPENCLAW_CONFIG_PATH", "OPENCLAW_PROFILE", "OPENCLAW_GATEWAY_PORT")


def unit_name() -> str:
    profile = os.environ.get("OPENCLAW_PROFILE", "").strip()
    return f"openclaw-gateway-{profile}.service" if profile and profile != "default" else "openclaw-gateway.service"


def unit_path() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "systemd", "user", unit_name())


def unit_text(port: int | None) -> str:
    command = [sys.executable, "-m", "openclaw", "gateway", "run"]
    if port is not None:
        command += ["--port", str(port)]
    kept = [f"Environment={_quote(f'{name}={os.environ[name]}')}" for name in KEPT_VARIABLES if os.environ.get(name)]
    return "\n".join(
        [
            "[Unit]",
            "Description=OpenClaw Gateway",
            "After=network-online.target",
            "Wants=network-online.target",
            "",
            "[Service]",
            f"ExecStart={' '.join(_quote(word) for word in command)}",
            *kept,
            # A clean stop stays stopped; a crash comes back, and the ledger resumes what was going on.
            "Restart=on-failure",
            "RestartSec=2",
            "UMask=0077",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _quote(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if escaped != word or " " in word else word


def write_unit(port: int | None, *, force: bool) -> str:
    path = unit_path()
    if os.path.exists(path) and not force:
        raise UserError(f"The service is already installed: {path}. --force writes it again.")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.tmp"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(unit_text(port))
    os.replace(temporary, path)
    return path


def unit_issues() -> list[str]:
    """What in the installed unit no longer fits this installation."""
    try:
        with open(unit_path(), encoding="utf-8") as file:
            commands = [line for line in file if line.startswith("ExecStart=")]
    except OSError:
        return []
    if commands and _quote(sys.executable) in commands[0]:
        return []
    return [f"it does not run {sys.executable}; `openclaw gateway install --force` writes it again"]


def other_units() -> list[str]:
    """Gateways of other profiles that are installed as services."""
    try:
        names = os.listdir(os.path.dirname(unit_path()))
    except OSError:
        return []
    return sorted(n for n in names if n.startswith("openclaw-gateway") and n.endswith(".service") and n != unit_name())


def usable() -> bool:
    """Whether this login has a systemd user manager to talk to."""
    result = systemctl("show-environment")
    return result is not None and result.returncode == 0


def systemctl(*words: str) -> CompletedProcess[str] | None:
    import subprocess

    try:
        return subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def manages_gateway() -> bool:
    """The unit is installed and can be driven, so start and stop go through it."""
    return os.path.exists(unit_path()) and usable()


def must(*words: str) -> None:
    result = systemctl(*words)
    if result is None or result.returncode != 0:
        detail = result.stderr.strip() if result is not None else "systemctl does not answer"
        raise UserError(f"systemctl --user {' '.join(words)} failed: {detail}")
