"""Snapshots of a deleted model, and of an absent store: what is logged, and that others go on."""

import logging
import threading

import pytest

from dualstream.service.journal.audit import SERVER
from dualstream.service.journal.protocol import JournalUnavailable, OutcomeUnknown
from dualstream.service.models.snapshots import Snapshots
from tests.service.conftest import SPEC

ROWS = {"samples": [{"x": {"1": 1}, "y": 1}] * 6}


@pytest.mark.parametrize("again", [False, True])
def test_a_snapshot_of_a_model_that_is_gone_is_no_error(serve, store, monkeypatch, caplog, again):
    client = serve(store=store, snapshot_every=5)
    for model in ("m", "other"):
        assert client.put(f"/models/{model}", json=SPEC).status_code == 201
    write, run, ended = Snapshots.write, Snapshots._run, threading.Event()

    async def late(self, *args):
        record = self._record
        change = SERVER.change("delete")
        await self._deps.journal.delete(record.id, record.incarnation, change, None)
        if again:
            await self._deps.journal.create(record.id, record.spec, record.given)
        await write(self, *args)

    async def noted(self, *args):
        await run(self, *args)
        ended.set()

    monkeypatch.setattr(Snapshots, "write", late)
    monkeypatch.setattr(Snapshots, "_run", noted)
    with caplog.at_level(logging.WARNING):
        assert client.post("/models/m/learn", json=ROWS).json()["learned"] == 6
        assert ended.wait(20)
    assert [record.message for record in caplog.records if "snapshot" in record.message] == []
    monkeypatch.setattr(Snapshots, "write", write)
    assert client.post("/models/other/learn", json=ROWS).json()["learned"] == 6


@pytest.mark.parametrize(
    ("error", "has_trace"),
    [
        (JournalUnavailable("the store is away"), False),
        (OutcomeUnknown("the store is away"), False),
        (ValueError("the store is away"), True),
    ],
)
def test_a_snapshot_that_an_absent_store_refuses_is_logged_in_one_line(
    serve, monkeypatch, caplog, error, has_trace
):
    client = serve(snapshot_every=5)
    assert client.put("/models/m", json=SPEC).status_code == 201
    run, ended = Snapshots._run, threading.Event()

    async def refused(self, *args):
        raise error

    async def noted(self, *args):
        await run(self, *args)
        ended.set()

    monkeypatch.setattr(Snapshots, "write", refused)
    monkeypatch.setattr(Snapshots, "_run", noted)
    with caplog.at_level(logging.WARNING):
        assert client.post("/models/m/learn", json=ROWS).json()["learned"] == 6
        assert ended.wait(20)
    [logged] = [record for record in caplog.records if "snapshot" in record.message]
    assert logged.message == "model 'm': snapshot at seq 6 failed: the store is away"
    assert bool(logged.exc_info) is has_trace
