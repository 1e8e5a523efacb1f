"""What the channels share that are called by their platform."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openclaw.channels.submit import MAX_RECEIPTS, ReadReceipts
from openclaw.clock import SystemClock


class NoWait(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0)


async def test_of_messages_that_come_together_or_during_a_call_only_the_newest_is_marked_as_read() -> None:
    marked: list[tuple[str, str]] = []
    go_on = asyncio.Event()

    async def mark(conversation: str, message_id: str) -> None:
        marked.append((conversation, message_id))
        await go_on.wait()

    receipts = ReadReceipts(mark, NoWait())
    receipts.add("ann", "0")
    receipts.add("ann", "1")
    await until(lambda: len(marked) == 1)
    for message_id in ("2", "3", "4"):
        receipts.add("ann", message_id)
    receipts.add("bob", "5")
    await until(lambda: len(marked) == 2)
    assert marked == [("ann", "1"), ("bob", "5")], "other conversations do not wait"
    go_on.set()
    await until(lambda: len(marked) == 3)
    receipts.add("ann", "6")
    await until(lambda: len(marked) == 4)
    assert marked[2:] == [("ann", "4"), ("ann", "6")]
    await receipts.close()


async def test_receipts_are_bounded_and_end_with_their_channel() -> None:
    marked: list[str] = []

    async def mark(conversation: str, message_id: str) -> None:
        marked.append(message_id)
        await asyncio.Event().wait()

    receipts = ReadReceipts(mark, NoWait())
    for number in range(MAX_RECEIPTS + 5):
        receipts.add(f"chat {number}", str(number))
    await until(lambda: len(marked) >= MAX_RECEIPTS)
    assert len(marked) == MAX_RECEIPTS
    await receipts.close()
    receipts.add("chat 1", "again")
    await until(lambda: marked[-1] == "again")
    await receipts.close()
