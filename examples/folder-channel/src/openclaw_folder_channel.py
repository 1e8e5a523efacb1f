"""A channel whose platform is a folder: messages are files in ``in/``, replies are files in ``out/``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw.channels.base import Account, Capabilities, ChannelContext, NotConfigured
from openclaw.config.schema import Config
from openclaw.inbound.message import Inbound, Peer, Sender
from openclaw.messages import Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt

LOOK_EVERY_S = 0.2


class FolderKind:
    id = "folder"
    label = "Folder"
    capabilities = Capabilities(chat_types=("direct",), idempotent=True)

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def accounts(self, config: Config) -> list[Account]:
        section = config.channels.others.get(self.id)
        if section is None:
            return []
        problem = "" if section.get("path") else "set channels.folder.path to a folder"
        return [Account(id="default", settings=section, problem=problem)]

    def default_account(self, config: Config) -> str:
        return "default"

    def peer(self, to: str) -> Peer:
        return Peer(kind="direct", id=to.removeprefix("folder:"))

    def open(self, context: ChannelContext) -> FolderChannel:
        return FolderChannel(context)


class FolderChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        folder = Path(context.account.settings["path"]).expanduser()
        self._in, self._out = folder / "in", folder / "out"

    async def run(self) -> None:
        try:
            for folder in (self._in, self._out):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotConfigured(f"channels.folder.path cannot be used: {error}") from None
        self._context.connected()
        while True:
            for file in sorted(self._in.glob("*.json")):
                await self._take(file)
            await self._context.clock.sleep(LOOK_EVERY_S)

    async def _take(self, file: Path) -> None:
        """Hands one message in. Its file goes only once the message is on the Gateway's disk."""
        try:
            written: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return  # It may still be written.
        sender = str(written.get("from") or "nobody")
        await self._context.receive(
            Inbound(
                channel="folder",
                message_id=file.stem,
                peer=Peer(kind="direct", id=sender),
                sender=Sender(id=sender),
                to=f"folder:{sender}",
                text=str(written.get("text") or ""),
                timestamp_ms=self._context.clock.now_ms(),
            )
        )
        file.unlink(missing_ok=True)

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        if message.act != "send":
            raise SendFailed("a folder can only be written to", permanent=True)
        name = key.replace(":", "-")
        reply = json.dumps({"to": (route.to or "").removeprefix("folder:"), "text": message.text})
        try:
            # The same key gives the same file, so a second try changes nothing.
            await asyncio.to_thread((self._out / f"{name}.json").write_text, reply, encoding="utf-8")
        except OSError as error:
            raise SendFailed(f"the reply cannot be written: {error}", reached=False) from None
        return SendReceipt(message_id=name)

    async def typing(self, route: Route, on: bool) -> None:
        pass

    async def probe(self) -> dict[str, Any]:
        return {"ok": self._out.is_dir()}
