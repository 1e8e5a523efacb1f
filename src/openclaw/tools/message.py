"""``message``: the agent writes to people on channels, and changes what it wrote there.

This file reads the call and decides whether it may leave the conversation that the agent is in. The Gateway carries it
out (``gateway/messenger.py``).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias, cast, get_args

import msgspec
from msgspec import Meta

from openclaw.config.schema.tools import MessageTool
from openclaw.path_opener import PathRefused
from openclaw.tools.arguments import Hidden, RecordTool, ToolArguments, with_example
from openclaw.tools.base import ToolContext, ToolResult, json_result, text_result

Action: TypeAlias = Literal["send", "reply", "react", "edit", "delete", "pin", "unpin"]
ACTIONS: tuple[Action, ...] = get_args(Action)
ALIASES: dict[str, Action] = {
    **{name: name for name in ACTIONS},
    "sendAttachment": "send",
    "thread-reply": "reply",
    "unsend": "delete",
}
MOST_FILE_BYTES = 16 * 1024 * 1024
PREFIX = "[from {channel}] "


class MessageRefused(Exception):
    """The call is rejected. ``status`` is ``error``, or ``forbidden`` where a rule of the owner forbids it."""

    def __init__(self, text: str, status: Literal["error", "forbidden"] = "error") -> None:
        super().__init__(text)
        self.status = status


class Attachment(NamedTuple):
    data: bytes
    name: str | None
    mime_type: str = ""


class OrderedButton(msgspec.Struct, frozen=True, kw_only=True):
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    callback_data: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The message that a press sends. Empty means ``text``."""


_ButtonRow: TypeAlias = Annotated[tuple[OrderedButton, ...], msgspec.Meta(min_length=1, max_length=5)]
_ButtonRows: TypeAlias = Annotated[tuple[_ButtonRow, ...], msgspec.Meta(max_length=5)]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A validated call."""

    action: Action
    channel: str = ""
    account_id: str = ""
    target: str = ""
    """Empty: the conversation that the agent is in."""
    text: str = ""
    media: tuple[str, ...] = ()
    """Addresses of files to send along."""
    message_id: str = ""
    """The message that is quoted, changed or reacted to."""
    author: str = ""
    emoji: str = ""
    remove: bool = False
    dry_run: bool = False
    voice: bool = False
    """Sound is sent as a voice message."""
    buttons: tuple[tuple[OrderedButton, ...], ...] = ()


class ChannelConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation on a channel."""

    channel: str
    account_id: str
    to: str
    name: str = ""
    """Its name in messages that come from it."""
    message_id: str = ""
    """The message that is being answered there."""


class Messenger(Protocol):
    async def carry_out(self, order: Order, attachment: Attachment | None, context: ToolContext) -> dict[str, Any]:
        """Execute the order and return its outcome. Raises ``MessageRefused``."""
        ...


class ButtonArguments(ToolArguments, rename=None):
    text: str
    callback_data: str = msgspec.field(name="callback_data", default="")


class MessageArguments(ToolArguments):
    action: Annotated[str, Meta(description="send, reply, react, edit, delete, pin or unpin")]
    channel: Annotated[str, Meta(description="Such as signal; default: the current one")] = ""
    provider: Hidden = None
    target: Annotated[str, Meta(description="Such as +15551234567, uuid:<id> or group:<id>")] = ""
    to: Annotated[str, Meta(description="The same as target")] = ""
    targets: Hidden = None
    account_id: str = ""
    message: Annotated[str, Meta(description="The text")] = ""
    content: Hidden = None
    text: Hidden = None
    caption: Hidden = None
    media: Annotated[str, Meta(description="A file to send along: http(s) address or workspace path")] = ""
    media_url: Hidden = None
    media_urls: Hidden = None
    attachments: Annotated[list[str], Meta(description="More files, named like media")] = []
    path: Annotated[str, Meta(description="A file of the workspace to send along")] = ""
    file_path: Hidden = None
    buffer: Annotated[str, Meta(description="A file in base64 to send along")] = ""
    as_voice: Annotated[bool, Meta(description="Send sound as a voice message")] = False
    filename: str = ""
    content_type: str = ""
    buttons: Annotated[
        list[list[ButtonArguments]],
        Meta(
            description="Rows of buttons below the text, where the channel has them. A press comes back as "
            "a message with callback_data, or else with the text"
        ),
    ] = []
    reply_to: Annotated[str, Meta(description="The id of the message to quote")] = ""
    message_id: Annotated[str, Meta(description="What to reply to, react to, edit, delete or pin")] = ""
    emoji: str = ""
    remove: Annotated[bool, Meta(description="Take the reaction back")] = False
    target_author: Annotated[str, Meta(description="Who wrote messageId, to react in a group")] = ""
    target_author_uuid: Hidden = None
    dry_run: Annotated[bool, Meta(description="Check only")] = False


class MessagingTool(RecordTool[MessageArguments]):
    name = "message"
    summary = "Send messages to people on channels; reply, react, edit and delete there"
    description = (
        "Write to a person or group on a channel, or act on a message there. Actions: send, reply (quotes "
        "messageId), react (emoji, remove), edit, delete, pin, unpin; not every channel can do all. Without target "
        "it is the current conversation. The result says whether it was delivered; a queued message goes out by "
        "itself."
    )

    examples = (
        {"action": "send", "target": "+15551234567", "message": "On my way."},
        {"action": "reply", "messageId": "<id of the message>", "message": "Yes."},
        {"action": "react", "messageId": "<id of the message>", "emoji": "👍"},
        {"action": "edit", "messageId": "<id of the message>", "message": "The new text."},
        *({"action": action, "messageId": "<id of the message>"} for action in ("delete", "pin", "unpin")),
    )

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger

    async def execute(self, arguments: MessageArguments, context: ToolContext) -> ToolResult:
        shown = {"action": arguments.action}
        try:
            order = read_order(arguments)
        except MessageRefused as refusal:
            details = {**shown, "status": refusal.status, "error": str(refusal)}
            return text_result(with_example(str(refusal), self, shown), details)
        try:
            attachment = await asyncio.to_thread(_attachment, arguments, context)
            outcome = await self._messenger.carry_out(order, attachment, context)
        except (MessageRefused, PathRefused) as refusal:
            status = refusal.status if isinstance(refusal, MessageRefused) else "error"
            outcome = {"status": status, "error": str(refusal)}
        return json_result({**shown, **outcome})


def read_order(arguments: MessageArguments) -> Order:
    """Raises ``MessageRefused`` if something is missing for the action."""
    name = arguments.action.strip()
    action = ALIASES.get(name)
    if action is None:
        raise MessageRefused(f'unknown action "{name[:40]}"; known: {", ".join(ACTIONS)}')
    targets = [str(target) for target in arguments.targets or []]
    if len(targets) > 1:
        raise MessageRefused("one call writes to one target")
    replied = arguments.reply_to if action == "send" else arguments.message_id or arguments.reply_to
    order = Order(
        action=action,
        channel=_first(arguments.channel, arguments.provider),
        account_id=arguments.account_id.strip(),
        target=_first(arguments.target, arguments.to) or "".join(targets),
        text=_first(arguments.message, arguments.content, arguments.text, arguments.caption),
        media=tuple(_media(arguments)),
        message_id=replied.strip(),
        author=_first(arguments.target_author, arguments.target_author_uuid),
        emoji=arguments.emoji.strip(),
        remove=arguments.remove,
        dry_run=arguments.dry_run,
        voice=arguments.as_voice,
        buttons=_buttons(arguments.buttons),
    )
    if action in ("edit", "delete") and not order.message_id:
        raise MessageRefused(f"messageId required: which message to {action}")
    if action == "react" and not order.emoji:
        raise MessageRefused("emoji required, also to take a reaction back")
    if action == "edit" and not order.text:
        raise MessageRefused("message required")
    return order


def _first(*values: Any) -> str:
    """Return the first value that is not empty, as a text."""
    return next((str(value).strip() for value in values if value), "")


def _buttons(rows: list[list[ButtonArguments]]) -> tuple[tuple[OrderedButton, ...], ...]:
    try:
        return msgspec.convert(rows, _ButtonRows, from_attributes=True)
    except msgspec.ValidationError as error:
        raise MessageRefused(
            f"buttons must be rows of {{text, callback_data}}, at most 5 rows of 5 with 64 characters each: {error}"
        ) from None


def _media(arguments: MessageArguments) -> Iterator[str]:
    for value in (arguments.media, arguments.media_url, arguments.media_urls, arguments.attachments):
        for name in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if isinstance(name, str) and name.strip():
                yield name.strip()


def _attachment(arguments: MessageArguments, context: ToolContext) -> Attachment | None:
    """The file that the call holds, or names by its path."""
    name = arguments.filename or None
    if arguments.buffer:
        try:
            data = base64.b64decode(arguments.buffer.rpartition(",")[2], validate=True)
        except (binascii.Error, ValueError):
            raise MessageRefused("buffer is not base64") from None
    elif path := arguments.path or arguments.file_path:
        with context.opener.open_read(str(path)) as file:
            data = file.read(MOST_FILE_BYTES + 1)
        name = name or str(path).rstrip("/").rpartition("/")[2]
    else:
        return None
    if len(data) > MOST_FILE_BYTES:
        raise MessageRefused(f"the file is larger than {MOST_FILE_BYTES} bytes")
    return Attachment(data, name, arguments.content_type)


def marks_for(
    rules: MessageTool, action: Action, here: ChannelConversation | None, there: ChannelConversation, *, same: bool
) -> tuple[str, str]:
    """Return the prefix and suffix of a text that leaves its conversation. Raises ``MessageRefused`` if it may not.

    ``here`` is None for a run that belongs to no conversation on a channel, such as one of the web client.
    """
    if here is None or same:
        return "", ""
    cross = rules.cross_context
    if not rules.allow_cross_context_send:
        if here.channel != there.channel and not cross.allow_across_providers:
            raise MessageRefused(
                f'Cross-context messaging denied: action={action} target provider "{there.channel}" while bound to '
                f'"{here.channel}" (tools.message.crossContext.allowAcrossProviders).',
                "forbidden",
            )
        if here.channel == there.channel and not cross.allow_within_provider:
            raise MessageRefused(
                f"Cross-context messaging denied: action={action} to another conversation of {there.channel} "
                "(tools.message.crossContext.allowWithinProvider).",
                "forbidden",
            )
    if cross.marker.get("enabled") is False or action not in ("send", "reply"):
        return "", ""
    prefix, suffix = (str(cross.marker.get(name, usual)) for name, usual in (("prefix", PREFIX), ("suffix", "")))
    name = here.name or here.channel
    return prefix.replace("{channel}", name), suffix.replace("{channel}", name)
