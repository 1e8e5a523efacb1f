"""What the agent is told about the group it is in: the same words at every turn, so that the prompt can be cached."""

from __future__ import annotations

from openclaw.inbound.envelope import channel_name, heading_text
from openclaw.inbound.message import Inbound


def group_intro(inbound: Inbound, *, always_on: bool) -> str:
    """Empty for direct chats."""
    if inbound.peer.kind == "direct":
        return ""
    name = heading_text(inbound.group_subject or inbound.group_channel or "")
    called = f' called "{name}"' if name else ""
    lines = [f"You are in a group chat on {channel_name(inbound.channel)}{called}; several people read what you say."]
    if inbound.group_members:
        lines.append(f"Members: {heading_text(inbound.group_members)}.")
    if always_on:
        lines.append("Activation: always-on (you get every message).")
        lines.append("When there is nothing for you to add, answer with exactly NO_REPLY and nothing else.")
    else:
        lines.append(
            "Activation: trigger-only (you are called when somebody addresses you; earlier messages are context)."
        )
    lines.append("Each message begins with its sender's name; speak to the person who addressed you.")
    return "\n".join(lines)
