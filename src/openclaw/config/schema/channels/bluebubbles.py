"""``channels.bluebubbles``: iMessage, through a BlueBubbles server."""

from openclaw.config.schema.base import Secret
from openclaw.config.schema.channels.base import ChannelAccount


class BlueBubblesAccount(ChannelAccount):
    server_url: str | None = None
    """Address of the server."""
    password: Secret | None = None
    """Password of the server."""
    cli_path: str | None = None
    """Program of the older iMessage channel."""
    webhook_path: str = "/bluebubbles-webhook"
    """Path on the Gateway's port."""


class BlueBubblesConfig(BlueBubblesAccount):
    accounts: dict[str, BlueBubblesAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
