"""What a line from the server means for the agent: a message with its sender, or nothing. No network, no clock."""

from __future__ import annotations

import hashlib
from datetime import datetime

from openclaw.channels.irc.connection import Self
from openclaw.channels.irc.protocol import Line, is_channel, without_formats
from openclaw.inbound.message import Inbound, Peer, Quoted, Sender

MAX_TEXT = 16 * 1024
_NAME_SIGNS = "_-[]\\`^{|}"
"""What stands in nicknames besides letters and digits. Our nickname inside a longer one is no mention."""


def interpret(line: Line, me: Self, account_id: str, *, now_ms: int, nicks_count: bool = False) -> Inbound | None:
    """The message in a line, without a ``message_id`` if the server gives none.

    None for everything else: our own words, notices (which bots use among themselves), what servers and marked bots
    say, and requests of clients other than ACTION. ``nicks_count``: a bare nickname stands for its user.
    """
    if line.command != "PRIVMSG" or "!" not in line.prefix or me.is_me(line.nick) or "bot" in line.tags:
        return None
    target = line.param(0)
    channel = target.lstrip(me.status_signs) if me.status_signs else target
    group = is_channel(channel, me.channel_signs)
    if not group and not me.is_me(target):
        return None
    text = _text_of(line)
    if text is None:
        return None
    mentioned, text = _addressed(text, me.nick)
    identity = line.prefix.lower()
    account = line.tags.get("account", "")
    others = [f"account:{account.lower()}"] if account else []
    if nicks_count:
        others.append(line.nick.lower())
    name = channel.lower()
    return Inbound(
        channel="irc",
        account_id=account_id,
        message_id=line.tags.get("msgid", ""),
        peer=Peer(kind="group", id=name) if group else Peer(kind="direct", id=identity),
        sender=Sender(id=identity, name=line.nick, username=line.nick, other_ids=tuple(others)),
        to=f"irc:{name}" if group else f"irc:{line.prefix}",
        text=text[:MAX_TEXT],
        timestamp_ms=_server_time(line.tags.get("time", "")) or now_ms,
        mentioned=mentioned,
        quoted=_quoted(line),
        group_subject=channel if group else None,
    )


def fallback_id(line: Line) -> str:
    """An id for a message that the server gave none: the same whenever the same message is sent again.

    Empty if the server does not tell the time of the message, since then nothing tells repeats from new messages.
    """
    time = line.tags.get("time", "")
    if not time:
        return ""
    text = "\n".join((time, line.prefix, *line.params))
    return f"{time}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]}"


def _text_of(line: Line) -> str | None:
    text = line.param(1)
    if text.startswith("\x01"):
        kind, _, rest = text.strip("\x01").partition(" ")
        if kind.upper() != "ACTION" or not rest.strip():
            return None
        return f"* {line.nick} {without_formats(rest).strip()}"
    text = without_formats(text)
    return text if text.strip() else None


def _addressed(text: str, nick: str) -> tuple[bool, str]:
    """Whether the text names us, and the text without our name at its beginning (``nick: …`` or ``nick, …``)."""
    if not nick:
        return False, text
    wanted, head = nick.lower(), text.lstrip().removeprefix("@")
    if head[: len(nick)].lower() == wanted:
        rest = head[len(nick) :].lstrip()
        if rest.startswith((":", ",")):
            return True, rest[1:].lstrip() or text.strip()
    lowered, place = text.lower(), -1
    while (place := lowered.find(wanted, place + 1)) >= 0:
        end = place + len(wanted)
        before, after = lowered[max(place - 1, 0) : place], lowered[end : end + 1]
        if not _is_in_names(before) and not _is_in_names(after):
            return True, text
    return False, text


def _is_in_names(sign: str) -> bool:
    return sign.isalnum() or (sign != "" and sign in _NAME_SIGNS)


def _quoted(line: Line) -> Quoted | None:
    quoted = line.tags.get("+reply") or line.tags.get("+draft/reply")
    return Quoted(id=quoted) if quoted else None


def _server_time(written: str) -> int:
    try:
        return int(datetime.fromisoformat(written).timestamp() * 1000) if written else 0
    except (ValueError, OverflowError):
        return 0
