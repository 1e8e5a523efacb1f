"""``channels.signal``: Signal, through signal-cli."""

from typing import Annotated, Literal

from msgspec import Meta

from openclaw.config.schema.base import Port, Record, Sender
from openclaw.config.schema.channels.base import ChannelAccount


class SignalActions(Record):
    reactions: bool = True
    """The agent may react."""


class SignalAccount(ChannelAccount):
    account: str | None = None
    """Phone number, in international form."""
    cli_path: str = "signal-cli"
    """Program to start."""
    http_url: str | None = None
    """Address of a daemon that already runs; wins over host and port."""
    http_host: str = "127.0.0.1"
    """Host of the daemon."""
    http_port: Port = 8080
    """Port of the daemon."""
    auto_start: bool | None = None
    """Start the daemon; unset means unless httpUrl is given."""
    startup_timeout_ms: Annotated[int, Meta(ge=1000, le=120_000)] = 30_000
    """Time for the daemon to be ready."""
    receive_mode: Literal["on-start", "manual"] | None = None
    """The daemon's receive mode."""
    ignore_attachments: bool = False
    """Do not fetch attachments."""
    ignore_stories: bool = True
    """Ignore stories."""
    send_read_receipts: bool = False
    """Confirm that messages were read."""
    allow_from: list[Sender] = []
    """People who may write: numbers, uuid:<id>, or "*"."""
    actions: SignalActions = SignalActions()
    """What the agent may do."""


class SignalConfig(SignalAccount):
    accounts: dict[str, SignalAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
