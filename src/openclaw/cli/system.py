"""``openclaw system``: events for the agent, its heartbeats, and who is connected."""

from __future__ import annotations

import time

from openclaw.cli.client import from_args
from openclaw.cli.command import CLIENT, EXIT_USAGE, Flag, Group, UserError, query, report
from openclaw.text import age, clipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from openclaw.cli.answers import HeartbeatEvent, PresenceEntry


NOTHING_NEW = "nothing needed you"
NOTHING_SENT = {
    "disabled": "skipped, heartbeats are off",
    "quiet-hours": "skipped, it was outside agents.defaults.heartbeat.activeHours",
    "requests-in-flight": "skipped, the agent was busy",
    "empty-heartbeat-file": "skipped, HEARTBEAT.md asks for nothing",
    "duplicate": "not sent, it said the same as the last one",
    "no-target": "kept in the conversation; no chat channel to send it to",
    "target-none": "kept in the conversation, as agents.defaults.heartbeat.target says",
    "alerts-disabled": "not sent, the channel's heartbeat.showAlerts is off",
    "dm-blocked": "not sent, as agents.defaults.heartbeat.directPolicy says",
}
"""Why a heartbeat was not sent, by its reason code."""


def _heartbeat(args: argparse.Namespace) -> Any:
    client = from_args(args)
    if args.what == "last":
        return client.call("last-heartbeat", {})
    return client.call("set-heartbeats", {"enabled": args.what == "enable"})


def _show_heartbeat(event: HeartbeatEvent | None, args: argparse.Namespace) -> Iterator[str]:
    if args.what != "last":
        yield f"Heartbeats are {args.what}d."
    elif not event:
        yield "There was no heartbeat yet."
    else:
        status, reason = str(event.get("status")), str(event.get("reason") or "")
        words = NOTHING_SENT.get(reason) if status == "skipped" else NOTHING_NEW if status.startswith("ok-") else None
        told = [words] if words else [status, *([reason] if reason else [])]
        told += [target for target in (event.get("channel"), event.get("to")) if target]
        yield f"{age(time.time() * 1000 - float(event.get('ts') or 0))}: {', '.join(told)}"
        if preview := event.get("preview"):
            yield f"  {clipped(' '.join(preview.split()), 200)}"


def _event(args: argparse.Namespace) -> dict[str, object]:
    if not args.text.strip():
        raise UserError("--text must say something", EXIT_USAGE)
    return {"text": args.text, "mode": args.mode}


def _show_presence(listed: list[PresenceEntry], args: argparse.Namespace) -> Iterator[str]:
    for entry in listed:
        seen = age(time.time() * 1000 - float(entry.get("ts") or 0))
        facts = (entry.get("ip"), entry.get("platform"), entry.get("mode"), entry.get("version"))
        yield f"{entry.get('host') or entry.get('text') or '?'}  {' · '.join(filter(None, facts))}  {seen}"
    if not listed:
        yield "Nobody is connected."


_ACTIONS = {
    "event": query(
        "Tell the agent's main session something",
        "wake",
        (
            Flag("--text TEXT", "what to tell it", required=True),
            Flag(
                "--mode MODE",
                "now wakes the agent; with next-heartbeat (the default) it hears of it at its next turn",
                choices=("now", "next-heartbeat"),
                default="next-heartbeat",
            ),
        ),
        params=_event,
        show=lambda answer, args: ["ok"],
        example='openclaw system event --text "The backup is done" --mode now',
    ),
    "heartbeat": report(
        "Show the last heartbeat, or switch heartbeats on or off",
        _heartbeat,
        (
            Flag(
                "what WHAT", "last, enable or disable", nargs="?", choices=("last", "enable", "disable"), default="last"
            ),
            *CLIENT,
        ),
        show=_show_heartbeat,
        example="openclaw system heartbeat last",
    ),
    "presence": query(
        "List who is connected to the Gateway",
        "system-presence",
        show=_show_presence,
        example="openclaw system presence",
    ),
}
COMMANDS = {"system": Group(_ACTIONS)}
