"""What is asked for within one step of the event loop, handed on together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Gathering(Generic[T]):
    """A file is written, or a thread woken, once for all who ask in one step and not once for each of them."""

    def __init__(self, hand_on: Callable[[list[T]], None]) -> None:
        self._hand_on = hand_on
        self._items: list[T] = []

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: T) -> None:
        if not self._items:
            asyncio.get_running_loop().call_soon(self.now)
        self._items.append(item)

    def now(self) -> None:
        """Without waiting for the end of the step."""
        if self._items:
            items, self._items = self._items, []
            self._hand_on(items)
