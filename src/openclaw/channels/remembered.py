"""A bounded memory of what a channel saw or did lately."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")
MAX_KNOWN = 2000


class Remembered(Generic[Value]):
    """The most recent values by key. The oldest are forgotten."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._values: OrderedDict[str, Value] = OrderedDict()
        self._most = most

    def get(self, key: str) -> Value | None:
        return self._values.get(key)

    def put(self, key: str, value: Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)
