"""The fixture `store`: the URL of an empty store, once on SQLite and once on Redis."""

from pathlib import Path

import pytest
import redis


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    url: str = request.getfixturevalue("redis_server").url
    with redis.Redis.from_url(url) as client:
        client.flushall()
    return url
