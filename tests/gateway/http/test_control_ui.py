"""The page as HTTP serves it: its headers, its names, another build in its place, and nothing outside of that build."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import re
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from openclaw.gateway.http import control_ui
from openclaw.gateway.http.control_ui import BUNDLED
from tests.support.gateway import TOKEN, model_config
from tests.support.gateway_in_process import InProcessGateway


@asynccontextmanager
async def page_of(folder: Path, **control_ui: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    config = model_config("http://127.0.0.1:9")
    config["gateway"]["controlUi"] = control_ui
    async with (
        InProcessGateway(folder / "state", config) as running,
        aiohttp.ClientSession(auto_decompress=False) as http,
    ):
        yield http, running.url


async def test_the_page_and_its_files_are_served_to_everybody_and_hold_no_secret(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (http, url):
        async with http.get(f"{url}/") as response:
            assert response.status == 200 and response.headers["Content-Type"] == "text/html; charset=utf-8"
            assert response.headers["Cache-Control"] == "no-cache"
            page = gzip.decompress(await response.read()).decode()
        assert TOKEN not in page
        names = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page)
        assert len(names) == 2 and all(re.search(r"-[0-9a-f]{12}\.(js|css)$", name) for name in names)
        for name in names:
            async with http.get(url + name) as response:
                assert response.status == 200 and "immutable" in response.headers["Cache-Control"]
                body = gzip.decompress(await response.read())
                assert hashlib.sha256(body).hexdigest()[:12] in name


async def test_every_answer_forbids_frames_inline_scripts_and_other_servers(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (http, url):
        for path in ("/", "/sessions", "/favicon.svg"):
            async with http.get(url + path) as response:
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
                assert "script-src 'self';" in policy and "connect-src 'self';" in policy
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["X-Frame-Options"] == "DENY"


async def test_a_known_file_is_not_sent_again_and_packing_is_the_callers_choice(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (http, url):
        async with http.get(f"{url}/") as first:
            tag = first.headers["ETag"]
        async with http.get(f"{url}/", headers={"If-None-Match": tag}) as again:
            assert again.status == 304 and await again.read() == b""
        async with http.get(f"{url}/", headers={"Accept-Encoding": "identity"}) as plain:
            assert "Content-Encoding" not in plain.headers and (await plain.read()).startswith(b"<!doctype html>")
        async with http.head(f"{url}/") as head:
            assert head.status == 200 and head.headers["ETag"] == tag and await head.read() == b""


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/chat", 200),
        ("GET", "/chat?session=agent:main:main", 200),
        ("GET", "/no-such-page", 200),
        ("GET", "/assets/app.js", 404),
        ("GET", "/nothing.png", 404),
        ("GET", "/build.json", 404),
        ("GET", "/assets/../../pyproject.toml", 404),
        ("GET", "/%2e%2e/%2e%2e/__init__.py", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/__openclaw__/nothing", 404),
        ("GET", "/ui", 404),
        ("POST", "/", 405),
        ("DELETE", "/chat", 405),
    ],
)
async def test_paths(tmp_path: Path, verb: str, path: str, status: int) -> None:
    async with page_of(tmp_path) as (http, url), http.request(verb, url + path) as response:
        assert response.status == status


async def test_the_page_lives_below_its_base_path_and_nowhere_when_switched_off(tmp_path: Path) -> None:
    async with page_of(tmp_path / "a", basePath="/claw/") as (http, url):
        async with http.get(f"{url}/claw", allow_redirects=False) as response:
            assert response.status == 302 and response.headers["Location"] == "/claw/"
        async with http.get(f"{url}/claw/chat") as response:
            page = gzip.decompress(await response.read()).decode()
        name = re.findall(r'src="(/claw/assets/[^"]+)"', page)[0]
        assert 'content="/claw"' in page
        for path, status in ((name, 200), ("/", 404), ("/clawed", 404), ("/healthz", 200)):
            async with http.get(url + path) as response:
                assert response.status == status, path
    async with page_of(tmp_path / "b", enabled=False) as (http, url), http.get(f"{url}/") as response:
        assert response.status == 404


@pytest.fixture
def other_build(tmp_path: Path) -> Path:
    build = tmp_path / "build"
    (build / "assets").mkdir(parents=True)
    (build / "index.html").write_text("<html><head><title>Mine</title></head><body>mine</body></html>")
    (build / "assets" / "own.js").write_text("export const mine = 1;")
    secret = tmp_path / "secret.txt"
    secret.write_text("not for pages")
    (build / "link.txt").symlink_to(secret)
    (build / "folder").symlink_to(tmp_path)
    os.link(secret, build / "hard.txt")
    return build


async def test_another_build_is_served_from_its_folder_and_nothing_beside_it(tmp_path: Path, other_build: Path) -> None:
    async with page_of(tmp_path, root=str(other_build), basePath="x") as (http, url):
        async with http.get(f"{url}/x/anything", headers={"Accept-Encoding": "identity"}) as response:
            page, policy = await response.text(), response.headers["Content-Security-Policy"]
        assert "mine" in page and '__OPENCLAW_CONTROL_UI_BASE_PATH__="/x"' in page
        assert re.search(r"script-src 'self' 'sha256-[\w+/]+='", policy)
        async with http.get(f"{url}/x/assets/own.js", headers={"Accept-Encoding": "identity"}) as response:
            assert (await response.text()) == "export const mine = 1;"
        for path in (
            "link.txt",
            "folder/secret.txt",
            "hard.txt",
            "../secret.txt",
            "%2e%2e/secret.txt",
            "assets/app.js",
        ):
            async with http.get(f"{url}/x/{path}") as response:
                assert response.status == 404, path
                assert "not for pages" not in await response.text()


async def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    async with page_of(tmp_path, root=str(tmp_path / "gone")) as (http, url), http.get(f"{url}/") as response:
        assert response.status == 503 and "gateway.controlUi.root is not a folder" in await response.text()


def test_the_page_is_part_of_the_package() -> None:
    assert (BUNDLED / "index.html").is_file() and (BUNDLED / "assets" / "app.js").is_file()


async def test_the_picture_of_an_agent_is_served_from_its_workspace_and_from_nowhere_else(tmp_path: Path) -> None:
    workspace = tmp_path / "state" / "workspace"
    workspace.mkdir(parents=True)
    picture = b"\x89PNG\r\n\x1a\n picture"
    (workspace / "me.png").write_bytes(picture)
    (workspace / "notes.png").write_text("a text of the workspace under the name of a picture")
    (tmp_path / "state" / "secret.png").write_bytes(picture)
    async with page_of(tmp_path, basePath="/lab") as (http, url):

        async def meta() -> Any:
            async with http.get(f"{url}/lab/avatar/main?meta=1") as response:
                assert response.status == 200
                return (await response.json())["avatarUrl"]

        for written, where in (
            ("", None),
            ("🦊", None),
            ("me.png", "/lab/avatar/main"),
            ("missing.png", None),
            ("../secret.png", None),
            ("AGENTS.md", None),
            ("notes.png", None),
            ("https://pictures.example/me.png", "https://pictures.example/me.png"),
        ):
            (workspace / "IDENTITY.md").write_text(f"- Avatar: {written}\n")
            assert await meta() == where, written
            async with http.get(f"{url}/lab/avatar/main") as response:
                assert response.status == (200 if written == "me.png" else 404), written
                if written == "me.png":
                    assert await response.read() == picture
                    assert response.headers["Content-Type"] == "image/png"
            # A hostile page can make its own name resolve to this machine, and then asks without an Origin.
            async with http.get(f"{url}/lab/avatar/main", headers={"Host": "evil.example"}) as response:
                assert response.status == 403, written


async def test_many_slow_readers_of_a_large_picture_share_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks needs no secret. So the memory that an answer takes must not grow with those who do not read it."""
    workspace = tmp_path / "state" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "me.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(12_000_000))
    (workspace / "IDENTITY.md").write_text("- Avatar: me.png\n")
    async with page_of(tmp_path) as (http, url):
        async with http.get(f"{url}/avatar/main") as response:
            assert response.status == 404, "so large a picture is not shown"
        monkeypatch.setattr(control_ui, "MAX_PICTURE_BYTES", 16_000_000)  # The kernel takes a smaller one at once.
        async with http.get(f"{url}/avatar/main") as response:
            assert await response.read() == (workspace / "me.png").read_bytes()
            assert response.content_length == (workspace / "me.png").stat().st_size
        async with http.head(f"{url}/avatar/main") as response:
            assert response.status == 200 and response.content_length == (workspace / "me.png").stat().st_size
        port, slow = URL(url).port, list[socket.socket]()
        tracemalloc.start()
        try:
            for _ in range(20):
                slow.append(socket.socket())
                slow[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow[-1].connect(("127.0.0.1", port or 0))
                slow[-1].sendall(f"GET /avatar/main HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            for one in slow:  # Each answer has begun.
                one.setblocking(False)
                assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(one, 15), 30) == b"HTTP/1.1 200 OK"
            assert tracemalloc.get_traced_memory()[0] < 30_000_000
        finally:
            tracemalloc.stop()
            for one in slow:
                one.close()
