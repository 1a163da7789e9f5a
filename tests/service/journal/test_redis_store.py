"""What only the Redis store does."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import redis

from dualstream.service.journal import open_journal
from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import (
    CursorMove,
    DurabilityTooLow,
    JournalUnavailable,
    Limits,
    OutcomeUnknown,
    UnknownModel,
)
from dualstream.service.journal.redis import RedisJournal
from dualstream.service.journal.redis.announcer import Announcer
from tests.redis_server import RedisServer, redis_or_skip
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, observed, places, rows
from tests.service.journal.proxy import running_proxy

pytestmark = pytest.mark.anyio


@pytest.fixture
def client(redis_store: Store) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_store.url) as client:
        yield client


@pytest.fixture
def separate_server() -> Iterator[RedisServer]:
    """A server that the test may stop, kill and configure."""
    with redis_or_skip(appendfsync="always") as server:
        yield server


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[RedisJournal]:
    journal = RedisJournal(url, **options)  # type: ignore[arg-type]
    try:
        await journal.open()
        yield journal
    finally:
        await journal.close()


def sent_scripts(client: redis.Redis) -> int:
    """How many scripts the server was sent since the last reset."""
    commands = client.info("commandstats")
    return sum(
        commands.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval")
    )


async def test_one_append_sends_one_script_even_when_the_connection_breaks(
    redis_server: RedisServer, client: redis.Redis
):
    async with running_proxy(redis_server.port) as proxy, opened(proxy.url) as journal:
        log = await Log.create(journal)
        await log.append(rows(1))
        await settled(journal)
        nonce = os.urandom(16)
        client.config_resetstat()
        proxy.swallow = 1
        with pytest.raises(OutcomeUnknown):
            await log.append(rows(2), nonce=nonce)
        assert sent_scripts(client) == 1
        appended = await log.append(rows(2), nonce=nonce)
        assert sent_scripts(client) == 2
        assert places(appended) == [(2, 2, "new")]
        assert await log.tags() == [1, 2]


async def test_a_script_that_redis_has_lost_is_sent_again(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        await log.append(rows(1))
        client.script_flush()
        await log.append(rows(2))
        client.config_resetstat()
        await log.append(rows(3))
        assert "cmdstat_eval" not in client.info("commandstats")
        assert await log.tags() == [1, 2, 3]


async def test_a_read_of_which_the_answer_is_lost_is_no_unknown_outcome(
    redis_server: RedisServer, redis_store: Store
):
    async with running_proxy(redis_server.port) as proxy, opened(proxy.url) as journal:
        log = await Log.create(journal)
        await log.append(rows(1))
        await settled(journal)
        for _ in range(2):
            proxy.swallow = 1
            with pytest.raises(JournalUnavailable):
                await log.tags()
        assert await log.tags() == [1]


async def test_without_a_server_nothing_was_done(separate_server: RedisServer):
    async with opened(separate_server.url) as journal:
        log = await Log.create(journal)
        separate_server.stop()
        await asyncio.sleep(0.05)
        for _ in range(3):
            with pytest.raises(JournalUnavailable):
                await log.append(rows(1))
        with pytest.raises(JournalUnavailable):
            await journal.ping()
        separate_server.start()
        await journal.ping()
        assert places(await log.append(rows(2))) == [(1, 1, "new")]


@contextmanager
def hanging(server: RedisServer, journal: RedisJournal) -> Iterator[None]:
    """While the server hangs, appends wait for 0.5 s; a busy server has the usual time."""
    patience_s, journal._appends._timeout_s = journal._appends._timeout_s, 0.5
    server.pause()
    yield
    server.resume()
    journal._appends._timeout_s = patience_s


async def test_an_append_to_a_server_that_hangs_is_unknown_and_can_be_repeated(
    separate_server: RedisServer,
):
    async with opened(separate_server.url) as journal:
        log = await Log.create(journal)
        nonce = os.urandom(16)
        with hanging(separate_server, journal):
            with pytest.raises(OutcomeUnknown):
                await log.append(rows(1), nonce=nonce)
            with pytest.raises(JournalUnavailable):
                await log.append(rows(1), nonce=nonce)
        await log.append(rows(1), nonce=nonce)
        assert await log.tags() == [1]


async def test_append_queued_after_a_hanging_one_fails_in_time(separate_server: RedisServer):
    async with opened(separate_server.url) as journal:
        log = await Log.create(journal)
        with hanging(separate_server, journal):
            appends = [log.append(rows(tag)) for tag in range(40)]
            async with asyncio.timeout(15):  # one after the other they take 20 s
                answers = await asyncio.gather(*appends, return_exceptions=True)
        assert {type(answer) for answer in answers} == {OutcomeUnknown, JournalUnavailable}
        assert sum(isinstance(answer, OutcomeUnknown) for answer in answers) == 1


async def test_a_cancelled_append_leaves_no_answer_for_the_next_one(redis_store: Store):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        for _ in range(20):
            appending = asyncio.create_task(log.append(rows(1)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            appending.cancel()
            await asyncio.gather(appending, return_exceptions=True)
            seq = (await log.append(rows(2))).seq
            assert seq == await log.last_seq()
        assert (await log.tags()).count(2) == 20


async def test_acknowledged_appends_outlive_a_killed_server(separate_server: RedisServer):
    async with opened(separate_server.url, durability="always") as journal:
        log = await Log.create(journal)
        for tag in range(50):
            await log.append(rows(tag, id=str(tag)))
        separate_server.kill()
        separate_server.start()
        await asyncio.sleep(0.05)
        assert await log.tags() == list(range(50))
        assert places(await log.append(rows(7, id="7"))) == [(8, 8, "duplicate")]


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ({"appendonly": "no"}, "memory"),
        ({"appendfsync": "everysec"}, "everysec"),
        ({"appendfsync": "no"}, "memory"),
        ({"appendfsync": "always"}, "always"),
    ],
)
async def test_durability_is_what_the_server_is_set_to(
    separate_server: RedisServer, options: dict[str, str], level: str
):
    with redis.Redis.from_url(separate_server.url) as client:
        client.config_set("appendonly", options.get("appendonly", "yes"))
        client.config_set("appendfsync", options.get("appendfsync", "everysec"))
    await check_level(separate_server.url, level)


async def test_a_server_that_does_not_sync_while_it_rewrites_its_log_keeps_memory():
    options = {"no-appendfsync-on-rewrite": "yes"}
    with redis_or_skip(appendfsync="always", **options) as server:
        await check_level(server.url, "memory")
        with pytest.raises(DurabilityTooLow, match="set .* no-appendfsync-on-rewrite no$"):
            await open_journal(server.url, "always")


async def check_level(url: str, level: str) -> None:
    """The level is reported; a lower request is accepted, a higher one refused."""
    levels = ["memory", "everysec", "always"]
    for request in (None, *levels):
        if request is None or levels.index(request) <= levels.index(level):
            async with opened(url, durability=request) as journal:
                assert journal.durability() == level
        else:
            with pytest.raises(DurabilityTooLow, match=f"keeps {level}, {request} was asked for"):
                await open_journal(url, request)


async def test_a_server_that_may_evict_is_refused(redis_store: Store, client: redis.Redis):
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(DurabilityTooLow, match="allkeys-lru, set it to noeviction"):
            await open_journal(redis_store.url)
    finally:
        client.config_set("maxmemory-policy", "noeviction")


async def test_durability_is_read_again_at_each_connect(separate_server: RedisServer):
    async with opened(separate_server.url, durability="always") as journal:
        log = await Log.create(journal)
        separate_server.kill()
        separate_server.options["appendfsync"] = "everysec"
        separate_server.start()
        await asyncio.sleep(0.05)
        with pytest.raises(DurabilityTooLow):
            await log.append(rows(1))
        with pytest.raises(DurabilityTooLow):
            await journal.ping()


async def test_a_server_whose_settings_are_secret_counts_as_memory(
    redis_store: Store, client: redis.Redis
):
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-config")
    url = redis_store.url.replace("redis://", "redis://app:secret@")
    try:
        async with opened(url) as journal:
            assert journal.durability() == "memory"
            await (await Log.create(journal)).append(rows(1))
        with pytest.raises(DurabilityTooLow, match="cannot be read"):
            await open_journal(url, "everysec")
        with pytest.raises(JournalUnavailable, match="[Pp]assword"):
            await open_journal(url.replace("secret", "wrong"))
    finally:
        client.execute_command("ACL", "DELUSER", "app")


@pytest.mark.parametrize(
    "setting", [("maxmemory", "1"), ("min-replicas-to-write", "1")], ids=lambda pair: pair[0]
)
async def test_a_server_that_refuses_to_write_has_done_nothing(
    redis_store: Store, client: redis.Redis, setting: tuple[str, str]
):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        await log.append(rows(1))
        client.config_set(*setting)
        try:
            with pytest.raises(JournalUnavailable):
                await log.append(rows(2, id="a"))
        finally:
            client.config_set(setting[0], "0")
        assert places(await log.append(rows(3, id="a"))) == [(2, 2, "new")]
        assert await log.tags() == [1, 3]


async def test_a_replica_is_unavailable(separate_server: RedisServer):
    async with Store(separate_server.url).journal() as journal:
        log = await Log.create(journal)
        with redis.Redis.from_url(separate_server.url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(JournalUnavailable):
                await log.append(rows(1))
            client.execute_command("REPLICAOF", "NO", "ONE")
        await log.append(rows(2))
        assert await log.tags() == [2]


@pytest.mark.parametrize("durability", ["replicated:0", "replicated:x", "full"])
async def test_a_durability_that_is_not_offered_is_refused(redis_store: Store, durability: str):
    with pytest.raises(ValueError, match=f"not {durability}"):
        await open_journal(redis_store.url, durability)


async def test_a_node_of_a_cluster_is_refused():
    with redis_or_skip(**{"cluster-enabled": "yes"}) as server:
        with pytest.raises(JournalUnavailable, match="cluster"):
            await open_journal(server.url)


async def everything(journal: RedisJournal) -> Log:
    """A model that has every key a model can have."""
    log = await Log.create(journal)
    appended = await log.append(rows(1, id="a"), cursor=CursorMove("in", None, "1"))
    where = (log.model, log.incarnation, 1, appended.chain)
    await journal.snapshot_put(*where, b"state")
    return log


async def test_all_keys_of_a_model_are_in_one_slot(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        await everything(journal)  # type: ignore[arg-type]
        result = {key.decode() for key in client.keys("*")}
        of_model = result - {"ds:models"}
        assert {key.rpartition(":")[2] for key in of_model if ":snap:" not in key} == {
            "spec",
            "head",
            "log",
            "nonces",
            "nonceq",
            "keys",
            "keyq",
            "cursors",
            "snaps",
        }
        assert len(of_model) == 10
        assert all(key.startswith("ds:{adult}:") for key in of_model)


async def test_a_deleted_model_leaves_nothing(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        log = await everything(journal)  # type: ignore[arg-type]
        await journal.delete(log.model)
        assert client.keys("*") == []


async def test_an_append_is_published_with_model_and_seq(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        with client.pubsub() as subscription:
            subscription.subscribe("ds:appends")
            assert subscription.get_message(timeout=30)["type"] == "subscribe"
            await log.append(rows(1, 2, id="a"))
            await settled(journal)
            await log.append(rows(3, id="a"))
            await log.append(rows(4))
            await settled(journal)
            messages = [subscription.get_message(timeout=30)["data"] for _ in range(2)]
            assert messages == [b"adult 2", b"adult 3"]


class Sent:
    """A line that keeps what it is given, and may refuse."""

    def __init__(self) -> None:
        self.commands: list[tuple] = []
        self.is_away = False

    async def call(self, *command, is_read=False) -> None:
        if self.is_away:
            raise JournalUnavailable("planted")
        self.commands.append(command)
        await asyncio.sleep(0)


async def test_appends_that_follow_one_another_are_shown_of_together():
    line = Sent()
    announcer = Announcer(line, "ds:appends")
    for seq in range(1, 100):
        announcer.announce("m", seq)
        announcer.announce("other", 1000 - seq)
    await asyncio.sleep(0.001)
    assert line.commands == [
        ("PUBLISH", "ds:appends", "m 99"),
        ("PUBLISH", "ds:appends", "other 999"),
    ]
    announcer.announce("m", 100)
    await announcer.close()  # what is due is published before it ends
    assert line.commands[2:] == [("PUBLISH", "ds:appends", "m 100")]
    line.is_away = True
    announcer.announce("m", 101)
    await asyncio.sleep(0.001)
    line.is_away = False
    announcer.announce("m", 102)
    await announcer.close()
    assert line.commands[3:] == [("PUBLISH", "ds:appends", "m 102")]


async def settled(journal: RedisJournal) -> None:
    """Until all appends are announced: no command of that is on its way."""
    while journal._announcer._task is not None:
        await asyncio.sleep(0.002)


async def test_a_creation_that_died_before_it_was_listed_is_mended_by_the_next(
    redis_store: Store, client: redis.Redis
):
    async with redis_store.journal() as journal:
        await Log.create(journal)
        client.delete("ds:models")
        assert await journal.list() == []
        _, is_created = await journal.create("adult", b"", b"")
        assert not is_created
        assert [record.id for record in await journal.list()] == ["adult"]


async def test_a_deletion_that_died_before_it_was_unlisted_does_not_hide_others(
    redis_store: Store, client: redis.Redis
):
    async with redis_store.journal() as journal:
        for name in "abcdef":
            await Log.create(journal, name)
        for name in "abce":
            client.delete(f"ds:{{{name}}}:spec")
        assert [record.id for record in await journal.list(limit=1)] == ["d"]
        assert [record.id for record in await journal.list(limit=9)] == ["d", "f"]
        with pytest.raises(UnknownModel):
            await journal.delete("a")
        assert client.zscore("ds:models", "a") is None


async def test_seqs_stay_exact_up_to_two_to_the_53(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        far = 2**53 - 20
        client.hset("ds:{adult}:head", mapping={"seq": far, "trimmed": far})
        nonce = os.urandom(16)
        appended = await log.append(rows(1, 2, id="a"), nonce=nonce, known_seq=far)
        assert places(appended) == [(far + 1, far + 2, "new")]
        assert places(await log.append(rows(1, id="a"), known_seq=far)) == [
            (far + 1, far + 2, "duplicate")
        ]
        [entry] = await journal.read(log.model, log.incarnation, far + 1)
        assert (entry.first_seq, entry.seq) == (far + 1, far + 2)
        assert entry.chain == next_chain(log.record.chain, nonce)
        assert (await log.append(rows(1), known_seq=far)).entries == (entry,)
        assert await log.last_seq() == far + 3
        await journal.snapshot_put(log.model, log.incarnation, far + 2, entry.chain, b"state")
        snapshot = await journal.snapshot_get(log.model, log.incarnation)
        assert snapshot is not None
        assert snapshot.seq == far + 2
        await journal.trim(log.model, log.incarnation, far + 2)
        assert [e.seq for e in await journal.read(log.model, log.incarnation, far + 2)] == [far + 3]


async def test_keys_and_nonces_of_an_idle_model_leave_memory(
    redis_store: Store, client: redis.Redis
):
    async with redis_store.journal(Limits(key_ttl_s=0.1)) as journal:
        log = await Log.create(journal)
        await log.append(rows(1, id="a"))
        assert 80_000 < client.ttl("ds:{adult}:nonces") <= 86_400
        await asyncio.sleep(0.2)
        assert client.exists("ds:{adult}:keys", "ds:{adult}:keyq") == 0


async def test_a_model_that_a_killed_process_did_not_list_is_listed_by_the_next_row(
    redis_store: Store, client: redis.Redis
):
    """The set is in another slot than the rows, so the script that stores them cannot write it."""
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        await log.append(observed("a", 1, b"body", b"0", 0.0))
        client.delete("ds:waiting")
        assert await journal.awaiting_labels() == []
        # The client was not answered, and sends the row again.
        await log.append(observed("a", 1, b"body", b"0", 0.0))
        assert await log.last_seq() == 1
        [model] = await journal.awaiting_labels()
        assert (model.model, model.rows, model.is_due) == (log.model, 1, True)
        overdue = await journal.overdue(log.model, log.incarnation)
        assert [row.body for row in overdue.rows] == [b"body"]


async def test_calls_after_closing_are_refused(redis_store: Store):
    async with redis_store.journal() as journal:
        pass
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.ping()
