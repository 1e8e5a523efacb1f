"""The files of a reply: read from the workspace alone, fetched from public addresses alone, or explained."""

from __future__ import annotations

import functools
import io
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from PIL import Image

from openclaw import public_fetch
from openclaw.config.load import parse_config
from openclaw.outbound import reply_files as module
from openclaw.outbound.reply_files import MOST_FILES, Files, SizeLimit, reply_files, size_limit
from openclaw.path_opener import PathOpener

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20


class Blobs:
    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    async def put(self, data: bytes) -> str:
        self.stored[f"blob-{len(self.stored)}"] = data
        return f"blob-{len(self.stored) - 1}"

    async def get(self, digest: str) -> bytes | None:
        return self.stored.get(digest)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "a.png").write_bytes(PNG)
    (folder / "lies.jpg").write_bytes(b"only words")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "large.bin").write_bytes(b"x" * 600_000)
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    os.link(tmp_path / "secret.txt", folder / "hard.txt")
    return folder


async def named(workspace: Path | None, *addresses: str, limit_mb: float = 0.5) -> tuple[Files, Blobs]:
    blobs, opener = Blobs(), PathOpener(workspace, confine=True) if workspace else None
    limit = SizeLimit(limit_mb, "channels.signal.mediaMaxMb", limit_mb)
    return await reply_files(addresses, blobs, opener, limit), blobs


async def test_a_file_is_stored_under_its_name_with_the_type_of_its_content(workspace: Path) -> None:
    files, blobs = await named(workspace, "./out/a.png", "./lies.jpg", "./out/a.png")
    assert [(one.file_name, one.mime_type, one.url) for one in files.media] == [
        ("a.png", "image/png", None),
        ("lies.jpg", "application/octet-stream", None),
    ]
    assert [blobs.stored[one.blob] for one in files.media] == [PNG, b"only words"]
    assert files.notes == ()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("./gone.png", "there is no such file"),
        ("./out", "it is not a file of the workspace that may be read"),
        ("./link.txt", "it is not a file of the workspace that may be read"),
        ("./hard.txt", "it is not a file of the workspace that may be read"),
        ("./empty.txt", "it is empty"),
        ("./large.bin", "it is larger than 0.5 MB (channels.signal.mediaMaxMb)"),
        ("http://127.0.0.1:1/x.png", "127.0.0.1 is not a public address"),
        ("http://[::1]/x.png", "::1 is not a public address"),
    ],
)
async def test_what_cannot_be_sent_is_explained_without_paths(workspace: Path, address: str, why: str) -> None:
    files, blobs = await named(workspace, address)
    (note,) = files.notes
    assert note == f"The file {address.rpartition('/')[2]} was not sent: {why}."
    assert not files.media and not blobs.stored and str(workspace) not in note


async def test_a_session_that_may_not_read_files_sends_none(workspace: Path) -> None:
    files, _ = await named(None, "./out/a.png")
    assert files.notes == ("The file a.png was not sent: this conversation may not read files.",)


async def test_too_many_files_are_counted(workspace: Path) -> None:
    for number in range(MOST_FILES + 2):
        (workspace / f"{number}.txt").write_text("x")
    files, _ = await named(workspace, *(f"./{number}.txt" for number in range(MOST_FILES + 2)))
    assert len(files.media) == MOST_FILES
    assert files.notes == (f"2 more files were not sent: at most {MOST_FILES} go with one answer.",)


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    async def picture(request: web.Request) -> web.Response:
        return web.Response(body=PNG, content_type="text/html")

    async def away(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://10.0.0.1/inside.png")

    app = web.Application()
    app.router.add_get("/pics/{name}", picture)
    app.router.add_get("/away.png", away)
    runner = web.AppRunner(app)
    await runner.setup()
    place = web.TCPSite(runner, "127.0.0.1", 0)
    await place.start()
    loopback = functools.partial(public_fetch.fetch_page, public=lambda address: address == "127.0.0.1")
    monkeypatch.setattr(module, "fetch_page", loopback)
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_file_on_the_web_is_fetched_and_keeps_its_address(workspace: Path, site: str) -> None:
    files, blobs = await named(workspace, f"{site}/pics/one%20two.png")
    (one,) = files.media
    assert (one.file_name, one.mime_type, one.url) == ("one two.png", "image/png", f"{site}/pics/one%20two.png")
    assert blobs.stored[one.blob] == PNG


async def test_a_redirect_into_a_private_network_is_refused(workspace: Path, site: str) -> None:
    files, _ = await named(workspace, f"{site}/away.png")
    assert files.notes == ("The file away.png was not sent: 10.0.0.1 is not a public address.",)


@pytest.mark.parametrize(("name", "kind"), [("photo.png", "PNG"), ("photo.jpg", "JPEG")])
async def test_a_picture_larger_than_the_limit_is_sent_smaller(workspace: Path, name: str, kind: str) -> None:
    image = Image.frombytes("RGB", (1200, 900), random.Random(1).randbytes(1200 * 900 * 3))
    image.save(workspace / name, kind)
    assert (workspace / name).stat().st_size > 512 * 1024
    files, blobs = await named(workspace, f"./{name}")
    (one,) = files.media
    assert (files.notes, one.file_name, one.mime_type) == ((), "photo.jpg", "image/jpeg")
    with Image.open(io.BytesIO(blobs.stored[one.blob])) as made:
        assert made.format == "JPEG" and made.width / made.height == pytest.approx(4 / 3, abs=0.02)
    assert len(blobs.stored[one.blob]) <= 512 * 1024


async def test_what_only_claims_to_be_a_picture_is_explained(workspace: Path) -> None:
    (workspace / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0" + b"x" * 600_000)
    (workspace / "long.gif").write_bytes(b"GIF89a" + b"x" * 600_000)
    files, _ = await named(workspace, "./bad.jpg", "./long.gif")
    assert files.media == ()
    assert [note.partition(": ")[2] for note in files.notes] == [
        "it is larger than 0.5 MB (channels.signal.mediaMaxMb)."
    ] * 2


def test_pictures_have_the_limit_up_to_which_the_platform_shows_them() -> None:
    text = '{"channels": {"whatsapp": {"mediaMaxMb": 50}, "signal": {}, "telegram": {"mediaMaxMb": 4}}}'
    config = parse_config("openclaw.json", text, {}).config
    assert config is not None
    limits = [size_limit(config, name, None) for name in ("whatsapp", "signal", "telegram")]
    assert [(one.mb, one.picture_mb) for one in limits] == [(50, 5), (8, 8), (4, 4)]
