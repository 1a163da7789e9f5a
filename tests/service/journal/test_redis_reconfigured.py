"""Redis settings that change while the server runs are noticed by the next pings."""

import pytest
import redis.asyncio as redis

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import DurabilityTooLow
from tests.redis_server import redis_or_skip
from tests.service.journal.groups import Log, rows

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("name", "value", "before"),
    [
        ("appendonly", "no", "yes"),
        ("appendfsync", "everysec", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ],
)
async def test_learning_is_refused_while_the_settings_are_too_weak(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, before: str
) -> None:
    monkeypatch.setattr("dualstream.service.journal.redis.connection.CHECK_S", 0.0)
    with redis_or_skip(appendfsync="always") as server:
        journal = await open_journal(server.url, "always")
        try:
            log = await Log.create(journal)
            await log.append(rows(1))
            await journal._others.call("CONFIG", "SET", name, value)
            with pytest.raises(DurabilityTooLow, match=name):
                await journal.ping()
            with pytest.raises(DurabilityTooLow, match=name):
                await log.append(rows(2))
            await _administer(server.url, name, before)
            await journal.ping()
            await log.append(rows(2))
            assert journal.durability() == "always"
        finally:
            await journal.close()


async def test_the_level_of_answers_follows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualstream.service.journal.redis.connection.CHECK_S", 0.0)
    with redis_or_skip(appendfsync="always") as server:
        journal = await open_journal(server.url)
        try:
            assert journal.durability() == "always"
            for value in ("everysec", "always"):
                await _administer(server.url, "appendfsync", value)
                await journal.ping()
                assert journal.durability() == value
        finally:
            await journal.close()


async def _administer(url: str, name: str, value: str) -> None:
    async with redis.Redis.from_url(url) as client:
        await client.config_set(name, value)
