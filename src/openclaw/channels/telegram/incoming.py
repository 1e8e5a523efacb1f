"""Translates updates of the Bot API. Makes no requests."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TypeAlias

import msgspec

from openclaw.channels.submit import MAX_TEXT, Edited, Posted
from openclaw.inbound.message import ClaimedName, Inbound, Peer, Quoted, Sender
from openclaw.untrusted_text import AN_EMOJI, reaction_sign, short_name

GENERAL_TOPIC = 1
"""The topic of a forum whose messages carry no topic id."""
FRAGMENT_CHARS = 4000
"""Telegram splits a long pasted text into several messages. A message of this length may be such a part."""
MAX_FRAGMENTS = 12
MAX_FRAGMENTS_CHARS = 50_000
_USERNAME = re.compile(r"[A-Za-z0-9_]{1,32}", re.ASCII)


class User(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str | None = None
    username: str | None = None

    @property
    def name(self) -> str | None:
        return " ".join(part for part in (self.first_name, self.last_name) if part).strip() or self.username


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    type: str = "private"
    title: str | None = None
    username: str | None = None
    is_forum: bool = False


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    offset: int
    length: int
    url: str | None = None
    user: User | None = None


class TelegramFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of any kind. A photo comes in several sizes, distinguished by ``width`` and ``height``."""

    file_id: str
    file_size: int | None = None
    mime_type: str | None = None
    file_name: str | None = None
    width: int = 0
    height: int = 0
    is_animated: bool = False
    is_video: bool = False
    emoji: str | None = None


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    date: int = 0
    sender_user: User | None = None
    sender_user_name: str | None = None
    sender_chat: Chat | None = None
    chat: Chat | None = None


class TextQuote(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""


class ExternalReply(msgspec.Struct, frozen=True, kw_only=True):
    origin: Origin | None = None
    message_id: int | None = None


class TopicCreated(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""


class Location(msgspec.Struct, frozen=True, kw_only=True):
    latitude: float
    longitude: float


class Venue(msgspec.Struct, frozen=True, kw_only=True):
    location: Location
    title: str = ""
    address: str = ""


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    phone_number: str = ""
    first_name: str = ""
    last_name: str | None = None


class PollOption(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    question: str = ""
    options: tuple[PollOption, ...] = ()


class Dice(msgspec.Struct, frozen=True, kw_only=True):
    emoji: str = ""
    value: int = 0


class KeyboardButton(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    callback_data: str | None = None


class Keyboard(msgspec.Struct, frozen=True, kw_only=True):
    inline_keyboard: tuple[tuple[KeyboardButton, ...], ...] = ()


class TelegramMessage(msgspec.Struct, frozen=True, kw_only=True, rename={"sender": "from"}):
    message_id: int
    chat: Chat
    date: int = 0
    edit_date: int | None = None
    sender: User | None = None
    sender_chat: Chat | None = None
    message_thread_id: int | None = None
    is_topic_message: bool = False
    is_automatic_forward: bool = False
    text: str | None = None
    caption: str | None = None
    entities: tuple[Entity, ...] = ()
    caption_entities: tuple[Entity, ...] = ()
    reply_to_message: TelegramMessage | None = None
    external_reply: ExternalReply | None = None
    quote: TextQuote | None = None
    forward_origin: Origin | None = None
    media_group_id: str | None = None
    photo: tuple[TelegramFile, ...] = ()
    document: TelegramFile | None = None
    animation: TelegramFile | None = None
    audio: TelegramFile | None = None
    voice: TelegramFile | None = None
    video: TelegramFile | None = None
    video_note: TelegramFile | None = None
    sticker: TelegramFile | None = None
    location: Location | None = None
    venue: Venue | None = None
    contact: Contact | None = None
    poll: Poll | None = None
    dice: Dice | None = None
    forum_topic_created: TopicCreated | None = None
    reply_markup: Keyboard | None = None
    migrate_to_chat_id: int | None = None


class CallbackQuery(msgspec.Struct, frozen=True, kw_only=True, rename={"sender": "from"}):
    id: str
    sender: User
    message: TelegramMessage | None = None
    data: str | None = None


class ReactionType(msgspec.Struct, frozen=True, kw_only=True):
    emoji: str | None = None


class ReactionUpdated(msgspec.Struct, frozen=True, kw_only=True):
    chat: Chat
    message_id: int
    date: int = 0
    user: User | None = None
    actor_chat: Chat | None = None
    old_reaction: tuple[ReactionType, ...] = ()
    new_reaction: tuple[ReactionType, ...] = ()


class Update(msgspec.Struct, frozen=True, kw_only=True):
    update_id: int
    message: TelegramMessage | None = None
    edited_message: TelegramMessage | None = None
    callback_query: CallbackQuery | None = None
    message_reaction: ReactionUpdated | None = None


class OwnBot(msgspec.Struct, frozen=True, kw_only=True):
    """Our own bot, from ``getMe``."""

    id: int
    username: str = ""
    has_topics_enabled: bool = False
    """People can open topics in their chat with the bot."""

    def is_named(self, name: str) -> bool:
        return bool(self.username) and name.lower().lstrip("@") == self.username.lower()


class FileToFetch(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a message, still on the server."""

    file_id: str
    mime_type: str
    name: str | None = None
    size: int | None = None
    what: str
    """A readable name for the kind of file."""


class MessageEvent(Posted, frozen=True, kw_only=True):
    album: str | None = None
    """Shared by the messages of one album."""


class ReactionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A reaction to a message. Only the channel knows whose message it is."""

    inbound: Inbound
    target: int
    emoji: tuple[str, ...]
    removed: bool


class PressEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A button press. Its query must be acknowledged."""

    inbound: Inbound
    query_id: str


class MovedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A group became a supergroup and has a new id."""

    chat: int
    new_chat: int


TelegramEvent: TypeAlias = MessageEvent | Edited | ReactionEvent | PressEvent | MovedEvent


def interpret(update: Update, own: OwnBot, account_id: str, commands: Collection[str] = ()) -> TelegramEvent | None:
    """Translate an update. Returns None for messages of bots, including our own, and for irrelevant updates.

    ``commands`` are the names in the bot's menu.
    """
    if update.callback_query is not None:
        return _press(update.callback_query, own, account_id)
    if update.message_reaction is not None:
        return _reaction(update.message_reaction, own, account_id)
    message = update.message or update.edited_message
    if message is None:
        return None
    if message.migrate_to_chat_id is not None:
        return MovedEvent(chat=message.chat.id, new_chat=message.migrate_to_chat_id)
    sender = _sender_of(message)
    if sender is None or message.chat.type == "channel" or message.is_automatic_forward:
        return None
    inbound = _message_inbound(message, sender, own, account_id, commands)
    if update.edited_message is not None:
        return Edited(inbound=inbound) if inbound.has_content else None
    files, notes = _files(message)
    inbound.untrusted = notes
    if not inbound.has_content and not files and not notes:
        return None
    return MessageEvent(inbound=inbound, files=files, album=message.media_group_id)


def _sender_of(message: TelegramMessage) -> Sender | None:
    """Return the author, or None for a bot or no author. A group or channel may write as itself."""
    if message.sender_chat is not None:
        chat = message.sender_chat
        return Sender(id=str(chat.id), name=chat.title, username=chat.username)
    if message.sender is None or message.sender.is_bot:
        return None
    return _person(message.sender)


def _person(user: User) -> Sender:
    return Sender(id=str(user.id), name=user.name, username=user.username)


def _names(sender: Sender) -> tuple[ClaimedName, ...]:
    """Return the user name of a person, which allowlists may use. A chat that writes as itself has none."""
    name, is_chat = sender.username or "", sender.id.startswith("-")
    if is_chat or not _USERNAME.fullmatch(name):
        return ()
    return (ClaimedName(kind="person", name=f"@{name.lower()}", id=sender.id),)


def _inbound(
    message_id: str, sender: Sender, account_id: str, chat: Chat, message: TelegramMessage | None = None
) -> Inbound:
    """Return an ``Inbound`` with its conversation filled in.

    A forum topic is a separate conversation. A reply thread in any other group is not.
    """
    private = chat.type == "private"
    inbound = Inbound(
        channel="telegram",
        account_id=account_id,
        message_id=message_id,
        sender=sender,
        names=_names(sender),
        peer=Peer(kind="direct" if private else "group", id=str(chat.id)),
        to=f"telegram:{chat.id}",
    )
    thread = message.message_thread_id if message else None
    if private:
        inbound.thread_id, inbound.thread_has_session = thread, thread is not None
        return inbound
    inbound.group_subject = chat.title
    if chat.is_forum:
        topic = GENERAL_TOPIC if thread is None or (message and _is_reply_thread(message)) else thread
        inbound.parent_peer, inbound.thread_id = inbound.peer, topic
        inbound.peer = Peer(kind="group", id=f"{chat.id}:topic:{topic}")
    return inbound


def _is_reply_thread(message: TelegramMessage) -> bool:
    """Return whether the thread id is just that of the replied message, as in the general topic."""
    replied = message.reply_to_message
    if message.is_topic_message or replied is None or replied.forum_topic_created is not None:
        return False
    return replied.message_id == message.message_thread_id


def _message_inbound(
    message: TelegramMessage, sender: Sender, own: OwnBot, account_id: str, commands: Collection[str]
) -> Inbound:
    raw_text = message.text if message.text is not None else message.caption or ""
    entities = message.entities if message.text is not None else message.caption_entities
    text = readable_text(raw_text[:MAX_TEXT], entities, own) or _describe(message)
    forwarded, forwarded_at = _forward(message.forward_origin)
    replied = message.reply_to_message
    topic = replied.forum_topic_created.name if replied and replied.forum_topic_created else None
    command = text[1:].split(maxsplit=1)[0].lower() if text.startswith("/") and len(text) > 1 else ""
    return msgspec.structs.replace(
        _inbound(str(message.message_id), sender, account_id, message.chat, message),
        revision=str(message.edit_date) if message.edit_date else "",
        text=text,
        timestamp_ms=message.date * 1000,
        mentioned=any(_mentions_us(entity, raw_text, own) for entity in entities),
        mentions_others=any(_mentions_others(entity, raw_text, own) for entity in entities),
        can_detect_mention=bool(own.username),
        quoted=_quoted(message, own),
        forwarded_from=forwarded,
        forwarded_at_ms=forwarded_at,
        thread_label=topic,
        native_command=command in commands,
    )


# Text


def readable_text(text: str, entities: Sequence[Entity], own: OwnBot) -> str:
    """Add the URLs of links to the text. A mention of the agent at the start or end is dropped."""
    units = text.encode("utf-16-le", "surrogatepass")
    pieces: list[str] = []
    position, addressed = 0, False
    for entity in sorted(entities, key=lambda entity: entity.offset):
        start, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        if start < position or end > len(units) or entity.length < 1:
            continue
        original = _decoded(units[start:end])
        new = original
        if entity.type == "text_link" and entity.url and entity.url != original:
            new = f"[{original}]({entity.url})"
        elif entity.type == "bot_command" and "@" in original and own.is_named(original.partition("@")[2]):
            new = original.partition("@")[0]
        elif _mentions_us(entity, text, own):
            addressed = True
            before = "".join(pieces) + _decoded(units[position:start])
            if not before.strip() or not _decoded(units[end:]).strip():
                new = ""
        if new != original:
            pieces += [_decoded(units[position:start]), new]
            position = end
    joined = "".join([*pieces, _decoded(units[position:])]) if pieces else text
    return joined.strip() if addressed else joined


def _decoded(units: bytes) -> str:
    return units.decode("utf-16-le", "replace")


def _entity_text(text: str, entity: Entity) -> str:
    if text.isascii():
        return text[entity.offset : entity.offset + entity.length]
    units = text.encode("utf-16-le", "surrogatepass")
    return _decoded(units[2 * entity.offset : 2 * (entity.offset + entity.length)])


def _mentions_us(entity: Entity, text: str, own: OwnBot) -> bool:
    match entity.type:
        case "mention":
            return own.is_named(_entity_text(text, entity))
        case "text_mention":
            return entity.user is not None and entity.user.id == own.id
        case "bot_command":
            return own.is_named(_entity_text(text, entity).partition("@")[2])
        case _:
            return False


def _mentions_others(entity: Entity, text: str, own: OwnBot) -> bool:
    match entity.type:
        case "mention" | "text_mention":
            return not _mentions_us(entity, text, own)
        case "bot_command":
            other = _entity_text(text, entity).partition("@")[2]
            return bool(other) and not own.is_named(other)
        case _:
            return False


def _describe(message: TelegramMessage) -> str:
    """Describe a message without text: a location, contact, poll, die or sticker."""
    if message.venue is not None:
        venue = message.venue
        return f"📍 {venue.title}, {venue.address} ({venue.location.latitude}, {venue.location.longitude})"
    if message.location is not None:
        return f"📍 {message.location.latitude}, {message.location.longitude}"
    if message.contact is not None:
        contact = message.contact
        name = " ".join(part for part in (contact.first_name, contact.last_name) if part)
        return f"👤 {short_name(name)}, {short_name(contact.phone_number)}"
    if message.poll is not None:
        return f"📊 {message.poll.question}\n" + "\n".join(f"- {option.text}" for option in message.poll.options)
    if message.dice is not None:
        return f"{message.dice.emoji} {message.dice.value}"
    if message.sticker is not None and message.sticker.emoji:
        return reaction_sign(message.sticker.emoji)
    return ""


def _forward(origin: Origin | None) -> tuple[str | None, int | None]:
    if origin is None:
        return None, None
    chat = origin.chat or origin.sender_chat
    name = origin.sender_user.name if origin.sender_user else origin.sender_user_name or (chat.title if chat else None)
    return name or "somebody", origin.date * 1000 or None


def _quoted(message: TelegramMessage, own: OwnBot) -> Quoted | None:
    excerpt = message.quote.text if message.quote else ""
    replied = message.reply_to_message
    if replied is None:
        external = message.external_reply
        if external is None:
            return None
        name, _ = _forward(external.origin)
        return Quoted(sender=name, text=excerpt, is_quote=bool(excerpt))
    if replied.forum_topic_created is not None:
        return None  # Every message in a topic replies to the one that created the topic.
    author = replied.sender
    name = author.name if author else replied.sender_chat.title if replied.sender_chat else None
    return Quoted(
        id=str(replied.message_id),
        sender=name,
        text=excerpt or (replied.text or replied.caption or _describe(replied) or _media_label(replied))[:MAX_TEXT],
        is_quote=bool(excerpt),
        from_us=author is not None and author.id == own.id,
    )


# Files

_FILE_KINDS: dict[str, str] = {
    "document": "application/octet-stream",
    "animation": "video/mp4",
    "audio": "audio/mpeg",
    "voice": "audio/ogg",
    "video": "video/mp4",
    "video_note": "video/mp4",
    "sticker": "image/webp",
}
"""Field of a message → default MIME type of its file."""


def _files(message: TelegramMessage) -> tuple[tuple[FileToFetch, ...], tuple[str, ...]]:
    """Return the files of a message, and a note for the agent about each file that is not fetched."""
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        photo = FileToFetch(file_id=largest.file_id, mime_type="image/jpeg", size=largest.file_size, what="photo")
        return (photo,), ()
    # A message repeats its animation as a document.
    names = ("animation", *(name for name in _FILE_KINDS if name != "animation" and not message.animation))
    for name in names:
        file: TelegramFile | None = getattr(message, name)
        if file is None:
            continue
        if name == "sticker" and (file.is_animated or file.is_video):
            return (), ("The message is an animated sticker. It was not fetched.",)
        mime = file.mime_type or _FILE_KINDS[name]
        what = name.replace("_", " ")
        fetch = FileToFetch(file_id=file.file_id, mime_type=mime, name=file.file_name, size=file.file_size, what=what)
        return (fetch,), ()
    return (), ()


def _media_label(message: TelegramMessage) -> str:
    files, _ = _files(message)
    return f"({files[0].what})" if files else ""


# Buttons and reactions


def _press(query: CallbackQuery, own: OwnBot, account_id: str) -> PressEvent | None:
    message = query.message
    if message is None or query.sender.is_bot:
        return None
    rows = message.reply_markup.inline_keyboard if message.reply_markup else ()
    labels = [button.text for row in rows for button in row if button.callback_data == query.data]
    inbound = _inbound(f"press:{query.id}", _person(query.sender), account_id, message.chat, message)
    inbound.text = (query.data or "").strip() or (labels[0] if labels else "")
    inbound.mentioned = True
    inbound.quoted = Quoted(
        id=str(message.message_id), sender=own.username, text=message.text or message.caption or "", from_us=True
    )
    return PressEvent(inbound=inbound, query_id=query.id)


def _reaction(change: ReactionUpdated, own: OwnBot, account_id: str) -> ReactionEvent | None:
    if change.user is not None:
        if change.user.is_bot or change.user.id == own.id:
            return None
        sender = _person(change.user)
    elif change.actor_chat is not None:
        sender = Sender(id=str(change.actor_chat.id), name=change.actor_chat.title)
    else:
        return None
    before, after = _emoji(change.old_reaction), _emoji(change.new_reaction)
    added = [emoji for emoji in after if emoji not in before]
    removed = [emoji for emoji in before if emoji not in after]
    if not added and not removed:
        return None
    inbound = _inbound(f"reaction:{change.message_id}:{change.date}", sender, account_id, change.chat)
    inbound.timestamp_ms = change.date * 1000
    emoji = tuple(added or removed)
    return ReactionEvent(inbound=inbound, target=change.message_id, emoji=emoji, removed=not added)


def _emoji(reactions: Sequence[ReactionType]) -> list[str]:
    return list(dict.fromkeys(reaction.emoji or AN_EMOJI for reaction in reactions))


# Albums and long texts


def may_continue(event: TelegramEvent | None) -> bool:
    """Return whether another message that belongs to this one probably follows."""
    if not isinstance(event, MessageEvent):
        return False
    return event.album is not None or _is_fragment(event)


def joined(events: Sequence[TelegramEvent]) -> list[TelegramEvent]:
    """Join albums and split texts to one message each, keeping the order.

    A joined message has the id of its first part, because a later delivery may have more parts.
    """
    result: list[TelegramEvent] = []
    parts: list[MessageEvent] = []
    for event in events:
        if parts and isinstance(event, MessageEvent) and _belongs(parts, event):
            parts.append(event)
            result[-1] = _as_one(parts)
            continue
        parts = [event] if isinstance(event, MessageEvent) else []
        result.append(event)
    return result


def _belongs(parts: list[MessageEvent], event: MessageEvent) -> bool:
    last = parts[-1]
    if event.inbound.to != last.inbound.to or event.inbound.sender.id != last.inbound.sender.id:
        return False
    if event.album is not None:
        return event.album == last.album
    following = int(event.inbound.message_id) == int(last.inbound.message_id) + 1
    chars = sum(len(part.inbound.text) for part in parts) + len(event.inbound.text)
    fits = len(parts) < MAX_FRAGMENTS and chars <= MAX_FRAGMENTS_CHARS
    return (
        following
        and fits
        and _is_fragment(last)
        and not event.files
        and event.inbound.thread_id == last.inbound.thread_id
    )


def _is_fragment(event: MessageEvent) -> bool:
    inbound = event.inbound
    return len(inbound.text) >= FRAGMENT_CHARS and not event.files and not inbound.forwarded_from


def _as_one(parts: list[MessageEvent]) -> MessageEvent:
    first = parts[0]
    between = "\n" if first.album is not None else ""
    inbound = msgspec.structs.replace(
        first.inbound,
        text=between.join(part.inbound.text for part in parts if part.inbound.text),
        message_ids=tuple(part.inbound.message_id for part in parts),
        mentioned=any(part.inbound.mentioned for part in parts),
        mentions_others=any(part.inbound.mentions_others for part in parts),
        untrusted=tuple(note for part in parts for note in part.inbound.untrusted),
    )
    files = tuple(file for part in parts for file in part.files)
    return MessageEvent(inbound=inbound, files=files, album=first.album)
