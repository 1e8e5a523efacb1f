"""The process from which Gateways and commands are forked: what it has loaded, and made ready.

It has run a Gateway once and served a client. What the first start in a process makes and keeps (tables, decoders,
expressions) is there for all that are forked, and so is the code of the commands.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import pkgutil
import tempfile
from pathlib import Path

import uvloop as uvloop

import openclaw.cli
from openclaw import redact
from openclaw.models import anthropic as anthropic
from tests.support import forked_command as forked_command
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway


async def _run_once() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            InProcessGateway(Path(folder, "state"), model_config("http://127.0.0.1:9")) as gateway,
            gateway.client() as client,
        ):
            await client.call("health")


for _module in pkgutil.iter_modules(openclaw.cli.__path__, "openclaw.cli."):
    importlib.import_module(_module.name)
asyncio.run(_run_once())
# A process that has just begun knows no secrets and writes no log.
redact.configure(None)
redact._known = {}
logging.getLogger("openclaw").setLevel(logging.NOTSET)
gc.collect()
# No process that is forked looks at these objects, which would copy their memory.
gc.freeze()
