"""The profile of the columns is part of a replica's state: every replica has the same bits."""

import asyncio
import random
from itertools import pairwise

import numpy as np
import pytest

from dualstream.service.features import ALL
from dualstream.service.features.columns.profile import Profile
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import AppendRequest
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import NewRows, Request
from dualstream.service.replica.spec import canonical
from dualstream.solvers import Batch, resolve_spec
from tests.service.support import bits, loaded, replica_of
from tests.support import until

SPEC = {"columns": {"types": {"site": "category", "note": "text"}}, "members": "fast"}


def row(at: int) -> dict[str, object]:
    result: dict[str, object] = {"price": at % 17 + 0.5, "site": f"s{at % 23}", "y": at % 2}
    if at % 3 == 0:
        result |= {"note": f"word{at % 7} word{at % 5}", "tags": [f"t{at % 11}", "all"]}
    if at % 50 == 49:
        result["price"] = "none"
    return result


def learn(client, first: int, last: int) -> None:
    samples = [row(at) | {"id": f"r{at}"} if at % 4 == 0 else row(at) for at in range(first, last)]
    assert client.post("/models/m/learn", json={"samples": samples}).status_code == 200


def profile_of(replica: Replica) -> dict[str, bytes]:
    return {name: one for name, one in bits(replica).items() if name.startswith("profile.")}


def catch_up(client, seq: int) -> None:
    until(lambda: client.get("/models/m").json()["seq"] >= seq)


def test_workers_snapshots_and_replays_have_the_same_profile(serve, store):
    one = serve(store=store, snapshot_every=100)
    other = serve(store=store, snapshot_every=100)
    assert one.put("/models/m", json=SPEC).status_code == 201
    edges = [0, 1, 2, 3, 50, 51, 130, 180, 260, 261, 262, 400]
    for number, (first, last) in enumerate(pairwise(edges)):
        learn(one if number % 2 else other, first, last)
    for client in (one, other):
        catch_up(client, 400)
    # The same rows, each in a request of its own.
    assert one.put("/models/n", json=SPEC).status_code == 201
    for at in range(400):
        assert one.post("/models/n/learn", json={"samples": [row(at)]}).status_code == 200
    expected = profile_of(replica_of(one))
    assert expected["profile.sizes"] and len(expected) == 4
    assert profile_of(replica_of(other)) == expected
    assert profile_of(loaded(store)) == expected
    assert profile_of(replica_of(one, "n")) == expected
    names = replica_of(one).parts.find(Profile).columns.column_names()
    assert sorted(names) == ["note", "price", "site", "tags"]


def test_a_rollback_restores_the_profile_and_all_replicas_go_on_alike(serve, store):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=SPEC)
    learn(one, 0, 60)
    assert one.post("/models/m/versions", json={"name": "v"}).status_code == 201
    before = profile_of(replica_of(one))
    learn(other, 60, 120)
    assert one.post("/models/m/rollback", json={"version": "v"}).status_code == 200
    assert profile_of(replica_of(one)) == before
    for first in range(120, 180, 20):
        learn(other if first == 140 else one, first, first + 20)
    for client in (one, other):
        catch_up(client, 181)
    expected = profile_of(loaded(store))
    for client in (one, other):
        assert profile_of(replica_of(client)) == expected


NAMES = [(3, "price"), (5, "site=a"), (7, "site=b"), (9, "late"), (11, "later=x")]


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_come_before_their_names_do_not_depend_on_what_is_read_together(tmp_path, seed):
    """After a rollback a row may be journalled without a name that another worker sends later."""
    draw = random.Random(seed)
    spec = canonical(resolve_spec({"members": "fast"}))
    generator = np.random.default_rng(seed)
    requests = []
    for at in range(40):
        rows = draw.randint(1, 3)
        x = np.zeros((rows, 12))
        x[:, [index for index, _ in NAMES]] = generator.integers(0, 3, (rows, len(NAMES)))
        dense = Batch.from_dense(x, generator.choice([-1.0, 1.0], rows))
        batch = Batch(
            dense.indptr, dense.indices, dense.values, dense.labels, dense.weights, 1 << 18
        )
        names = [pair for pair in NAMES if draw.random() < 0.05 + 0.01 * at]
        requests.append(Request.of(batch, None, None, names))

    async def run() -> tuple[Replica, list[Replica]]:
        journal = await open_journal(f"sqlite:///{tmp_path / 'test.db'}")
        try:
            record, _ = await journal.create("m", spec, spec)
            live = Replica(record, ALL)
            for number, request in enumerate(requests):
                nonce = number.to_bytes(16, "big")
                append = AppendRequest("m", record.incarnation, nonce, live.seq, request.parts)
                appended = await journal.append(append)
                assert isinstance(request.rows, Batch)
                await live.apply_own(
                    appended.seq, appended.chain, NewRows(request.rows, request.names)
                )
            others = []
            for step in (10**6, 7, 1):
                other = Replica(record, ALL)
                entries = list(await journal.read("m", record.incarnation, 0))
                for first in range(0, len(entries), step):
                    await other.apply(entries[first : first + step], journal)
                others.append(other)
            return live, others
        finally:
            await journal.close()

    live, others = asyncio.run(run())
    assert live.parts.find(Profile).columns.rows > 40
    for other in others:
        assert profile_of(other) == profile_of(live)
