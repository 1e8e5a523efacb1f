"""The WhatsApp channel kind: configured accounts and address format."""

from __future__ import annotations

import re

from openclaw.channels.base import AccountKey, Capabilities, ConfiguredKind, bare_address
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

_NUMBER = re.compile(r"\+?[1-9]\d{2,16}", re.ASCII)
_GROUP = re.compile(r"[\w.=@:-]{1,200}", re.ASCII)
_SIGNS = re.compile(r"[\s().-]", re.ASCII)


class WhatsAppKind(ConfiguredKind):
    id = "whatsapp"
    label = "WhatsApp"
    channel = "openclaw.channels.whatsapp.channel:WhatsAppChannel"
    capabilities = Capabilities(
        chat_types=("direct", "group"),
        media=True,
        reactions=True,
        typing=True,
        reply=True,
    )

    credentials = (
        AccountKey(
            "phoneNumberId",
            "Id of the phone number",
            "to the id of the number (WhatsApp → API Setup in the app's dashboard)",
            shape=r"\d{5,30}",
        ),
        AccountKey("accessToken", "Access token", secret=True, variable="WHATSAPP_ACCESS_TOKEN"),
        AccountKey("appSecret", "Secret of the app", secret=True, variable="WHATSAPP_APP_SECRET"),
        AccountKey(
            "verifyToken",
            "A token that you choose for the verification of the webhook",
            secret=True,
            variable="WHATSAPP_VERIFY_TOKEN",
        ),
    )
    hint = (
        "Create a WhatsApp app at developers.facebook.com. Set its webhook to the public address of this Gateway "
        "followed by /whatsapp/webhook (channels.whatsapp.webhookPath)."
    )

    def peer(self, to: str) -> Peer:
        kind, address = recipient(to)
        return Peer(kind="group", id=address) if kind == "group" else Peer(kind="direct", id=f"+{address}")


def recipient(to: str) -> tuple[str, str]:
    """Parse ``+1555…`` to ``individual`` and digits, or ``group:…`` to ``group`` and its id.

    The prefix ``whatsapp:`` is optional. Raises a permanent ``SendFailed`` for any other address.
    """
    text = bare_address(to, "whatsapp:")
    kind, _, rest = text.partition(":")
    if kind.lower() == "group" and _GROUP.fullmatch(rest.strip()):
        return "group", rest.strip()
    number = _SIGNS.sub("", text)
    number = f"+{number[2:]}" if number.startswith("00") else number
    if _NUMBER.fullmatch(number):
        return "individual", number.removeprefix("+")
    raise SendFailed(f"{to!r} is not a WhatsApp recipient; use +<country><number> or group:<id>", permanent=True)
