"""The folders and files of the state directory. Only the standard library is imported: every command needs this."""

import os
import re
from functools import lru_cache

LEGACY_STATE_DIRS = (".clawdbot", ".moltbot", ".moldbot")
DEFAULT_PORT = 18789
_AGENT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.IGNORECASE)


def state_dir() -> str:
    """``OPENCLAW_STATE_DIR``, else ``~/.openclaw`` (``~/.openclaw-<profile>`` with ``OPENCLAW_PROFILE``)."""
    explicit = os.environ.get("OPENCLAW_STATE_DIR", "").strip() or os.environ.get("CLAWDBOT_STATE_DIR", "").strip()
    if explicit:
        return os.path.abspath(os.path.expanduser(explicit))
    home = os.path.expanduser("~")
    profile = os.environ.get("OPENCLAW_PROFILE", "").strip()
    if profile and profile != "default":
        return os.path.join(home, f".openclaw-{profile}")
    current = os.path.join(home, ".openclaw")
    if not os.path.isdir(current):
        for name in LEGACY_STATE_DIRS:
            if os.path.isdir(legacy := os.path.join(home, name)):
                return legacy
    return current


def config_path() -> str:
    explicit = os.environ.get("OPENCLAW_CONFIG_PATH", "").strip()
    if explicit:
        return os.path.abspath(os.path.expanduser(explicit))
    return os.path.join(state_dir(), "openclaw.json")


@lru_cache(maxsize=256)
def normalize_agent_id(value: str | None) -> str:
    """Return the id in lower case with ``-`` for other characters, at most 64 of them. A blank id is ``main``."""
    trimmed = (value or "").strip()
    if _AGENT_ID.fullmatch(trimmed):
        return trimmed.lower()
    return re.sub(r"[^a-z0-9_-]+", "-", trimmed.lower()).strip("-")[:64] or "main"


def agent_dir(state: str | os.PathLike[str], agent_id: str) -> str:
    return os.path.join(state, "agents", normalize_agent_id(agent_id))


def sessions_dir(state: str | os.PathLike[str], agent_id: str) -> str:
    return os.path.join(agent_dir(state, agent_id), "sessions")


def tls_files(state: str, cert: str | None, key: str | None) -> tuple[str, str]:
    """Return the certificate and the key of ``gateway.tls``: those given, else the ones in the state directory."""
    folder = os.path.join(state, "gateway", "tls")
    names = (cert or os.path.join(folder, "gateway-cert.pem"), key or os.path.join(folder, "gateway-key.pem"))
    return os.path.expanduser(names[0]), os.path.expanduser(names[1])


def make_private_dir(path: str) -> str:
    """Make the directory and missing ones above it, for their owner only (0700), and return the path."""
    missing: list[str] = []
    folder = path
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
    return path
