"""Rollback, guard, dump, refits and deletion of samples of a model with a history."""

import asyncio
import io

import pytest

from dualstream.service.archive.restore import restore
from dualstream.service.journal import open_journal
from dualstream.service.journal.record import KeyKind, make_key
from tests.service.archive.support import dumped
from tests.service.conftest import assert_problem
from tests.service.features.guard.support import FIELDS, paused
from tests.service.features.refits.support import finished
from tests.service.support import bits, loaded, replica_of

SPEC = {
    "algorithm": "dual_ascent",
    "columns": {"types": {"at": "time", "card": "ignore", "a": "number", "b": "number"}},
    "history": [
        {
            "by": "card",
            "time": "at",
            "of": "a",
            "stats": ["count", "mean", "label_mean"],
            "half_life": "1h",
        }
    ],
}


def row(number: int, bad: bool = False, **more) -> dict:
    a = ((number * 7919) % 101 - 50) / (1 if bad else 25)
    b = ((number * 104729) % 103 - 51) / (1 if bad else 25)
    at = 1.75e9 + 100 * number
    y = number * number % 7 < 3 if bad else a + b > 0
    return {"at": at, "card": number % 5, "a": a, "b": b, "y": int(y)} | more


def send(client, rows: list[dict], route: str = "learn") -> dict:
    answer = client.post(f"/models/m/{route}", json=rows)
    assert answer.status_code == 200, answer.text
    return answer.json()


def history_of(replica) -> dict[str, bytes]:
    arrays = replica.capture().arrays.items()
    return {name: a.tobytes() for name, a in arrays if name.startswith("learner.history.")}


@pytest.fixture
def client(serve, store):
    client = serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    return client


def test_a_rollback_brings_the_history_back(client, store):
    send(client, [row(number) for number in range(12)])
    assert client.post("/models/m/versions", json={"name": "v"}).status_code == 201
    before = history_of(replica_of(client))
    send(client, [row(number) for number in range(12, 20)])
    send(client, [row(20)], "observe")
    assert history_of(replica_of(client)) != before
    assert client.post("/models/m/rollback", json={"version": "v"}).status_code == 200
    assert history_of(replica_of(client)) == before
    assert replica_of(client).learner.observed == 0
    send(client, [row(number) for number in range(20, 24)])
    assert bits(replica_of(client)) == bits(loaded(store))


def test_rows_of_a_paused_model_enter_when_it_learns_them(serve, store):
    client = serve(store=store)
    spec = SPEC | {"guard": {"mode": "pause", **FIELDS}}
    assert client.put("/models/m", json=spec).status_code == 201
    send(client, [row(number) for number in range(200)])
    send(client, [row(number, bad=True) for number in range(200, 260)])
    paused(client)
    before = history_of(replica_of(client))
    answer = send(client, [row(260), row(261)], "observe")
    assert (answer["count"], answer["rejected"]) == (2, 2)
    assert all("paused" in error["reason"] for error in answer["errors"])
    assert history_of(replica_of(client)) == before
    assert replica_of(client).learner.observed == 0
    resumed = client.post("/models/m/resume?rows=learn")
    assert resumed.status_code == 200, resumed.text
    assert replica_of(client).learner.observed == 2
    assert history_of(replica_of(client)) != before
    assert bits(replica_of(client)) == bits(loaded(store))


def test_a_remembered_row_waits_on_if_its_entry_to_the_history_is_dropped(serve, store):
    client = serve(store=store)
    spec = SPEC | {"guard": {"mode": "pause", **FIELDS}}
    assert client.put("/models/m", json=spec).status_code == 201
    send(client, [row(number) for number in range(200)])
    send(client, [row(number, bad=True) for number in range(200, 260)])
    paused(client)
    waiting = {name: x for name, x in row(260, id="w").items() if name != "y"}
    assert send(client, [waiting], "predict?remember=true")["remembered"] == 1
    before = history_of(replica_of(client))
    assert client.post("/models/m/resume?rows=drop").status_code == 200
    assert history_of(replica_of(client)) == before
    # It is scored again and does not enter, as its id has entered the journal.
    send(client, [waiting], "predict?remember=true")
    assert history_of(replica_of(client)) == before
    learned = send(client, {"id": "w", "y": 1}, "labels")  # type: ignore[arg-type]
    assert learned["learned"] == 1
    totals = "learner.history.totals"
    assert history_of(replica_of(client))[totals] != before[totals]
    assert replica_of(client).learner.observed == 0
    assert bits(replica_of(client)) == bits(loaded(store))


def test_an_archive_carries_the_history(client, store, tmp_path):
    send(client, [row(number) for number in range(30)])
    send(client, [row(30)], "observe")
    live = bits(replica_of(client))

    async def copy_to(target: str) -> None:
        source, other = await open_journal(store), await open_journal(target)
        try:
            await restore(other, False, io.BytesIO(await dumped(source, "m")), lambda line: None)
        finally:
            await source.close()
            await other.close()

    target = f"sqlite:///{tmp_path / 'other.db'}"
    asyncio.run(copy_to(target))
    assert history_of(loaded(target)) == history_of(replica_of(client))
    assert live["learner.observed"] == bits(loaded(target))["learner.observed"]


def test_a_row_that_is_remembered_during_a_dump_has_entered_and_may_not_wait(
    client, store, tmp_path
):
    send(client, [row(number) for number in range(30)])
    waiting = {name: row(31)[name] for name in ("at", "card", "a", "b")}
    send(client, [waiting | {"id": "before"}], "predict?remember=true")
    target = f"sqlite:///{tmp_path / 'other.db'}"

    async def copy_to_target() -> list[bool]:
        source, other = await open_journal(store), await open_journal(target)
        kept_rows = source.kept_rows

        async def and_then_another(*arguments):
            async for page in kept_rows(*arguments):
                yield page
            late = [waiting | {"id": "during"}]
            await asyncio.to_thread(send, client, late, "predict?remember=true")

        source.kept_rows = and_then_another
        try:
            await restore(other, False, io.BytesIO(await dumped(source, "m")), lambda line: None)
            incarnation = (await other.get("m")).incarnation
            keys = [make_key(KeyKind.LABEL, name) for name in ("before", "during")]
            return [one is not None for one in await other.remembered("m", incarnation, keys)]
        finally:
            await source.close()
            await other.close()

    assert asyncio.run(copy_to_target()) == [True, False]
    assert loaded(target).learner.observed == 2
    assert history_of(loaded(target)) == history_of(replica_of(client))


def test_samples_of_a_model_with_a_history_are_not_unlearned(client):
    send(client, [row(1, id="s")])
    answer = client.delete("/models/m/samples/s")
    assert "history" in assert_problem(answer, 409, "cannot-unlearn")["detail"]


def test_a_refit_of_a_model_with_a_history_enters_it(client, store):
    send(client, [row(number) for number in range(40)])
    send(client, [row(40)], "observe")
    started = client.post("/models/m/refit")
    assert started.status_code == 202, started.text
    done = finished(client, started.json()["job"])
    assert done["status"] == "done", done
    assert bits(replica_of(client)) == bits(loaded(store))
