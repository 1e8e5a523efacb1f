"""The Matrix channel kind: configured accounts and address format."""

from __future__ import annotations

from typing import Literal, NamedTuple

from openclaw.channels.base import AccountKey, Capabilities, ConfiguredKind, bare_address
from openclaw.config.schema.channels import MatrixAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

_KINDS: dict[str, Literal["room", "alias", "user"]] = {"!": "room", "#": "alias", "@": "user"}
_MAX_ID = 255


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
    alternatives=("accessToken",),
    shape=r"@\S+:\S+",
)
PASSWORD = AccountKey(
    "password",
    "Its password (it is used once, to log in)",
    secret=True,
    variable="MATRIX_PASSWORD",
    alternatives=("accessToken",),
)
ACCESS_TOKEN = AccountKey(
    "accessToken", "Access token", secret=True, variable="MATRIX_ACCESS_TOKEN", optional=True, prompted=False
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
    hint = "Create an account for the agent on your homeserver."
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
    return 2 < len(text) <= _MAX_ID and text.isprintable() and not any(char.isspace() for char in text)


class MatrixAddress(NamedTuple):
    kind: Literal["room", "alias", "user"]
    id: str


def parse_address(to: str) -> MatrixAddress:
    """Parse ``!room:server``, ``#alias:server`` or ``@user:server``, with an optional ``matrix:``, ``room:`` ….

    Raises a permanent ``SendFailed`` for any other address.
    """
    text = bare_address(to, "matrix:", "room:", "channel:", "user:")
    kind = _KINDS.get(text[:1])
    # The ids of version 12 rooms have no server.
    if kind is None or not _is_id(text) or (kind != "room" and ":" not in text):
        raise SendFailed(
            f"{to!r} is not a Matrix recipient; use !room:server, #alias:server or @user:server", permanent=True
        )
    return MatrixAddress(kind, text)
