"""What a store cannot do for now, and what it had to mend.

A disk that is full or failing, a database that is away or locked: such errors are recognised, waited for and put into
words. Damaged and missing data are reported to ``Repairs``, which logs them and notifies the owner.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

from openclaw.clock import Clock
from openclaw.redact import redact
from openclaw.storage.errors import Fenced, MessageEnded, UnknownMessage

T = TypeVar("T")
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0

log = logging.getLogger("openclaw.storage")
repairs_log = logging.getLogger("openclaw.storage.repairs")

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_DATABASE = frozenset({errno.ENOTCONN})
"""How ``storage/postgres`` reports that no server takes writes."""
_LOCKED = frozenset({errno.EBUSY})
"""How both databases report a lock that somebody else holds, or a transaction that lost against another one."""
_MEMORY = frozenset({errno.ENOMEM})
_DISK = _FULL | _FORBIDDEN | _DESCRIPTORS | _DATABASE | _LOCKED | _MEMORY | {errno.EIO}
SPARE_DESCRIPTORS = 32
"""No message is begun with fewer descriptors left, so that those under way can be finished."""
LOOK_AGAIN_S = 0.05


UNKNOWN_TRIES = 16
"""How often a write is tried again after an error that is not known to pass, which takes about a minute."""
FOREVER = math.inf


class StorageError(OSError):
    """A store refused a call. If it has the number of a passing problem, the same call may succeed later."""

    def __init__(self, problem: str, number: int | None = None) -> None:
        super().__init__(*((problem,) if number is None else (number, problem)))


def is_storage_failure(error: BaseException) -> bool:
    """Tells whether the disk is full, read-only, forbidden or failing, the database is away or locked, or memory or
    descriptors are short.

    Nothing was written, and the same write may succeed later.
    """
    return isinstance(error, OSError) and error.errno in _DISK


def kind_of(error: OSError) -> Literal["full", "read_only", "error"]:
    if error.errno in _FULL:
        return "full"
    return "read_only" if error.errno in _FORBIDDEN else "error"


def may_be_written(error: Exception) -> bool:
    """Tells whether a write may have succeeded although it raised this error, for example a lost connection."""
    return not is_storage_failure(error) or (isinstance(error, OSError) and error.errno in _DATABASE)


class Descriptors:
    """Watches how many file descriptors the process has left."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._enough_until = 0.0

    def check(self) -> None:
        """Raises ``OSError`` when hardly any are left."""
        lowest_free = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.close(lowest_free)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and lowest_free >= limit - SPARE_DESCRIPTORS:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._enough_until = self._clock.monotonic() + LOOK_AGAIN_S

    async def enough(self) -> None:
        """Does ``check`` as if it were a write, so that ``until_written`` repeats it until there are enough.

        A check that was made a moment ago, when the message of the run was accepted, is not made again.
        """
        if self._clock.monotonic() >= self._enough_until:
            self.check()


def refusal_text(error: BaseException) -> str | None:
    """Returns what a sender learns about a call that a store refused. None if the error is not one of storage."""
    if not isinstance(error, OSError) or not (is_storage_failure(error) or isinstance(error, StorageError)):
        return None
    return f"not done: {describe_failure(error)}, then try again"


def describe_failure(error: OSError) -> str:
    if error.errno in _DESCRIPTORS:
        return (
            f"the Gateway has no file descriptors left: {os.strerror(error.errno or errno.EMFILE)}; raise `ulimit -n`"
        )
    if error.errno in _DATABASE:
        return f"the Gateway cannot reach its database: {error.strerror}; start the server, or check its address"
    if error.errno in _LOCKED:
        return f"the Gateway's database is locked by another program: {error.strerror or error}; wait for it, or end it"
    if error.errno in _MEMORY:
        return "the Gateway's database is out of memory; free some memory"
    if error.errno is None:
        return f"the Gateway's database refused it: {redact(str(error))}; see the log"
    advice = {
        "full": "raise the limit on file sizes" if error.errno == errno.EFBIG else "free some space",
        "read_only": "make the state directory writable",
        "error": "check the disk",
    }[kind_of(error)]
    where = f" ({error.filename})" if error.filename else ""
    return f"the Gateway cannot write to its disk: {os.strerror(error.errno or errno.EIO)}{where}; {advice}"


reads_wait: ContextVar[bool] = ContextVar("reads_wait", default=False)
"""Whether this task reads again and again from a database that cannot be reached, as a run does, or fails at once."""


class DiskWait:
    """How long a message had to wait for the disk, and why. ``why`` shows it."""

    def __init__(self) -> None:
        self.problem = ""
        """The last problem."""
        self.waited_s = 0.0
        self.waiting = False

    def noted(self) -> dict[str, Any]:
        """Returns what the ledger keeps of the wait. Empty when there was none."""
        return {"diskWait": {"ms": int(self.waited_s * 1000), "problem": self.problem}} if self.problem else {}


async def until_written(
    write: Callable[[], Awaitable[T]],
    pause: Callable[[float], Awaitable[None]],
    disk: DiskWait | None = None,
    *,
    unknown_tries: float = 0,
) -> T:
    """Repeat a write until the store takes it.

    A passing problem of the store is waited for without a limit. Any other error is retried ``unknown_tries`` times,
    which may be ``FOREVER``, and then raised. The ledger's own refusals are raised at once.

    ``pause`` sleeps between two tries. It may raise an error to end the wait.
    """
    wait_s = FIRST_PAUSE_S
    while True:
        try:
            written = await write()
            if disk is not None:
                disk.waiting = False
            return written
        except (Fenced, MessageEnded, UnknownMessage):
            raise
        except Exception as error:
            passing = is_storage_failure(error)
            if not passing and unknown_tries < 1:
                raise
            unknown_tries -= not passing
            if disk is not None:
                disk.waiting, disk.problem = True, _problem_of(error)
            _log_wait(error, first=wait_s == FIRST_PAUSE_S)
        await pause(wait_s)
        if disk is not None:
            disk.waited_s += wait_s
        wait_s = min(wait_s * 2, LONGEST_PAUSE_S)


def _problem_of(error: Exception) -> str:
    """Names the problem without advice. Only errors of a disk have a name that fits better than their own text."""
    if isinstance(error, OSError) and is_storage_failure(error) and error.errno not in _DATABASE | _LOCKED:
        return os.strerror(error.errno or errno.EIO)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return redact(text or type(error).__name__)


def _log_wait(error: Exception, *, first: bool) -> None:
    if not isinstance(error, OSError) or not is_storage_failure(error):
        log.error("a write failed for an unknown reason and is tried again: %s", error, exc_info=error)
        return
    level = logging.ERROR if first else logging.DEBUG
    log.log(level, "%s; what it was needed for waits (%s)", describe_failure(error), error)


MOST_KEPT = 50


class Repairs:
    """Collects sentences, from any thread. ``changed`` is called after each one."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.changed = changed
        self._untold: list[str] = []
        self._guard = threading.Lock()

    def note(self, text: str) -> None:
        repairs_log.error("%s", text)
        with self._guard:
            self._untold = [*self._untold, text][-MOST_KEPT:]
        self.changed()

    def take(self) -> list[str]:
        """Returns what the owner was not told yet, and forgets it."""
        with self._guard:
            untold, self._untold = self._untold, []
        return untold
