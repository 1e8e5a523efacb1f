"""What a model gave, only that model takes back: signatures, encrypted reasoning, items that belong to reasoning.

The vendors check this with their keys. Here whatever is bound names its model, by ``mark_of`` and ``encrypted``.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from openclaw.models.base import Model
from tests.support.model_rules import check

_OF_REASONING = re.compile(r"_of_(rs_\d+)$")


def mark_of(model: Model, number: int) -> str:
    """The signature of a thought, or the thought itself where the API has no signatures."""
    return f"<{model.provider} {model.api} {model.id}> {number}"


def encrypted(model: Model, number: int) -> str:
    item = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": mark_of(model, number)}
    return msgspec.json.encode(item).decode()


def check_binding(body: dict[str, Any], model: Model) -> None:
    own = mark_of(model, 0).removesuffix("0")
    if model.api == "openai-responses":
        _check_items(body["input"], own)
        return
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        for block in blocks:
            if block["type"] in ("thinking", "redacted_thinking"):
                signature = block.get("signature") or block.get("data")
                check(str(signature).startswith(own), "Invalid `signature` in `thinking` block")
        thought = message.get("reasoning_content")
        check(thought is None or own in thought, "reasoning_content of another model")


def _check_items(items: list[dict[str, Any]], own: str) -> None:
    reasoning: set[str] = set()
    for item in items:
        if item.get("type") == "reasoning":
            check(
                item["encrypted_content"].startswith(own),
                f"The encrypted content of {item['id']} could not be verified.",
            )
            reasoning.add(item["id"])
        elif match := _OF_REASONING.search(item.get("id", "")):
            check(
                match.group(1) in reasoning,
                f"Item '{item['id']}' was provided without its required 'reasoning' item: '{match.group(1)}'.",
            )
