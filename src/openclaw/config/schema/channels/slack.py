"""``channels.slack``: Slack, as an app in Socket Mode."""

from typing import Literal

from openclaw.config.schema.base import Amount, Record, Secret
from openclaw.config.schema.channels.base import ChannelAccount, ChannelGroup


class SlackSlashCommand(Record):
    enabled: bool = False
    """Listen to the command."""
    name: str = "openclaw"
    """Its name, without the slash."""


class SlackAccount(ChannelAccount):
    mode: Literal["socket"] = "socket"
    """How events arrive."""
    bot_token: Secret | None = None
    """Token of the bot (xoxb-…); unset means the variable SLACK_BOT_TOKEN."""
    app_token: Secret | None = None
    """Token of the app (xapp-…); unset means the variable SLACK_APP_TOKEN."""
    api_root: str = "https://slack.com/api/"
    """Address of the API."""
    require_mention: bool | None = None
    """Answer in channels only when mentioned; unset means yes."""
    channels: dict[str, ChannelGroup] = {}
    """Channels by id, "*" for the rest; when not empty, others are ignored."""
    slash_command: SlackSlashCommand = SlackSlashCommand()
    """A slash command that talks to the agent."""
    media_max_mb: Amount = 20
    """Size of media at most."""


class SlackConfig(SlackAccount):
    accounts: dict[str, SlackAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
