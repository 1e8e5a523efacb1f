"""``channels.whatsapp``: WhatsApp, through the Cloud API."""

from openclaw.config.schema.base import Amount, Count, Record, Secret
from openclaw.config.schema.channels.base import ChannelAccount


class WhatsAppActions(Record):
    reactions: bool = True
    """The agent may react."""
    send_message: bool = True
    """The agent may write to people."""
    polls: bool = True
    """The agent may make polls."""


class WhatsAppAccount(ChannelAccount):
    phone_number_id: str | None = None
    """Id of the business phone number."""
    access_token: Secret | None = None
    """Access token; unset means the variable WHATSAPP_ACCESS_TOKEN."""
    app_secret: Secret | None = None
    """Secret of the app, which signs what arrives; unset means the variable WHATSAPP_APP_SECRET."""
    verify_token: Secret | None = None
    """Word that proves the webhook's address when it is registered; unset means the variable WHATSAPP_VERIFY_TOKEN."""
    webhook_path: str = "/whatsapp/webhook"
    """Path on the Gateway's port."""
    api_root: str = "https://graph.facebook.com/v23.0"
    """Address of the API, with its version."""
    send_read_receipts: bool = True
    """Confirm that messages of people who may write were read."""
    auth_dir: str | None = None
    """Folder of a WhatsApp Web log-in."""
    self_chat_mode: bool = False
    """The agent uses the owner's own number."""
    debounce_ms: Count | None = None
    """Pause that joins quick messages."""
    message_prefix: str | None = None
    """Put before messages that come in; unset means messages.messagePrefix."""
    actions: WhatsAppActions = WhatsAppActions()
    """What the agent may do."""
    media_max_mb: Amount = 50
    """Size of media at most."""


class WhatsAppConfig(WhatsAppAccount):
    accounts: dict[str, WhatsAppAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
