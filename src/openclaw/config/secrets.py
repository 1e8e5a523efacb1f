"""Fetching a secret from where the configuration says it is kept."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from openclaw.config.schema.base import SecretRef

COMMAND_TIMEOUT_S = 10
MAX_BYTES = 64 * 1024


class SecretUnavailable(Exception):
    """Says which secret could not be fetched and why, never the secret."""


def resolve_secret(secret: str | SecretRef | None, environ: Mapping[str, str], what: str = "the secret") -> str | None:
    """The secret itself; None when none is configured. Blocks: files and commands belong in a thread."""
    if secret is None or isinstance(secret, str):
        return secret or None
    if secret.env:
        if value := environ.get(secret.env):
            return value
        raise SecretUnavailable(f"{what}: the environment variable {secret.env} is not set")
    value = _from_file(secret.file, what) if secret.file else _from_command(secret.command or [], what)
    if not value:
        raise SecretUnavailable(f"{what}: {secret.file or 'the command'} gave nothing")
    return value


def _from_file(name: str, what: str) -> str:
    try:
        with Path(name).expanduser().open("rb") as file:
            return file.read(MAX_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise SecretUnavailable(f"{what}: cannot read {name}: {error}") from None


def _from_command(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise SecretUnavailable(f"{what}: {command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        raise SecretUnavailable(f"{what}: {command[0]} ended with code {done.returncode}")
    return done.stdout[:MAX_BYTES].decode(errors="replace").strip()
