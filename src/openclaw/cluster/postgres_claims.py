"""``Claims`` in PostgreSQL: one row for each name that is owned."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager

import msgspec

from openclaw.cluster.claims import SCHEDULER, SESSION, ClaimOwner, ClaimSubscribers, OwnedElsewhere
from openclaw.cluster.membership import Membership
from openclaw.storage.postgres.database import PostgresDatabase, without_nul

log = logging.getLogger("openclaw.cluster")

ACQUIRE_S, RELEASE_PAUSE_S = 60.0, 0.1
MOST_OWNERS, OWNER_S = 50_000, 10.0
UNCERTAIN_S = 60.0
"""How long the database is asked whether a statement that failed was carried out."""
MOST_TRIES = 50
"""How often a claim is tried again because its owner went away in between."""
_CLAIM = """
WITH made AS (INSERT INTO claims (name, node) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING node, epoch)
SELECT node, epoch FROM made UNION ALL SELECT node, epoch FROM claims WHERE name = $1 LIMIT 1"""


async def _nobody_to_ask(_node: str, _name: str) -> None:
    pass


class HeldClaim(msgspec.Struct):
    epoch: int
    used_at: float
    """When it was last asked for, by the clock of ``time.monotonic``."""


class PostgresClaims(ClaimSubscribers):
    """The claims of one node. The names that it owns are in memory too."""

    def __init__(self, database: PostgresDatabase, membership: Membership) -> None:
        super().__init__()
        self._database = database
        database.on_claim_lost = self._refused
        self.membership = membership
        self.node = membership.node
        self._held: dict[str, HeldClaim] = {}
        self._asking: dict[str, asyncio.Task[ClaimOwner]] = {}
        self._changing: dict[str, asyncio.Event] = {}
        """Names that are being gained or released. A caller waits until the subscribers are notified."""
        self._owners: dict[str, tuple[str, float]] = {}
        """The owners of other sessions, and when the database said so. An owner that has let its session go meanwhile
        claims it again, or hands on what it is asked."""
        self._wanted: dict[str, None] = {}
        self._uncertain: dict[str, float] = {}
        """Names that the database may count as ours although a statement about them failed, and since when."""
        self.ask_to_release: Callable[[str, str], Awaitable[None]] = _nobody_to_ask
        """Asks a node to let a name go as soon as it has nothing to do with it."""
        self.on_refused: Callable[[str], None] = lambda _: None
        """Is told a name under whose claim a write was refused. It is not owned any more."""

    async def claim(self, name: str) -> ClaimOwner:
        for _ in range(MOST_TRIES):
            # The caller goes on in the same step of the event loop, so the name cannot be let go before it is in use.
            if (held := self._held.get(name)) is not None and name not in self._changing:
                held.used_at = time.monotonic()
                return ClaimOwner(self.node, True)
            cached = self._owners.get(name)
            if cached is not None and cached[0] in self.membership.peers and time.monotonic() - cached[1] < OWNER_S:
                return ClaimOwner(cached[0], False)
            # Callers that ask together share one question, and go on in their order.
            task = self._asking.get(name)
            if task is None:
                task = self._asking[name] = asyncio.create_task(self._claim(name))
                task.add_done_callback(lambda _: self._asking.pop(name, None))
            if not (owner := await asyncio.shield(task)).mine:
                return owner
        raise TimeoutError(f"{name} is released as often as it is claimed")

    def _refused(self, name: str) -> None:
        log.error("a write to %s was refused, because this node does not own it any more", name)
        self._held.pop(name, None)
        self.on_refused(name)

    async def _claim(self, name: str) -> ClaimOwner:
        for _ in range(MOST_TRIES):
            if (changed := self._changing.get(name)) is not None:
                await changed.wait()
            if name in self._held:
                return ClaimOwner(self.node, True)
            if self.membership.state != "alive" and (other := self._another(await self.owner(name))) is not None:
                return ClaimOwner(other, False)
            with self._uncertain_after_failure([name]):
                row = await self._database.row(_CLAIM, without_nul(name), self.node)
            if row is None:
                continue  # The owner let it go between the two halves of the statement.
            if row["node"] != self.node:
                if name.startswith(SESSION):
                    self._owners.pop(name, None)
                    self._owners[name] = (row["node"], time.monotonic())
                    while len(self._owners) > MOST_OWNERS:
                        self._owners.pop(next(iter(self._owners)))
                return ClaimOwner(row["node"], False)
            if name in self._held or name in self._changing:
                continue  # Somebody else here has claimed it meanwhile.
            await self._now_held({name: row["epoch"]})
            return ClaimOwner(self.node, True)
        raise TimeoutError(f"{name} changes its owner too often")

    def _another(self, owner: str | None) -> str | None:
        """The node that a leaving node leaves the name to."""
        living = [node.id for node in self.membership.peers.values() if node.state == "alive"]
        return owner if owner is not None and owner != self.node else next(iter(sorted(living)), None)

    async def acquire(self, name: str) -> None:
        until = time.monotonic() + ACQUIRE_S
        while not (owner := await self.claim(name)).mine:
            if time.monotonic() > until:
                raise OwnedElsewhere(name, owner)
            await self.ask_to_release(owner.node, name)
            self.forget_owner(name)
            await asyncio.sleep(RELEASE_PAUSE_S)

    def forget_owner(self, name: str) -> None:
        """Ask the database again who owns the name, the next time it is wanted."""
        self._owners.pop(name, None)

    async def claim_free(self, names: Sequence[str]) -> list[str]:
        """Claim those of the names that nobody owns, and return them."""
        if self.membership.state != "alive" or not names:
            return []
        with self._uncertain_after_failure(names):
            rows = await self._database.rows(
                # A name that is ours in the database and not here was claimed by a statement whose answer was lost.
                "INSERT INTO claims AS known (name, node) SELECT name, $2 FROM unnest($1::text[]) AS name"
                " ON CONFLICT (name) DO UPDATE SET node = known.node WHERE known.node = excluded.node"
                " RETURNING name, epoch",
                *([without_nul(name) for name in names], self.node),
            )
        gained = {name: epoch for name, epoch in rows if name not in self._held and name not in self._changing}
        await self._now_held(gained)
        return list(gained)

    async def _now_held(self, epochs: dict[str, int]) -> None:
        settled = asyncio.Event()
        self._changing |= dict.fromkeys(epochs, settled)
        self._held |= {name: HeldClaim(epoch, time.monotonic()) for name, epoch in epochs.items()}
        failed: dict[str, BaseException | None] = dict.fromkeys(epochs)
        try:
            results = await asyncio.gather(*map(self.notify_gained, epochs), return_exceptions=True)
            failed = {name: error for name, error in zip(epochs, results, strict=True) if error is not None}
        finally:
            # The rows stay. ``regain``, or whoever asks next, leads to another try.
            for name in failed:
                self._held.pop(name, None)
                self._uncertain[name] = time.monotonic()
            for name in epochs:
                self._changing.pop(name, None)
            settled.set()
        for error in filter(None, failed.values()):
            raise error

    @contextmanager
    def _uncertain_after_failure(self, names: Iterable[str]) -> Generator[None]:
        try:
            yield
        except BaseException:
            self._uncertain |= dict.fromkeys(names, time.monotonic())
            raise

    async def regain(self) -> None:
        """Gain sessions that the database counts as ours although a claim or a release of them failed here.

        Nobody else can claim them, so that their messages would wait until somebody writes to the session. Other
        names are claimed again and again by those who want them.
        """
        self._uncertain = {
            name: since
            for name, since in self._uncertain.items()
            if name.startswith(SESSION) and name not in self._held
        }
        if not self._uncertain or self.membership.state != "alive":
            return
        names, before = list(self._uncertain), time.monotonic() - UNCERTAIN_S
        rows = await self._database.rows(
            "SELECT name, epoch FROM claims WHERE node = $1 AND name = ANY ($2)",
            *(self.node, [without_nul(name) for name in names]),
        )
        # A statement that was cut off may still be at work, so that its names are asked for a while longer.
        for name in names:
            if self._uncertain.get(name, before) <= before:
                self._uncertain.pop(name, None)
        await self._now_held({name: epoch for name, epoch in rows if name not in {*self._held, *self._changing}})

    async def owner(self, name: str) -> str | None:
        if name in self._held:
            return self.node
        return await self._database.value("SELECT node FROM claims WHERE name = $1", without_nul(name))

    def owns(self, name: str) -> bool:
        return name in self._held

    def lives(self, node: str) -> bool:
        return node == self.node or node in self.membership.peers

    def epoch(self, name: str) -> int:
        held = self._held.get(name)
        return held.epoch if held is not None else 0

    def owned(self, prefix: str = "") -> list[str]:
        return [name for name in self._held if name.startswith(prefix)]

    @property
    def session_count(self) -> int:
        """How many sessions this node owns. Other names are few."""
        return len(self._held) - sum(1 for name in self._wanted if name in self._held)

    def idle(self, prefix: str, seconds: float, most: int) -> list[str]:
        """Return names that were not asked for in this time."""
        before = time.monotonic() - seconds
        idle = (name for name, held in self._held.items() if held.used_at < before and name.startswith(prefix))
        return [name for _, name in zip(range(most), idle, strict=False)]

    async def release(self, name: str) -> None:
        await self.release_all([name])

    async def release_all(self, names: Sequence[str]) -> None:
        """Let names go, in one statement. Those who want one of them meanwhile wait, and claim it again."""
        going = [name for name in names if name in self._held and name not in self._changing]
        if not going:
            return
        settled = asyncio.Event()
        self._changing |= dict.fromkeys(going, settled)
        try:
            for name in going:
                await self.notify_lost(name)
            for name in going:
                self._held.pop(name, None)
            with self._uncertain_after_failure(going):
                await self._database.write(
                    "DELETE FROM claims WHERE node = $1 AND name = ANY ($2)",
                    *(self.node, [without_nul(one) for one in going]),
                )
        finally:
            for name in going:
                self._changing.pop(name, None)
            settled.set()

    async def want(self, name: str) -> None:
        self._wanted[name] = None
        await self.try_wanted()

    async def unwant(self, name: str) -> None:
        self._wanted.pop(name, None)
        await self.release(name)

    async def unwant_all(self) -> None:
        """Let go of everything that was wanted, for a node that leaves."""
        for name in list(self._wanted):
            await self.unwant(name)

    async def held_by_all(self) -> dict[str, str]:
        """Return which node owns each channel account and the scheduler."""
        rows = await self._database.rows(
            "SELECT name, node FROM claims WHERE (name >= 'channel:' AND name < 'channel;') OR name = $1 ORDER BY name",
            SCHEDULER,
        )
        return {row[0]: row[1] for row in rows}

    async def try_wanted(self) -> None:
        """Claim what is wanted and free. The node does this whenever another one has gone, and every second."""
        gained = await self.claim_free([name for name in self._wanted if name not in self._held])
        # What was given back while the database was asked must not stay here, where nobody uses it.
        await self.release_all([name for name in gained if name not in self._wanted])
