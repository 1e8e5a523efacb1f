"""``python -m bench.nio_alone HOMESERVER USER TOKEN``: follows an account with matrix-nio alone, and marks as read."""

from __future__ import annotations

import asyncio
import sys

from nio import AsyncClient, SyncResponse


async def main(homeserver: str, user: str, token: str) -> None:
    client = AsyncClient(homeserver, user)
    client.user_id, client.access_token = user, token
    await client.sync(timeout=0)
    print("following", flush=True)
    while True:
        answer = await client.sync(timeout=30_000)
        assert isinstance(answer, SyncResponse), answer
        for room, news in answer.rooms.join.items():
            for event in news.timeline.events:
                await client.update_receipt_marker(room, event.event_id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
