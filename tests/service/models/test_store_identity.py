"""A store is taken over by a process that computes otherwise, while another still serves it."""

import asyncio

import numpy as np
import pytest
import redis
from starlette.testclient import TestClient

from dualstream.service.journal import open_journal
from dualstream.service.models.store_status import OtherIdentity
from dualstream.service.replica.requests import Request
from dualstream.solvers import Batch, numeric_identity
from tests.service.conftest import Serve, assert_problem
from tests.service.support import ADULT, bits, learn_adult, loaded, replica_of
from tests.support import until

OLDER = "an-older-version"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who serves looks more often than each second."""
    monkeypatch.setattr("dualstream.service.jobs.follower.SWEEP_S", 0.05)


def served_otherwise(
    serve: Serve, store: str, monkeypatch: pytest.MonkeyPatch, **options: object
) -> TestClient:
    """A client of a server that computes otherwise, with a model of 12 rows and a snapshot."""
    monkeypatch.setattr("dualstream.service.replica.state.numeric_identity", lambda: OLDER)
    with monkeypatch.context() as older:
        older.setattr("dualstream.service.models.store_status.numeric_identity", lambda: OLDER)
        client = serve(store=store, snapshot_every=10, **options)
    client.put("/models/m", json=ADULT)
    learn_adult(client, 0, 12)
    until(lambda: snapshots(store) == [12])
    return client


def adopted(serve: Serve, store: str, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client of a server that has taken the store over, and writes no snapshots since."""
    monkeypatch.setattr("dualstream.service.replica.state.numeric_identity", numeric_identity)
    return serve(store=store, adopt=True)


def snapshots(store: str) -> list[int]:
    async def places() -> list[int]:
        journal = await open_journal(store)
        try:
            record = await journal.get("m")
            return [position.seq for position in await journal.snapshots("m", record.incarnation)]
        finally:
            await journal.close()

    return asyncio.run(places())


def test_server_of_an_adopted_store_stops_serving(
    serve: Serve, store: str, monkeypatch: pytest.MonkeyPatch
):
    running = served_otherwise(serve, store, monkeypatch)
    adopting = adopted(serve, store, monkeypatch)
    until(lambda: running.get("/readyz").status_code == 503)
    got = running.get("/readyz").json()
    assert got["ready"] is False and "--adopt" in got["reason"]
    assert f"computes as {OLDER!r}" in got["reason"]
    assert f"written as {numeric_identity()!r}" in got["reason"]
    refused = assert_problem(learn_adult(running, 12, 13), 503, "store-unavailable")
    assert got["reason"] in refused["detail"]
    for route in ("/models/m/predict?x=1:1", "/models/m"):
        assert_problem(running.get(route), 503, "store-unavailable")
    # Nor does it learn what needs no request, or the next chunk of one that it let in before
    model = running.app._registry.find("m")
    row = Batch.from_dense(np.ones((1, 123)), np.ones(1))
    with pytest.raises(OtherIdentity):
        running.portal.call(model.submit, Request.of(row, None, None))
    # It follows, and snapshots of its own would fall due
    for first in range(12, 52, 10):
        learn_adult(adopting, first, first + 10)
        until(lambda seq=first + 10: model.replica.seq == seq and not model.snapshots.is_writing)
    assert snapshots(store) == [12]
    assert adopting.get("/readyz").status_code == 200
    assert bits(loaded(store)) == bits(replica_of(adopting))


def test_nor_does_it_write_a_snapshot_before_it_has_looked(
    serve: Serve, store: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dualstream.service.jobs.follower.SWEEP_S", 3600.0)
    running = served_otherwise(serve, store, monkeypatch)
    adopted(serve, store, monkeypatch)
    assert running.get("/readyz").status_code == 200
    learn_adult(running, 12, 22)
    until(lambda: running.get("/readyz").status_code == 503)
    assert snapshots(store) == [12]


def test_emptied_store_belongs_to_its_running_server(serve: Serve, redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        running = serve(store=redis_server.url)
        client.flushall()
        until(lambda: client.get("ds:identity") == numeric_identity().encode())
    assert running.get("/readyz").status_code == 200
