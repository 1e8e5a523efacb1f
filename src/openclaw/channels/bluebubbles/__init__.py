"""The entries of BlueBubbles and iMessage in the list of channels. Both run the same code with their own section."""

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
    """A number without blanks and signs, or a mail address in lower case."""
    text = "".join(address.split())
    return text.lower() if "@" in text else _SIGNS.sub("", text)


def chat_guid(to: str) -> str:
    """The server's id of a chat, from ``chat_guid:…``, a bare id, a number or a mail address.

    ``imessage:`` or ``bluebubbles:`` may stand before it. Raises a permanent ``SendFailed`` if it is none of these.
    """
    text = bare_address(to, "bluebubbles:", "imessage:", "chat_guid:", "group:")
    if _GUID.fullmatch(text):
        return text
    handle = normalize_handle(text)
    if _NUMBER.fullmatch(handle) or _MAIL.fullmatch(handle):
        return f"iMessage;-;{handle}"
    raise SendFailed(
        f"{to!r} is no iMessage recipient; use +<country><number>, a mail address or chat_guid:<id>", permanent=True
    )
