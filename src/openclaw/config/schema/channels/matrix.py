"""``channels.matrix``: Matrix."""

from openclaw.config.schema.base import Amount, Secret
from openclaw.config.schema.channels.base import ChannelAccount


class MatrixAccount(ChannelAccount):
    homeserver: str | None = None
    """Address of the homeserver."""
    user_id: str | None = None
    """The account, @name:server."""
    access_token: Secret | None = None
    """Access token; unset means log in with the password."""
    password: Secret | None = None
    """Password, for the first log-in."""
    device_id: str | None = None
    """Device of the access token."""
    device_name: str = "OpenClaw"
    """Name of the device that a log-in makes."""
    encryption: bool = False
    """Read and write in encrypted rooms."""
    media_max_mb: Amount = 20
    """Size of media at most."""


class MatrixConfig(MatrixAccount):
    accounts: dict[str, MatrixAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
