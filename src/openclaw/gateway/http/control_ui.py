"""The Control UI: the bundled web page, or another build in ``gateway.controlUi.root``, for everybody who asks.

The files hold no secret. The page signs in on its WebSocket like any other client. ``openclaw dashboard`` signs it in
with a ticket, which stands for the secret once, for two minutes. So the secret is in no address, no list of processes
and no history of a browser.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import mimetypes
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from openclaw.clock import Clock
from openclaw.config.agents import workspace_dir
from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore
from openclaw.gateway.auth.authorise import FailedAuthLimiter, SecretCheck
from openclaw.gateway.auth.origin import PeerAddress, caller_key, host_refusal
from openclaw.gateway.http.common import HttpRoute, RequestRefused, json_response, not_found, read_json
from openclaw.path_opener import FileMissing, PathOpener, PathRefused
from openclaw.paths import normalize_agent_id
from openclaw.pictures import sniff_image

if TYPE_CHECKING:
    from openclaw.gateway.cluster.single import Cluster

BUNDLED = Path(__file__).parents[2] / "web"
INDEX = "index.html"
BASE_MARK = "{{base}}"
"""Stands in the bundled index.html for the base path."""
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_PICTURE_BYTES = 2 * 1024 * 1024
LARGEST_COPIED = 64 * 1024
SMALLEST_COMPRESSED = 512
"""A shorter file is not compressed."""
NOT_PAGES = ("/v1/", "/tools/", "/hooks/", "/__openclaw__/", "/ui/", "/api/")
"""Paths that programs ask for. They get a plain 404 and not the page."""
PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
"""What an agent's avatar may be. A vector graphic can hold scripts."""
FOREVER = "public, max-age=31536000, immutable"
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".map": "application/json",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
    ".wasm": "application/wasm",
}
"""The machine's own table of types may be wrong or missing."""
TICKET_TTL_MS = 120_000
MOST_OPEN = 16
"""Tickets that can be open at once. The oldest gives way."""
MAX_TICKET_BYTES = 1024


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """One file as it is sent."""

    body: bytes
    compressed: bytes | None
    content_type: str
    etag: str
    cache: str = "no-cache"
    script_hashes: tuple[str, ...] = ()
    """The hash of the script that was put into a page of another build. The policy allows this one script."""


def base_path(config: Config) -> str | None:
    """Return the path below which the page is, without a trailing slash, or None if it is switched off."""
    settings = config.gateway.control_ui
    if not settings.enabled:
        return None
    trimmed = settings.base_path.strip().strip("/")
    return f"/{trimmed}" if trimmed else ""


class ControlUiPage:
    """Serves the page with the avatars of the agents, and signs browsers in."""

    def __init__(
        self,
        config: ConfigStore,
        state_dir: Path,
        tickets: SignInTickets,
        limiter: FailedAuthLimiter,
        cluster: Cluster,
        avatar_of: Callable[[str], Awaitable[str]],
    ) -> None:
        """``avatar_of`` returns the avatar of an agent: a file of its workspace, or an address."""
        self._config = config
        self._state_dir = state_dir
        self._tickets = tickets
        self._limiter = limiter
        self._cluster = cluster
        self._avatar_of = avatar_of

    def routes(self) -> list[HttpRoute]:
        """The page comes last, because it answers every path that no other route does."""
        return [
            HttpRoute("POST", "/__openclaw__/sign-in", self.redeem, "own"),
            HttpRoute("*", base_path, self.serve_page, "open"),
        ]

    async def serve_page(self, request: web.BaseRequest, peer: PeerAddress) -> web.StreamResponse:
        config = self._config.current
        base = base_path(config) or ""
        path = request.path[len(base) :]
        if not path and base:
            return web.Response(status=302, headers={"Location": f"{base}/"})
        if f"{path}/".startswith(NOT_PAGES):
            return not_found(request.path)
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="Method Not Allowed", headers={"Allow": "GET, HEAD"})
        if path.startswith("/avatar/"):
            # Unlike the page, the picture is the owner's. A page that made its own name ours (DNS rebinding) gets none.
            if refused := host_refusal(peer, config.gateway.control_ui.allowed_origins):
                return web.Response(status=403, text=refused)
            return await self.serve_avatar(request, normalize_agent_id(path.removeprefix("/avatar/")))
        root = config.gateway.control_ui.root
        try:
            asset = await asyncio.to_thread(
                lambda: external_asset(root, path, base) if root else bundled_asset(path, base)
            )
        except (PathRefused, OSError) as problem:
            return web.Response(status=503, text=f"The Control UI cannot be served: {problem}")
        return not_found(request.path) if asset is None else await answer(request, asset)

    async def serve_avatar(self, request: web.BaseRequest, agent_id: str) -> web.StreamResponse:
        """Send the picture of an agent if it is a file of its workspace, or with ``?meta=1`` its address or null."""
        config = self._config.current
        avatar = await self._avatar_of(agent_id)
        workspace = workspace_dir(config, self._state_dir, agent_id)

        def read() -> Asset | None:
            if Path(avatar).suffix.lower() not in PICTURES:
                return None
            try:
                body = _read(PathOpener(workspace, confine=True), workspace / avatar, MAX_PICTURE_BYTES)
            except (PathRefused, OSError):
                return None
            # Nobody needs a secret for this. So a file that only has the name of a picture is not shown.
            return _picture(avatar, body) if sniff_image(body) else None

        picture = await asyncio.to_thread(read)
        if request.query.get("meta") != "1":
            return not_found(request.path) if picture is None else await answer(request, picture)
        address = avatar if avatar.startswith(("https://", "http://", "data:image/")) else None
        if picture is not None:
            address = f"{base_path(config) or ''}/avatar/{agent_id}"
        return json_response({"avatarUrl": address})

    async def redeem(self, request: web.BaseRequest, peer: PeerAddress) -> web.StreamResponse:
        """Give the web page the secret behind a ticket. Wrong tickets are slowed down like wrong secrets."""
        try:
            ticket = (await read_json(request, MAX_TICKET_BYTES, SignInBody)).ticket
        except RequestRefused:
            ticket = ""
        secret, remote = "", ""
        if ticket and not self._tickets.knows(ticket):
            # A balancer may lead the page to another node than the one that issued the ticket.
            remote = await self._cluster.redeem_ticket(ticket)

        def redeem() -> SecretCheck:
            nonlocal secret
            secret = self._tickets.redeem(ticket) or remote
            return SecretCheck(bool(secret), "" if secret else "mismatch" if ticket else "missing")

        check = self._limiter.guard(caller_key(peer), redeem)
        if not check.ok:
            message = "this sign-in was used already or is too old; run `openclaw dashboard` again"
            status = 429 if check.reason == "limited" else 401
            return RequestRefused(message, status=status, kind="unauthorized").response()
        return json_response({"secret": secret}, headers={"Cache-Control": "no-store"})


async def answer(request: web.BaseRequest, asset: Asset) -> web.StreamResponse:
    headers = {
        "Content-Security-Policy": policy(asset.script_hashes),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": asset.cache,
        "ETag": asset.etag,
        "Vary": "Accept-Encoding",
        "Content-Type": asset.content_type,
    }
    cached_tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")]
    if asset.etag in cached_tags:
        return web.Response(status=304, headers=headers)
    body = asset.body
    if asset.compressed is not None and "gzip" in request.headers.get("Accept-Encoding", "").lower():
        headers["Content-Encoding"], body = "gzip", asset.compressed
    if len(body) <= LARGEST_COPIED or request.method == "HEAD":
        # The server leaves the body of an answer to HEAD out and keeps its length.
        return web.Response(body=body, headers=headers)
    # A body that is given whole is copied for each reader, and many strangers may read slowly.
    response = web.StreamResponse(headers=headers)
    response.content_length = len(body)
    await response.prepare(request)
    for start in range(0, len(body), LARGEST_COPIED):
        await response.write(memoryview(body)[start : start + LARGEST_COPIED])
    return response


def policy(script_hashes: Sequence[str] = ()) -> str:
    """The content security policy. Another build than ours may style its elements with attributes."""
    script = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in script_hashes)])
    style = "'self' 'unsafe-inline'" if script_hashes else "'self'"
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src 'self' data: blob:; font-src 'self'; "
        "media-src 'self' data: blob:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def is_file_path(path: str) -> bool:
    """Return whether the path names a file and not a view. Session keys are in the query, so a dot decides."""
    return "." in path.rpartition("/")[2]


def page_names() -> set[str]:
    """First parts of the paths that are files of the page or are kept from it."""
    return {*(file.name for file in BUNDLED.iterdir()), *(path.strip("/") for path in NOT_PAGES)}


# The bundled page


def bundled_asset(path: str, base: str) -> Asset | None:
    return bundled_assets().get(path.lstrip("/")) if is_file_path(path) else page_under(base)


@lru_cache(maxsize=1)
def bundled_assets() -> dict[str, Asset]:
    """Every file of the package's ``web`` folder, by the path it is served under.

    The name of a file in ``assets/`` gets the hash of its content, so that a browser never asks for it twice.
    Files in ``chunks/`` have such names already.
    """
    assets: dict[str, Asset] = {}
    for file in sorted(BUNDLED.rglob("*")):
        name = file.relative_to(BUNDLED).as_posix()
        if file.is_file() and name not in (INDEX, "build.json"):
            body = file.read_bytes()
            hashed = name.startswith("assets/")
            # The build has put a hash into the names in chunks/, because files of the page refer to them.
            asset = asset_of(name, body, cache=FOREVER if hashed or name.startswith("chunks/") else "no-cache")
            assets[hashed_name(name, body) if hashed else name] = asset
    return assets


@lru_cache(maxsize=4)
def page_under(base: str) -> Asset:
    """The page with the present names of its files."""
    text = (BUNDLED / INDEX).read_text("utf-8")
    for name in bundled_assets():
        if name.startswith("assets/"):
            stem, _, rest = name.rpartition("-")
            text = text.replace(f"{stem}.{rest.partition('.')[2]}", name)
    return asset_of(INDEX, text.replace(BASE_MARK, base).encode())


def hashed_name(name: str, body: bytes) -> str:
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{hashlib.sha256(body).hexdigest()[:12]}.{suffix}"


def asset_of(name: str, body: bytes, *, cache: str = "no-cache", script_hashes: tuple[str, ...] = ()) -> Asset:
    suffix = f".{name.rpartition('.')[2].lower()}"
    kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    texts = kind.startswith("text/") or kind.endswith(("json", "javascript", "xml"))
    compressed = gzip.compress(body, 9, mtime=0) if texts and len(body) >= SMALLEST_COMPRESSED else None
    return Asset(
        body=body,
        compressed=compressed if compressed is not None and len(compressed) < len(body) else None,
        content_type=f"{kind}; charset=utf-8" if texts else kind,
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        cache=cache,
        script_hashes=script_hashes,
    )


@lru_cache(maxsize=8)
def _picture(name: str, body: bytes) -> Asset:
    """The picture of an agent. All who read the same one at a time share its bytes."""
    return asset_of(name, body)


# Another build

CONFIG_FILE = "/control-ui-config.json"
MOST_SCRIPTS = 20
_SCRIPT = re.compile(r"<script([^>]{0,500})>(.*?)</script>", re.DOTALL)


def external_asset(root: str, path: str, base: str) -> Asset | None:
    """Read a file of another build. Paths out of its folder and links are refused as if there were no such file."""
    folder = Path(root).expanduser().absolute()
    if not folder.is_dir():
        raise PathRefused(f"gateway.controlUi.root is not a folder: {root}")
    opener = PathOpener(folder, confine=True, links=False)
    if path == CONFIG_FILE:
        # Newer builds read their base path from here.
        fields = {"basePath": base, "assistantName": "OpenClaw", "assistantAvatar": ""}
        return asset_of(path, msgspec.json.encode(fields))
    if is_file_path(path) and path != f"/{INDEX}":
        try:
            return asset_of(path, _read(opener, folder / path.lstrip("/")))
        except PathRefused:
            return None
    try:
        text = _read(opener, folder / INDEX).decode("utf-8", "replace")
    except FileMissing:
        raise PathRefused(f"gateway.controlUi.root has no {INDEX}: {root}") from None
    script = f"window.__OPENCLAW_CONTROL_UI_BASE_PATH__={msgspec.json.encode(base).decode()};"
    script = script.replace("<", "\\u003c")
    head, tag, rest = text.partition("</head>")
    page = f"{head}<script>{script}</script>{tag}{rest}" if tag else f"<script>{script}</script>{text}"
    # The scripts that the build has in its own index are as trusted as its files.
    scripts = [text for attributes, text in _SCRIPT.findall(page) if "src=" not in attributes][:MOST_SCRIPTS]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return asset_of(INDEX, page.encode(), script_hashes=tuple(digests))


def _read(opener: PathOpener, path: Path, most: int = MAX_FILE_BYTES) -> bytes:
    with opener.open_read(str(path)) as file:
        body = file.read(most + 1)
    if len(body) > most:
        raise PathRefused(f"{path.name} is larger than {most} bytes")
    return body


# Sign-in


class SignInTickets:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, tuple[str, int]] = {}

    def issue(self, secret: str) -> str:
        ticket = secrets.token_urlsafe(24)
        while len(self._open) >= MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[ticket] = (secret, self._clock.now_ms() + TICKET_TTL_MS)
        return ticket

    def knows(self, ticket: str) -> bool:
        return ticket in self._open

    def redeem(self, ticket: str) -> str | None:
        """Return the secret behind a ticket and invalidate the ticket, or None if it is unknown or expired."""
        secret, until = self._open.pop(ticket, ("", 0))
        return secret if self._clock.now_ms() < until else None


class SignInBody(msgspec.Struct):
    ticket: str
