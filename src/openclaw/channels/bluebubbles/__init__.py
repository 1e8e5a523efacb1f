"""The BlueBubbles and iMessage channel kinds. Both run the same code, each with its own config section."""

from __future__ import annotations

import re

from openclaw.channels.base import AccountKey, Capabilities, ConfiguredKind, bare_address
from openclaw.config.schema.channels import BlueBubblesAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

_GUID = re.compile(r"[A-Za-z]{2,20};([-+]);[\w.+@:/=-]{1,200}", re.ASCII)
_NUMBER = re.compile(r"\+?\d{3,16}", re.ASCII)
_MAIL = re.compile(r"[^\s@;]{1,64}@[^\s@;]{1,190}")
_SIGNS = re.compile(r"[\s().-]", re.ASCII)


class BlueBubblesKind(ConfiguredKind):
    id = "bluebubbles"
    label = "BlueBubbles"
    channel = "openclaw.channels.bluebubbles.channel:BlueBubblesChannel"
    capabilities = Capabilities(
        chat_types=("direct", "group"),
        media=True,
        reactions=True,
        typing=True,
        reply=True,
        edit=True,
        unsend=True,
    )

    credentials = (
        AccountKey(
            "serverUrl",
            "Address of the server",
            "to the address of your BlueBubbles server, e.g. http://192.168.1.20:1234",
            shape=r"https?://\S+",
        ),
        AccountKey("password", "Password of the server", "to the password of the BlueBubbles server", secret=True),
    )
    hint = "Install the BlueBubbles server on a Mac; it shows its address and password."

    def address(self, account_id: str, settings: BlueBubblesAccount) -> str:
        return settings.server_url or ""

    def peer(self, to: str) -> Peer:
        guid = chat_guid(to)
        return Peer(kind="group", id=guid) if ";+;" in guid else Peer(kind="direct", id=guid.rpartition(";")[2])


class IMessageKind(BlueBubblesKind):
    id = "imessage"
    label = "iMessage"


def normalize_handle(address: str) -> str:
    """Return a number without separators, or a mail address in lower case."""
    text = "".join(address.split())
    return text.lower() if "@" in text else _SIGNS.sub("", text)


def chat_guid(to: str) -> str:
    """Return the server's chat id for ``chat_guid:…``, a bare id, a number or a mail address.

    The prefixes ``imessage:`` and ``bluebubbles:`` are optional. Raises a permanent ``SendFailed`` for any other
    address.
    """
    text = bare_address(to, "bluebubbles:", "imessage:", "chat_guid:", "group:")
    if _GUID.fullmatch(text):
        return text
    handle = normalize_handle(text)
    if _NUMBER.fullmatch(handle) or _MAIL.fullmatch(handle):
        return f"iMessage;-;{handle}"
    raise SendFailed(
        f"{to!r} is not an iMessage recipient; use +<country><number>, a mail address or chat_guid:<id>", permanent=True
    )
