"""What only several Redis servers can do: replicas that have a write, slots that are moved."""

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
import redis
from redis.asyncio.sentinel import Sentinel
from redis.crc import key_slot

from dualstream.service.archive.dump import run_dump
from dualstream.service.archive.restore import run_restore
from dualstream.service.journal import open_journal
from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import (
    Announced,
    Change,
    DurabilityTooLow,
    Head,
    Journal,
    JournalUnavailable,
    NotReplicated,
    UnknownModel,
)
from dualstream.service.journal.redis import (
    RedisJournal,
    cluster as nodes,
    connection as line,
    servers,
)
from dualstream.service.journal.redis.keys_and_values import MODELS
from tests.history import check_history
from tests.redis_sets import (
    FORMING_MS,
    NODE_TIMEOUT_MS,
    ClusterSet,
    SentinelSet,
    cluster_or_skip,
    sentinels_or_skip,
    until,
)
from tests.service.journal.groups import Log, places, rows

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def sentinels() -> Iterator[SentinelSet]:
    with sentinels_or_skip(down_after_ms=60_000) as result:  # no test needs a failover
        yield result


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[ClusterSet]:
    with cluster_or_skip(node_timeout_ms=FORMING_MS) as result:
        yield result


@pytest.fixture
def cluster(shared_cluster: ClusterSet) -> ClusterSet:
    """It is empty, whichever tests used it before."""
    for server in shared_cluster.servers[:3]:
        shared_cluster.ask(server, "FLUSHALL")
    return shared_cluster


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas, Sentinels and nodes may be busy."""
    monkeypatch.setattr(line, "REPLICAS_MS", 4000)
    for module in (servers, nodes):
        monkeypatch.setattr(module, "FINDING_S", 30.0)


@asynccontextmanager
async def opened(url: str, durability: str | None = None) -> AsyncIterator[Journal]:
    journal = await open_journal(url, durability)
    try:
        yield journal
    finally:
        await journal.close()


async def test_appends_are_shown_of_when_too_few_replicas_have_them(
    sentinels: SentinelSet, monkeypatch: pytest.MonkeyPatch
):
    replica = next(server for server in sentinels.servers if server is not sentinels.primary())
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(opened(sentinels.url, "replicated:2"))
        assert journal.durability() == "replicated:2"
        log = await Log.create(journal, "short")
        assert (await log.append(rows(1))).shortfall is None
        # Given a replica that hangs, a write is done and its answer says who lacks it
        monkeypatch.setattr(line, "REPLICAS_MS", 200)
        hasty = await stack.enter_async_context(opened(sentinels.url, "replicated:2"))
        nonce = os.urandom(16)
        replica.pause()
        try:
            log.journal = hasty
            short = await log.append(rows(2, id="a"), nonce=nonce)
            assert places(short) == [(2, 2, "new")] and short.shortfall is not None
            # nor is a repetition better, by its nonce or by its key
            for _ in range(100):
                again = await log.append(rows(2, id="a"), nonce=nonce)
                assert again.seq == 2 and again.shortfall is not None
                if "1 of 2 replicas" in again.shortfall:
                    break  # the other replica may be late, too
            assert "1 of 2 replicas" in again.shortfall
            other = await log.append(rows(2, id="a"))
            assert places(other) == [(2, 2, "duplicate")] and other.shortfall is not None
            with pytest.raises(NotReplicated):
                await Log.create(hasty, "another")
        finally:
            replica.resume()
        # When it goes on, the repetition finds that all have it
        until(lambda: sentinels.is_followed(sentinels.primary(), 2), "the replica")
        log.journal = journal
        again = await log.append(rows(2, id="a"), nonce=nonce)
        assert again.seq == 2 and again.shortfall is None
        assert await log.tags() == [1, 2]


async def test_where_a_replica_is_missing_nothing_is_done(sentinels: SentinelSet):
    primary = sentinels.primary()
    replica = next(server for server in sentinels.servers if server is not primary)
    async with opened(sentinels.url, "replicated:2") as journal:
        log = await Log.create(journal, "missing")
        replica.kill()
        try:
            until(
                lambda: sentinels.info(primary).get("connected_slaves") == 1,
                "the primary to notice",
            )
            with pytest.raises(DurabilityTooLow, match="has 1 replicas, replicated:2 was asked"):
                await journal.ping()
            for _ in range(2):
                with pytest.raises(DurabilityTooLow):
                    await log.append(rows(2))
            assert await log.tags() == []
            with pytest.raises(DurabilityTooLow):
                await open_journal(sentinels.url, "replicated:2")
            async with opened(sentinels.url, "replicated:1") as other:
                assert other.durability() == "replicated:1"
        finally:
            replica.options["replicaof"] = f"127.0.0.1 {primary.port}"
            replica.start()
        until(lambda: sentinels.is_followed(primary, 2), "the replica")
        assert (await log.append(rows(3))).shortfall is None


async def archive_of(model: str, folder: Path) -> bytes:
    """An archive of a model with one entry."""
    source, file = f"sqlite:///{folder / 'source.db'}", io.BytesIO()
    async with opened(source) as journal:
        await (await Log.create(journal, model)).append(rows(1))
    await run_dump(source, model, file, lambda line: None)
    return file.getvalue()


async def restored(archive: bytes, url: str, say: Callable[[str], None] = lambda line: None):
    await run_restore(url, True, io.BytesIO(archive), say)


def test_a_restore_ends_once_every_replica_has_it(
    sentinels: SentinelSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A server that replaces the primary right after it has all of it."""
    monkeypatch.setattr(line, "REPLICAS_MS", 100)
    monkeypatch.setattr(line, "SETTLED_S", 0.2)
    archive = asyncio.run(archive_of("moved", tmp_path))
    until(lambda: sentinels.is_followed(sentinels.primary(), 2), "the replicas")
    replica = next(server for server in sentinels.servers if server is not sentinels.primary())
    replica.pause()
    try:
        for run in range(100):  # the second run skips the model
            with pytest.raises(NotReplicated) as short:
                asyncio.run(restored(archive, sentinels.url))
            if run and "1 of 2 replicas" in str(short.value):
                break  # the other replica may be late, too
        assert "1 of 2 replicas" in str(short.value)
    finally:
        replica.resume()
    until(lambda: sentinels.is_followed(sentinels.primary(), 2), "the replica")
    monkeypatch.setattr(line, "SETTLED_S", 30)
    asyncio.run(restored(archive, sentinels.url))
    with redis.Redis(port=replica.port, protocol=2) as client:
        assert client.zscore(MODELS, "moved") is not None
        assert client.exists("ds:{moved}:log")


def test_a_restore_whose_replicas_leave_has_not_ended(
    sentinels: SentinelSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """They can follow another server by now, which has nothing of it."""
    monkeypatch.setattr(line, "REPLICAS_MS", 100)
    monkeypatch.setattr(line, "SETTLED_S", 0.2)
    primary = sentinels.primary()
    replicas = [server for server in sentinels.servers if server is not primary]
    archive = asyncio.run(archive_of("left", tmp_path))

    def leave(got: str) -> None:
        for replica in replicas:
            replica.pause()
        sentinels.ask(primary, "CLIENT", "KILL", "TYPE", "replica")

    try:
        with pytest.raises(NotReplicated, match="0 of 2 replicas"):
            asyncio.run(restored(archive, sentinels.url, leave))
    finally:
        for replica in replicas:
            replica.resume()
    until(lambda: sentinels.is_followed(sentinels.primary(), 2), "the replicas")
    monkeypatch.setattr(line, "SETTLED_S", 30)
    asyncio.run(restored(archive, sentinels.url))


async def test_a_primary_that_the_sentinels_have_left_is_left(
    sentinels: SentinelSet, monkeypatch: pytest.MonkeyPatch
):
    """Simulates a network partition: the old primary accepts writes that will be lost."""
    primary = sentinels.primary()
    former = next(server for server in sentinels.servers if server is not primary)
    sentinels.ask(former, "REPLICAOF", "NO", "ONE")

    async def shown_late(self: Sentinel, service: str) -> tuple[str, int]:
        return "127.0.0.1", former.port

    async with opened(sentinels.url) as journal, opened(sentinels.url) as other:
        with monkeypatch.context() as before:
            before.setattr(Sentinel, "discover_master", shown_late)
            await journal.close()
            await journal.open()
            await journal.create("elsewhere", b"{}", b"{}")
            with pytest.raises(UnknownModel):
                await other.get("elsewhere")
        # The Sentinels say where the primary is: it is found at the next look.
        await journal.ping()
        with pytest.raises(UnknownModel):
            await journal.get("elsewhere")
    sentinels.ask(former, "REPLICAOF", "127.0.0.1", primary.port)
    until(lambda: sentinels.is_followed(primary, 2), "the replica")


async def test_without_a_sentinel_or_service_the_store_is_away(sentinels: SentinelSet):
    with pytest.raises(JournalUnavailable, match="No master found for 'other'"):
        await open_journal(sentinels.url.replace("/main", "/other"))
    with pytest.raises(JournalUnavailable, match="No master found"):
        await open_journal("redis+sentinel://127.0.0.1:1/main")


async def test_a_server_of_a_set_is_taken_for_what_it_is(
    sentinels: SentinelSet, cluster: ClusterSet
):
    replica = next(server for server in sentinels.servers if server is not sentinels.primary())
    with pytest.raises(JournalUnavailable, match="is a replica"):
        await open_journal(replica.url)
    with pytest.raises(JournalUnavailable, match=r"cluster mode: write redis\+cluster://"):
        await open_journal(cluster.servers[0].url)
    with pytest.raises(JournalUnavailable, match="sentinel mode"):
        await open_journal(sentinels.sentinels[0].url)
    with pytest.raises(JournalUnavailable, match="[Cc]luster"):
        await open_journal(replica.url.replace("redis://", "redis+cluster://").removesuffix("/0"))


IDS = [f"model-{number}" for number in range(12)]


async def test_models_live_on_all_nodes_each_in_one_slot(cluster: ClusterSet):
    until(lambda: all(cluster.is_followed(one, 1) for one in cluster.servers[:3]), "replicas")
    async with opened(cluster.url, "replicated:1") as journal, opened(cluster.url) as other:
        async with aclosing(other.announcements()) as got:
            assert await anext(got) == Announced()
            logs = {model: await Log.create(journal, model) for model in IDS}
            for number, (model, log) in enumerate(logs.items()):
                appended = await log.append(rows(number, id="a"))
                await journal.snapshot_put(model, log.incarnation, 1, appended.chain, b"state")
            heard = [await asyncio.wait_for(anext(got), 30) for _ in IDS]
            assert {(announced.model, announced.seq) for announced in heard} == {
                (model, 1) for model in IDS
            }
        owners = {cluster.owner(f"ds:{{{model}}}:log").port for model in IDS}
        assert len(owners) == 3
        heads = await other.heads([*IDS, "none"])
        assert heads[-1] is None
        for model, log, head in zip(IDS, logs.values(), heads, strict=False):
            assert isinstance(head, Head) and head.seq == 1
            await check_history(other, model, [])
            assert await log.tags() == [IDS.index(model)]
            snapshot = await other.snapshot_get(model, log.incarnation)
            assert snapshot is not None and snapshot.data == b"state"
        assert [record.id for record in await other.list(limit=100)] == sorted(IDS)
        assert await other.count() == len(IDS)
        for server in cluster.servers[:3]:
            for key in cluster.ask(server, "KEYS", "*"):
                tag = key.decode().partition("{")[2].partition("}")[0]
                assert tag in IDS or key in (b"ds:models", b"ds:identity")
        for model in IDS:
            await journal.delete(model)
        assert sum(cluster.ask(server, "DBSIZE") for server in cluster.servers[:3]) == 0


async def test_a_slot_that_moves_under_appends_loses_and_doubles_nothing(cluster: ClusterSet):
    model = "moving"
    slot = key_slot(f"{model}".encode())
    source = cluster.owner(f"ds:{{{model}}}:log")
    target = next(server for server in cluster.servers[:3] if server is not source)
    async with opened(cluster.url) as journal, opened(cluster.url) as other:
        log = await Log.create(journal, model)
        await journal.create("still", b"{}", b"{}", Change("create"))
        for tag in range(20):
            await log.append(rows(tag, id=str(tag)))
        moving = asyncio.create_task(
            asyncio.to_thread(cluster.move_slot, slot, target, lambda: None)
        )
        tag = 20
        while not moving.done() or tag < 60:
            await log.append(rows(tag, id=str(tag)), change=Change("append"))
            tag += 1
        await moving
        # The other nodes may learn of it later.
        until(lambda: cluster.owner(f"ds:{{{model}}}:log") is target, "the new owner")
        assert await log.tags() == list(range(tag))
        got = await other.audit(model, limit=1000)
        assert [one.seq for one in got] == list(range(21, tag + 1))
        assert [one.model for one in await other.audit(limit=1000)] == ["still"] + [model] * (
            len(got)
        )
        # A connection that has not noticed yet raises, for batches of reads, too.
        heads = await other.heads(["still", model])
        assert [head.seq for head in heads if isinstance(head, Head)] == [0, tag]
        assert places(await log.append(rows(3, id="3"))) == [(4, 4, "duplicate")]


async def test_remaining_node_continues_without_another_owner_of_a_slot(cluster: ClusterSet):
    """As a restore: another owner may lack the last of what was written to the one before."""
    journal = RedisJournal(cluster.url, is_pinned=True)
    await journal.open()
    try:
        slot = key_slot(b"stays")
        source = cluster.owner("ds:{stays}:log")
        target = next(server for server in cluster.servers[:3] if server is not source)
        await journal.create("stays", b"{}", b"{}")
        await journal.ping()
        cluster.move_slot(slot, target, lambda: None)
        with pytest.raises(JournalUnavailable, match="run this again"):
            await journal.get("stays")
        with pytest.raises(JournalUnavailable, match="run this again"):
            await journal.ping()
        async with opened(cluster.url) as other:
            await other.delete("stays")
        cluster.move_slot(slot, source, lambda: None)
    finally:
        await journal.close()


async def test_while_a_slot_is_on_its_way_commands_wait_or_follow_it(cluster: ClusterSet):
    model = "halfway"
    slot = key_slot(model.encode())
    source = cluster.owner(f"ds:{{{model}}}:log")
    target = next(server for server in cluster.servers[:3] if server is not source)
    async with opened(cluster.url) as journal:
        log = await Log.create(journal, model)
        nonce = os.urandom(16)
        await log.append(rows(1), nonce=nonce)
        halfway = asyncio.Event()
        go_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        def step() -> None:
            loop.call_soon_threadsafe(halfway.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(30)

        moving = asyncio.create_task(asyncio.to_thread(cluster.move_slot, slot, target, step))
        await halfway.wait()
        # The slot is marked and nothing is moved: a new model of it is made where it goes to.
        appending = asyncio.create_task(log.append(rows(2)))
        await asyncio.sleep(0.2)
        go_on.set()
        appended = await appending
        await moving
        assert places(appended) == [(2, 2, "new")]
        assert appended.previous == next_chain(log.record.chain, nonce)
        assert places(await log.append(rows(1), nonce=nonce)) == [(1, 1, "new")]
        assert await log.tags() == [1, 2]


async def test_the_heads_on_a_node_that_is_away_are_shown_as_such(cluster: ClusterSet):
    async with opened(cluster.url) as journal:
        logs = {model: await Log.create(journal, model) for model in IDS}
        away = cluster.owner(f"ds:{{{IDS[0]}}}:log")
        gone = {model for model in IDS if cluster.owner(f"ds:{{{model}}}:log") is away}
        cluster.set_node_timeout(NODE_TIMEOUT_MS)
        away.kill()
        heads = dict(zip(IDS, await journal.heads(IDS), strict=True))
        assert gone == {id_ for id_, head in heads.items() if isinstance(head, JournalUnavailable)}
        for model in set(IDS) - gone:
            assert isinstance(heads[model], Head)
        # A replica takes its place, and all goes on.
        for model, log in logs.items():
            async with asyncio.timeout(60):
                while True:
                    try:
                        await log.append(rows(1, id="a"))
                        break
                    except (JournalUnavailable, redis.RedisError):
                        await asyncio.sleep(0.05)
            assert await log.tags() == [1], model
        await journal.ping()
    # Others use the Cluster after this test.
    away.start()
    until(lambda: cluster.info(away).get("master_link_status") == "up", "the former primary")
    cluster.ask(away, "CLUSTER", "FAILOVER", "TAKEOVER")
    until(lambda: all(cluster.is_followed(one, 1) for one in cluster.servers[:3]), "replicas")
    until(lambda: cluster.owner(f"ds:{{{IDS[0]}}}:log") is away, "the owner of before")
    until(cluster.is_whole, "the Cluster")
    cluster.set_node_timeout(FORMING_MS)
