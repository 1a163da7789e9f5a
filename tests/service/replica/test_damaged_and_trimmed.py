"""Damaged snapshots are refused, and journals are trimmed to what snapshots need."""

import asyncio
import logging
import random
from typing import Any

import numpy as np
import pytest

from dualstream.service.features import ALL
from dualstream.service.replica.fork_detection import Forked
from dualstream.service.replica.recovery import NoBase, recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.state import Captured
from dualstream.solvers import load
from tests.service.conftest import assert_problem
from tests.service.replica.snapshot_damage import (
    SPEC,
    Kept,
    bits,
    flipped,
    opened,
    rows,
    run,
    spoil,
    store_piece,
    stored_pieces,
)
from tests.service.support import until_written


def damaged(data: bytes) -> dict[str, bytes]:
    """Ways in which stored bytes may be wrong."""
    chance = random.Random(1)
    ways = {
        f"bit {bit} of byte {at}": flipped(data, at, 1 << bit)
        for at, bit in [(chance.randrange(len(data)), chance.randrange(8)) for _ in range(20)]
        + [(0, 0), (7, 7), (9, 3), (len(data) - 1, 0)]
    }
    ways["cut"] = data[: len(data) // 2]
    ways["cut by a byte"] = data[:-1]
    ways["longer"] = data + b"\0"
    ways["empty"] = b""
    ways["another format"] = data.replace(b'"dualstream_format":"1"', b'"dualstream_format":"2"')
    ways["another seq"] = reencoded(data, seq="19")
    ways["another chain"] = reencoded(data, chain="0" * 40)
    ways["another model's"] = reencoded(data, incarnation="1" * 32)
    ways["another machine's"] = reencoded(data, identity="theirs")
    arrays, got = load(data)
    ways["without a count"] = (
        Captured(
            0, "", {name: arrays[name] for name in arrays if name != "rejected"}, got, ALL.parts
        )
        .encode()
        .data
    )
    two = {"rejected": np.zeros(2, np.int64)}
    ways["with two for one"] = Captured(0, "", arrays | two, got, ALL.parts).encode().data
    return ways


def reencoded(data: bytes, **header: str) -> bytes:
    """The same arrays under another header, whole."""
    arrays, got = load(data)
    return Captured(0, "", arrays, got | header, ALL.parts).encode().data


def test_damaged_snapshot_is_refused_and_the_one_before_it_used(store, caplog):
    async def scenario(kept: Kept) -> None:
        await kept.learn_and_write()
        await kept.learn(5, 7)
        expected = bits(kept.replica)
        (newest, data), (_, older) = stored_pieces(store)
        assert bits(await kept.fresh()) == expected
        assert caplog.records == []
        for trimmed in (False, True):
            if trimmed:
                await kept.journal.trim(*kept.where, 100, behind=1)
            for way, piece in damaged(data).items():
                assert piece != data, way
                store_piece(store, newest, piece)
                caplog.clear()
                fresh = await kept.fresh()
                assert bits(fresh) == expected, way
                assert (fresh.seq, fresh.chain) == (kept.replica.seq, kept.replica.chain), way
                # And it is said once, naming model, seq and where it lies.
                (got,) = caplog.records
                assert got.levelno == logging.ERROR
                assert "model 'm'" in got.message and "snapshot at seq 20" in got.message, way
                position = newest.decode() if isinstance(newest, bytes) else f"row {newest}"
                assert position in got.message
        assert older == stored_pieces(store)[1][1]

    run(store, scenario)


def test_without_a_good_snapshot_a_whole_journal_is_enough(store):
    async def scenario(kept: Kept) -> None:
        await kept.learn_and_write()
        spoil(store)
        fresh = await kept.fresh()
        assert bits(fresh) == bits(kept.replica) and fresh.seq == 20

    run(store, scenario)


def test_without_a_good_snapshot_a_trimmed_journal_is_not_enough(serve, store):
    async def scenario(kept: Kept) -> None:
        await kept.learn_and_write(3)
        await kept.journal.trim(*kept.where, 100, behind=1)
        spoil(store)
        with pytest.raises(NoBase, match=r"'m'.* kept from seq 21 .*seq 30 .*SHA-256.*seq 20"):
            await kept.fresh()

    run(store, scenario)
    got = assert_problem(serve(store=store).get("/models/m"), 503, "unreadable-journal")
    assert "kept from seq 21 on" in got["detail"]


def test_snapshot_taken_changes_no_bit(store):
    async def learned(writes: bool) -> dict[str, bytes]:
        async with opened(store) as kept:
            for seed in range(6):
                await kept.learn(7, seed)
                if writes:
                    kept.replica.capture().encode()
            result = bits(kept.replica)
            await kept.journal.delete("m")
            return result

    assert asyncio.run(learned(True)) == asyncio.run(learned(False))


def test_snapshot_of_another_machine_at_the_journals_end_gives_way_when_adopted(store, serve):
    """An adopted store has a snapshot of mine at its end, though one of theirs stood there."""
    theirs = b"x86-64-v9 and another C library"

    async def scenario(kept: Kept) -> dict[str, bytes]:
        await kept.learn_and_write()
        for position, piece in stored_pieces(store):
            store_piece(store, position, reencoded(piece, identity=theirs.decode()))
        await kept.journal.adopt_identity(theirs.decode())
        return bits(kept.replica)

    expected = run(store, scenario)
    serve(store=store, adopt=True)
    _, header = load(stored_pieces(store)[0][1])
    assert (header["seq"], header["identity"] != theirs.decode()) == ("20", True)

    async def after(kept: Kept) -> None:
        await kept.journal.trim(*kept.where, 100, behind=0)
        assert bits(await kept.fresh()) == expected

    run(store, after)


def test_store_whose_journals_are_trimmed_is_adopted_from_their_snapshots(store, serve):
    async def scenario(kept: Kept) -> dict[str, bytes]:
        await kept.learn_and_write(3)
        await kept.learn(4)
        await kept.journal.trim(*kept.where, 100, behind=1)
        for position, piece in stored_pieces(store):
            store_piece(store, position, reencoded(piece, identity="theirs"))
        await kept.journal.adopt_identity("theirs")
        with pytest.raises(NoBase, match="identity 'theirs'"):
            await kept.fresh()
        return bits(kept.replica)

    expected = run(store, scenario)
    serve(store=store, adopt=True)

    async def after(kept: Kept) -> None:
        fresh = await kept.fresh()
        assert bits(fresh) == expected and fresh.seq == 34

    run(store, after)


def learn(client, count: int, seed: int = 0) -> None:
    batch = rows(count, seed)
    x = [[*map(float, row)] for row in batch.values.reshape(count, 5)]
    y = [int(label > 0) for label in batch.labels]
    assert client.post("/models/m/learn", json={"x": x, "y": y}).status_code == 200


@pytest.mark.parametrize(("keep_records", "kept_from"), [(0, 61), (30, 61), (50, 41), (1000, 1)])
def test_journal_is_kept_for_its_two_newest_snapshots_or_longer(
    serve, store, keep_records: int, kept_from: int
):
    client = serve(store=store, snapshot_every=30, keep_records=keep_records)
    client.put("/models/m", json=SPEC)
    for seed in range(10):
        learn(client, 10, seed)
        until_written(client)
    state = client.get("/models/m?digest=true").json()

    async def scenario(kept: Kept) -> None:
        assert [position.seq for position in await kept.journal.snapshots(*kept.where)] == [90, 60]
        assert await kept.kept_from() == kept_from
        assert kept.replica.capture().state_digest() == state["state_digest"]

    run(store, scenario)


def test_snapshots_of_a_bulk_take_a_share_of_the_time(serve, monkeypatch):
    monkeypatch.setattr(
        "dualstream.service.models.snapshots.SNAPSHOT_SHARE", 1e-9
    )  # the second one comes in years
    client = serve(snapshot_every=500, keep_records=10_000)
    client.put("/models/m", json=SPEC)
    seqs = []
    for count in (1500, 1500, 600, 1200):
        learn(client, count)
        until_written(client)
        seqs.append(client.app._registry.find("m").snapshots.last_seq)
    assert seqs == [1500, 1500, 3600, 3600]


def test_replica_that_was_overtaken_by_the_trimming_takes_the_newest_snapshot(store):
    async def scenario(kept: Kept) -> None:
        await kept.learn(10)
        async with opened(store) as other:
            for _ in range(3):
                await other.learn_and_write()
            await other.journal.trim(*other.where, 100, behind=1)
            assert await kept.kept_from() > 11
            # By what it appends itself, and by following
            receipt = await kept.learn(3, 4)
            assert receipt.position.seq == kept.replica.seq == 73
            await other.committer.refresh()
            assert bits(kept.replica) == bits(other.replica)
            late = Kept(kept.journal, kept.record)
            await late.committer.refresh()
            assert bits(late.replica) == bits(other.replica)
            assert (late.replica.seq, late.replica.chain) == (73, other.replica.chain)

    run(store, scenario)


def test_replica_that_loads_while_the_journal_is_trimmed_under_it_begins_again(store):
    async def scenario(kept: Kept) -> None:
        await kept.learn_and_write(1)
        await kept.learn(10, 3)

        class Trimming:
            """A journal that others write a snapshot to, and trim, after the first one was read."""

            def __getattr__(self, name: str):
                return getattr(kept.journal, name)

            async def snapshot_get(self, *where):
                result = await kept.journal.snapshot_get(*where)
                if await kept.kept_from() == 1:
                    await kept.write()
                    await kept.journal.trim(*kept.where, 100, behind=0)
                return result

        fresh = Replica(kept.record, ALL)
        await recover(fresh, Trimming())  # type: ignore[arg-type]
        assert bits(fresh) == bits(kept.replica)

    run(store, scenario)


def test_adoption_replays_a_whole_journal_that_changed_between_two_reads(store, monkeypatch):
    async def scenario(kept: Kept) -> None:
        with monkeypatch.context() as before:
            before.setattr("dualstream.service.replica.state.numeric_identity", lambda: "theirs")
            await kept.learn_and_write()
        catch_up, forks = Replica.catch_up, iter([Forked("entries were replaced")])

        async def replaced_once(replica: Replica, *args: Any) -> None:
            for fork in forks:
                raise fork
            await catch_up(replica, *args)

        monkeypatch.setattr(Replica, "catch_up", replaced_once)
        fresh = await kept.fresh(adopts=True)
        assert (fresh.seq, fresh.restored_seq) == (20, 0)

    run(store, scenario)
