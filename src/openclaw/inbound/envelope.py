"""The heading a message carries into the prompt: where it came from, how long after the last one, and when."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from functools import lru_cache

import msgspec

from openclaw.config.schema import Config

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_US_ZONES = {
    "HST": -600,
    "AKST": -540,
    "AKDT": -480,
    "PST": -480,
    "PDT": -420,
    "MST": -420,
    "MDT": -360,
    "CST": -360,
    "CDT": -300,
    "EST": -300,
    "EDT": -240,
}
"""Zone names that English readers know, with their offset: CST is also China's, far away from this one."""
# fmt: off
_CHANNEL_NAMES = {
    "whatsapp": "WhatsApp", "imessage": "iMessage", "webchat": "WebChat", "googlechat": "Google Chat", "irc": "IRC",
    "msteams": "Microsoft Teams", "bluebubbles": "BlueBubbles", "line": "LINE", "nextcloud-talk": "Nextcloud Talk",
}
# fmt: on
_BREAKS_HEADING = re.compile(r"[\s\x00-\x1f\x7f\u2028\u2029]+")
_LONGEST_NAME = 2000
_BRACKETS = str.maketrans("[]", "()")


class EnvelopeOptions(msgspec.Struct, frozen=True, kw_only=True):
    zone: str = "local"
    """``local``, ``utc`` or an IANA name."""
    timestamp: bool = True
    elapsed: bool = True


def envelope_options(config: Config) -> EnvelopeOptions:
    defaults = config.agents.defaults
    zone = defaults.envelope_timezone.strip()
    if zone.lower() == "user":
        zone = (defaults.user_timezone or "").strip() or "local"
    return EnvelopeOptions(
        zone=zone or "local",
        timestamp=defaults.envelope_timestamp == "on",
        elapsed=defaults.envelope_elapsed == "on",
    )


def envelope(
    channel: str,
    body: str,
    options: EnvelopeOptions,
    *,
    sender: str = "",
    timestamp_ms: int | None = None,
    previous_ms: int | None = None,
    host: str = "",
    ip: str = "",
) -> str:
    """``[Signal Fam id:1 +5m Sun 2026-01-18 08:19 UTC] body``. ``previous_ms``: the session's activity before this."""
    parts = [channel_name(channel), heading_text(sender)]
    if options.elapsed and timestamp_ms is not None and previous_ms is not None and timestamp_ms >= previous_ms:
        parts.append(f"+{elapsed(timestamp_ms - previous_ms)}")
    parts += [heading_text(host), heading_text(ip)]
    if options.timestamp and timestamp_ms:
        parts.append(stamp(timestamp_ms, options.zone))
    return f"[{' '.join(part for part in parts if part)}] {body}"


def channel_name(channel: str) -> str:
    name = heading_text(channel)
    if not name:
        return "Channel"
    return _CHANNEL_NAMES.get(name.lower(), name if name != name.lower() else name[0].upper() + name[1:])


def heading_text(text: str) -> str:
    """A name from outside as it may stand in a heading: on one line, not endless, unable to close the bracket."""
    return _heading_text(text[:_LONGEST_NAME])


@lru_cache(maxsize=1024)
def _heading_text(text: str) -> str:
    return _BREAKS_HEADING.sub(" ", text).translate(_BRACKETS).strip()


def elapsed(ms: int) -> str:
    """``29s``, ``2m``, ``36h``, ``3d``."""
    seconds = _rounded(ms / 1000)
    minutes = _rounded(seconds / 60)
    if minutes < 1:
        return f"{seconds}s"
    if minutes < 60:
        return f"{minutes}m"
    hours = _rounded(minutes / 60)
    return f"{hours}h" if hours < 48 else f"{_rounded(hours / 24)}d"


def _rounded(value: float) -> int:
    """Halves go up, which ``round`` does not do."""
    return int(value + 0.5)


# Time


def stamp(ms: int, zone: str) -> str:
    """To the minute, with the weekday; UTC in its short form."""
    found = time_zone(zone)
    if found is UTC:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
        return f"{_WEEKDAYS[moment.weekday()]} {moment:%Y-%m-%dT%H:%MZ}"
    return minute_stamp(ms, found)


def minute_stamp(ms: int, zone: tzinfo | None) -> str:
    """``Sun 2026-11-15 18:22 UTC``; None is the machine's own zone."""
    return _minute(ms // 60_000, zone)


@lru_cache(maxsize=16)
def _minute(minutes: int, zone: tzinfo | None) -> str:
    moment = datetime.fromtimestamp(minutes * 60, UTC).astimezone(zone)
    return f"{_WEEKDAYS[moment.weekday()]} {moment:%Y-%m-%d %H:%M} {zone_label(moment)}"


def zone_label(moment: datetime) -> str:
    """``UTC``, ``PST``, ``EDT``; elsewhere ``GMT+1``, ``GMT+5:30``."""
    name, offset = moment.tzname() or "UTC", moment.utcoffset()
    minutes = int(offset.total_seconds() // 60) if offset else 0
    if _US_ZONES.get(name) == minutes:
        return name
    if minutes == 0:
        return "UTC" if name == "UTC" else "GMT"
    hours, rest = divmod(abs(minutes), 60)
    return f"GMT{'+' if minutes > 0 else '-'}{hours}" + (f":{rest:02d}" if rest else "")


def time_zone(name: str) -> tzinfo | None:
    """The zone of that name; None for the machine's own, UTC for a name nobody knows."""
    match name.strip().lower():
        case "" | "local" | "host":
            return None
        case "utc" | "gmt":
            return UTC
        case _:
            return _iana(name.strip())


@lru_cache(maxsize=64)
def _iana(name: str) -> tzinfo:
    # Not needed to start, and a large import.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC
