"""Turns a reply into the messages that a channel delivers, and defines what passes between the outbox and channels.

``responsePrefix`` is put before a reply, and the ``/usage`` line under it. What the agent wrote to the same
conversation with the message tool is not said twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias
from unicodedata import category

import msgspec

from openclaw.clock import Chance
from openclaw.config.agents import agent_config
from openclaw.config.channels import account_settings
from openclaw.config.schema import Config
from openclaw.config.schema.channels import SlackAccount
from openclaw.events import Event, ToolEnded
from openclaw.messages import Route, Usage
from openclaw.outbound.answer_filter import CURRENT
from openclaw.outbound.blocks import BlockRef, pause_range
from openclaw.outbound.chunking import Limits, limits_for
from openclaw.outbound.silence import HEARTBEAT_OK
from openclaw.sessions.keys import chat_type_of
from openclaw.storage.message_ledger import OutboxPart

Act: TypeAlias = Literal["send", "react", "edit", "delete", "pin"]
QuoteMode: TypeAlias = Literal["off", "first", "all"]

REPEAT_MARK = "(possibly sent twice)"
"""Begins a message that may have arrived already, on a channel that cannot tell a repeat by itself."""
LONGEST_CAPTION = 1000
"""A longer text is not the caption of a file, but a message behind it. The strictest platforms take 1024."""
CAPTIONED = frozenset({"telegram", "discord", "slack", "whatsapp", "signal"})
"""Channels on which a file and words are one message."""
QUOTE_MODES: dict[str, QuoteMode] = {"telegram": "first", "discord": "off", "slack": "off", "matrix": "off"}
"""``replyToMode`` where nothing is configured. Everywhere else it is ``first``."""
QUOTES_UNASKED = frozenset({"discord", "slack"})
"""Channels whose replies quote the message they answer, unless the mode is ``off``, without being asked to."""
AUTO = "auto"
"""A ``responsePrefix`` that stands for the agent's name in brackets."""
_VARIABLE = re.compile(r"\{([a-zA-Z][a-zA-Z0-9.]{0,40})\}")
_DATE = re.compile(r"-\d{8}\Z")
TOOL = "message"
"""The tool with which the agent writes to a conversation."""
_TEXT = ("message", "content", "text", "caption")
"""Its parameters that may hold the words."""
LEAST_REPEATED = 10
"""A shorter text may be the same by chance."""
MOST_REMEMBERED = 200


# The prefix


class Speaker(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers."""

    agent_id: str
    model: str = ""
    """As ``provider/model``."""
    thinking: str = ""


def short_model(model: str) -> str:
    """``openai/gpt-5.2`` → ``gpt-5.2``: without the provider, a date and ``-latest``."""
    return _DATE.sub("", model.rpartition("/")[2]).removesuffix("-latest")


def response_prefix(config: Config, channel: str, account_id: str | None, speaker: Speaker) -> str:
    """Return the prefix of the account, or else of all messages. Empty means none, also where ``""`` is configured."""
    account = account_settings(config, channel, account_id)
    own = account.response_prefix if account is not None else None
    template = own if own is not None else config.messages.response_prefix
    agent = agent_config(config, speaker.agent_id)
    name = (agent.identity.name if agent is not None else None) or ""
    if not template:
        return ""
    if template == AUTO:
        return f"[{name}]" if name else ""
    return _filled(template, speaker, name)


def _filled(template: str, speaker: Speaker, name: str) -> str:
    provider = speaker.model.partition("/")[0] if "/" in speaker.model else ""
    values = {
        "model": short_model(speaker.model),
        "modelfull": speaker.model,
        "provider": provider,
        "thinkinglevel": speaker.thinking or "off",
        "think": speaker.thinking or "off",
        "identity.name": name,
        "identityname": name,
    }
    # What is unknown stays as it is written, so that the owner sees what is wrong.
    return _VARIABLE.sub(lambda result: values.get(result[1].lower()) or result[0], template)


def prefixed(text: str, prefix: str) -> str:
    """The text behind the prefix, unless it begins with it or says nothing."""
    if not prefix or not text.strip() or text.strip() == HEARTBEAT_OK or text.startswith(prefix):
        return text
    return f"{prefix} {text}"


# What passes between the outbox and channels


class MediaRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A file to send. Its bytes are in the blob store."""

    blob: str
    mime_type: str
    file_name: str | None = None
    url: str | None = None
    """Where it was fetched. A channel that carries no files shows this instead."""
    voice: bool = False
    """A sound file that is a voice message, where the platform has them. Elsewhere it is a file."""


class Button(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A button below a message, where ``Capabilities`` say that the platform has them."""

    text: str
    data: str = ""
    """The message that a press submits. Empty means ``text``."""


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One message on a channel, or what is done to an earlier one. It is the payload of an outbox row."""

    act: Act = "send"
    """Everything but ``send`` is done to the message ``target_id``, and doing it twice changes nothing."""
    target_id: str = ""
    target_author: str = ""
    """Who wrote that message. Empty if the id or the chat tells."""
    emoji: str = ""
    remove: bool = False
    """Takes the reaction back, or the pin."""

    text: str = ""
    media: tuple[MediaRef, ...] = ()
    reply_to_id: str | None = None
    buttons: tuple[tuple[Button, ...], ...] = ()
    """Rows of buttons."""
    possibly_duplicate: bool = False
    """The message may have arrived already, because an earlier attempt ended while it was being sent."""
    pause_ms: int = 0
    """How long to wait before the message is sent."""
    block: BlockRef | None = None
    """The message is a block of a reply that was being written, and this is how far it goes."""


class SendReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a successful send."""

    message_id: str = ""
    """The platform's id of the message. Empty if the platform does not tell."""


class SendFailed(Exception):
    """A message was not delivered. The text says why, for the person who looks into it."""

    def __init__(
        self,
        message: str,
        *,
        permanent: bool = False,
        reached: bool = True,
        maybe_sent: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.permanent = permanent
        """True if trying again cannot help."""
        self.reached = reached
        """True if the platform answered. An unreachable one is waited for until the message expires."""
        self.maybe_sent = maybe_sent
        """True if the request was sent but no answer came."""
        self.retry_after_s = retry_after_s


# A reply as messages


class ReplyShape(msgspec.Struct, frozen=True, kw_only=True):
    """How the replies of one conversation look: their limits, what is before them and what they quote."""

    limits: Limits = Limits()
    prefix: str = ""
    quotes: QuoteMode = "first"
    unasked: bool = False
    """A reply quotes the message that it answers, even if the agent did not ask for it."""
    every_part: bool = False
    """All messages that a text is cut into quote, and not only the first."""
    in_threads: bool = False
    """To quote means to answer in a thread. What the agent asks for counts even if the mode is ``off``."""
    pause_ms: tuple[int, int] = (0, 0)
    """The shortest and the longest pause before each block but the first, if the reply is sent in blocks."""

    def pause(self, chance: Chance) -> int:
        """Choose the pause before a block, in milliseconds."""
        low, high = self.pause_ms
        return low + int(chance() * (high - low + 1)) if high else 0

    def quoted(self, route: Route, reply_to: str, earlier: int) -> str:
        """Return the id that the next text quotes. ``earlier`` counts the messages that were sent before it."""
        if self.quotes == "off" and not (self.in_threads and reply_to):
            return ""
        if self.quotes == "first" and earlier:
            return ""
        requested = reply_to or (CURRENT if self.unasked else "")
        return route.reply_to_id if requested == CURRENT else requested


def reply_shape(config: Config, route: Route, speaker: Speaker) -> ReplyShape:
    channel, account_id = route.channel, route.account_id
    account = account_settings(config, channel, account_id)
    mode = account.reply_to_mode if account is not None else None
    if isinstance(account, SlackAccount):
        mode = _slack_mode(account, route.session_key)
    quotes = mode or QUOTE_MODES.get(channel, "first")
    if mode is None and channel == "discord" and route.thread_id:
        quotes = "all"  # Several conversations run side by side in a thread, so each answer says what it answers.
    return ReplyShape(
        limits=limits_for(config, channel, account_id),
        prefix=response_prefix(config, channel, account_id, speaker),
        quotes=quotes,
        unasked=channel in QUOTES_UNASKED,
        every_part=channel == "slack" or (channel == "telegram" and quotes == "all"),
        in_threads=channel == "slack",
        pause_ms=pause_range(config, speaker.agent_id),
    )


def _slack_mode(account: SlackAccount, session_key: str) -> QuoteMode | None:
    """Return the mode for this kind of chat, else the account's."""
    modes = account.reply_to_mode_by_chat_type
    match chat_type_of(session_key):
        case "channel":
            return modes.channel or account.reply_to_mode
        case "group":
            return modes.group or account.reply_to_mode
        case "direct":
            return modes.direct or account.dm.reply_to_mode or account.reply_to_mode


def parts_for(
    route: Route,
    texts: Sequence[str],
    shape: ReplyShape,
    media: Sequence[MediaRef] = (),
    reply_to: str = "",
    *,
    first: int = 0,
) -> list[OutboxPart]:
    """Return the messages to deliver, in order. Blank text yields no message.

    A text may be a block of a reply, so it is not examined for silence: only a whole reply can be silent.

    Each file is a message of its own, so that none is sent twice because the next one failed. A short text is the
    caption of the first file, or a message before it where there are no captions. Files come before a long text.
    ``reply_to`` is the id of the message that is quoted, or ``current`` for the message that is answered. ``first`` is
    the number of the first part, which is the number of messages that were sent before. Cutting a text loses only
    white space at the cuts.
    """
    if not route.is_delivered:
        return []
    parts: list[OutgoingMessage] = []
    for text in texts:
        if text.strip():
            quoted = shape.quoted(route, reply_to, first + len(parts)) or None
            chunks = shape.limits.cut(prefixed(text.strip(), shape.prefix))
            parts += [
                OutgoingMessage(text=chunk, reply_to_id=quoted if position == 0 or shape.every_part else None)
                for position, chunk in enumerate(chunks)
            ]
    channel = route.channel
    if media:
        beside = (shape.quoted(route, reply_to, first) or None) if shape.every_part else None
        files = [OutgoingMessage(media=(item,), reply_to_id=beside) for item in media]
        short = bool(parts) and len(parts[0].text) <= LONGEST_CAPTION
        if short and channel in CAPTIONED and not media[0].mime_type.startswith("audio/"):
            parts[0] = msgspec.structs.replace(parts[0], media=tuple(media[:1]))
            parts[1:1] = files[1:]
        elif short:
            parts[1:1] = files
        else:
            files[0] = msgspec.structs.replace(files[0], reply_to_id=shape.quoted(route, reply_to, first) or None)
            parts = files + [msgspec.structs.replace(part, reply_to_id=beside) for part in parts]
    return [
        OutboxPart(part=number, channel=channel, payload=msgspec.to_builtins(part))
        for number, part in enumerate(parts, first)
    ]


def failure_notice(error: str | None) -> str:
    """Return the notice that a person on a channel gets when a run failed."""
    return f"⚠️ {(error or 'Something went wrong while answering.').strip()}"


# What the message tool has said already


def messaged_here(event: Event) -> str | None:
    """The text of a message that a tool sent to this conversation. It may be empty beside a file. None: it is none."""
    if not isinstance(event, ToolEnded) or event.message.tool_name != TOOL:
        return None
    match event.message.details:
        case {"action": "send" | "reply" | "thread-reply", "here": True, "status": "ok" | "accepted"}:
            return next((str(event.arguments[name]) for name in _TEXT if event.arguments.get(name)), "")
        case _:
            return None


def is_repeated(text: str, messaged: Sequence[str]) -> bool:
    """Return whether the agent has said this already with the tool, or more, or less."""
    reply = _plain(text) if messaged else ""
    return len(reply) >= LEAST_REPEATED and any(
        reply in other or other in reply for other in map(_plain, messaged) if len(other) >= LEAST_REPEATED
    )


def _plain(text: str) -> str:
    """A text without what does not count when two are compared: case, blanks and emoji."""
    return " ".join("".join(char for char in text.lower() if category(char) not in ("So", "Sk")).split())


# Token counts and money, for people


def token_count(count: int | None) -> str:
    """``999``, ``1.2k``, ``16k`` or ``1.2m``. An unknown count is ``?``."""
    if count is None:
        return "?"
    if count < 1000:
        return str(count)
    if count < 10_000:
        return f"{count / 1000:.1f}k"
    if count < 1_000_000:
        return f"{math.floor(count / 1000 + 0.5)}k"
    return f"{count / 1_000_000:.1f}m"


def cache_share(read: int, written: int, fresh: int) -> str | None:
    """Return the share of the prompt that came from the provider's cache. None if it has no cache or does not tell."""
    if not read and not written:
        return None
    return f"{math.floor(100 * read / (read + written + fresh) + 0.5)}%"


def money(dollars: float) -> str:
    return f"${dollars:.4f}" if dollars < 0.01 else f"${dollars:.2f}"


def usage_footer(mode: str | None, usage: Usage | None, session_key: str, *, priced: bool) -> str:
    """Return the line that is shown under a reply and not stored. Empty if it is off or nothing was counted.

    ``priced`` says that the price of the model is known.
    """
    if mode not in ("on", "tokens", "full") or usage is None or not (usage.input or usage.output):
        return ""
    line = f"Usage: {token_count(usage.input)} in / {token_count(usage.output)} out"
    if priced:
        line += f" · est {money(usage.cost.total)}"
    if mode != "full":
        return line
    share = cache_share(usage.cache_read, usage.cache_write, usage.input)
    return f"{line} · session {session_key}" + (f" · cache {share}" if share else "")


def with_footer(text: str, footer: str) -> str:
    return f"{text.rstrip()}\n\n{footer}" if footer and text.strip() else text


def percent(part: int, whole: int) -> str:
    return f"{min(999, math.floor(100 * part / whole + 0.5))}%"
