"""Reads facts from the header of a GGUF model file without loading the weights."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

MAX_ENTRIES = 1024
MAX_STRING = 1 << 20
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def context_length(path: str) -> int | None:
    """The window that the model was trained for, or None when the file does not say or cannot be read."""
    return _fact(path, b".context_length") or None


def says_pooling(path: str) -> bool:
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
