"""Who watches a run from outside."""

from __future__ import annotations

from typing import Protocol

from openclaw.events import Event


class Observer(Protocol):
    """Sees a run from outside: the Gateway's event stream."""

    def started(self) -> None: ...

    def event(self, event: Event) -> None: ...

    def aborted(self, reason: str) -> None:
        """Called at once when someone stops the run, which may take a moment longer to end."""
        ...

    def absorbed(self, by: str) -> None:
        """Another run takes this message in; its answer comes there."""
        ...

    def finished(self) -> None: ...
