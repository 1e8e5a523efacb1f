"""Group messages that did not start a run, kept until one does: context for the reply, never a part of a transcript."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from openclaw.config.schema import Config
from openclaw.inbound.channel_settings import ChannelSettings
from openclaw.inbound.envelope import EnvelopeOptions, envelope
from openclaw.inbound.labels import from_label, sender_label
from openclaw.inbound.message import Inbound

HISTORY_MARKER = "[Chat messages since your last reply - for context]"
CURRENT_MARKER = "[Current message - respond to this]"
DEFAULT_LIMIT = 50
_DEFAULT_LIMITS = {"discord": 20}
MOST_CONVERSATIONS = 1000
MOST_CHARS = 8000
"""Of one remembered message; longer ones are cut."""


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    sender: str
    body: str
    timestamp_ms: int = 0
    message_id: str = ""


class PendingHistory:
    """Per conversation, oldest first. Of too many conversations the one silent for longest is forgotten."""

    def __init__(self) -> None:
        self._pending: dict[str, list[HistoryEntry]] = {}

    def record(self, key: str, entry: HistoryEntry, limit: int) -> None:
        """A limit of 0 records nothing and leaves what is there."""
        if limit <= 0:
            return
        entries = self._pending.pop(key, [])
        entries.append(entry)
        self._pending[key] = entries[-limit:]
        while len(self._pending) > MOST_CONVERSATIONS:
            del self._pending[next(iter(self._pending))]

    def pending(self, key: str, limit: int) -> tuple[HistoryEntry, ...]:
        return tuple(self._pending.get(key, ())[-limit:]) if limit > 0 else ()

    def clear(self, key: str, limit: int, used: Collection[HistoryEntry] | None = None) -> None:
        """After a run was started. With ``used``, what came in meanwhile stays for the next one."""
        if limit <= 0 or key not in self._pending:
            return
        spent = {id(entry) for entry in used} if used is not None else None
        left = [entry for entry in self._pending[key] if spent is not None and id(entry) not in spent]
        if left:
            self._pending[key] = left
        else:
            del self._pending[key]


def history_limit(config: Config, settings: ChannelSettings) -> int:
    """The account's or channel's limit, else the general one for groups, else the built-in one."""
    if settings.history_limit is not None:
        return settings.history_limit
    general = config.messages.group_chat.history_limit
    return general if general is not None else _DEFAULT_LIMITS.get(settings.channel, DEFAULT_LIMIT)


def history_key(inbound: Inbound) -> str:
    key = f"{inbound.channel}:{inbound.account_id}:{inbound.peer.kind}:{inbound.peer.id}"
    if inbound.thread_has_session and inbound.thread_id is not None:
        key += f":thread:{inbound.thread_id}"
    return key.lower()


def history_entry(inbound: Inbound) -> HistoryEntry:
    body = inbound.text if inbound.text.strip() else " ".join(media_marks(inbound))
    return HistoryEntry(
        sender=sender_label(inbound.sender),
        body=body if len(body) <= MOST_CHARS else body[:MOST_CHARS] + "…",
        timestamp_ms=inbound.timestamp_ms,
        message_id=inbound.message_id,
    )


def media_marks(inbound: Inbound) -> list[str]:
    """``<media:image>`` for each file, standing in where nothing was written."""
    return [f"<media:{media.mime_type.partition('/')[0] or 'file'}>" for media in inbound.media]


def rendered_history(entries: Sequence[HistoryEntry], inbound: Inbound, options: EnvelopeOptions) -> str:
    """Every entry under the same heading as a current message of this conversation."""
    where = from_label(inbound)
    lines = [
        envelope(
            inbound.channel,
            f"{_speaker(entry)}{without_markers(entry.body)}{_reference(entry, inbound)}",
            options,
            sender=where,
            timestamp_ms=entry.timestamp_ms or None,
        )
        for entry in entries
    ]
    return "\n".join(lines)


def with_history(history: str, current: str) -> str:
    """The current message behind what was said before it; alone when nothing was."""
    if not history.strip():
        return current
    return f"{HISTORY_MARKER}\n{history}\n\n{CURRENT_MARKER}\n{current}"


def without_markers(text: str) -> str:
    """Text of others that cannot pass for our own markers, behind which a message counts as the current one."""
    for marker in (HISTORY_MARKER, CURRENT_MARKER):
        text = text.replace(marker, f"({marker[1:-1]})")
    return text


def _speaker(entry: HistoryEntry) -> str:
    return f"{entry.sender}: " if entry.sender else ""


def _reference(entry: HistoryEntry, inbound: Inbound) -> str:
    if not entry.message_id:
        return ""
    match inbound.channel.lower():
        case "whatsapp":
            return f"\n[message_id: {entry.message_id}]"
        case "telegram":
            return f" [id:{entry.message_id} chat:{inbound.peer.id.partition(':topic:')[0]}]"
        case _:
            return f" [id:{entry.message_id}]"
