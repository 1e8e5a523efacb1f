"""A conversation made small enough for a small model: plain turns, no special tokens, oldest dropped first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openclaw.messages import AssistantMessage, ImageBlock, Message, TextBlock, ToolResultMessage, UserMessage
from openclaw.models.base import ModelRequest

TURN_OVERHEAD = 16
"""Characters we count for a turn's own markers."""
CUT_MARK = "\n[…]\n"


class Turn(msgspec.Struct, frozen=True):
    role: str
    content: str

    @property
    def size(self) -> int:
        return len(self.content) + TURN_OVERHEAD


def turns_of(request: ModelRequest) -> tuple[str, list[Turn]]:
    """The system text and the turns, neighbours of one role joined (tool results count as the user's)."""
    turns: list[Turn] = []
    for message in request.messages:
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        text = _harmless(_plain_text(message)).strip()
        if not text:
            continue
        if turns and turns[-1].role == role:
            turns[-1] = Turn(role, turns[-1].content + "\n\n" + text)
        else:
            turns.append(Turn(role, text))
    system = "\n\n".join(part for part in (request.system, request.system_suffix) if part)
    return _harmless(system), turns


def fit(system: str, turns: Sequence[Turn], budget: int) -> list[dict[str, str]]:
    """Chat messages of at most about ``budget`` characters, always with the last turn.

    The cut moves in steps of half the budget, not with every turn: the kept beginning stays the same for many turns,
    so the model need not read it again.
    """
    system = shorten(system, budget // 2)
    room = max(budget - len(system) - TURN_OVERHEAD, 1)
    kept = _drop_oldest(turns, room)
    if kept and kept[-1].size > room:
        kept = [Turn(kept[-1].role, shorten(kept[-1].content, max(room - TURN_OVERHEAD, 1)))]
    head = [{"role": "system", "content": system}] if system else []
    return head + [{"role": turn.role, "content": turn.content} for turn in kept]


def shorten(text: str, limit: int) -> str:
    """The beginning and the end of a text too long: the question usually stands in one of them."""
    if len(text) <= limit:
        return text
    if limit <= 2 * len(CUT_MARK):
        return text[:limit]
    half = (limit - len(CUT_MARK)) // 2
    return text[:half] + CUT_MARK + text[-half:]


def _drop_oldest(turns: Sequence[Turn], room: int) -> list[Turn]:
    excess = sum(turn.size for turn in turns) - room
    if excess <= 0:
        return list(turns)
    step = max(room // 2, 1)
    to_drop = -(-excess // step) * step
    start, dropped = 0, 0
    while start < len(turns) - 1 and dropped < to_drop:
        dropped += turns[start].size
        start += 1
    if turns[start].role == "assistant" and start < len(turns) - 1:
        start += 1
    return list(turns[start:])


def _plain_text(message: Message) -> str:
    match message:
        case UserMessage():
            blocks = message.content
            return blocks if isinstance(blocks, str) else "\n".join(_block_text(block) for block in blocks)
        case AssistantMessage():
            return message.text
        case ToolResultMessage():
            return f"[{message.tool_name} returned]\n" + "\n".join(_block_text(block) for block in message.content)


def _block_text(block: TextBlock | ImageBlock) -> str:
    return block.text if isinstance(block, TextBlock) else "[a picture]"


def _harmless(text: str) -> str:
    """Chat markers inside a text would otherwise be read as real turns."""
    return text.replace("<|", "< |").encode("utf-8", "replace").decode()
