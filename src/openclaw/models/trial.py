"""Tries a key with one short message, to find out whether it works."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec

from openclaw.clock import Clock
from openclaw.messages import UserMessage
from openclaw.models.base import Done, ErrorKind, Model, ModelError, ModelRequest, Provider

TIMEOUT_S = 60.0
MOST_TOKENS = 256
"""Enough for models that think before they speak. The answer itself is one sentence."""
QUESTION = "Say hello in one short sentence."


class Trial(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How one try went."""

    ok: bool
    said: str = ""
    """What the model answered."""
    error: str = ""
    kind: ErrorKind = "other"
    duration_ms: int = 0


async def try_key(provider: Provider, model: Model, key: str, clock: Clock, *, timeout_s: float = TIMEOUT_S) -> Trial:
    """Sends the model one real message with this key. Never raises for a call that fails."""
    request = ModelRequest(
        model=model,
        system="You are a helpful assistant.",
        messages=[UserMessage(content=QUESTION, timestamp=clock.now_ms())],
        max_tokens=min(MOST_TOKENS, model.max_tokens),
    )
    began = clock.now_ms()
    try:
        async with asyncio.timeout(timeout_s), aclosing(provider.stream(request, key)) as events:
            async for event in events:
                if isinstance(event, Done):
                    said = event.message.text.strip()
                    return Trial(ok=True, said=said, duration_ms=clock.now_ms() - began)
        failed = Trial(ok=False, error="The stream ended without an answer.", kind="network")
    except ModelError as error:
        failed = Trial(ok=False, error=str(error), kind=error.kind)
    except TimeoutError:
        failed = Trial(ok=False, error=f"There was no answer within {timeout_s:.0f} seconds.", kind="timeout")
    return msgspec.structs.replace(failed, duration_ms=clock.now_ms() - began)
