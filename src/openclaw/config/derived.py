"""Things worked out from the configuration, kept until it changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from openclaw.config.schema import Config

T = TypeVar("T")
MOST_KEPT = 256


class Derived:
    """A reload makes a new ``Config`` object, and nothing that came from the old one is handed out again.

    What a turn asks for again and again (its tools, its workspace) took a tenth of the turn to work out.
    """

    def __init__(self) -> None:
        self._config: Config | None = None
        self._made: dict[Hashable, Any] = {}

    def of(self, config: Config, key: Hashable, make: Callable[[], T]) -> T:
        if config is not self._config:
            self._config, self._made = config, {}
        if key not in self._made:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            self._made[key] = make()
        return self._made[key]
