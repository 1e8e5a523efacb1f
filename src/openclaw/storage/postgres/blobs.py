"""``BlobStore`` in PostgreSQL, with a copy of each blob in the state folder, where the agent's tools read it."""

from __future__ import annotations

from openclaw.storage.files.disk import FileBlobStore
from openclaw.storage.postgres.database import PostgresDatabase


class PostgresBlobStore:
    """Blobs never change, so a copy that is there is right. It is made again when it is missing."""

    def __init__(self, database: PostgresDatabase, state_dir: str) -> None:
        self._database = database
        self._copies = FileBlobStore(state_dir)

    async def put(self, data: bytes) -> str:
        digest = await self._copies.put(data)
        insert = "INSERT INTO blobs (digest, data) VALUES ($1, $2) ON CONFLICT DO NOTHING"
        await self._database.write(insert, digest, data)
        return digest

    async def get(self, digest: str) -> bytes | None:
        if self._copies.path(digest) is None:
            return None
        data = await self._copies.get(digest)
        if data is None:
            data = await self._database.value("SELECT data FROM blobs WHERE digest = $1", digest)
            if data is not None:
                await self._copies.put(data)
        return data
