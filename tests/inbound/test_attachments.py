from __future__ import annotations

import base64

import pytest

from openclaw.inbound.attachments import MAX_BYTES, BadAttachment, InboundFile, read_images

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


def attachment(data: bytes, name: str = "a.png") -> InboundFile:
    return InboundFile(file_name=name, content=base64.b64encode(data).decode())


def test_a_picture_is_recognised_by_its_content_not_by_its_label() -> None:
    lying = InboundFile(file_name="a.png", mime_type="text/plain", content=base64.b64encode(PNG).decode())
    images, warnings = read_images([lying])
    assert [(image.data, image.mime_type) for image in images] == [(PNG, "image/png")]
    assert warnings == []


def test_data_urls_are_accepted() -> None:
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert read_images([InboundFile(content=url)])[0][0].mime_type == "image/png"


def test_other_files_are_dropped_with_a_warning() -> None:
    images, warnings = read_images([attachment(b"hello", "notes.txt")])
    assert images == []
    assert "notes.txt" in warnings[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("@@@", "attachment a.png: invalid base64 content"),
        ("", "must be base64"),
        ("A" * (MAX_BYTES * 2), "exceeds size"),
    ],
)
def test_broken_content_is_refused_by_name(content: str, words: str) -> None:
    with pytest.raises(BadAttachment, match=words):
        read_images([InboundFile(file_name="a.png", content=content)])
