"""One session's lane: its runs and housekeeping happen one after the other, in the order they were asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from openclaw.runs.record import RunRecord

T = TypeVar("T")


class _Item:
    __slots__ = ("record", "work")

    def __init__(self, record: RunRecord | None, work: Callable[[], Awaitable[None]]) -> None:
        self.record = record
        self.work = work


class Lane:
    """The single writer of a session. Nothing is locked while a run waits for a model or a tool."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._active: _Item | None = None
        self._waiting: deque[_Item] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._task is None

    @property
    def active(self) -> RunRecord | None:
        return self._active.record if self._active else None

    @property
    def records(self) -> list[RunRecord]:
        """The running one first, then those that wait."""
        items = [self._active, *self._waiting]
        return [item.record for item in items if item is not None and item.record is not None]

    def add_run(self, record: RunRecord, run: Callable[[RunRecord], Awaitable[None]]) -> bool:
        """True when the run waits behind something else."""
        return self._add(_Item(record, lambda: run(record)))

    async def exclusively(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does something to the session when its turn comes; nothing else of the session runs meanwhile."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def settle() -> None:
            try:
                result = await work()
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self._add(_Item(None, settle))
        return await done

    def withdraw(self, record: RunRecord) -> bool:
        """Takes a run that has not begun out of the lane."""
        for item in self._waiting:
            if item.record is record:
                self._waiting.remove(item)
                return True
        return False

    def _add(self, item: _Item) -> bool:
        behind = self._task is not None
        self._waiting.append(item)
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name=f"lane {self.key}")
        return behind

    async def _drain(self) -> None:
        try:
            while self._waiting:
                self._active = self._waiting.popleft()
                try:
                    await self._active.work()
                finally:
                    self._active = None
        finally:
            self._task = None

    async def stop(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
