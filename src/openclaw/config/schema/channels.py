"""``channels``: one section for each chat service. Channels of other packages keep their own keys in open maps."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta

from openclaw.config.schema.agents import BlockChunk, BlockCoalesce
from openclaw.config.schema.base import Amount, Count, OpenMap, Port, Positive, Ratio, Record, Secret, Sender, Sensitive
from openclaw.config.schema.tools import ToolPolicy

DmPolicy: TypeAlias = Literal["pairing", "allowlist", "open", "disabled"]
GroupPolicy: TypeAlias = Literal["open", "disabled", "allowlist"]


class HeartbeatVisibility(Record):
    show_ok: bool = False
    """Show heartbeats that found nothing."""
    show_alerts: bool = True
    """Show heartbeats that found something."""
    use_indicator: bool = True
    """Show the indicator."""


class ChannelDefaults(Record):
    group_policy: GroupPolicy | None = None
    """Group policy of channels that do not set one."""
    heartbeat: HeartbeatVisibility = HeartbeatVisibility()
    """Heartbeats in channels that do not say."""


class Markdown(Record):
    tables: Literal["off", "bullets", "code"] | None = None
    """How tables are shown; unset means the channel's default."""


class DmHistory(Record):
    history_limit: Count | None = None
    """User turns replayed for this person."""


class ChannelGroup(Record):
    enabled: bool = True
    """Listen in this group."""
    require_mention: bool | None = None
    """Answer only when mentioned; unset means what "*" says, else yes."""
    group_policy: GroupPolicy | None = None
    """Group policy here; unset means the account's."""
    allow_from: list[Sender] | None = None
    """People whose messages count here; unset means the account's list."""
    system_prompt: str | None = None
    """Added to the prompt here."""
    skills: list[str] | None = None
    """The only skills here, by name; unset means all of the agent's."""
    tools: ToolPolicy | None = None
    """Tools in this group."""
    tools_by_sender: dict[str, ToolPolicy] = {}
    """Tools per sender."""


class DirectChats(Record):
    enabled: bool = True
    """Listen to direct messages."""
    policy: DmPolicy | None = None
    """The same as dmPolicy."""
    allow_from: list[Sender] = []
    """Added to allowFrom."""


class AckReaction(Record):
    emoji: str = ""
    """The emoji; "" means none."""
    direct: bool = True
    """Acknowledge direct messages."""
    group: Literal["always", "mentions", "never"] = "mentions"
    """Which messages of groups are acknowledged."""


class ChannelAccount(Record):
    """One account of a channel. Accounts are filled up from the keys beside them."""

    name: str | None = None
    """Name to show."""
    enabled: bool = True
    """Use this account."""
    dm_policy: DmPolicy = "pairing"
    """People who may write directly. "open" needs "*" in allowFrom."""
    dm: DirectChats = DirectChats()
    """Direct messages; its keys win over dmPolicy."""
    allow_from: list[Sender] = []
    """People who may write, by their ids on the channel, or "*"."""
    group_policy: GroupPolicy = "allowlist"
    """Whose group messages count; unset means channels.defaults.groupPolicy, else allowlist."""
    group_allow_from: list[Sender] | None = None
    """People whose group messages count; unset means allowFrom."""
    groups: Mapping[str, ChannelGroup] = {}
    """Groups by id, "*" for the rest; when not empty, others are ignored."""
    history_limit: Count | None = None
    """Messages remembered between two replies in a group; unset means messages.groupChat.historyLimit."""
    dm_history_limit: Count | None = None
    """User turns replayed in direct chats."""
    dms: dict[str, DmHistory] = {}
    """The same per person."""
    text_chunk_limit: Positive = 4000
    """Characters of one message at most."""
    chunk_mode: Literal["length", "newline"] = "length"
    """Where long replies are cut."""
    block_streaming: bool | None = None
    """Send finished blocks early; unset means off."""
    block_streaming_coalesce: BlockCoalesce | None = None
    """Merging of small blocks; unset means agents.defaults.blockStreamingCoalesce."""
    media_max_mb: Amount = 8
    """Size of media at most."""
    reply_to_mode: Literal["off", "first", "all"] | None = None
    """Whether replies quote the message they answer; unset means the channel's default."""
    ack_reaction: str | AckReaction | None = None
    """Reaction that acknowledges a message; unset means messages.ackReaction, "" none. A section also says when."""
    reaction_notifications: Literal["off", "own", "all", "allowlist"] = "own"
    """Which reactions the agent hears of."""
    reaction_allowlist: list[Sender] = []
    """People whose reactions count with "allowlist"."""
    reaction_level: Literal["off", "ack", "minimal", "extensive"] = "minimal"
    """How freely the agent reacts."""
    markdown: Markdown = Markdown()
    """Rendering."""
    heartbeat: HeartbeatVisibility | None = None
    """Heartbeats; unset means channels.defaults.heartbeat."""
    response_prefix: str | None = None
    """Put before replies; unset means messages.responsePrefix, "" none."""
    capabilities: list[str] | OpenMap = []
    """Extra capabilities named in the prompt: a list, or a map of names to what they are set to."""
    config_writes: bool = True
    """Let the channel change this file, for example when an id changes."""
    default_to: str | None = None
    """Recipient when none is given."""


# channels.telegram: Telegram, as a bot.


class TelegramGroup(ChannelGroup):
    topics: dict[str, ChannelGroup] = {}
    """Topics by id."""


class TelegramActions(Record):
    reactions: bool = True
    """The agent may react."""
    send_message: bool = True
    """The agent may write messages."""
    delete_message: bool = True
    """The agent may delete its messages."""
    edit_message: bool = True
    """The agent may change its messages."""
    sticker: bool = False
    """The agent may send stickers."""


class TelegramCommand(Record):
    command: Annotated[str, Meta(pattern=r"^/?[a-zA-Z0-9_]{1,32}$")]
    """Name, without the slash."""
    description: Annotated[str, Meta(min_length=1, max_length=256)]
    """What the menu says about it."""


class TelegramNetwork(Record):
    auto_select_family: bool | None = None
    """Try IPv4 and IPv6 side by side."""


class TelegramRetry(Record):
    attempts: Positive | None = None
    """Tries of one request."""
    min_delay_ms: Count | None = None
    """Shortest pause."""
    max_delay_ms: Count | None = None
    """Longest pause."""
    jitter: Ratio | None = None
    """Share of the pause that is left to chance."""


class TelegramAccount(ChannelAccount):
    bot_token: Secret | None = None
    """Token of the bot; unset means the variable TELEGRAM_BOT_TOKEN."""
    token_file: str | None = None
    """File that holds the token; wins over botToken."""
    api_root: str = "https://api.telegram.org"
    """Address of the Bot API, without a slash at the end."""
    timeout_seconds: Positive | None = None
    """Time for a request; unset means 60."""
    proxy: Sensitive | None = None
    """Proxy for all requests, such as socks5://host:port."""
    webhook_url: str | None = None
    """Public address for updates; unset means long polling."""
    webhook_secret: Secret | None = None
    """Secret that updates must carry."""
    webhook_path: str = "/telegram-webhook"
    """Path on the Gateway's port."""
    stream_mode: Literal["off", "partial", "block"] = "partial"
    """Show a draft of the reply while it is written."""
    draft_chunk: BlockChunk | None = None
    """Pieces by which a draft grows with streamMode block."""
    link_preview: bool = True
    """Show previews of links."""
    custom_commands: list[TelegramCommand] = []
    """More commands for the menu; the agent reads them as text."""
    actions: TelegramActions = TelegramActions()
    """What the agent may do."""
    network: TelegramNetwork = TelegramNetwork()
    """Connections."""
    retry: TelegramRetry = TelegramRetry()
    """Repeated requests."""
    groups: dict[str, TelegramGroup] = {}
    """Groups by id, "*" for the rest; when not empty, others are ignored."""
    media_max_mb: Amount = 5
    """Size of media at most."""


class TelegramConfig(TelegramAccount):
    accounts: dict[str, TelegramAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""


# channels.discord: Discord, as a bot.


class DiscordChannelRules(Record):
    enabled: bool = True
    """Listen in this channel."""
    allow: bool = True
    """The same as enabled."""
    require_mention: bool | None = None
    """Answer only when mentioned; unset means what the server says."""
    users: list[Sender] | None = None
    """People whose messages count here; unset means the server's list."""
    tools: ToolPolicy | None = None
    """Tools in this channel."""
    tools_by_sender: dict[str, ToolPolicy] = {}
    """Tools per sender."""
    skills: list[str] | None = None
    """The only skills in this channel, by name; unset means all of the agent's."""
    system_prompt: str | None = None
    """Added to the prompt in this channel."""
    auto_thread: bool = False
    """Answer each message in a thread that begins with it. In such a thread no mention is needed."""
    include_thread_starter: bool = True
    """Show the agent the message that a thread began with."""


class DiscordGuild(Record):
    slug: str | None = None
    """Readable name of the server."""
    require_mention: bool | None = None
    """Answer only when mentioned; unset means yes."""
    users: list[Sender] | None = None
    """People whose messages count on this server; unset means groupAllowFrom, else everyone on it."""
    reaction_notifications: Literal["off", "own", "all", "allowlist"] | None = None
    """Which reactions the agent hears of; unset means what the account says."""
    tools: ToolPolicy | None = None
    """Tools on this server."""
    tools_by_sender: dict[str, ToolPolicy] = {}
    """Tools per sender."""
    channels: dict[str, DiscordChannelRules] = {}
    """Channels by id or name, "*" for the rest; when not empty, others are ignored."""


class DiscordActions(Record):
    reactions: bool = True
    """The agent may react."""
    messages: bool = True
    """The agent may change and delete its messages."""
    pins: bool = True
    """The agent may pin messages."""


class DiscordIntents(Record):
    presence: bool = False
    """Ask for people's presence."""
    guild_members: bool = False
    """Ask for the members of servers."""


class DiscordRetry(Record):
    attempts: Positive | None = None
    """Tries of one request."""
    min_delay_ms: Count | None = None
    """Shortest pause."""
    max_delay_ms: Count | None = None
    """Longest pause."""
    jitter: Ratio | None = None
    """Share of the pause that is left to chance."""


class DiscordAccount(ChannelAccount):
    token: Secret | None = None
    """Token of the bot; unset means the variable DISCORD_BOT_TOKEN."""
    api_root: str = "https://discord.com/api/v10"
    """Address of the API."""
    proxy: Sensitive | None = None
    """HTTP proxy for all requests."""
    guilds: dict[str, DiscordGuild] = {}
    """Servers by id or slug, "*" for the rest."""
    text_chunk_limit: Positive = 2000
    """Characters of one message at most."""
    max_lines_per_message: Positive = 17
    """Lines of one message at most."""
    allow_bots: bool = False
    """Listen to other bots as well."""
    actions: DiscordActions = DiscordActions()
    """What the agent may do."""
    intents: DiscordIntents = DiscordIntents()
    """Further events to ask for."""
    retry: DiscordRetry = DiscordRetry()
    """Repeated requests."""


class DiscordConfig(DiscordAccount):
    accounts: dict[str, DiscordAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""


# channels.slack: Slack, as an app in Socket Mode or with requests to the Gateway.


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
    media_max_mb: Amount = 20
    """Size of media at most."""


class SlackConfig(SlackAccount):
    accounts: dict[str, SlackAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""


# channels.whatsapp: WhatsApp, through the Cloud API.


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


# channels.signal: Signal, through signal-cli.


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


# channels.bluebubbles and channels.imessage: iMessage, through a BlueBubbles server.


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


# channels.matrix: Matrix.


class MatrixActions(Record):
    reactions: bool = True
    """The agent may react."""
    pins: bool = True
    """The agent may pin messages."""


class MatrixAccount(ChannelAccount):
    homeserver: str | None = None
    """Address of the homeserver; unset means the variable MATRIX_HOMESERVER."""
    user_id: str | None = None
    """The account, @name:server; unset means the variable MATRIX_USER_ID."""
    access_token: Secret | None = None
    """Access token; unset means the variable MATRIX_ACCESS_TOKEN, else log in with the password."""
    password: Secret | None = None
    """Password, for the first log-in; unset means the variable MATRIX_PASSWORD."""
    device_id: str | None = None
    """Device of the access token, or the one that a log-in makes."""
    device_name: str = "OpenClaw"
    """Name of the device that a log-in makes."""
    encryption: bool = False
    """Read and write in encrypted rooms; needs matrix-nio[e2e]."""
    auto_join: Literal["always", "allowlist", "off"] = "always"
    """Which invitations are accepted."""
    auto_join_allowlist: list[str] = []
    """Rooms, by id or alias, and people whose invitations "allowlist" accepts."""
    thread_replies: Literal["off", "inbound", "always"] = "inbound"
    """Threads: ignored, used where people write in one, or made for every message in a room."""
    send_read_receipts: bool = True
    """Confirm to people who may write that their message was read."""
    initial_sync_limit: Count | None = None
    """Messages read at the first start."""
    allow_from: list[Sender] = []
    """People who may write: @name:server, or "*"."""
    actions: MatrixActions = MatrixActions()
    """What the agent may do."""
    media_max_mb: Amount = 20
    """Size of media at most."""


class MatrixConfig(MatrixAccount):
    accounts: dict[str, MatrixAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""


# channels.irc: IRC.


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
    """Log in by a message to NickServ, for servers without SASL."""
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
