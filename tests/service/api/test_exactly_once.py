"""Ids and keys over HTTP: learned once whatever is repeated, and answered as the first time."""

import asyncio
import math

import numpy as np
import pytest

from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.first_responses import FirstResponses
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import Request
from tests.history import Acknowledged, check_history
from tests.service.api.support import learn, sample
from tests.service.conftest import SPEC, assert_problem
from tests.service.journal.faulty import Fault, FaultyJournal
from tests.service.support import bits, loaded, replica_of
from tests.support import until

SPECS = {
    "binary": SPEC,
    "regression": SPEC | {"task": "regression", "loss": "squared"},
    "multiclass": SPEC | {"task": "multiclass"},
    "hashed": SPEC | {"features": {"kind": "hashed", "bits": 10}},
}


@pytest.fixture
def client(serve, store):
    client = serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    return client


def restarted(serve, store, client):
    """Another worker, which has to read what it knows from the store."""
    return serve(store=store)


# -- ids ------------------------------------------------------------------------------------------


def test_a_sample_with_an_id_is_learned_once(client, store):
    first = client.post("/models/m/learn", json=sample(1, "a"))
    got = first.json()
    assert (got["seq"], got["count"], got["duplicate"]) == (1, 1, False)
    assert "duplicates" not in got and got["scores"] == [0.0]
    got = client.post("/models/m/learn", json=sample(1, "a")).json()
    assert got["duplicates"] == [{"index": 0, "seq": 1}]
    assert (got["seq"], got["count"], got["learned"], got["rejected"]) == (1, 0, 0, 0)
    assert got["duplicate"] is True and got["scores"] == [None]
    assert got["mistakes"] == 0 and got["loss"] is None
    assert loaded(store).learner.samples == 1


def test_known_rows_are_left_out_and_the_others_learned(client, store):
    learn(client, sample(0, "a"), sample(1))
    got = learn(client, sample(2), sample(0, "a"), sample(3, "b"), sample(4)).json()
    assert got["duplicates"] == [{"index": 1, "seq": 1}]
    assert (got["seq"], got["count"], got["learned"], got["duplicate"]) == (5, 3, 3, False)
    assert [score is None for score in got["scores"]] == [False, True, False, False]
    alone = client.put("/models/alone", json=SPEC) and client.post(
        "/models/alone/learn?scores=true", json={"samples": [sample(n) for n in (0, 1, 2, 3, 4)]}
    )
    scores = alone.json()["scores"]
    assert [got["scores"][k] for k in (0, 2, 3)] == scores[2:]
    assert bits(replica_of(client)) == bits(loaded(store))


def test_an_id_twice_in_one_request_is_learned_once(client):
    got = learn(client, sample(0, "a"), sample(0, "a"), sample(1, "a")).json()
    assert got["count"] == 1 and got["duplicates"] == [{"index": 1, "seq": 1}]
    assert [(e["index"], e["pointer"]) for e in got["errors"]] == [(2, "/samples/2/id")]
    assert got["rejected"] == 1


def test_an_integer_id_is_its_decimal_text(client):
    learn(client, sample(0, 17))
    got = learn(client, sample(0, "17"), sample(1, -3)).json()
    assert got["duplicates"] == [{"index": 0, "seq": 1}]
    assert learn(client, sample(1, "-3")).json()["duplicates"] == [{"index": 0, "seq": 2}]


@pytest.mark.parametrize("id_", ["a:b", "é" * 127, 'q"\\:', " ", "\U0001f600", "0"])
def test_any_text_may_be_an_id(client, id_):
    assert learn(client, sample(0, id_)).json()["count"] == 1
    assert learn(client, sample(0, id_)).json()["duplicates"] == [{"index": 0, "seq": 1}]


def test_columns_take_ids_and_null_is_none(client):
    columns = {"x": [[1, 0, 0, 0, 0]] * 3, "y": [1, 1, 1], "ids": ["c:1", None, 2]}
    assert client.post("/models/m/learn", json=columns).json()["count"] == 3
    got = client.post("/models/m/learn", json=columns).json()
    assert got["count"] == 1
    assert got["duplicates"] == [{"index": 0, "seq": 1}, {"index": 2, "seq": 3}]
    wrong = columns | {"ids": ["c:1", "", 2], "y": [0, 1, 1]}
    got = client.post("/models/m/learn", json=wrong).json()
    assert [(e["index"], e["pointer"]) for e in got["errors"]] == [(1, "/ids/1"), (0, "/ids/0")]
    short = client.post("/models/m/learn", json=columns | {"ids": ["a"]})
    assert_problem(short, 422, "invalid-body")


def test_another_payload_under_an_id_is_a_bad_row(client):
    learn(client, sample(0, "a"))
    for other in (sample(1, "a"), sample(0, "a") | {"weight": 2}, sample(0, "a") | {"y": 0}):
        got = learn(client, other, sample(3)).json()
        (error,) = got["errors"]
        assert error["pointer"] == "/samples/0/id" and "another sample" in error["reason"]
        assert got["rejected"] == 1 and got["count"] == 1
        refused = client.post("/models/m/learn", json=other)
        got = assert_problem(refused, 422, "invalid-rows")
        assert got["errors"][0]["pointer"] == "/id"


def test_ids_of_two_workers_are_one(serve, store, client):
    other = serve(store=store)
    learn(client, sample(0, "a"), sample(1, "b"))
    got = learn(other, sample(1, "b"), sample(2, "c")).json()
    assert got["duplicates"] == [{"index": 0, "seq": 2}] and got["seq"] == 3
    learn(client, sample(5))
    assert bits(replica_of(client)) == bits(loaded(store))


def test_a_row_left_out_brings_no_names_along(serve, store):
    one = serve(store=store)
    one.put("/models/m", json=SPECS["hashed"])
    one.post("/models/m/learn", json={"x": {"age": 1}, "y": 1, "id": "a"})
    answer = one.post(
        "/models/m/learn",
        json={"samples": [{"x": {"income": 1}, "y": 1, "id": "a"}, {"x": {"age": 1}, "y": 1}]},
    )
    assert answer.json()["rejected"] == 1
    # The name of the row that was refused rides along with the next row that has it.
    one.post("/models/m/learn", json={"x": {"income": 1}, "y": 1, "id": "b"})
    assert bits(replica_of(one)) == bits(loaded(store))
    names = {w.get("name") for w in one.get("/models/m/weights").json()["weights"]}
    assert names == {"age", "income"}


def test_prediction_ignores_ids(client):
    learn(client, sample(0, "a"))
    got = client.post("/models/m/predict", json={"samples": [sample(0, "a"), sample(1, "a")]})
    assert got.status_code == 200 and "errors" not in got.json()


# -- keys: the first answer -----------------------------------------------------------------------


@pytest.mark.parametrize("task", SPECS)
def test_a_repeated_request_has_its_first_answer_from_any_worker(serve, store, task):
    one = serve(store=store)
    other = serve(store=store)
    one.put("/models/m", json=SPECS[task])
    other.get("/models/m")
    firsts = {}
    for number in range(12):
        rows = [sample(number + k, task=task) for k in range(1 + number % 4)]
        rows.append({"x": {}, "y": None})  # refused at the schema, each time
        if number % 3 == 0:
            rows.append(sample(number, f"id-{number}", task=task))
        firsts[number] = rows, learn(one, *rows, key=f"k{number}").json()
    third = serve(store=store, snapshot_every=5)
    for worker in (one, other, third):
        for number, (rows, first) in firsts.items():
            again = learn(worker, *rows, key=f"k{number}")
            assert again.json() == first | {"duplicate": True}
            assert again.headers["idempotency-replayed"] == "true"
            short = learn(worker, *rows, key=f"k{number}", query="")
            expected = {k: v for k, v in first.items() if k != "scores"} | {"duplicate": True}
            assert short.json() == expected
    assert bits(replica_of(one)) == bits(replica_of(other)) == bits(loaded(store))


def test_first_answers_survive_in_snapshots(serve, store):
    one = serve(store=store, snapshot_every=5)
    one.put("/models/m", json=SPEC)
    rows = [sample(0, "a"), sample(1), sample(2, "b")]
    first = learn(one, *rows, key="k").json()
    learn(one, *(sample(n) for n in range(20)))
    model = one.app._registry.find("m")
    until(lambda: not model.snapshots.is_writing)

    async def newest() -> Replica:
        journal = await open_journal(store)
        try:
            record = await journal.get("m")
            snapshot = await journal.snapshot_get("m", record.incarnation)
            replica = Replica(record, ALL)
            replica.restore(snapshot)
            return replica
        finally:
            await journal.close()

    kept = asyncio.run(newest()).first_responses
    assert len(kept) == 1
    fresh = serve(store=store)
    assert learn(fresh, *rows, key="k").json() == first | {"duplicate": True}


def test_another_payload_under_a_key_is_refused(client):
    learn(client, sample(0), sample(1, "a"), key="k")
    for rows in ([sample(0), sample(1, "b")], [sample(1)], [sample(0, "z"), sample(1, "a")]):
        refused = learn(client, *rows, key="k", status=422)
        assert_problem(refused, 422, "idempotency-key-reused")
    assert client.get("/models/m").json()["seq"] == 2


def test_what_was_left_out_is_shown_again(client):
    learn(client, sample(0, "a"))
    rows = [sample(0, "a"), sample(1, "b"), sample(5, "a"), sample(2), sample(1, "b")]
    first = learn(client, *rows, key="k").json()
    assert first["duplicates"] == [{"index": 0, "seq": 1}, {"index": 4, "seq": 2}]
    assert [error["index"] for error in first["errors"]] == [2]
    learn(client, sample(9))
    assert learn(client, *rows, key="k").json() == first | {"duplicate": True}


def test_a_request_of_which_all_was_known_is_answered_again(client):
    learn(client, sample(0, "a"), sample(1, "b"))
    first = learn(client, sample(1, "b"), sample(0, "a"), key="k").json()
    assert (first["seq"], first["count"], first["duplicate"]) == (2, 0, True)
    learn(client, sample(5))
    again = learn(client, sample(1, "b"), sample(0, "a"), key="k")
    assert again.json() == first and again.headers["idempotency-replayed"] == "true"


def test_older_answers_are_gone_and_the_place_is_shown(serve, store, monkeypatch):
    monkeypatch.setattr("dualstream.service.models.registry.MAX_KEPT_ANSWERS", 3)
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    firsts = [learn(client, sample(n), sample(n + 1), key=f"k{n}").json() for n in range(5)]
    for number, first in enumerate(firsts):
        again = learn(client, sample(number), sample(number + 1), key=f"k{number}")
        if number >= 2:
            assert again.json() == first | {"duplicate": True}
            continue
        got = again.json()
        assert (got["seq"], got["count"], got["duplicate"]) == (first["seq"], 2, True)
        assert {got[name] for name in ("learned", "mistakes", "loss", "rejected")} == {None}
        assert "idempotency-replayed" not in again.headers
    assert len(replica_of(client).first_responses) == 3


def test_rows_of_older_answers_are_let_go_and_sums_are_kept(client, monkeypatch):
    monkeypatch.setattr("dualstream.service.replica.first_responses.KEPT_ROWS", 4)
    first = learn(client, sample(0), sample(1), sample(2), key="a").json()
    last = learn(client, sample(3), sample(4), key="b").json()
    again = learn(client, sample(0), sample(1), sample(2), key="a").json()
    assert again == first | {"duplicate": True, "scores": None}
    assert learn(client, sample(3), sample(4), key="b").json() == last | {"duplicate": True}


def test_rejected_rows_are_shown_again(client):
    spec = SPECS["regression"] | {"rho": 1e-12, "intercept": False}
    client.put("/models/m", json=spec, headers={"if-match": "*"})
    learn(client, {"x": {"1": 1}, "y": 1e100})
    rows = [sample(2), {"x": {"1": 1e100}, "y": 0}, {"x": {"2": 0}, "y": 0, "weight": 0}]
    first = learn(client, *rows, key="k").json()
    assert (first["count"], first["learned"], first["rejected"]) == (3, 2, 1)
    assert first["errors"][0]["index"] == 1 and "finite" in first["errors"][0]["reason"]
    assert first["scores"][1] is None
    assert learn(client, *rows, key="k").json() == first | {"duplicate": True}


def test_answers_are_what_applying_gives_whichever_way_it_comes(tmp_path):
    async def whole() -> None:
        journal = await open_journal(f"sqlite:///{tmp_path / 'a.db'}")
        try:
            from dualstream.service.codecs import RowSchema, parse_body
            from dualstream.service.journal.record import KeyKind, make_key
            from dualstream.service.replica.spec import canonical
            from dualstream.solvers import resolve_spec

            spec = resolve_spec(SPEC)
            record, _ = await journal.create("m", canonical(spec), canonical(SPEC))
            schema = RowSchema(spec)
            faults = [Fault.NONE, Fault.UNANSWERED, Fault.LOST, Fault.LATE, Fault.UNANSWERED] * 4
            faulty = FaultyJournal(journal, faults)
            replicas = [Replica(record, ALL), Replica(record, ALL)]
            workers = [Committer(faulty, replica, 60.0) for replica in replicas]
            acknowledged = []
            import json

            async def send(number: int) -> None:
                rows = [sample(number), sample(number + 1, f"id-{number % 5}"), sample(number + 2)]
                body = json.dumps({"samples": rows}).encode()
                parsed = parse_body(schema, None, body, labelled=True)
                key = make_key(KeyKind.REQUEST, f"k{number}")
                request = Request.of(parsed.rows, key, b"%016d" % number)
                receipts = [await worker.submit(request) for worker in workers]
                again = [await worker.submit(request) for worker in reversed(workers)]
                placement = receipts[0].position
                acknowledged.append(Acknowledged(f"k{number}", placement.seq, placement.count))
                assert not placement.duplicate
                for receipt in [receipts[1], *again]:
                    assert receipt.position.duplicate and receipt.position.seq == placement.seq
                    assert receipt.answer.rows.scores == receipts[0].scores

            for number in range(0, 30, 3):
                await asyncio.gather(*(send(number + k) for k in range(3)))
            for replica in replicas:
                await replica.catch_up(journal)
            fresh = Replica(record, ALL)
            await recover(fresh, journal)
            assert bits(replicas[0]) == bits(replicas[1]) == bits(fresh)
            samples = fresh.learner.samples
            await check_history(journal, "m", acknowledged, samples=samples)
        finally:
            await journal.close()

    asyncio.run(whole())


def test_kept_answers_come_back_from_arrays():
    from dualstream.service.replica.first_responses import KeyedRequest
    from dualstream.solvers import Batch, CorruptState, Outcome

    answers = FirstResponses("regression", 3)
    for number in range(5):
        rows = Batch.from_dense(np.ones((2, 1)), np.zeros(2))
        nan = math.nan
        outcome = Outcome(
            np.array([0.5, nan]),
            np.array([number, nan]),
            np.array([True, False]),
            np.array([False, True]),
        )
        request = KeyedRequest(b"\x01k%d" % number, 1 + 2 * number, 2, (b"\x03a",) * (number % 2))
        answers.keep([request], 1 + 2 * number, rows, outcome)
    state = answers.state()
    other = FirstResponses("regression", 3)
    other.restore(state)
    assert {k: v.tobytes() for k, v in other.state().items()} == {
        k: v.tobytes() for k, v in state.items()
    }
    result = other.find(b"\x01k4", 10)
    assert (result.learned, result.loss, result.mistakes, result.rows.rejected) == (
        1,
        4.0,
        None,
        [1],
    )
    assert other.find(b"\x01k4", 9) is None and other.find(b"\x01k0", 2) is None
    fewer = FirstResponses("regression", 1)
    fewer.restore(state)
    assert len(fewer) == 1 and fewer.find(b"\x01k4", 10) is not None
    with pytest.raises(CorruptState):
        other.restore(state | {"key_ends": np.array([1, 2], np.int64)})
    other.restore({})
    assert len(other) == 0


# -- a model in place of another ------------------------------------------------------------------


def test_put_with_if_match_replaces_in_one_step(serve, store, client):
    other = serve(store=store)
    learn(client, sample(0, "a"), key="k")
    learn(other, sample(1))
    new = SPEC | {"rho": 0.5}
    assert_problem(client.put("/models/m", json=new), 409, "conflict")
    stale = client.put("/models/m", json=new, headers={"if-match": '"1-00000000"'})
    assert_problem(stale, 412, "precondition-failed")
    etag = other.get("/models/m").headers["etag"]
    made = client.put("/models/m", json=new, headers={"if-match": etag})
    assert made.status_code == 201 and made.json()["seq"] == 0
    assert made.json()["spec"]["rho"] == 0.5
    # A repetition, whose first answer was lost, finds what it asked for.
    again = other.put("/models/m", json=new, headers={"if-match": etag})
    assert again.status_code == 200 and again.headers["etag"] == made.headers["etag"]
    # Nothing is kept: neither rows nor keys nor ids.
    got = learn(other, sample(0, "a"), key="k").json()
    assert (got["seq"], got["count"], got["duplicate"]) == (1, 1, False)
    assert_problem(
        client.put("/models/new", json=new, headers={"if-match": "*"}), 412, "precondition-failed"
    )
    assert client.get("/models/new").status_code == 404


def test_delete_with_if_match_requires_the_current_seq(serve, store, client):
    other = serve(store=store)
    learn(client, sample(0))
    etag = client.get("/models/m").headers["etag"]
    learn(other, sample(1))
    for named in (etag, '"1-00000000", W/"2-00000000"', "", "x"):
        kept = client.delete("/models/m", headers={"if-match": named})
        assert_problem(kept, 412, "precondition-failed")
    result = other.get("/models/m")
    assert result.json()["samples"] == 2
    etag = result.headers["etag"]
    previous = other.get("/models/m", headers=[("if-none-match", '"1-x"'), ("if-none-match", etag)])
    assert previous.status_code == 304
    lines = [("if-match", '"0-x", "1-x"'), ("if-match", etag)]  # one list
    assert client.delete("/models/m", headers=lines).status_code == 204
    # A repetition, whose first answer was lost, hears that it is gone, as without the header.
    for named in (etag, "*"):
        gone = other.delete("/models/m", headers={"if-match": named})
        assert_problem(gone, 404, "unknown-model")
    client.put("/models/m", json=SPEC)
    assert client.delete("/models/m", headers={"if-match": "*"}).status_code == 204


def test_of_two_that_replace_one_wins(serve, store, client):
    other = serve(store=store)
    etag = client.get("/models/m").headers["etag"]
    one = client.put("/models/m", json=SPEC | {"rho": 0.5}, headers={"if-match": etag})
    two = other.put("/models/m", json=SPEC | {"rho": 0.25}, headers={"if-match": etag})
    assert one.status_code == 201
    assert_problem(two, 412, "precondition-failed")
