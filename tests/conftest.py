"""Fixtures for all folders."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.redis_server import RedisServer, redis_or_skip


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One redis-server per test process; whoever uses it may flush it."""
    with redis_or_skip() as server:
        yield server


# A machine that is busy is no failure.
settings.register_profile("dualstream", deadline=None)
settings.load_profile("dualstream")
