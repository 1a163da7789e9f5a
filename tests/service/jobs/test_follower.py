"""Replicas of several workers: each follows what the others append, delete and make anew."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.jobs import follower as follower_module
from dualstream.service.jobs.follower import Follower
from dualstream.service.models import lag as lag_module, registry as registry_module
from dualstream.service.models.lag import Lag
from tests.service.conftest import SPEC, assert_problem
from tests.service.support import ROW, bits, learn_row, loaded, replica_of
from tests.support import until


@pytest.fixture
def pair(serve, store):
    """Two workers that hold one model."""
    one, other = serve(store=store), serve(store=store)
    assert one.put("/models/m", json=SPEC).status_code == 201
    assert other.get("/models/m").status_code == 200
    return one, other


def test_a_worker_that_only_predicts_follows(pair, store):
    one, other = pair
    for _ in range(3):
        seq = learn_row(one, 5)
        until(lambda seq=seq: other.get("/models/m/predict?x=1:1").json()["seq"] == seq)
    assert bits(replica_of(other)) == bits(replica_of(one)) == bits(loaded(store))


@pytest.mark.parametrize("route", ["/models/m/predict?x=1:1", "/predict?model=m&x=1:1"])
def test_min_seq_is_there_at_once(pair, route, monkeypatch):
    monkeypatch.setattr(registry_module, "REACH_S", 30.0)  # the machine may be busy
    one, other = pair
    for _ in range(20):
        seq = learn_row(one)
        answer = other.get(f"{route}&min_seq={seq}")
        assert answer.status_code == 200 and answer.json()["seq"] >= seq
        assert answer.json()["score"] == one.get(route).json()["score"]


def test_min_seq_of_a_posted_prediction(pair, monkeypatch):
    monkeypatch.setattr(registry_module, "REACH_S", 30.0)
    one, other = pair
    seq = learn_row(one, 3)
    answer = other.post(f"/models/m/predict?min_seq={seq}", json={"samples": [ROW, ROW]})
    assert answer.status_code == 200 and answer.json()["seq"] == seq


def test_min_seq_beyond_the_journal_is_refused(pair, monkeypatch):
    monkeypatch.setattr(registry_module, "REACH_S", 30.0)
    one, other = pair
    learn_row(one, 2)
    for answer in (
        other.get("/models/m/predict?x=1:1&min_seq=3"),
        other.post("/models/m/predict?min_seq=3", json=ROW),
    ):
        got = assert_problem(answer, 503, "min-seq-not-reached")
        assert "ends at seq 2" in got["detail"]
    assert other.get("/models/m/predict?x=1:1&min_seq=2").status_code == 200


@pytest.mark.parametrize("value", ["-1", "1.5", "x", "", "9" * 20, "\u0663"])
def test_min_seq_must_be_a_whole_number(model, value):
    answer = model.get("/models/m/predict", params={"x": "1:1", "min_seq": value})
    assert_problem(answer, 422, "invalid-query")


def test_min_seq_waits_no_longer_than_it_should(pair, monkeypatch):
    one, other = pair
    journal, is_read = other.app._registry.journal, asyncio.Event()

    async def slow(*_, **__):
        await is_read.wait()
        return []

    monkeypatch.setattr(registry_module, "REACH_S", 0.1)
    monkeypatch.setattr(journal, "read", slow)
    seq = learn_row(one)
    answer = other.get(f"/models/m/predict?x=1:1&min_seq={seq}")
    got = assert_problem(answer, 503, "min-seq-not-reached")
    assert "is at seq 0" in got["detail"]
    other.portal.call(is_read.set)


def test_a_model_deleted_elsewhere_is_noticed(pair):
    one, other = pair
    learn_row(one)
    one.delete("/models/m")
    until(lambda: other.get("/models/m/predict?x=1:1").status_code == 404)


def test_follower_detects_a_model_recreated_elsewhere(pair, store):
    one, other = pair
    learn_row(one, 4)
    one.delete("/models/m")
    one.put("/models/m", json=SPEC | {"rho": 0.5})
    seq = learn_row(one, 2)
    until(lambda: other.get("/models/m").json()["spec"]["rho"] == 0.5)
    assert other.get(f"/models/m/predict?x=1:1&min_seq={seq}").json()["seq"] == seq
    assert bits(replica_of(other)) == bits(loaded(store))


def test_a_put_finds_the_model_that_another_worker_has_made(pair):
    one, other = pair
    one.delete("/models/m")
    one.put("/models/m", json=SPEC | {"rho": 0.5})
    answer = other.put("/models/m", json=SPEC | {"rho": 0.5})
    assert answer.status_code == 200 and answer.json()["spec"]["rho"] == 0.5


def test_lost_entries_are_noticed_without_learning(serve, tmp_path):
    import sqlite3

    from tests.service.support import lose_last_entry

    path = tmp_path / "lost.db"
    client = serve(store=f"sqlite:///{path}")
    client.put("/models/m", json=SPEC)
    learn_row(client, 4)
    lose_last_entry(sqlite3.connect(path))
    until(lambda: client.get("/models/m/predict?x=1:1").json().get("seq") == 3)
    assert bits(replica_of(client)) == bits(loaded(f"sqlite:///{path}"))


@pytest.fixture
def nobody_follows(monkeypatch):
    """By itself: to be asked for first."""

    async def run(follower):
        await asyncio.Event().wait()

    monkeypatch.setattr(Follower, "run", run)


class Asked:
    """A journal, and of which models it was asked for heads."""

    def __init__(self, journal):
        self._journal, self.models = journal, []

    async def heads(self, models):
        self.models += models
        return await self._journal.heads(models)

    def __getattr__(self, name):
        return getattr(self._journal, name)


def test_heads_are_asked_for_where_something_may_have_been_committed(
    nobody_follows, pair, store, monkeypatch
):
    one, other = pair
    registry = other.app._registry
    request = Asked(registry.journal)

    def look() -> list[str]:
        request.models.clear()
        other.portal.call(Follower(registry, request)._check_heads)
        return request.models.copy()

    look()
    counts_commits = store.startswith("sqlite")
    assert look() == ([] if counts_commits else ["m"])
    # An append by another worker, of this one, and one that a load that began before has not seen
    learn_row(one)
    assert look() == ["m"]
    until(lambda: replica_of(other).seq == 1)
    learn_row(other)
    assert look() == ["m"]
    monkeypatch.setattr(registry.find("m"), "lag", Lag())
    assert look() == ["m"]
    assert look() == ([] if counts_commits else ["m"])


def test_a_replica_inside_an_entry_is_not_suspected(nobody_follows, pair):
    one, other = pair
    registry, replica = other.app._registry, replica_of(other)
    learn_row(one)
    # The row of the entry is learned, and its chain is not yet that of the replica.
    where = (replica.id, replica.incarnation, 0, 1 << 20)
    (entry,) = other.portal.call(registry.journal.read, *where)
    other.portal.call(replica.learn_part, entry, entry.seq)
    head = replica_of(one)
    assert replica.seq == head.seq == 1 and replica.chain != head.chain
    other.portal.call(Follower(registry, registry.journal)._check_heads)
    assert not replica.is_forked


def test_heads_of_many_models_are_asked_for_some_at_a_time(nobody_follows, client, monkeypatch):
    monkeypatch.setattr(follower_module, "HEADS_PER_QUERY", 2)
    for name in "abcde":
        assert client.put(f"/models/{name}", json=SPEC).status_code == 201
    registry = client.app._registry
    client.portal.call(Follower(registry, registry.journal)._check_heads)
    assert {model.lag.confirmed[1] for model in registry} == {0}


def test_lag_is_shown(pair, monkeypatch):
    one, other = pair
    got = other.get("/readyz?verbose").json()["lag"]
    assert got == {"seconds": 0.0, "records": 0, "behind": {}}
    journal, is_slow = other.app._registry.journal, [True]
    read = journal.read

    async def slow(*args, **more):
        while is_slow:
            await asyncio.sleep(0.01)
        return await read(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(journal, "read", slow)
        seq = learn_row(one, 3)
        until(lambda: other.get("/readyz?verbose").json()["lag"]["records"] == seq)
        got = other.get("/readyz?verbose").json()["lag"]
        assert got["seconds"] > 0 and got["behind"]["m"]["records"] == seq
        text = other.get("/metrics").text
        assert f'dualstream_replica_lag_records{{model="m"}} {seq}.0' in text
        assert 'dualstream_replica_lag_seconds{model="m"} 0.0\n' not in text
    is_slow.clear()
    until(lambda: other.get("/readyz?verbose").json()["lag"]["records"] == 0)
    assert 'dualstream_replica_lag_seconds{model="m"} 0.0\n' in other.get("/metrics").text


def test_lag_counts_from_the_oldest_head_not_applied(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(lag_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    lag = Lag()
    lag.observe(3)
    lag.observe(5)
    lag.observe(4)
    assert lag.head() == 5 and lag.at(2) == (0.0, 3)
    now_s = 101.0
    lag.observe(6)
    now_s = 103.0
    assert lag.at(3) == (3.0, 3)
    assert lag.at(5) == (2.0, 1)
    assert lag.at(6) == (0.0, 0) and lag.head() == 0
    lag.observe(9)
    lag.correct(7, now_s - 1)
    assert lag.head() == 9
    lag.correct(7, now_s + 1)
    assert lag.at(7) == (0.0, 0)


@pytest.mark.parametrize("route", ["", "/metrics", "/weights", "/weights?top=3"])
def test_an_etag_at_hand_is_not_shown_again(model, route):
    first = model.get(f"/models/m{route}")
    etag = first.headers["etag"]
    for named in (etag, f'"x", {etag}', f"W/{etag}", "*"):
        again = model.get(f"/models/m{route}", headers={"if-none-match": named})
        assert again.status_code == 304 and again.content == b""
        assert again.headers["etag"] == etag
    learn_row(model)
    answer = model.get(f"/models/m{route}", headers={"if-none-match": etag})
    assert answer.status_code == 200 and answer.headers["etag"] != etag
    assert answer.headers["etag"].startswith('"1-')


def test_a_process_that_only_predicts_follows_one_that_learns(store):
    with ServerProcess(store) as learning, ServerProcess(store) as predicting:
        with (
            httpx.Client(base_url=learning.url, timeout=60) as one,
            httpx.Client(base_url=predicting.url, timeout=60) as other,
        ):

            def has(seq: int, query: str = "") -> bool:
                answer = other.get(f"/models/m/predict?x=1:1{query}")
                # 503 of `min_seq`: a busy machine, and the next request waits for it again
                assert answer.status_code == 200 or (query and answer.status_code == 503)
                return answer.json().get("seq") == seq

            one.put("/models/m", json=SPEC).raise_for_status()
            assert other.get("/models/m").status_code == 200
            for _ in range(10):
                seq = learn_row(one)
                until(lambda seq=seq: has(seq, f"&min_seq={seq}"))
            seq = learn_row(one, 10)
            until(lambda: has(seq))
            assert one.get("/models/m/weights").json() == other.get("/models/m/weights").json()
