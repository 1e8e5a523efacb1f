"""Installs Python packages into the environment that this program runs in, whichever tool made that environment."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

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
    """Return whether this Python has pip.

    An environment of pipx or uv may come without it. Without uv, Python's own copy is installed there.
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


def extras() -> list[str]:
    """The names of what can be added to this program."""
    return sorted(importlib.metadata.metadata("openclaw").get_all("Provides-Extra") or [])


def requirements_of(extra: str) -> list[str]:
    """Return the libraries that an extra of this program consists of."""
    marked = [line.partition(";") for line in importlib.metadata.requires("openclaw") or []]
    return [name.strip() for name, _, mark in marked if f'extra == "{extra}"' in mark.replace("'", '"')]


def locked_arguments(extra: str) -> list[str]:
    """Return the arguments for ``install_command`` that install an extra exactly as its lock file names it.

    The lock has every package that the extra adds, with version and hashes, so nothing is resolved. Only wheels are
    installed: building a package would download build tools that no lock names.
    """
    lock = Path(__file__).parent / "locks" / f"{extra}.txt"
    return ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(lock)]


def has_extra(extra: str) -> bool:
    """Return whether all libraries of an extra are installed, whatever their versions."""
    names = [re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in requirements_of(extra)]
    try:
        return all(importlib.metadata.version(name) for name in names)
    except importlib.metadata.PackageNotFoundError:
        return False
