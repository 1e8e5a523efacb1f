"""Opens the stores of a Gateway, on files or on a database, and the cluster of those who share them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from openclaw import __version__
from openclaw.agent.runtime import Stores
from openclaw.clock import Clock
from openclaw.cluster.claims import SESSION, SoleClaims, session_name
from openclaw.config.agents import agent_ids, default_agent_id, main_key
from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore
from openclaw.gateway.cluster.single import Cluster, SingleNode
from openclaw.memory.index import rename_indexes
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.errors import Fenced, StorageRefused
from openclaw.storage.files.disk import FileBlobStore, FileDocuments
from openclaw.storage.files.import_sessions import migrate_sessions
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.inspection import storage_url

log = logging.getLogger("openclaw.gateway")


class Storage(msgspec.Struct, kw_only=True, frozen=True):
    stores: Stores
    cluster: Cluster


async def open_storage(
    state_dir: str,
    config: ConfigStore,
    clock: Clock,
    environ: Mapping[str, str],
    repairs: Repairs,
    *,
    only_reads: bool = False,
) -> Storage:
    """Open the stores on files, or on the database that the configuration names.

    Older sessions are migrated and older indexes renamed, except with ``only_reads``.
    """
    current = config.current
    if not only_reads:
        await asyncio.to_thread(rename_indexes, Path(state_dir))
    if (url := storage_url(current, environ)) is not None:
        return await _open_postgres(url, state_dir, config, clock, only_reads=only_reads)
    if not only_reads:
        await _migrate(state_dir, current, clock)
    sessions = await FileSessionStore.open(
        state_dir, clock=clock, store_template=current.session.store, agent_ids=agent_ids(current), repairs=repairs
    )
    transcripts = FileTranscriptStore(state_dir, clock=clock, store_path=sessions.path)
    ledger = await FileLedger.open(state_dir, clock=clock, repairs=repairs)

    async def close() -> None:
        await transcripts.close()
        await sessions.close()
        await ledger.close()

    stores = Stores(
        sessions=sessions,
        transcripts=transcripts,
        ledger=ledger,
        blobs=FileBlobStore(state_dir),
        documents=FileDocuments(state_dir, repairs),
        close=close,
        claims=SoleClaims(),
    )
    return Storage(stores=stores, cluster=SingleNode())


async def _open_postgres(url: str, state_dir: str, config: ConfigStore, clock: Clock, *, only_reads: bool) -> Storage:
    try:
        from openclaw.cluster.membership import Membership
        from openclaw.cluster.postgres_claims import PostgresClaims
        from openclaw.gateway.cluster.service import ClusterService
        from openclaw.storage.postgres.database import ClaimEpoch, PostgresDatabase
        from openclaw.storage.postgres.documents import PostgresBlobStore, PostgresDocuments
        from openclaw.storage.postgres.ledger import PostgresLedger
        from openclaw.storage.postgres.session_store import PostgresSessionStore
        from openclaw.storage.postgres.transcript import PostgresTranscriptStore
    except ImportError:
        raise StorageRefused(
            "storage.url names a PostgreSQL database, and the package for it is missing. "
            "Install it with: openclaw extras add postgres"
        ) from None
    settings = config.current.storage
    # A command that only reads is not a node.
    node = "" if only_reads else Membership.new_id()
    database = await PostgresDatabase.open(url, schema=settings.schema, pool_size=settings.pool_size, node=node)
    membership = Membership(database, lease_s=config.current.cluster.lease_seconds, version=__version__)
    claims = PostgresClaims(database, membership)

    def claim_of(agent_id: str, key: str) -> ClaimEpoch:
        name = session_name(agent_id, key)
        return ClaimEpoch(name, claims.epoch(name))

    try:
        if not only_reads:
            await membership.join()
        sessions = await PostgresSessionStore.open(database, claim_of)
        transcripts = PostgresTranscriptStore(database, state_dir, clock=clock, claim_of=sessions.transcript_claim)
        shared = only_reads or bool(membership.peers)
        ledger = await PostgresLedger.open(
            database, clock=clock, only_reads=shared, claim_of=None if only_reads else claim_of
        )
    except BaseException:
        await membership.leave()
        await database.close()
        raise

    documents = PostgresDocuments(database)

    async def settle(name: str) -> None:
        agent_id, _, key = name.removeprefix(SESSION).partition(":")
        await sessions.settle(agent_id, key)

    async def close() -> None:
        await documents.close()
        if not membership.fenced:
            await transcripts.close()
            with contextlib.suppress(OSError, Fenced):  # A change that waited for its message was not acknowledged.
                await sessions.close()
        await membership.leave()
        await database.close()

    claims.on_lost(SESSION, settle)
    blobs = PostgresBlobStore(database, state_dir)
    stores = Stores(
        sessions=sessions,
        transcripts=transcripts,
        ledger=ledger,
        blobs=blobs,
        documents=documents,
        close=close,
        claims=claims,
        lines=transcripts,
    )
    cluster = SingleNode() if only_reads else ClusterService(claims, sessions, ledger, documents, config, clock)
    return Storage(stores=stores, cluster=cluster)


async def _migrate(state_dir: str, config: Config, clock: Clock) -> None:
    report = await migrate_sessions(
        state_dir,
        default_agent=default_agent_id(config),
        main_key=main_key(config),
        scope=config.session.scope,
        clock=clock,
    )
    if report is None:
        return
    log.info("older sessions migrated: %d files, %d sessions", report.copied, report.sessions)
    for problem in report.problems:
        log.warning("older sessions: %s", problem)
