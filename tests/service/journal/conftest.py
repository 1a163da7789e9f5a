"""Each test of the contract runs on each store."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import DEFAULT_LIMITS, Journal, Limits


class Store:
    """A store that is empty at first; journals opened on it see the same models."""

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def journal(
        self, limits: Limits = DEFAULT_LIMITS, durability: str | None = None
    ) -> AsyncIterator[Journal]:
        journal = await open_journal(self.url, durability, limits)
        try:
            yield journal
        finally:
            await journal.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest) -> Store:
    make: Callable[[], Store] = request.getfixturevalue(f"{request.param}_store")
    return make


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'journal.db'}")


@pytest.fixture
def redis_store(request: pytest.FixtureRequest) -> Store:
    server = request.getfixturevalue("redis_server")
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return Store(server.url)


@pytest.fixture
async def journal(store: Store) -> AsyncIterator[Journal]:
    async with store.journal() as journal:
        yield journal
