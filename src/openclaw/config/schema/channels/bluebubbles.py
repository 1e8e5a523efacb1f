"""``channels.bluebubbles`` and ``channels.imessage``: iMessage, through a BlueBubbles server."""

from openclaw.config.schema.base import Record, Secret
from openclaw.config.schema.channels.base import ChannelAccount


class BlueBubblesActions(Record):
    reactions: bool = True
    """The agent may react."""
    edit: bool = True
    """The agent may change its messages."""
    unsend: bool = True
    """The agent may take its messages back."""


class BlueBubblesAccount(ChannelAccount):
    server_url: str | None = None
    """Address of the server."""
    password: Secret | None = None
    """Password of the server. It is also asked for from those who call the webhook."""
    cli_path: str | None = None
    """Program of the older iMessage channel."""
    db_path: str | None = None
    """Database of the older iMessage channel."""
    webhook_path: str = "/bluebubbles-webhook"
    """Path on the Gateway's port."""
    send_read_receipts: bool = True
    """Confirm that messages of people who may write were read; it needs the Private API."""
    actions: BlueBubblesActions = BlueBubblesActions()
    """What the agent may do."""


class BlueBubblesConfig(BlueBubblesAccount):
    accounts: dict[str, BlueBubblesAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
