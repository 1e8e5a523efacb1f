"""Matrix's entry in the list of channels: its configured accounts, and the form of its addresses."""

from __future__ import annotations

from typing import Literal, NamedTuple

from openclaw.channels.base import AccountKey, Capabilities, ConfiguredKind, bare_address
from openclaw.config.schema.channels import MatrixAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

_KINDS: dict[str, Literal["room", "alias", "user"]] = {"!": "room", "#": "alias", "@": "user"}
_LONGEST_ID = 255


HOMESERVER = AccountKey(
    "homeserver",
    "Address of the homeserver, such as https://matrix.org",
    variable="MATRIX_HOMESERVER",
    shape=r"https?://\S+",
)
USER_ID = AccountKey(
    "userId",
    "The account, such as @agent:matrix.org",
    variable="MATRIX_USER_ID",
    instead=("accessToken",),
    shape=r"@\S+:\S+",
)
PASSWORD = AccountKey(
    "password",
    "Its password (it is used once, to log in)",
    secret=True,
    variable="MATRIX_PASSWORD",
    instead=("accessToken",),
)
ACCESS_TOKEN = AccountKey(
    "accessToken", "Access token", secret=True, variable="MATRIX_ACCESS_TOKEN", optional=True, asked=False
)


class MatrixKind(ConfiguredKind):
    id = "matrix"
    label = "Matrix"
    channel = "openclaw.channels.matrix.channel:MatrixChannel"
    capabilities = Capabilities(
        chat_types=("direct", "channel"),
        media=True,
        reactions=True,
        typing=True,
        typing_outlasts_reply=True,
        threads=True,
        mentions=True,
        reply=True,
        edit=True,
        pin=True,
        unsend=True,
        idempotent=True,
    )

    credentials = (HOMESERVER, USER_ID, PASSWORD, ACCESS_TOKEN)
    hint = "Make an account for the agent on your homeserver."
    library = "nio"

    def problem(self, account_id: str, where: str, settings: MatrixAccount) -> str:
        if not self.address(account_id, settings).startswith(("https://", "http://")):
            return f"set {where}.homeserver to the address of the server, such as https://matrix.example.org"
        if self.value(account_id, settings, ACCESS_TOKEN):
            return ""
        if not self.value(account_id, settings, PASSWORD):
            return f"set {where}.accessToken, or {where}.userId and {where}.password"
        user = self.user_id(account_id, settings)
        if not (user.startswith("@") and _is_id(user)):
            return f"set {where}.userId to the account, @name:server"
        return ""

    def address(self, account_id: str, settings: MatrixAccount) -> str:
        return str(self.value(account_id, settings, HOMESERVER)).rstrip("/")

    def user_id(self, account_id: str, settings: MatrixAccount) -> str:
        return str(self.value(account_id, settings, USER_ID))

    def peer(self, to: str) -> Peer:
        address = parse_address(to)
        return Peer(kind="direct" if address.kind == "user" else "channel", id=address.id)


def _is_id(text: str) -> bool:
    return 2 < len(text) <= _LONGEST_ID and text.isprintable() and not any(sign.isspace() for sign in text)


class MatrixAddress(NamedTuple):
    kind: Literal["room", "alias", "user"]
    id: str


def parse_address(to: str) -> MatrixAddress:
    """Reads ``!room:server``, ``#alias:server`` or ``@user:server``, with ``matrix:``, ``room:`` … in front or not.

    Raises a permanent ``SendFailed`` if it is none of these.
    """
    text = bare_address(to, "matrix:", "room:", "channel:", "user:")
    kind = _KINDS.get(text[:1])
    # Rooms of the newest version have ids without a server.
    if kind is None or not _is_id(text) or (kind != "room" and ":" not in text):
        raise SendFailed(
            f"{to!r} is no Matrix recipient; use !room:server, #alias:server or @user:server", permanent=True
        )
    return MatrixAddress(kind, text)
