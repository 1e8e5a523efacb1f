"""What every HTTP endpoint does first: check the page, the host and the secret, and read the body."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from openclaw.gateway.auth.origin import PeerAddress, host_refusal, origin_refusal
from openclaw.gateway.auth.shared_auth import check

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway


class HttpRefusal(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    message: str
    retry_after_ms: int | None = None


def page_refusal(gateway: Gateway, peer: PeerAddress) -> HttpRefusal | None:
    """Refuses names that are not ours (DNS rebinding) and pages of other origins."""
    allowed = gateway.runtime.config.current.gateway.control_ui.allowed_origins
    if refused := host_refusal(peer, allowed):
        return HttpRefusal(status=403, message=refused)
    if peer.origin is not None and (refused := origin_refusal(peer, allowed)):
        return HttpRefusal(status=403, message=f"{refused}: this endpoint serves no pages of other sites")
    return None


def bearer_refusal(gateway: Gateway, request: web.BaseRequest, peer: PeerAddress) -> HttpRefusal | None:
    """Checks ``Authorization: Bearer``, counting wrong ones against the caller's address."""
    wait_ms = gateway.auth_limiter.wait_ms(peer.ip)
    limited = HttpRefusal(status=429, message="too many failed attempts; try again later", retry_after_ms=wait_ms)
    if wait_ms and not peer.is_local:
        return limited
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    secret = gateway.secret()
    bearer = bearer.strip() if scheme.lower() == "bearer" else ""
    verdict = check(secret, bearer, bearer)
    if verdict.ok:
        return None
    if verdict.reason == "mismatch":
        gateway.auth_limiter.failed(peer.ip)
        if wait_ms:
            return limited
    texts = {
        "missing": f"send the gateway {secret.mode} as 'Authorization: Bearer …'",
        "mismatch": f"the gateway {secret.mode} is wrong",
        "unset": f"no gateway {secret.mode} is configured; set gateway.auth.{secret.mode}",
    }
    return HttpRefusal(status=401, message=f"unauthorized: {texts[verdict.reason]}")


class BodyTooLarge(Exception):
    """The body of a request exceeds the endpoint's limit."""


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
