"""Answers one call from a state folder while no Gateway runs there: the stores are opened, nothing listens or runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from openclaw import __version__
from openclaw.clock import Clock
from openclaw.config.store import ConfigStore
from openclaw.gateway.assemble import close_gateway, open_gateway
from openclaw.gateway.http.rpc import NdjsonSink
from openclaw.gateway.server import registry
from openclaw.gateway.server.events import Client, ClientInfo
from openclaw.rights import ADMIN
from openclaw.storage.files.newer_state import check_generation
from openclaw.storage.files.session_store import sessions_folders


async def answer_offline(
    state_dir: str, config_path: str, clock: Clock, environ: Mapping[str, str], method: str, params: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the reply as the Gateway would send it, and what is wrong with the configuration.

    The caller holds the lock of the folder, and calls only methods that read. A configuration that is not valid
    counts as an empty one. Raises ``Unreadable`` for a folder that this version cannot open.
    """
    config = ConfigStore(config_path, clock, environ)
    await config.reload()
    problems = [str(issue) for issue in config.snapshot.issues]
    check_generation(Path(state_dir), sessions_folders(state_dir, config.current.session.store))
    gateway = await open_gateway(state_dir, config, clock, environ, only_reads=True)
    gateway.channel_services.channels.list_configured()
    try:
        client = Client(
            NdjsonSink(),
            conn_id="offline",
            role="operator",
            scopes=frozenset({ADMIN}),
            caps=frozenset(),
            client_info=ClientInfo(id="cli", version=__version__, platform="local", mode="cli"),
            is_local=True,
        )
        answer = await registry.answer(gateway, client, "1", method, msgspec.json.encode(params))
        return msgspec.json.decode(answer.frame), problems
    finally:
        await close_gateway(gateway)
