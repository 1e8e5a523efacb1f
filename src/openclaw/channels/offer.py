"""Hands a received message to the Gateway until it is on disk, in the same way for all channels."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from openclaw.channels.base import ChannelContext
from openclaw.inbound.message import Inbound
from openclaw.outbound.backoff import Backoff

OFFER_AGAIN = Backoff(initial_s=0.5, max_s=8.0, jitter=0.0)
OFFERS = 5
"""A message that fails for another reason than the disk is given up after this many attempts."""


async def offer(
    context: ChannelContext, inbound: Inbound, hand_in: Callable[[Inbound], Awaitable[bool | None]] | None = None
) -> bool:
    """Returns when the message is on disk, refused or given up. True means that somebody who may write wrote it.

    While the disk fails it tries for ever, so that no message is lost. After any other failure it gives the message up
    after some attempts, because it would keep back all later ones. The platform is told only after this returns.
    ``hand_in`` is ``receive`` of the context (``Pipeline.receive``) unless another of its functions is given.
    """
    log, attempt, hand_in = context.log, 0, hand_in or context.receive
    while True:
        attempt += 1
        try:
            return await hand_in(inbound) is not False
        except OSError as error:
            log.warning("message %s cannot be kept for now (try %d): %s", inbound.message_id, attempt, error)
        except Exception as error:
            if attempt >= OFFERS:
                log.exception("message %s cannot be taken in and is given up", inbound.message_id)
                return False
            log.warning("message %s could not be taken in (try %d): %r", inbound.message_id, attempt, error)
        await context.clock.sleep(OFFER_AGAIN.delay_s(attempt, random.random))
