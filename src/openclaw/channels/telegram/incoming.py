"""What updates of the Bot API mean for the agent. It asks Telegram nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import msgspec

from openclaw.channels.submit import MAX_TEXT, Edited, Posted
from openclaw.inbound.message import ClaimedName, Inbound, Peer, Quoted, Sender
from openclaw.untrusted_text import AN_EMOJI, reaction_sign, short_name

GENERAL_TOPIC = 1
"""The topic of a forum whose messages carry no number of a topic."""
FRAGMENT_CHARS = 4000
"""Telegram cuts a long text that a person pastes into several messages. A message of this length may be such a part."""
MOST_FRAGMENTS = 12
MOST_FRAGMENT_CHARS = 50_000
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
    """A file of any kind. ``width`` and ``height`` tell the sizes of a photo apart."""

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
    """Our own bot, as ``getMe`` describes it."""

    id: int
    username: str = ""
    has_topics_enabled: bool = False
    """People can open topics in their chat with the bot."""

    def is_named(self, name: str) -> bool:
        return bool(self.username) and name.lower().lstrip("@") == self.username.lower()


class FileToFetch(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a message. It is still on the server."""

    file_id: str
    mime_type: str
    name: str | None = None
    size: int | None = None
    what: str
    """The kind of file, in words."""


class MessageEvent(Posted, frozen=True, kw_only=True):
    album: str | None = None
    """The messages of one album have the same one."""


class ReactionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A reaction to a message. Whose message it is, only the channel knows."""

    inbound: Inbound
    target: int
    emoji: tuple[str, ...]
    removed: bool


class PressEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody pressed a button. The query has to be answered."""

    inbound: Inbound
    query_id: str


class MovedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A group became a supergroup and has a new id."""

    chat: int
    new_chat: int


TelegramEvent: TypeAlias = MessageEvent | Edited | ReactionEvent | PressEvent | MovedEvent


def interpret(update: Update, own: OwnBot, account_id: str, commands: Collection[str] = ()) -> TelegramEvent | None:
    """What an update says. None for our own messages, those of other bots, and what concerns nobody.

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
    inbound = _inbound(message, sender, own, account_id, commands)
    if update.edited_message is not None:
        return Edited(inbound=inbound) if inbound.says_something else None
    files, notes = _files(message)
    inbound.untrusted = notes
    if not inbound.says_something and not files and not notes:
        return None
    return MessageEvent(inbound=inbound, files=files, album=message.media_group_id)


def _sender_of(message: TelegramMessage) -> Sender | None:
    """Who wrote it. None for bots and for nobody. A group or channel may write as itself."""
    if message.sender_chat is not None:
        chat = message.sender_chat
        return Sender(id=str(chat.id), name=chat.title, username=chat.username)
    if message.sender is None or message.sender.is_bot:
        return None
    return _person(message.sender)


def _person(user: User) -> Sender:
    return Sender(id=str(user.id), name=user.name, username=user.username)


def _names(sender: Sender) -> tuple[ClaimedName, ...]:
    """The user name of a person, by which lists may name people. A chat that writes as itself has none here."""
    name, is_chat = sender.username or "", sender.id.startswith("-")
    if is_chat or not _USERNAME.fullmatch(name):
        return ()
    return (ClaimedName(kind="person", name=f"@{name.lower()}", id=sender.id),)


def _place(chat: Chat, message: TelegramMessage | None = None) -> dict[str, Any]:
    """The fields of ``Inbound`` that say where something happened.

    A topic of a forum is a conversation of its own. A thread of replies in another group is none.
    """
    thread = message.message_thread_id if message else None
    to = f"telegram:{chat.id}"
    if chat.type == "private":
        place: dict[str, Any] = {"peer": Peer(kind="direct", id=str(chat.id)), "to": to}
        return {**place, "thread_id": thread, "thread_has_session": True} if thread is not None else place
    group = Peer(kind="group", id=str(chat.id))
    shared = {"to": to, "group_subject": chat.title}
    if not chat.is_forum:
        return {"peer": group, **shared}
    topic = GENERAL_TOPIC if thread is None or (message and _is_thread_of_replies(message)) else thread
    peer = Peer(kind="group", id=f"{chat.id}:topic:{topic}")
    return {"peer": peer, "parent_peer": group, "thread_id": topic, **shared}


def _is_thread_of_replies(message: TelegramMessage) -> bool:
    """Whether the number of the thread is that of the message which is answered, as in the general topic."""
    replied = message.reply_to_message
    if message.is_topic_message or replied is None or replied.forum_topic_created is not None:
        return False
    return replied.message_id == message.message_thread_id


def _inbound(
    message: TelegramMessage, sender: Sender, own: OwnBot, account_id: str, commands: Collection[str]
) -> Inbound:
    given = message.text if message.text is not None else message.caption or ""
    entities = message.entities if message.text is not None else message.caption_entities
    text = readable_text(given[:MAX_TEXT], entities, own) or _described(message)
    forwarded, forwarded_at = _forward(message.forward_origin)
    replied = message.reply_to_message
    topic = replied.forum_topic_created.name if replied and replied.forum_topic_created else None
    command = text[1:].split(maxsplit=1)[0].lower() if text.startswith("/") and len(text) > 1 else ""
    return Inbound(
        channel="telegram",
        account_id=account_id,
        message_id=str(message.message_id),
        revision=str(message.edit_date) if message.edit_date else "",
        sender=sender,
        names=_names(sender),
        text=text,
        timestamp_ms=message.date * 1000,
        mentioned=any(_names_us(entity, given, own) for entity in entities),
        mentions_others=any(_names_others(entity, given, own) for entity in entities),
        can_detect_mention=bool(own.username),
        quoted=_quoted(message, own),
        forwarded_from=forwarded,
        forwarded_at_ms=forwarded_at,
        thread_label=topic,
        native_command=command in commands,
        **_place(message.chat, message),
    )


# Text


def readable_text(text: str, entities: Sequence[Entity], own: OwnBot) -> str:
    """The text with the addresses of its links. A mention of us at the beginning or the end is left out."""
    units = text.encode("utf-16-le", "surrogatepass")
    pieces: list[str] = []
    position, addressed = 0, False
    for entity in sorted(entities, key=lambda entity: entity.offset):
        start, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        if start < position or end > len(units) or entity.length < 1:
            continue
        said = _decoded(units[start:end])
        new = said
        if entity.type == "text_link" and entity.url and entity.url != said:
            new = f"[{said}]({entity.url})"
        elif entity.type == "bot_command" and "@" in said and own.is_named(said.partition("@")[2]):
            new = said.partition("@")[0]
        elif _names_us(entity, text, own):
            addressed = True
            before = "".join(pieces) + _decoded(units[position:start])
            if not before.strip() or not _decoded(units[end:]).strip():
                new = ""
        if new != said:
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


def _names_us(entity: Entity, text: str, own: OwnBot) -> bool:
    match entity.type:
        case "mention":
            return own.is_named(_entity_text(text, entity))
        case "text_mention":
            return entity.user is not None and entity.user.id == own.id
        case "bot_command":
            return own.is_named(_entity_text(text, entity).partition("@")[2])
        case _:
            return False


def _names_others(entity: Entity, text: str, own: OwnBot) -> bool:
    match entity.type:
        case "mention" | "text_mention":
            return not _names_us(entity, text, own)
        case "bot_command":
            other = _entity_text(text, entity).partition("@")[2]
            return bool(other) and not own.is_named(other)
        case _:
            return False


def _described(message: TelegramMessage) -> str:
    """What a message without text says: a place, a contact, a poll or a die."""
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
    words = message.quote.text if message.quote else ""
    replied = message.reply_to_message
    if replied is None:
        external = message.external_reply
        if external is None:
            return None
        name, _ = _forward(external.origin)
        return Quoted(sender=name, text=words, is_quote=bool(words))
    if replied.forum_topic_created is not None:
        return None  # Every message in a topic replies to the one that opened the topic.
    author = replied.sender
    name = author.name if author else replied.sender_chat.title if replied.sender_chat else None
    return Quoted(
        id=str(replied.message_id),
        sender=name,
        text=words or (replied.text or replied.caption or _described(replied) or _kind_of_media(replied))[:MAX_TEXT],
        is_quote=bool(words),
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
"""The field of a message → the type of its file where the message names none."""


def _files(message: TelegramMessage) -> tuple[tuple[FileToFetch, ...], tuple[str, ...]]:
    """The files of a message, and a line for the agent about each that is not fetched."""
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        photo = FileToFetch(file_id=largest.file_id, mime_type="image/jpeg", size=largest.file_size, what="photo")
        return (photo,), ()
    # A message with an animation carries it a second time, as a document.
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


def _kind_of_media(message: TelegramMessage) -> str:
    files, _ = _files(message)
    return f"({files[0].what})" if files else ""


# Buttons and reactions


def _press(query: CallbackQuery, own: OwnBot, account_id: str) -> PressEvent | None:
    message = query.message
    if message is None or query.sender.is_bot:
        return None
    rows = message.reply_markup.inline_keyboard if message.reply_markup else ()
    labels = [button.text for row in rows for button in row if button.callback_data == query.data]
    sender = _person(query.sender)
    inbound = Inbound(
        channel="telegram",
        account_id=account_id,
        message_id=f"press:{query.id}",
        sender=sender,
        names=_names(sender),
        text=(query.data or "").strip() or (labels[0] if labels else ""),
        mentioned=True,
        quoted=Quoted(
            id=str(message.message_id), sender=own.username, text=message.text or message.caption or "", from_us=True
        ),
        **_place(message.chat, message),
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
    added, removed = [one for one in after if one not in before], [one for one in before if one not in after]
    if not added and not removed:
        return None
    inbound = Inbound(
        channel="telegram",
        account_id=account_id,
        message_id=f"reaction:{change.message_id}:{change.date}",
        sender=sender,
        names=_names(sender),
        timestamp_ms=change.date * 1000,
        **_place(change.chat),
    )
    emoji = tuple(added or removed)
    return ReactionEvent(inbound=inbound, target=change.message_id, emoji=emoji, removed=not added)


def _emoji(reactions: Sequence[ReactionType]) -> list[str]:
    return list(dict.fromkeys(one.emoji or AN_EMOJI for one in reactions))


# Albums and long texts


def may_continue(event: TelegramEvent | None) -> bool:
    """Whether a message is probably followed by another that belongs to it."""
    if not isinstance(event, MessageEvent):
        return False
    return event.album is not None or _is_fragment(event)


def joined(events: Sequence[TelegramEvent]) -> list[TelegramEvent]:
    """The events with albums, and texts that Telegram cut, as one message each. The order stays.

    A joined message has the id of its first one: a later delivery may bring more parts.
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
    fits = len(parts) < MOST_FRAGMENTS and chars <= MOST_FRAGMENT_CHARS
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
