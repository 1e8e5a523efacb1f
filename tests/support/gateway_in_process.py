"""A real Gateway in the test's own event loop: the same stores, sockets and start as the process, without its price.

Use ``GatewayProcess`` where the process is the point: a kill, the signals, the command line of the Gateway itself.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from openclaw.channels.base import ChannelKind, ChannelKinds
from openclaw.clock import Clock, SystemClock
from openclaw.config.store import ConfigStore
from openclaw.gateway import assemble
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.logs import Logs
from openclaw.gateway.main import GatewayLock, serving
from openclaw.gateway.server.server import Server
from openclaw.paths import make_private_dir
from openclaw.storage import faults
from tests.support.gateway import GatewayUnderTest, model_config
from tests.support.scripted_model import ScriptedModel


class InProcessGateway(GatewayUnderTest):
    """``async with InProcessGateway(state, config) as gateway``: serves on loopback, and is closed at the end.

    While it runs, ``os.environ`` is the Gateway's environment, so that commands of the agent see what they would see
    in a process; a fault plan in ``env`` counts, as long as it kills nobody. ``gateway`` is the Gateway itself, for
    tests that look inside. ``clock`` may be one that a test moves.
    """

    gateway: Gateway
    server: Server

    def __init__(
        self,
        state_dir: Path,
        config: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(state_dir, config, env)
        self.clock = clock or SystemClock()
        self._told_to_stop = asyncio.Event()
        self._lives: asyncio.Task[None] | None = None

    async def start(self) -> InProcessGateway:
        self._told_to_stop = asyncio.Event()
        listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lives = asyncio.create_task(self._live(listening))
        await asyncio.wait([self._lives, listening], return_when=asyncio.FIRST_COMPLETED)
        if self._lives.done():
            listening.cancel()
            await self._lives
        return self

    async def _live(self, listening: asyncio.Future[None]) -> None:
        """Serves until told to stop; a restart that the configuration asks for begins again on the same port."""
        async with AsyncExitStack() as stack:
            stack.enter_context(_environment(self.env))
            stack.enter_context(_planned_faults(self.env))
            state = make_private_dir(str(self.state_dir))
            lock = GatewayLock.acquire(state, os.environ)
            stack.callback(lock.release)
            errors = stack.enter_context(self.errors_path.open("a"))
            while not self._told_to_stop.is_set():
                config = ConfigStore(str(self.state_dir / "openclaw.json"), self.clock, os.environ)
                await asyncio.to_thread(config.load_or_create)
                logs = Logs.start(state, config.current.logging, console=errors)
                try:
                    async with serving(state, config, self.clock, os.environ, "localhost", self.port, lock=lock) as (
                        self.gateway,
                        self.server,
                    ):
                        self.port = self.server.port
                        if not listening.done():
                            listening.set_result(None)
                        await self._until_told(self.gateway)
                finally:
                    logs.stop()

    async def _until_told(self, gateway: Gateway) -> None:
        waits = [
            asyncio.create_task(self._told_to_stop.wait()),
            asyncio.create_task(gateway.restart.requested.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def stop(self) -> int:
        """What a process would exit with."""
        if self._lives is not None:
            self._told_to_stop.set()
            await self._lives
            self._lives = None
        return 0

    async def __aenter__(self) -> InProcessGateway:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


@asynccontextmanager
async def gateway_parts(
    state_dir: Path,
    model: ScriptedModel,
    *,
    clock: Clock | None = None,
    channel: ChannelKind | None = None,
    **config: Any,
) -> AsyncGenerator[Gateway]:
    """A Gateway's parts on real stores, wired and not listening; ``model`` answers every call.

    ``channel`` is the only kind of channel that it knows. Nothing is recovered and no channel started.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    path = state_dir / "openclaw.json"
    if not path.exists():
        path.write_text(json.dumps(model_config("http://127.0.0.1:9", **config)))
    clock = clock or SystemClock()
    store = ConfigStore(str(path), clock, {})
    store.load_or_create()
    kinds = ChannelKinds({}, {channel.id: channel} if channel is not None else {})
    with patch.object(assemble, "ChannelKinds", lambda _: kinds):
        gateway = await assemble.open_gateway(str(state_dir), store, clock, {})
    gateway.runtime.models.calls.call = model.answer
    try:
        yield gateway
    finally:
        await assemble.close_gateway(gateway)


@contextmanager
def _planned_faults(env: dict[str, str]) -> Iterator[None]:
    """Switches the faults on that a process started with this environment would have."""
    plan = faults.plan_from(env)
    if plan is None:
        yield
        return
    assert '"kill"' not in env[faults.PLAN], "a plan that kills needs a process of its own"
    with patch.multiple(faults, active=True, point=plan.point, write=plan.write, sync=plan.sync):
        yield


_environments: list[dict[str, str]] = []
"""The environment of the test, then those of the Gateways that run, in the order in which they began."""


@contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    """Gives the process this environment. Of several Gateways, which may end in any order, the last one gives it."""
    if not _environments:
        _environments.append(dict(os.environ))
    _environments.append(env)
    _replace_environ(env)
    try:
        yield
    finally:
        _environments.remove(env)
        _replace_environ(_environments[-1])
        if len(_environments) == 1:
            _environments.clear()


def _replace_environ(env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
