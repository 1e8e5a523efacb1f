"""What single generations of Claude refuse, as their migration guides list it; not derived from the product."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from tests.support.model_rules import Refused, check

BINDING_BETA = "thinking-binding-controls-2026-08-01"
BOUND = "bound."
"""Begins the signatures of thinking that is tied to its conversation."""
_FORTY_SIX = ("claude-opus-4-6", "claude-sonnet-4-6")
_FORTY_SEVEN_ON = ("claude-opus-4-7", "claude-opus-4-8")
_FIVE = ("claude-opus-5", "claude-sonnet-5", "claude-fable-5", "claude-mythos-5")
_LATEST = (
    "claude-fable-5-1", "claude-fable-5-2", "claude-mythos-5-1", "claude-mythos-5-2", "claude-opus-5-5",
    "claude-sonnet-5-5", "claude-haiku-5-5",
)  # fmt: skip
_ADAPTIVE_ONLY = {*_FORTY_SEVEN_ON, *_FIVE, *_LATEST}
_CANNOT_DISABLE = {"claude-fable-5", "claude-mythos-5", *_LATEST} - {"claude-haiku-5-5"}
_CANNOT_FORCE = {*_LATEST} - {"claude-haiku-5-5"}


def is_bound(model: str) -> bool:
    return model in _LATEST


def check_generation(body: dict[str, Any], *, version: str, betas: str) -> None:
    model = body["model"]
    sampling = [name for name in ("temperature", "top_p", "top_k") if name in body]
    removed = version == "2026-10-21" or model in _ADAPTIVE_ONLY
    check(not (removed and sampling), f"{'/'.join(sampling)}: Extra inputs are not permitted")
    thinking = body.get("thinking") or {}
    kind = thinking.get("type")
    if model in _ADAPTIVE_ONLY:
        check(kind != "enabled", '"thinking.type.enabled" is not supported for this model.')
    if model in _CANNOT_DISABLE:
        check(kind != "disabled", '"thinking.type.disabled" is not supported for this model.')
    check(kind != "between_tools" or model == "claude-sonnet-5-5", '"thinking.type.between_tools" is not supported')
    effort = body.get("output_config", {}).get("effort")
    check(not (kind == "disabled" and effort in ("xhigh", "max")), "thinking cannot be disabled at this effort")
    forced = body.get("tool_choice", {}).get("type") in ("any", "tool")
    check(not (forced and model in _CANNOT_FORCE), "tool_choice: forced tool use is not supported for this model")
    modern = model in _FORTY_SIX or model in _ADAPTIVE_ONLY
    prefilled = body["messages"][-1]["role"] == "assistant"
    check(not (modern and prefilled), "This model does not support assistant message prefill.")
    if "block_binding" in thinking:
        check(BINDING_BETA in betas, "thinking.block_binding: Extra inputs are not permitted")
        check(kind in ("enabled", "adaptive"), "thinking.block_binding: Extra inputs are not permitted")


def signature_for(body: dict[str, Any]) -> str:
    """The signature of thinking produced by this request."""
    return BOUND + _digest(body, len(body["messages"]))


def count_unbound(body: dict[str, Any]) -> int:
    """Thinking blocks sent back behind another conversation than their own: refused, or dropped where allowed."""
    unbound = 0
    for index, message in enumerate(body["messages"]):
        if message["role"] != "assistant" or isinstance(message["content"], str):
            continue
        for block in message["content"]:
            signature = str(block.get("signature", ""))
            if signature.startswith(BOUND) and signature != BOUND + _digest(body, index):
                unbound += 1
    binding = (body.get("thinking") or {}).get("block_binding", {})
    if unbound and binding.get("prefix_mismatch_behavior") != "drop_block":
        raise Refused("Invalid `signature` in `thinking` block. The block is bound to a different conversation.")
    return unbound


def _digest(body: dict[str, Any], count: int) -> str:
    prefix = [body.get("system"), body.get("tools"), body["messages"][:count]]
    return hashlib.sha256(msgspec.json.encode(_unmarked(prefix))).hexdigest()[:32]


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value
