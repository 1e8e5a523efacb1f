"""What a file is, by its first bytes: names and claims of others may be wrong."""

from __future__ import annotations

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"#!AMR", "audio/amr"),
    (b"%PDF-", "application/pdf"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_MP4_AUDIO = (b"M4A ", b"M4B ")
_MP4_PICTURES = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "image/heic"),
    **dict.fromkeys((b"mif1", b"msf1"), "image/heif"),
    **dict.fromkeys((b"avif", b"avis"), "image/avif"),
}
"""Pictures in the container of films, as telephones make them."""
SEEN_PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The pictures that models can read."""
_UNKNOWN = "application/octet-stream"


def sniff_image(head: bytes) -> str | None:
    """The MIME type of a picture that models can read. None if it is none."""
    found = sniff(head)
    return found if found in SEEN_PICTURES else None


def sniff(head: bytes) -> str | None:
    """The MIME type of a picture, sound, film or PDF. None if the first bytes do not tell."""
    if head.startswith(b"\xff\xd8\xff") and head[3:4] != b"\xf7":
        return "image/jpeg"
    for beginning, mime in _BEGINNINGS:
        if head.startswith(beginning):
            return mime
    if head.startswith(b"RIFF"):
        return _RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        return "audio/mp4" if head[8:12] in _MP4_AUDIO else _MP4_PICTURES.get(head[8:12], "video/mp4")
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "video/webm" if b"webm" in head[:64] else "video/x-matroska"
    if head[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xfa"):
        return "audio/mpeg"
    return None


def content_type(data: bytes, claimed: str) -> str:
    """The MIME type of a file. What its content does not tell is believed, but a picture is known by its content.

    A film whose sender says that it is sound stays sound: the same containers hold both.
    """
    mime = claimed.partition(";")[0].strip().lower()
    found = sniff(data)
    if found is not None:
        same_container = found in ("video/mp4", "video/webm", "audio/ogg", "video/x-matroska")
        return mime if same_container and mime.startswith(("audio/", "video/")) else found
    return _UNKNOWN if mime.startswith("image/") or "/" not in mime else mime
