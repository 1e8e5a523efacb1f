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

from openclaw.config.schema.tools import MessageTool
from openclaw.messages import ToolSpec
from openclaw.path_opener import PathRefused
from openclaw.tools.base import ToolContext, ToolResult, json_result

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
    """The call is not carried out. ``status`` is ``error``, or ``forbidden`` where a rule of the owner says no."""

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
    """What comes in as a message when somebody presses it. Empty means ``text``."""


_ButtonRow: TypeAlias = Annotated[tuple[OrderedButton, ...], msgspec.Meta(min_length=1, max_length=5)]
_ButtonRows: TypeAlias = Annotated[tuple[_ButtonRow, ...], msgspec.Meta(max_length=5)]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent wants done."""

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


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation on a channel."""

    channel: str
    account_id: str
    to: str
    name: str = ""
    """How the place is called in messages that come from it."""
    message_id: str = ""
    """The message that is being answered there."""


class Messenger(Protocol):
    async def carry_out(self, order: Order, attachment: Attachment | None, context: ToolContext) -> dict[str, Any]:
        """Does it and returns what came of it. Raises ``MessageRefused``."""
        ...


class MessagingTool:
    summary = "Send messages to people on channels; reply, react, edit and delete there"
    spec = ToolSpec(
        name="message",
        description=(
            "Write to a person or group on a channel, or act on a message there. Actions: send, reply (quotes "
            "messageId), react (emoji, remove), edit, delete, pin, unpin; not every channel can do all. Without target "
            "it is the current conversation. The result says whether it was delivered; a queued message goes out by "
            "itself."
        ),
        parameters={
            "type": "object",
            "required": ["action"],
            "properties": {
                "action": {"type": "string", "description": "send, reply, react, edit, delete, pin or unpin"},
                "channel": {"type": "string", "description": "Such as signal; default: the current one"},
                "target": {"type": "string", "description": "Such as +15551234567, uuid:<id> or group:<id>"},
                "to": {"type": "string", "description": "The same as target"},
                "accountId": {"type": "string"},
                "message": {"type": "string", "description": "The text"},
                "media": {"type": "string", "description": "A file to send along: http(s) address or workspace path"},
                "attachments": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "More files, named like media",
                },
                "path": {"type": "string", "description": "A file of the workspace to send along"},
                "buffer": {"type": "string", "description": "A file in base64 to send along"},
                "asVoice": {"type": "boolean", "description": "Send sound as a voice message"},
                "filename": {"type": "string"},
                "contentType": {"type": "string"},
                "buttons": {
                    "type": "array",
                    "description": "Rows of buttons below the text, where the channel has them. A press comes back as "
                    "a message with callback_data, or else with the text",
                    "items": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["text"],
                            "properties": {"text": {"type": "string"}, "callback_data": {"type": "string"}},
                        },
                    },
                },
                "replyTo": {"type": "string", "description": "The id of the message to quote"},
                "messageId": {
                    "type": "string",
                    "description": "What to reply to, react to, edit, delete or pin",
                },
                "emoji": {"type": "string"},
                "remove": {"type": "boolean", "description": "Take the reaction back"},
                "targetAuthor": {"type": "string", "description": "Who wrote messageId, to react in a group"},
                "dryRun": {"type": "boolean", "description": "Check only"},
            },
        },
    )

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        shown = {"action": str(arguments.get("action") or "")}
        try:
            order = read_order(arguments)
            attachment = await asyncio.to_thread(_attachment, arguments, context)
            told = await self._messenger.carry_out(order, attachment, context)
        except (MessageRefused, PathRefused) as refusal:
            status = refusal.status if isinstance(refusal, MessageRefused) else "error"
            told = {"status": status, "error": str(refusal)}
        return json_result({**shown, **told})


def read_order(arguments: dict[str, Any]) -> Order:
    """Raises ``MessageRefused`` if something is missing for the action."""
    name = str(arguments.get("action") or "").strip()
    action = ALIASES.get(name)
    if action is None:
        raise MessageRefused(f'unknown action "{name[:40]}"; known: {", ".join(ACTIONS)}')

    def text(*names: str) -> str:
        return next((str(arguments[one]).strip() for one in names if arguments.get(one)), "")

    targets = [str(one) for one in arguments.get("targets") or []]
    if len(targets) > 1:
        raise MessageRefused("one call writes to one target")
    order = Order(
        action=action,
        channel=text("channel", "provider"),
        account_id=text("accountId"),
        target=text("target", "to") or "".join(targets),
        text=text("message", "content", "text", "caption"),
        media=tuple(_named(arguments)),
        message_id=text("replyTo") if action == "send" else text("messageId", "replyTo"),
        author=text("targetAuthor", "targetAuthorUuid"),
        emoji=text("emoji"),
        remove=arguments.get("remove") is True,
        dry_run=arguments.get("dryRun") is True,
        voice=arguments.get("asVoice") is True,
        buttons=_buttons(arguments.get("buttons")),
    )
    if action in ("edit", "delete") and not order.message_id:
        raise MessageRefused(f"messageId required: which message to {action}")
    if action == "react" and not order.emoji:
        raise MessageRefused("emoji required, also to take a reaction back")
    if action == "edit" and not order.text:
        raise MessageRefused("message required")
    return order


def _buttons(given: Any) -> tuple[tuple[OrderedButton, ...], ...]:
    try:
        return msgspec.convert(given or (), _ButtonRows)
    except msgspec.ValidationError as error:
        raise MessageRefused(
            f"buttons must be rows of {{text, callback_data}}, at most 5 rows of 5 with 64 characters each: {error}"
        ) from None


def _named(arguments: dict[str, Any]) -> Iterator[str]:
    for name in ("media", "mediaUrl", "mediaUrls", "attachments"):
        value = arguments.get(name)
        for one in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if isinstance(one, str) and one.strip():
                yield one.strip()


def _attachment(arguments: dict[str, Any], context: ToolContext) -> Attachment | None:
    """The file that the call holds, or names by its path."""
    name, mime = arguments.get("filename") or None, str(arguments.get("contentType") or "")
    if encoded := arguments.get("buffer"):
        try:
            data = base64.b64decode(str(encoded).rpartition(",")[2], validate=True)
        except (binascii.Error, ValueError):
            raise MessageRefused("buffer is not base64") from None
    elif path := arguments.get("path") or arguments.get("filePath"):
        with context.opener.open_read(str(path)) as file:
            data = file.read(MOST_FILE_BYTES + 1)
        name = name or str(path).rstrip("/").rpartition("/")[2]
    else:
        return None
    if len(data) > MOST_FILE_BYTES:
        raise MessageRefused(f"the file is larger than {MOST_FILE_BYTES} bytes")
    return Attachment(data, name, mime)


def marks_for(rules: MessageTool, action: Action, here: Place | None, there: Place, *, same: bool) -> tuple[str, str]:
    """What is put before and behind a text that leaves its conversation. Raises ``MessageRefused`` if it may not.

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
