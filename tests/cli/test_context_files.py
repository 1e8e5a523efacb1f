from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw.cli.context_files import MAX_CHARS, MAX_IMAGE_BYTES, image_type, with_context
from openclaw.cli.errors import UserError


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"hello", None),
    ],
)
def test_images_are_known_by_their_bytes_not_their_names(data: bytes, kind: str | None) -> None:
    assert image_type(data) == kind


def test_a_long_file_is_cut_with_a_marker(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("é" * (MAX_CHARS + 5))
    message, _ = with_context("x", [str(tmp_path / "a")])
    assert message.count("é") == MAX_CHARS
    assert "cut here" in message


def test_a_huge_file_is_cut_even_inside_a_character(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a" + "😀".encode() * (MAX_CHARS + 100_000))
    message, _ = with_context("x", [str(tmp_path / "a")])
    assert "cut here" in message


@pytest.mark.parametrize("name", ["dir", "binary", "secret"])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match=name):
        with_context("x", [str(tmp_path / name)])


def test_a_huge_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "i.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * MAX_IMAGE_BYTES)
    with pytest.raises(UserError, match="too large"):
        with_context("x", [str(tmp_path / "i.png")])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.text(alphabet="`a\n", max_size=30))
def test_a_file_cannot_end_its_own_fence(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text(text, newline="")
    message, _ = with_context("x", [str(tmp_path / "f")])
    lines = message.split("\n")
    fence = lines[3]
    assert set(fence) == {"`"} and lines[-1] == fence
    assert not any(line.startswith(fence) for line in lines[4:-1])
