"""Fetching a model's file: from a server on loopback that serves well, cuts, lies and sends the wrong bytes."""

from __future__ import annotations

import hashlib
import random
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from openclaw.models.local import install
from openclaw.models.local.install import (
    DOWNLOADS,
    HUB_VARIABLE,
    Download,
    InstallError,
    find_download,
    fitting,
    install_download,
    installed_models,
    remove_download,
)

CONTENT = random.Random(7).randbytes(300_000)
WANTED = Download(
    id="tiny",
    name="Tiny",
    about="",
    repository="Test/Tiny-GGUF",
    revision="abc",
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    memory=1,
)


class Hub(ThreadingHTTPServer):
    """Serves one file. ``plan`` has a word per request that says what goes wrong; then all goes well."""

    def __init__(self, *plan: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.plan = list(plan)
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.server.asked.append((self.path, asked))
        fault = self.server.plan.pop(0) if self.server.plan else ""
        if fault.isdigit():
            self.send_response(int(fault))
            self.end_headers()
            return
        if fault.startswith("redirect"):
            self.send_response(302)
            self.send_header("Location", fault.partition(" ")[2])
            self.end_headers()
            return
        content = CONTENT
        if fault == "wrong bytes":
            content = bytes(len(CONTENT))
        if fault == "longer":
            content = CONTENT + b"and more"
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and fault != "no range" else 0
        part = content[start:]
        said = len(part)
        if fault == "says less":
            said -= 1000
        if fault == "says more":
            said += 1000
        self.send_response(206 if start else 200)
        if start:
            shown = 5 if fault == "other part" else start
            self.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
        if fault != "no length":
            self.send_header("Content-Length", str(said))
        self.end_headers()
        self.wfile.write(part[:100_000] if fault == "cut" else part)


@contextmanager
def hub(*plan: str) -> Iterator[Hub]:
    server = Hub(*plan)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "ensure_runtime", lambda tell: None)


def fetch(server: Hub, state: Path, steps: list[tuple[str, int | None]] | None = None) -> str:
    def tell(label: str, done: int | None, _total: int | None) -> None:
        if steps is not None:
            steps.append((label, done))

    environ = {HUB_VARIABLE: server.url}
    return install_download(WANTED, tell, state_dir=str(state), environ=environ, sleep=lambda _: None)


def test_a_model_is_fetched_checked_and_private(tmp_path: Path) -> None:
    steps: list[tuple[str, int | None]] = []
    with hub() as server:
        path = Path(fetch(server, tmp_path, steps))
        assert path.read_bytes() == CONTENT and stat.S_IMODE(path.stat().st_mode) == 0o600
        assert server.asked == [("/Test/Tiny-GGUF/resolve/abc/tiny.gguf", "")]
        assert [done for label, done in steps if label == "Downloading Tiny"][-1] == len(CONTENT)
        assert steps[-1] == ("Tiny is ready", len(CONTENT))
        fetch(server, tmp_path)
        assert len(server.asked) == 1, "what is there is only checked"
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".install.lock", "tiny.gguf"]


@pytest.mark.parametrize("fault", ["cut", "says more", "503", "429", "no length", "says less"])
def test_a_download_that_breaks_off_goes_on_where_it_stopped(tmp_path: Path, fault: str) -> None:
    with hub(fault, fault) as server:
        if fault in ("says more", "says less"):
            # The size is wrong from the beginning, so nothing is written.
            with pytest.raises(InstallError, match="has a file of"):
                fetch(server, tmp_path)
            assert not list((tmp_path / "models").glob("tiny*"))
            return
        assert Path(fetch(server, tmp_path)).read_bytes() == CONTENT
        if fault == "cut":
            assert [asked for _, asked in server.asked] == ["", "bytes=100000-", "bytes=200000-"]


def test_a_part_that_an_earlier_command_left_is_used(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.gguf.part").write_bytes(CONTENT[:250_000])
    with hub() as server:
        assert Path(fetch(server, tmp_path)).read_bytes() == CONTENT
        assert server.asked[0][1] == "bytes=250000-"


def test_a_server_that_knows_no_ranges_begins_anew(tmp_path: Path) -> None:
    with hub("cut", "no range") as server:
        assert Path(fetch(server, tmp_path)).read_bytes() == CONTENT


def test_a_server_that_sends_another_part_is_asked_again(tmp_path: Path) -> None:
    with hub("cut", "other part") as server:
        assert Path(fetch(server, tmp_path)).read_bytes() == CONTENT


def test_a_server_that_never_sends_a_byte_is_given_up_and_the_part_is_kept(tmp_path: Path) -> None:
    with hub("cut", *["503"] * 20) as server:
        with pytest.raises(InstallError, match="run the command again to resume"):
            fetch(server, tmp_path)
        assert len(server.asked) == 1 + install.TRIES
    assert (tmp_path / "models" / "tiny.gguf.part").stat().st_size == 100_000


def test_wrong_bytes_are_thrown_away(tmp_path: Path) -> None:
    with hub("wrong bytes") as server:
        with pytest.raises(InstallError, match="checksum differs"):
            fetch(server, tmp_path)
        assert not list((tmp_path / "models").glob("tiny*"))
        assert Path(fetch(server, tmp_path)).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("longer", "has a file of 300008 bytes"),
        ("404", "does not give Tiny .HTTP 404."),
        ("401", "HTTP 401"),
        ("redirect http://models.example/tiny", "HTTPS only"),
        ("redirect file:///etc/passwd", "HTTPS only|does not give"),
    ],
)
def test_what_cannot_help_ends_at_once(tmp_path: Path, fault: str, says: str) -> None:
    with hub(fault) as server:
        with pytest.raises(InstallError, match=says):
            fetch(server, tmp_path)
        assert len(server.asked) == 1


def test_a_mirror_without_encryption_is_refused(tmp_path: Path) -> None:
    environ = {HUB_VARIABLE: "http://mirror.example"}
    with pytest.raises(InstallError, match="HTTPS only"):
        install_download(WANTED, state_dir=str(tmp_path), environ=environ)


def test_a_full_disk_is_noticed_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "RESERVE_BYTES", 1 << 60)
    with hub() as server:
        with pytest.raises(InstallError, match="MB free; Tiny needs"):
            fetch(server, tmp_path)
        assert server.asked == []


def test_removing_takes_the_file_and_its_part(tmp_path: Path) -> None:
    with hub() as server:
        path = Path(fetch(server, tmp_path))
    path.with_name("tiny.gguf.part").write_bytes(b"x")
    assert remove_download(WANTED, str(tmp_path)) is True
    assert remove_download(WANTED, str(tmp_path)) is False
    assert not list(path.parent.glob("tiny*"))


def test_the_list_names_models_that_use_tools(tmp_path: Path) -> None:
    assert {one.id for one in DOWNLOADS} == {"qwen3-0.6b", "qwen3-1.7b", "qwen3-4b"}
    for one in DOWNLOADS:
        assert len(one.sha256) == 64 and one.url({}).startswith("https://huggingface.co/Qwen/")
        assert find_download(f"local/{one.id}") is one
    assert installed_models(str(tmp_path)) == []
    Path(tmp_path, "models").mkdir()
    with Path(DOWNLOADS[-1].path(str(tmp_path))).open("wb") as file:
        file.truncate(DOWNLOADS[-1].size)
    (model,) = installed_models(str(tmp_path))
    assert model.ref == "local/qwen3-0.6b" and model.tools and model.reasoning


@pytest.mark.parametrize(
    ("gigabytes", "chosen"), [(2, "qwen3-0.6b"), (4, "qwen3-0.6b"), (6, "qwen3-1.7b"), (16, "qwen3-4b")]
)
def test_the_model_for_a_computer_depends_on_its_memory(gigabytes: int, chosen: str) -> None:
    assert fitting(gigabytes * 1_000_000_000).id == chosen
