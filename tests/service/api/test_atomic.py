"""Atomic requests whose ids conflict: all of their rows are learned, or none."""

import asyncio
import json

import httpx
import pytest

from dualstream.service.replica.groups import Group, is_repeatable
from dualstream.service.replica.requests import Request
from tests.service.api.support import learn, sample
from tests.service.conftest import SPEC, assert_problem
from tests.service.support import bits, loaded, replica_of

ATOMIC = "?atomic=true"
REUSED = "the id was used for another sample"
KEYS = pytest.mark.parametrize("key", [None, "k"])


@pytest.fixture
def client(serve, store):
    client = serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    return client


def atomic(client, *samples: dict, key: str | None = None, status: int = 200):
    return learn(client, *samples, key=key, query=ATOMIC, status=status)


def check_refused(answer, count: int, *args: int) -> None:
    """As an atomic request is that has these bad rows."""
    got = assert_problem(answer, 422, "invalid-rows")
    expected = [{"index": k, "pointer": f"/samples/{k}/id", "reason": REUSED} for k in args]
    assert got["errors"] == expected and got["rejected"] == len(args)
    assert got["detail"] == f"{len(args)} of {count} rows refused; the first: {REUSED}"


@KEYS
def test_nothing_is_learned_where_an_id_is_that_of_another_sample(client, store, key):
    learn(client, sample(0, "a"))
    rows = [sample(1), sample(1, "a"), sample(2, "b"), sample(5, "a")]
    for _ in range(2):
        check_refused(atomic(client, *rows, key=key, status=422), 4, 1, 3)
        assert client.get("/models/m").json()["seq"] == 1
    # Neither the key nor the ids of its other rows are used.
    rows = [sample(1), sample(1, "c"), sample(3, "b"), sample(0, "a")]
    first = atomic(client, *rows, key=key).json()
    assert (first["seq"], first["count"], first["rejected"]) == (4, 3, 0)
    assert first["duplicates"] == [{"index": 3, "seq": 1}]
    if key is not None:
        again = atomic(client, *rows, key=key)
        assert again.json() == first | {"duplicate": True}
        assert again.headers["idempotency-replayed"] == "true"
        other = atomic(client, sample(1, "a"), key=key, status=422)
        assert_problem(other, 422, "idempotency-key-reused")
    assert bits(replica_of(client)) == bits(loaded(store))


@KEYS
def test_nothing_is_learned_where_an_id_comes_twice_with_two_samples(client, store, key):
    check_refused(atomic(client, sample(0, "q"), sample(1, "q"), key=key, status=422), 2, 1)
    assert client.get("/models/m").json()["seq"] == 0
    rows = [sample(1, "q"), sample(1, "q"), sample(2)]
    got = atomic(client, *rows, key=key).json()
    assert (got["seq"], got["count"]) == (2, 2)
    assert got["duplicates"] == [{"index": 1, "seq": 1}]
    assert bits(replica_of(client)) == bits(loaded(store))


@KEYS
def test_many_rows_with_ids_are_taken_or_not(client, key):
    """They are encoded in a thread."""
    rows = [sample(k, k) for k in range(150)]
    learn(client, sample(149, 149))
    assert atomic(client, *rows, key=key).json()["count"] == 149
    check_refused(atomic(client, *rows, sample(8), sample(0, 7), status=422), 152, 151)
    assert client.get("/models/m").json()["seq"] == 150


def test_names_of_rows_that_were_refused_come_with_the_next(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=SPEC | {"features": {"kind": "hashed", "bits": 10}})
    learn(client, {"x": {"age": 1}, "y": 1, "id": "a"})
    rows = [{"x": {"income": 1}, "y": 1, "id": "b"}, {"x": {"age": 2}, "y": 1, "id": "a"}]
    check_refused(atomic(client, *rows, status=422), 2, 1)
    atomic(client, rows[0], {"x": {"town": 1}, "y": 0})
    assert bits(replica_of(client)) == bits(loaded(store))
    names = {w.get("name") for w in client.get("/models/m/weights").json()["weights"]}
    assert names == {"age", "income", "town"}


def test_others_of_its_group_are_learned_as_ever(client, serve, store, monkeypatch):
    learn(client, sample(0, "a"))
    journal, groups = client.app._registry.journal, []
    append = journal.append

    def watched(request):
        groups.append(request.parts)
        return append(request)

    monkeypatch.setattr(journal, "append", watched)
    bad = [sample(1, "b"), sample(1, "a"), sample(2)]
    requests = [
        (ATOMIC, None, [sample(3), sample(4, "c")]),
        (ATOMIC, "bad", bad),
        ("", None, bad),
        (ATOMIC, None, [sample(5, "d"), sample(6, "e"), sample(7, "d")]),
        ("", "good", [sample(6), sample(7, "d")]),
    ]

    async def send() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as sender:
            return await asyncio.gather(
                *(
                    sender.post(
                        f"/models/m/learn{query}",
                        json={"samples": rows},
                        headers={} if key is None else {"idempotency-key": key},
                    )
                    for query, key, rows in requests
                )
            )

    answers = client.portal.call(send)
    assert len(groups) == 1
    check_refused(answers[1], 3, 1)
    check_refused(answers[3], 3, 2)
    got = [answers[k].json() for k in (0, 2, 4)]
    positions = [(one["seq"], one["count"], one["learned"], one["rejected"]) for one in got]
    assert positions == [(3, 2, 2, 0), (5, 2, 2, 1), (7, 2, 2, 0)]
    assert bits(replica_of(client)) == bits(loaded(store))
    # Of each as if it had come alone.
    client.put("/models/alone", json=SPEC)
    for query, _, rows in (("", None, [sample(0, "a")]), *(requests[k] for k in (0, 2, 4))):
        alone = client.post(f"/models/alone/learn{query}", json={"samples": rows}).json()
    assert got[-1] | {"model": "alone"} == alone
    other = serve(store=store)
    assert learn(other, *requests[4][2], key="good", query="").json() == got[-1] | {
        "duplicate": True
    }
    assert atomic(other, sample(8), key="bad").json()["seq"] == 8


def test_lagging_worker_refuses_and_learns_the_rows_of_others(client, serve, store):
    other = serve(store=store)
    other.get("/models/m")
    learn(client, sample(0, "a"), sample(1))
    check_refused(atomic(other, sample(2), sample(1, "a"), key="k", status=422), 2, 1)
    assert atomic(other, sample(2), key="k").json()["seq"] == 3
    assert bits(replica_of(other)) == bits(loaded(store))


def test_a_model_that_is_not_in_memory_refuses_and_learns(client, serve, store):
    small = serve(store=store, models_bytes=1)
    small.put("/models/n", json=SPEC)
    learn(small, sample(0, "a"), sample(1))
    small.post("/models/n/learn", json=sample(1))
    check_refused(atomic(small, sample(2), sample(1, "a"), key="k", status=422), 2, 1)
    small.post("/models/n/learn", json=sample(1))
    assert atomic(small, sample(2), sample(3, "b"), key="k").json()["seq"] == 4
    assert bits(replica_of(small)) == bits(loaded(store))


def test_group_with_keyless_rows_after_an_id_is_not_repeatable():
    """A nonce that is forgotten is used anew for what has keys alone."""
    from dualstream.service.codecs import RowSchema, parse_body
    from dualstream.solvers import resolve_spec

    def group(*samples: dict, key: bytes | None) -> Group:
        body = json.dumps({"samples": samples}).encode()
        rows = parse_body(RowSchema(resolve_spec(SPEC)), None, body, labelled=True).rows
        request = Request.of(rows, key, key and b"f" * 16, is_whole=True)
        return Group([request], [], request.parts, len(rows), b"", 0.0)

    assert not is_repeatable(group(sample(0, "a"), sample(1), key=None))
    assert is_repeatable(group(sample(0, "a"), sample(1, "b"), key=None))
    assert is_repeatable(group(sample(0, "a"), sample(1), key=b"\x01k"))
