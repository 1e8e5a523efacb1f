"""Reading a request's body without letting its sender choose how much memory that takes."""

from __future__ import annotations

from aiohttp import web


class BodyTooLarge(Exception):
    pass


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """The whole body; raises ``BodyTooLarge`` as soon as it is known to exceed ``limit`` bytes."""
    if request.content_length is not None and request.content_length > limit:
        raise BodyTooLarge
    parts: list[bytes] = []
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge
        parts.append(chunk)
    return b"".join(parts)
