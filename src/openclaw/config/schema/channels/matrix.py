"""``channels.matrix``: Matrix."""

from typing import Literal

from openclaw.config.schema.base import Amount, Count, Record, Secret, Sender
from openclaw.config.schema.channels.base import ChannelAccount


class MatrixActions(Record):
    reactions: bool = True
    """The agent may react."""
    pins: bool = True
    """The agent may pin messages."""


class MatrixAccount(ChannelAccount):
    homeserver: str | None = None
    """Address of the homeserver; unset means the variable MATRIX_HOMESERVER."""
    user_id: str | None = None
    """The account, @name:server; unset means the variable MATRIX_USER_ID."""
    access_token: Secret | None = None
    """Access token; unset means the variable MATRIX_ACCESS_TOKEN, else log in with the password."""
    password: Secret | None = None
    """Password, for the first log-in; unset means the variable MATRIX_PASSWORD."""
    device_id: str | None = None
    """Device of the access token, or the one that a log-in makes."""
    device_name: str = "OpenClaw"
    """Name of the device that a log-in makes."""
    encryption: bool = False
    """Read and write in encrypted rooms; needs matrix-nio[e2e]."""
    auto_join: Literal["always", "allowlist", "off"] = "always"
    """Which invitations are accepted."""
    auto_join_allowlist: list[str] = []
    """Rooms, by id or alias, and people whose invitations "allowlist" accepts."""
    thread_replies: Literal["off", "inbound", "always"] = "inbound"
    """Threads: ignored, used where people write in one, or made for every message in a room."""
    send_read_receipts: bool = True
    """Confirm to people who may write that their message was read."""
    initial_sync_limit: Count | None = None
    """Messages read at the first start."""
    allow_from: list[Sender] = []
    """People who may write: @name:server, or "*"."""
    actions: MatrixActions = MatrixActions()
    """What the agent may do."""
    media_max_mb: Amount = 20
    """Size of media at most."""


class MatrixConfig(MatrixAccount):
    accounts: dict[str, MatrixAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
