"""Installs Python packages into the environment that this program runs in, whichever tool made that environment."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys

ENSURE_PIP_S = 300


class NoInstaller(Exception):
    """Nothing here can install a package. The text says what to do."""


def install_command(arguments: list[str]) -> list[str]:
    """The command that installs with these arguments, which pip and uv both understand. Raises ``NoInstaller``."""
    if has_pip():
        return [sys.executable, "-m", "pip", "install", *arguments]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", *arguments, "--python", sys.executable]
    raise NoInstaller(f"Neither pip nor uv was found for {sys.executable}: install uv, or pip for this Python.")


def has_pip() -> bool:
    """Whether this Python has pip.

    An environment of pipx or uv may come without it. If there is no uv either, Python's own copy is put there.
    """
    if importlib.util.find_spec("pip") is not None:
        return True
    own_environment = sys.prefix != sys.base_prefix
    if shutil.which("uv") or not own_environment or importlib.util.find_spec("ensurepip") is None:
        return False
    command = [sys.executable, "-m", "ensurepip"]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ENSURE_PIP_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    importlib.invalidate_caches()
    return importlib.util.find_spec("pip") is not None
