"""Rules that types cannot express: values that only make sense together."""

from __future__ import annotations

import difflib
import re
from typing import Any, get_args

from openclaw.config.durations import duration_ms
from openclaw.config.issues import Report
from openclaw.config.keypath import KeyPath, get_path
from openclaw.config.schema import Config
from openclaw.config.schema.channels import Channels, DmPolicy, GroupPolicy
from openclaw.config.shape import fields_of
from openclaw.paths import normalize_agent_id

# fmt: off
KNOWN_CHANNELS = frozenset((
    "whatsapp", "telegram", "discord", "slack", "signal", "imessage", "googlechat", "msteams", "mattermost", "matrix",
    "bluebubbles", "irc", "line", "zalo", "zalouser", "nostr", "twitch", "tlon", "nextcloud-talk", "feishu", "webchat",
    "voice-call",
))
# fmt: on
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d|24:00")


def check_rules(values: dict[str, Any], config: Config, report: Report) -> None:
    """``values`` is what was written (its types not to be trusted), ``config`` what was right in it."""
    agents = _list(values, "agents", "list")
    owners: list[KeyPath] = [("agents", "list", index) for index in range(len(agents))]
    _agent_ids(agents, report)
    _bindings(values, agents, report)
    _durations(values, owners, report)
    _heartbeats(values, [("agents", "defaults"), *owners], report)
    _zones(values, [("agents", "defaults"), *owners], report)
    _tool_lists(values, [("tools",), *((*owner, "tools") for owner in owners)], report)
    _channels(values, report)
    _gateway(config, report)


def _list(values: dict[str, Any], *path: str) -> list[Any]:
    found = get_path(values, path)
    return found if isinstance(found, list) else []


def _agent_ids(agents: list[Any], report: Report) -> None:
    seen: dict[str, int] = {}
    defaults = 0
    for index, agent in enumerate(agents):
        name = get_path(agent, ("id",))
        if not isinstance(name, str):
            continue
        first = seen.setdefault(normalize_agent_id(name), index)
        if first != index:
            problem = f'the id "{name}" is already that of agents.list[{first}]; ids must differ'
            report.issue(("agents", "list", index, "id"), problem)
        defaults += get_path(agent, ("default",)) is True
    if defaults > 1:
        report.warn(("agents", "list"), "several agents are marked default; the first of them is used")


def _bindings(values: dict[str, Any], agents: list[Any], report: Report) -> None:
    known = {normalize_agent_id(str(get_path(agent, ("id",)))) for agent in agents}
    for index, binding in enumerate(_list(values, "bindings")):
        name = get_path(binding, ("agentId",))
        if known and isinstance(name, str) and normalize_agent_id(name) not in known:
            problem = f'there is no agent "{name}" in agents.list; the default agent gets these messages'
            report.warn(("bindings", index, "agentId"), problem)


def _durations(values: dict[str, Any], owners: list[KeyPath], report: Report) -> None:
    places: list[tuple[KeyPath, str]] = [
        (("agents", "defaults", "heartbeat", "every"), "m"),
        (("agents", "defaults", "contextPruning", "ttl"), "m"),
        (("session", "maintenance", "pruneAfter"), "d"),
        (("cron", "sessionRetention"), "d"),
        *(((*owner, "heartbeat", "every"), "m") for owner in owners),
    ]
    for path, unit in places:
        value = get_path(values, path)
        if isinstance(value, bool) or not isinstance(value, str | int):
            continue
        try:
            duration_ms(value, unit)
        except ValueError as error:
            report.issue(path, str(error))


def _zones(values: dict[str, Any], owners: list[KeyPath], report: Report) -> None:
    places: list[tuple[KeyPath, tuple[str, ...]]] = [
        (("agents", "defaults", "userTimezone"), ()),
        (("agents", "defaults", "envelopeTimezone"), ("local", "host", "utc", "gmt", "user")),
        *(((*owner, "heartbeat", "activeHours", "timezone"), ("user", "local")) for owner in owners),
    ]
    for path, words in places:
        value = get_path(values, path)
        if isinstance(value, str) and value.strip().lower() not in ("", *words) and not _is_zone(value.strip()):
            others = f"{', '.join(words)} or " if words else ""
            report.mistake(
                path, f'"{value}" is not a time zone; write {others}an IANA name such as Europe/Madrid{_like(value)}'
            )


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return bool(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False


def _like(name: str) -> str:
    from zoneinfo import available_timezones

    known = sorted(available_timezones())
    lowered = {zone.lower(): zone for zone in known} | {zone.lower().rpartition("/")[2]: zone for zone in known}
    found = difflib.get_close_matches(name.strip().lower(), lowered, n=3, cutoff=0.75)
    near = list(dict.fromkeys(lowered[one] for one in found))
    return f" (near it: {', '.join(near)})" if near else ""


def _heartbeats(values: dict[str, Any], owners: list[KeyPath], report: Report) -> None:
    for owner in owners:
        for key in ("start", "end"):
            path = (*owner, "heartbeat", "activeHours", key)
            value = get_path(values, path)
            if isinstance(value, str) and (not _TIME.fullmatch(value) or (key == "start" and value == "24:00")):
                report.issue(path, f'"{value}" is not a time of day; write HH:MM, such as 08:30')


def _tool_lists(values: dict[str, Any], owners: list[KeyPath], report: Report) -> None:
    for owner in owners:
        if get_path(values, (*owner, "allow")) and get_path(values, (*owner, "alsoAllow")):
            report.issue((*owner, "alsoAllow"), "allow and alsoAllow exclude each other; put everything in one of them")


def _channels(values: dict[str, Any], report: Report) -> None:
    channels = get_path(values, ("channels",))
    for name, section in channels.items() if isinstance(channels, dict) else ():
        if name == "defaults" or not isinstance(section, dict):
            continue
        close = difflib.get_close_matches(name.lower(), KNOWN_CHANNELS, n=1, cutoff=0.8)
        if close and name not in KNOWN_CHANNELS:
            report.warn(("channels", name), f'unknown channel; did you mean "{close[0]}"?')
        if name not in fields_of(Channels):
            _known_policies(("channels", name), section, report)
        _open_policy(("channels", name), section, section, report)
        accounts = section.get("accounts")
        for account, own in accounts.items() if isinstance(accounts, dict) else ():
            if isinstance(own, dict):
                _open_policy(("channels", name, "accounts", account), own, {**section, **own}, report)


def _known_policies(path: KeyPath, own: dict[str, Any], report: Report) -> None:
    """For channels without a schema; at run time a policy that nobody knows shuts the channel."""
    for key, allowed in (
        (("dmPolicy",), get_args(DmPolicy)),
        (("dm", "policy"), get_args(DmPolicy)),
        (("groupPolicy",), get_args(GroupPolicy)),
    ):
        value = get_path(own, key)
        if isinstance(value, str) and value not in allowed:
            report.issue((*path, *key), f'"{value}" is not a policy; use one of {", ".join(allowed)}')


def _open_policy(path: KeyPath, own: dict[str, Any], effective: dict[str, Any], report: Report) -> None:
    nested = own.get("dm")
    if isinstance(nested, dict) and nested.get("policy") == "open" and not _open_to_all(nested.get("allowFrom")):
        report.issue((*path, "dm", "policy"), 'the policy "open" needs "*" in allowFrom beside it')
    if own.get("dmPolicy") == "open" and not _open_to_all(effective.get("allowFrom")):
        report.issue((*path, "dmPolicy"), 'the policy "open" needs "*" in allowFrom beside it')


def _open_to_all(senders: Any) -> bool:
    return isinstance(senders, list) and "*" in senders


def _gateway(config: Config, report: Report) -> None:
    gateway = config.gateway
    if gateway.bind == "custom" and not gateway.custom_bind_host:
        report.warn(
            ("gateway", "bind"), 'bind "custom" needs gateway.customBindHost; without it all addresses are used'
        )
    if gateway.tailscale.mode != "off" and gateway.bind != "loopback":
        report.issue(("gateway", "tailscale", "mode"), 'publishing through Tailscale needs gateway.bind "loopback"')
    if gateway.tailscale.mode == "funnel" and gateway.auth.mode != "password":
        report.issue(("gateway", "tailscale", "mode"), 'funnel needs gateway.auth.mode "password"')
    if config.hooks.enabled and not config.hooks.token:
        report.issue(("hooks", "token"), "webhooks need a token; set hooks.token or switch hooks.enabled off")
    if config.hooks.path.strip("/") == "":
        report.issue(("hooks", "path"), 'the path of webhooks cannot be "/"; use something like /hooks')
