"""Matrix's entry in the list of channels: its configured accounts, and the form of its addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from openclaw.channels.base import Capabilities, Channel, ChannelContext
from openclaw.channels.kind import AccountKey, ConfiguredKind
from openclaw.config.channels import DEFAULT_ACCOUNT
from openclaw.config.schema.channels import MatrixAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

_KINDS: dict[str, Literal["room", "alias", "user"]] = {"!": "room", "#": "alias", "@": "user"}
_LONGEST_ID = 255


class MatrixKind(ConfiguredKind):
    id = "matrix"
    label = "Matrix"
    capabilities = Capabilities(
        chat_types=("direct", "channel"),
        media=True,
        reactions=True,
        typing=True,
        threads=True,
        mentions=True,
        reply=True,
        edit=True,
        pin=True,
        unsend=True,
        idempotent=True,
    )

    credentials = (
        AccountKey(
            "homeserver",
            "Address of the homeserver, such as https://matrix.org",
            variable="MATRIX_HOMESERVER",
            shape=r"https?://\S+",
        ),
        AccountKey(
            "userId",
            "The account, such as @agent:matrix.org",
            variable="MATRIX_USER_ID",
            instead=("accessToken",),
            shape=r"@\S+:\S+",
        ),
        AccountKey(
            "password",
            "Its password (it is used once, to log in)",
            secret=True,
            variable="MATRIX_PASSWORD",
            instead=("accessToken",),
        ),
        AccountKey(
            "accessToken", "Access token", secret=True, variable="MATRIX_ACCESS_TOKEN", optional=True, asked=False
        ),
    )
    hint = "Make an account for the agent on your homeserver."
    library = "nio"

    def problem(self, account_id: str, where: str, settings: MatrixAccount) -> str:
        homeserver = homeserver_of(account_id, settings, self.environ)
        if not homeserver.startswith(("https://", "http://")):
            return f"set {where}.homeserver to the address of the server, such as https://matrix.example.org"
        if settings.access_token or _variable(account_id, self.environ, "MATRIX_ACCESS_TOKEN"):
            return ""
        if not (settings.password or _variable(account_id, self.environ, "MATRIX_PASSWORD")):
            return f"set {where}.accessToken, or {where}.userId and {where}.password"
        if not is_user(user_of(account_id, settings, self.environ)):
            return f"set {where}.userId to the account, @name:server"
        return ""

    def address(self, account_id: str, settings: MatrixAccount) -> str:
        return homeserver_of(account_id, settings, self.environ)

    def peer(self, to: str) -> Peer:
        address = parse_address(to)
        return Peer(kind="direct" if address.kind == "user" else "channel", id=address.id)

    def open(self, context: ChannelContext) -> Channel:
        self.need_library()
        from openclaw.channels.matrix.channel import MatrixChannel

        return MatrixChannel(context)


def homeserver_of(account_id: str, settings: MatrixAccount, environ: Mapping[str, str]) -> str:
    return (settings.homeserver or _variable(account_id, environ, "MATRIX_HOMESERVER")).strip().rstrip("/")


def user_of(account_id: str, settings: MatrixAccount, environ: Mapping[str, str]) -> str:
    return (settings.user_id or _variable(account_id, environ, "MATRIX_USER_ID")).strip()


def _variable(account_id: str, environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "") if account_id == DEFAULT_ACCOUNT else ""


def is_user(text: str) -> bool:
    return text.startswith("@") and _is_id(text)


def _is_id(text: str) -> bool:
    return 2 < len(text) <= _LONGEST_ID and text.isprintable() and not any(sign.isspace() for sign in text)


class MatrixAddress(NamedTuple):
    kind: Literal["room", "alias", "user"]
    id: str


def parse_address(to: str) -> MatrixAddress:
    """Reads ``!room:server``, ``#alias:server`` or ``@user:server``, with ``matrix:``, ``room:`` … in front or not.

    Raises a permanent ``SendFailed`` if it is none of these.
    """
    text = to.strip()
    for prefix in ("matrix:", "room:", "channel:", "user:"):
        if text.lower().startswith(prefix):
            text = text[len(prefix) :].strip()
    kind = _KINDS.get(text[:1])
    # Rooms of the newest version have ids without a server.
    if kind is None or not _is_id(text) or (kind != "room" and ":" not in text):
        raise SendFailed(
            f"{to!r} is no Matrix recipient; use !room:server, #alias:server or @user:server", permanent=True
        )
    return MatrixAddress(kind, text)
