"""What people and conversations are called in a prompt."""

from __future__ import annotations

import re

from openclaw.inbound.envelope import heading_text
from openclaw.inbound.message import Inbound, Sender

_FROM_LINE = re.compile(r"^[ \t]*\[from:", re.IGNORECASE | re.MULTILINE)


def sender_label(sender: Sender) -> str:
    """``Bob (+222)``: the name and the id, or whichever exists; blank when nothing is known."""
    name, identity = _name(sender), heading_text(sender.e164 or "") or heading_text(sender.id)
    return f"{name} ({identity})" if name and identity and name != identity else name or identity


def from_label(inbound: Inbound) -> str:
    """Who an envelope names: ``Fam id:1`` for a group, ``Ana id:+1555`` for a person."""
    identity = heading_text(inbound.peer.id)
    if inbound.peer.kind != "direct":
        label = _group_name(inbound) or "Group"
        return f"{label} id:{identity}" if identity and label != identity else label
    person = heading_text(inbound.sender.e164 or "") or heading_text(inbound.sender.id) or identity
    label = _name(inbound.sender) or heading_text(inbound.conversation_label or "") or person
    return f"{label} id:{person}" if person and label != person else label


def conversation_label(inbound: Inbound) -> str:
    """What listings call the conversation."""
    label = heading_text(inbound.conversation_label or "") or heading_text(inbound.thread_label or "")
    if label:
        return label
    if inbound.peer.kind == "direct":
        return _name(inbound.sender) or heading_text(inbound.sender.id) or heading_text(inbound.peer.id)
    identity = heading_text(inbound.peer.id)
    label = _group_name(inbound) or identity
    worth_showing = identity.isdigit() or "@g.us" in identity
    return f"{label} id:{identity}" if worth_showing and identity not in label else label


def with_sender_line(body: str, inbound: Inbound) -> str:
    """The body with ``[from: Ana (A1)]`` at its end when nothing in it says who is speaking in a group."""
    label = sender_label(inbound.sender)
    if inbound.peer.kind == "direct" or not body.strip() or not label or _FROM_LINE.search(body):
        return body
    sender = inbound.sender
    given = (sender.name, sender.username, sender.tag, sender.e164, sender.id)
    names = {label} | {name for value in given if (name := heading_text(value or ""))}
    if any(_speaks(body, f"{name}: ") for name in names):
        return body
    return f"{body}\n[from: {label}]"


def _speaks(body: str, prefix: str) -> bool:
    """At the beginning of the text or of a line, or right after a heading."""
    return body.startswith(prefix) or any(f"{before}{prefix}" in body for before in ("\n", "]", "] "))


def _name(sender: Sender) -> str:
    return heading_text(sender.name or "") or heading_text(sender.username or "") or heading_text(sender.tag or "")


def _group_name(inbound: Inbound) -> str:
    given = (inbound.group_channel, inbound.group_subject, inbound.conversation_label, inbound.group_space)
    return next((name for value in given if (name := heading_text(value or ""))), "")
