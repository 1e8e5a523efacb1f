"""``channels.irc``: IRC."""

from openclaw.config.schema.base import Port, Positive, Record, Secret
from openclaw.config.schema.channels.base import ChannelAccount


class IrcSasl(Record):
    username: str | None = None
    """Name of the account; unset means the nickname."""
    password: Secret | None = None
    """Password of the account."""


class IrcNickServ(Record):
    service: str = "NickServ"
    """Nickname of the service."""
    password: Secret | None = None
    """Password of the account."""


class IrcAccount(ChannelAccount):
    host: str | None = None
    """Server."""
    port: Port | None = None
    """Port; unset means 6697 with TLS, 6667 without."""
    tls: bool = True
    """Encrypt the connection."""
    nick: str | None = None
    """Nickname."""
    username: str | None = None
    """User name; unset means the nickname."""
    realname: str | None = None
    """Real name; unset means the nickname."""
    password: Secret | None = None
    """Password of the server."""
    sasl: IrcSasl | None = None
    """Log in to the network's account service before joining."""
    nickserv: IrcNickServ | None = None
    """Log in by a message to NickServ, where there is no SASL."""
    channels: list[str] = []
    """Channels to join."""
    dangerously_allow_name_matching: bool = False
    """Let a bare nickname on an allow list count, although anyone can take one."""
    text_chunk_limit: Positive = 350
    """Characters of one message at most."""


class IrcConfig(IrcAccount):
    accounts: dict[str, IrcAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
