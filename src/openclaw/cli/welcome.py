"""``openclaw`` alone: a Gateway that runs, a model that answers, and a chat."""

from __future__ import annotations

from openclaw import paths
from openclaw.cli import service
from openclaw.cli.chat import open_chat
from openclaw.cli.client import Client
from openclaw.cli.conversation import HISTORY, Conversation
from openclaw.cli.target import resolve
from openclaw.cli.terminal import note, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run() -> int:
    client = Client(resolve())
    if client.target.local:
        service.ensure_running(client)
    defaults: dict[str, Any] = client.call("sessions.list", {"limit": 1}).get("defaults") or {}
    _ensure_model(str(defaults.get("modelProvider") or ""), local=client.target.local)
    name = "/".join(str(defaults[key]) for key in ("modelProvider", "model") if defaults.get(key))
    note(printable(f"{name or 'No model'} answers. `openclaw models list` shows others."))
    return open_chat(Conversation(client, None, None), HISTORY)


def _ensure_model(provider: str, *, local: bool) -> None:
    """When the embedded model would answer but is not here yet, offers to fetch it."""
    if provider != "local" or not local:
        return
    from openclaw.models.local.install import is_installed

    if is_installed(paths.state_dir()):
        return
    note(
        "No model key was found (for example ANTHROPIC_API_KEY or OPENAI_API_KEY) and no local Ollama.\n"
        "A small model can run on this computer; it is good for trying things out."
    )
    if input("Fetch it now (about 98 MB)? [Y/n] ").strip().lower() in ("", "y", "yes"):
        from openclaw.cli.models import fetch_local

        fetch_local()
    else:
        note("Later: `openclaw models install local`, or set a key and restart the Gateway.")
