"""Vectors of meaning: kept as 32-bit floats of length one, compared by their dot product.

With numpy (the ``memory`` extra) a comparison of thousands takes a millisecond; without it some tenths of a second.
"""

from __future__ import annotations

import importlib
import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from operator import mul
from typing import Any


def packed(vector: Iterable[float]) -> bytes:
    """Of length one, as it is stored. Raises ``ValueError`` for what has no direction."""
    numbers = array("f", vector)
    length = math.sqrt(sum(map(mul, numbers, numbers)))
    if not numbers or not math.isfinite(length) or length == 0:
        raise ValueError("an embedding has no length")
    scaled = array("f", (number / length for number in numbers))
    if sys.byteorder == "big":
        scaled.byteswap()
    return scaled.tobytes()


def similarities(wanted: bytes, others: Sequence[bytes]) -> list[float]:
    """The cosine of each to ``wanted``; 0 for one of another size, which another model made."""
    same = [other if len(other) == len(wanted) else bytes(len(wanted)) for other in others]
    numpy = _numpy()
    if numpy is not None and same:
        matrix = numpy.frombuffer(b"".join(same), dtype="<f4").reshape(len(same), -1)
        return (matrix @ numpy.frombuffer(wanted, dtype="<f4")).tolist()
    target = _numbers(wanted)
    return [sum(map(mul, target, _numbers(other))) for other in same]


def _numbers(blob: bytes) -> array[float]:
    numbers = array("f", blob)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None
