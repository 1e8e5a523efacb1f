"""``channels.irc``: IRC."""

from typing import Literal

from openclaw.config.schema.base import Port, Positive, Record, Secret, Sender
from openclaw.config.schema.channels.base import ChannelAccount


class IrcSasl(Record):
    mechanism: Literal["PLAIN", "EXTERNAL"] = "PLAIN"
    """With a name and a password, or with the certificate in tlsCert."""
    username: str | None = None
    """Name of the account; unset means the nickname."""
    password: Secret | None = None
    """Password of the account."""


class IrcNickServ(Record):
    enabled: bool = True
    """Log in by a message to the service."""
    service: str = "NickServ"
    """Nickname of the service."""
    password: Secret | None = None
    """Password of the account; unset means the variable IRC_NICKSERV_PASSWORD."""
    password_file: str | None = None
    """File that holds the password."""
    register: bool = False
    """Register the nickname."""
    register_email: str | None = None
    """Address for the registration."""


class IrcAccount(ChannelAccount):
    host: str | None = None
    """Server."""
    port: Port | None = None
    """Port; unset means 6697 with TLS, 6667 without."""
    tls: bool = True
    """Encrypt the connection and check the server's certificate."""
    tls_ca: str | None = None
    """File with certificates to trust besides those of the system, for a server with one of its own."""
    tls_cert: str | None = None
    """File with our own certificate and its key, for SASL EXTERNAL."""
    nick: str | None = None
    """Nickname."""
    username: str | None = None
    """User name; unset means the nickname."""
    realname: str | None = None
    """Real name; unset means the nickname."""
    password: Secret | None = None
    """Password of the server; unset means the variable IRC_PASSWORD."""
    password_file: str | None = None
    """File that holds the password of the server."""
    sasl: IrcSasl | None = None
    """Log in to the network's account service before joining."""
    nickserv: IrcNickServ | None = None
    """Log in by a message to NickServ, where there is no SASL."""
    channels: list[str] = []
    """Channels to join."""
    allow_from: list[Sender] = []
    """People who may write: nick!user@host, account:<name> where the server tells accounts, or "*"."""
    dangerously_allow_name_matching: bool = False
    """Let a bare nickname on an allow list count, although anyone can take one."""
    mention_patterns: list[str] = []
    """Patterns that count as a mention."""
    text_chunk_limit: Positive = 350
    """Characters of one message at most."""


class IrcConfig(IrcAccount):
    accounts: dict[str, IrcAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
