"""``channels``: one section for each chat service. Channels of other packages keep their own keys in open maps."""

from typing import ClassVar

from openclaw.config.schema.base import OpenMap, Record
from openclaw.config.schema.channels.base import ChannelDefaults
from openclaw.config.schema.channels.bluebubbles import BlueBubblesConfig
from openclaw.config.schema.channels.discord import DiscordConfig
from openclaw.config.schema.channels.irc import IrcConfig
from openclaw.config.schema.channels.matrix import MatrixConfig
from openclaw.config.schema.channels.signal import SignalConfig
from openclaw.config.schema.channels.slack import SlackConfig
from openclaw.config.schema.channels.telegram import TelegramConfig
from openclaw.config.schema.channels.whatsapp import WhatsAppConfig


class Channels(Record):
    catch_all: ClassVar[str] = "others"

    defaults: ChannelDefaults = ChannelDefaults()
    """What all channels have in common."""
    telegram: TelegramConfig | None = None
    """Telegram, as a bot."""
    discord: DiscordConfig | None = None
    """Discord, as a bot."""
    slack: SlackConfig | None = None
    """Slack, as an app in Socket Mode."""
    whatsapp: WhatsAppConfig | None = None
    """WhatsApp, through the Cloud API."""
    signal: SignalConfig | None = None
    """Signal, through signal-cli."""
    bluebubbles: BlueBubblesConfig | None = None
    """iMessage, through a BlueBubbles server."""
    imessage: BlueBubblesConfig | None = None
    """The same as bluebubbles."""
    matrix: MatrixConfig | None = None
    """Matrix."""
    irc: IrcConfig | None = None
    """IRC."""
    others: dict[str, OpenMap] = {}
    """Every other channel by id, as written."""
