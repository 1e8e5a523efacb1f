from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from openclaw.cluster.membership import Membership
from openclaw.storage.postgres.database import PostgresDatabase
from tests.support.model_server import ModelServer
from tests.support.postgres import empty, new_schema, postgres_server

from .one_node import MakeNode, OneNode


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def schema() -> str:
    return new_schema()


@pytest.fixture
async def node(schema: str) -> AsyncIterator[MakeNode]:
    made: list[OneNode] = []
    first = await PostgresDatabase.open(postgres_server().url, schema=schema, pool_size=2)
    secret = await first.value("SELECT value FROM secrets")
    await empty(first)
    await first.write("INSERT INTO secrets VALUES ('links', $1)", secret)
    await first.close()

    async def make(lease_s: float = 60.0) -> OneNode:
        opened = await PostgresDatabase.open(
            postgres_server().url, schema=schema, pool_size=2, node=Membership.new_id()
        )
        one = OneNode(opened, lease_s)
        made.append(one)
        await one.membership.join()
        one.membership.start()
        return one

    yield make
    for one in made:
        await one.membership.leave()
        await one.database.close()
