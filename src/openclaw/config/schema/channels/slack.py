"""``channels.slack``: Slack, as an app in Socket Mode or with requests to the Gateway."""

from typing import Literal

from openclaw.config.schema.base import Amount, Count, Record, Secret, Sender
from openclaw.config.schema.channels.base import ChannelAccount, ChannelGroup, DirectChats


class SlackSlashCommand(Record):
    enabled: bool = False
    """Listen to the command."""
    name: str = "openclaw"
    """Its name, without the slash."""
    session_prefix: str = "slack:slash"
    """Session of the command in other versions."""
    ephemeral: bool = True
    """Only the person who gave the command sees the answer."""


class SlackDirectChats(DirectChats):
    group_enabled: bool = False
    """Listen to direct messages with several people."""
    group_channels: list[Sender] = []
    """Their ids; empty means all."""
    reply_to_mode: Literal["off", "first", "all"] | None = None
    """replyToMode in direct messages; replyToModeByChatType.direct wins over it."""


class SlackRoom(ChannelGroup):
    allow: bool | None = None
    """The same as enabled."""
    users: list[Sender] | None = None
    """The same as allowFrom."""
    allow_bots: bool | None = None
    """Listen to other bots here; unset means what the account says."""
    skills: list[str] | None = None
    """Skills in this channel."""
    system_prompt: str | None = None
    """Added to the prompt in this channel."""


class SlackThread(Record):
    history_scope: Literal["thread", "channel"] = "thread"
    """Where the messages before a reply come from."""
    inherit_parent: bool = False
    """A thread begins with what was said in the channel."""


class SlackReplyModes(Record):
    direct: Literal["off", "first", "all"] | None = None
    """In direct messages."""
    group: Literal["off", "first", "all"] | None = None
    """In direct messages with several people."""
    channel: Literal["off", "first", "all"] | None = None
    """In channels."""


class SlackActions(Record):
    reactions: bool = True
    """The agent may react."""
    messages: bool = True
    """The agent may change and delete its messages."""
    pins: bool = True
    """The agent may pin messages."""
    member_info: bool = True
    """The agent may look people up."""
    emoji_list: bool = True
    """The agent may list emoji."""


class SlackAccount(ChannelAccount):
    mode: Literal["socket", "http"] = "socket"
    """How events arrive: through a WebSocket that the Gateway opens, or as requests to webhookPath."""
    bot_token: Secret | None = None
    """Token of the bot (xoxb-…); unset means the variable SLACK_BOT_TOKEN."""
    app_token: Secret | None = None
    """Token of the app (xapp-…); unset means the variable SLACK_APP_TOKEN."""
    user_token: Secret | None = None
    """Token of a person (xoxp-…)."""
    user_token_read_only: bool = True
    """Use that token for reading only."""
    signing_secret: Secret | None = None
    """Signs requests of the mode http; unset means the variable SLACK_SIGNING_SECRET."""
    webhook_path: str = "/slack/events"
    """Path on the Gateway's port, in the mode http."""
    api_root: str = "https://slack.com/api/"
    """Address of the API."""
    dm: SlackDirectChats = SlackDirectChats()
    """Direct messages; its keys win over dmPolicy."""
    require_mention: bool | None = None
    """Answer in channels only when mentioned; unset means yes."""
    channels: dict[str, SlackRoom] = {}
    """Channels by id, "*" for the rest; with groupPolicy "allowlist" the others are ignored."""
    allow_bots: bool = False
    """Listen to other bots."""
    slash_command: SlackSlashCommand = SlackSlashCommand()
    """A slash command that talks to the agent."""
    thread: SlackThread = SlackThread()
    """Threads."""
    reply_to_mode_by_chat_type: SlackReplyModes = SlackReplyModes()
    """replyToMode per kind of chat."""
    actions: SlackActions = SlackActions()
    """What the agent may do."""
    history_limit: Count | None = 50
    """Messages remembered between two replies in a channel."""
    media_max_mb: Amount = 20
    """Size of media at most."""


class SlackConfig(SlackAccount):
    accounts: dict[str, SlackAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
