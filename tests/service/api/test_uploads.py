"""Long bodies are learned chunk by chunk as they arrive, and go on where they were cut."""

import asyncio
import gzip
import json

import pytest

from dualstream.service.api import learn_and_predict as hot
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.replica.spec import canonical
from dualstream.solvers import resolve_spec
from dualstream.wire.chunking import chunks
from tests.history import Acknowledged, check_history
from tests.service.api.support import values_of
from tests.service.conftest import SPEC, assert_problem
from tests.service.support import bits, loaded, replica_of

CHUNK = 4096
LIBSVM, NDJSON, CSV, VW = "text/x-libsvm", "application/x-ndjson", "text/csv", "text/x-vw"
N = 1000


@pytest.fixture
def client(serve, store, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(hot, "CHUNK_BYTES", CHUNK)
    client = serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    return client


def row(number: int) -> tuple[int, dict[str, float]]:
    """Each of another value, which tells rows apart in the journal."""
    return number % 2, {str(1 + number % 4): 1 + number / 8, "5": 1.0}


def body_of(kind: str, rows: range = range(N), end: str = "\n") -> bytes:
    lines = []
    if kind == CSV:
        lines.append("1,2,3,4,5,y")
    for y, x in map(row, rows):
        if kind == LIBSVM:
            lines.append(f"{y} " + " ".join(f"{name}:{value}" for name, value in x.items()))
        elif kind == VW:
            lines.append(f"{y} | " + " ".join(f"{name}:{value}" for name, value in x.items()))
        elif kind == CSV:
            lines.append(",".join(str(x.get(str(k), "")) for k in range(1, 6)) + f",{y}")
        else:
            lines.append(json.dumps({"x": x, "y": y}))
    return (end.join(lines) + end).encode()


def send(client, body, kind=LIBSVM, key=None, query="", lines=False, model="m", **headers):
    headers |= {"content-type": kind} | ({"idempotency-key": key} if key else {})
    headers |= {"accept": "application/x-ndjson"} if lines else {}
    return client.post(f"/models/{model}/learn{query}", content=body, headers=headers)


def learned(client, *args, **options) -> dict:
    answer = send(client, *args, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def state_of(client, model: str) -> dict[str, bytes]:
    """What was learned, without the answers that were given."""
    result = bits(replica_of(client, model)).items()
    return {name: array for name, array in result if not name.startswith("answers.")}


def check_rows(store: str, expected: list[int]) -> None:
    """The journal holds these rows, in this order, and is whole."""

    async def check() -> None:
        journal = await open_journal(store)
        try:
            results: list[float] = []

            def tags_of(rows):
                results.extend(values_of(rows))
                return values_of(rows)

            every = [row(k)[1][str(1 + k % 4)] for k in expected]
            acknowledged = [Acknowledged(v, k + 1) for k, v in enumerate(every)]
            sent = dict.fromkeys(every, 1)
            await check_history(journal, "m", acknowledged, tags_of=tags_of, sent=sent)
            assert results == every
        finally:
            await journal.close()

    asyncio.run(check())


@pytest.mark.parametrize("kind", [LIBSVM, NDJSON, CSV, VW])
def test_a_long_body_is_learned_as_if_it_were_short(client, store, kind):
    body = body_of(kind)
    got = learned(client, body, kind, key="k")
    assert (got["seq"], got["count"], got["learned"], got["rejected"]) == (N, N, N, 0)
    assert got["chunks"] == len(body) // CHUNK + 1 and got["duplicate_chunks"] == 0
    assert got["duplicate"] is False
    client.put("/models/single", json=SPEC)
    first = learned(client, body[:0] + body_of(kind, range(50)), kind, model="single")
    rest = {"samples": [{"x": x, "y": y} for y, x in map(row, range(50, N))]}
    second = client.post("/models/single/learn", json=rest).json()
    assert got["mistakes"] == first["mistakes"] + second["mistakes"]
    losses = first["loss"] * 50 + second["loss"] * (N - 50)
    assert got["loss"] == pytest.approx(losses / N, rel=1e-12)
    assert bits(replica_of(client)) == bits(loaded(store))
    assert state_of(client, "m") == state_of(client, "single")
    check_rows(store, list(range(N)))


def test_arrow_stream_is_chunked_after_record_batches(client, store):
    pa = pytest.importorskip("pyarrow")
    names = [*"12345", "y"]
    sink = pa.BufferOutputStream()
    schema = pa.schema([(name, pa.float64()) for name in names])
    with pa.ipc.new_stream(sink, schema) as writer:
        for first in range(0, N, 25):
            rows = [row(k) for k in range(first, first + 25)]
            columns = [[x.get(name, 0.0) for _, x in rows] for name in names[:-1]]
            columns.append([float(y) for y, _ in rows])
            writer.write_batch(pa.record_batch(columns, schema))
    body, kind = sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream"
    got = learned(client, body, kind, key="k")
    assert (got["count"], got["rejected"]) == (N, 0) and got["chunks"] > 5
    again = learned(client, body, kind, key="k")
    assert (again["seq"], again["count"], again["duplicate"]) == (N, N, True)
    client.put("/models/lines", json=SPEC)
    learned(client, body_of(LIBSVM), model="lines")
    assert state_of(client, "m") == state_of(client, "lines")
    check_rows(store, list(range(N)))


def test_what_was_learned_is_answered_once_more(client, store):
    body = body_of(LIBSVM)
    first = send(client, body, key="k")
    again = send(client, gzip.compress(body), key="k", **{"content-encoding": "gzip"})
    got = again.json()
    chunked = {"duplicate": True, "duplicate_chunks": first.json()["chunks"]}
    assert got == first.json() | chunked
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    check_rows(store, list(range(N)))
    other = learned(client, body, key="another")
    assert (other["seq"], other["duplicate_chunks"]) == (2 * N, 0)


def test_another_worker_gives_the_first_answers(client, serve, store):
    body = body_of(LIBSVM)
    first = learned(client, body, key="k")
    got = learned(serve(store=store), body, key="k")
    assert got == first | {"duplicate": True, "duplicate_chunks": first["chunks"]}


def test_a_key_is_of_one_body_long_or_short(client):
    body = body_of(LIBSVM)
    short = body_of(LIBSVM, range(5))
    learned(client, body, key="long")
    assert_problem(send(client, short, key="long"), 422, "idempotency-key-reused")
    first_chunk = body[: body.rindex(b"\n", 0, CHUNK) + 1]
    assert_problem(send(client, first_chunk, key="long"), 422, "idempotency-key-reused")
    learned(client, first_chunk, key="short")
    got = assert_problem(send(client, body, key="short"), 422, "idempotency-key-reused")
    assert (got["chunks"], got["seq"]) == (0, 0)
    changed = body.replace(b"0 1:101.0 ", b"1 1:101.0 ")
    assert changed != body
    got = assert_problem(send(client, changed, key="long"), 422, "idempotency-key-reused")
    assert 0 < got["chunks"] and 0 < got["seq"] < N


def test_nothing_of_a_long_body_is_learned_atomically(client):
    got = assert_problem(send(client, body_of(LIBSVM), query="?atomic=true"), 422, "invalid-query")
    assert "atomic=true" in got["detail"]
    assert client.get("/models/m").json()["seq"] == 0
    assert learned(client, body_of(LIBSVM, range(5)), query="?atomic=true")["count"] == 5


def test_json_is_never_cut(client):
    rows = [{"x": x, "y": y} for y, x in map(row, range(N))]
    answer = client.post("/models/m/learn?atomic=true", json={"samples": rows})
    assert answer.json()["count"] == N and "chunks" not in answer.json()


def test_progress_comes_line_by_line(client):
    body = body_of(NDJSON)
    answer = send(client, body, NDJSON, query="?scores=true", lines=True)
    assert answer.headers["content-type"] == NDJSON
    *progress, total = map(json.loads, answer.text.splitlines())
    assert [got["chunk"] for got in progress] == list(range(total["chunks"]))
    assert progress[-1]["bytes"] == len(body)
    assert [got["seq"] for got in progress][-1] == total["seq"] == N
    assert sum(got["count"] for got in progress) == total["count"]
    assert sum(len(got["scores"]) for got in progress) == N and "scores" not in total
    for name in ("learned", "mistakes"):
        assert sum(got[name] for got in progress) == total[name]
    refused = assert_problem(send(client, body, NDJSON, query="?scores=true"), 422, "invalid-query")
    assert "Accept" in refused["detail"]


def test_a_short_body_is_one_line(client):
    answer = send(client, body_of(LIBSVM, range(3)), lines=True)
    assert answer.headers["content-type"] == NDJSON
    (line,) = answer.text.splitlines()
    assert json.loads(line)["count"] == 3


@pytest.mark.parametrize("kind", [LIBSVM, NDJSON, CSV])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_bad_rows_are_shown_by_their_place_in_the_whole_body(client, store, kind, end):
    lines = body_of(kind, end=end).split(end.encode())
    head = int(kind == CSV)
    bad = [3, 400, 401, 999]
    for position in bad:
        lines[head + position] = b"no row"
    lines.insert(head + 200, b"")
    got = learned(client, end.encode().join(lines)[: -len(end)], kind, key="k")
    assert (got["count"], got["rejected"]) == (N - 4, 4)
    assert [error["index"] for error in got["errors"]] == bad
    expected = [position + head + 1 + (position > 200) for position in bad]
    assert [error["line"] for error in got["errors"]] == expected
    check_rows(store, [k for k in range(N) if k not in bad])


def test_chunks_without_a_good_row_are_shown_and_passed_over(client, store):
    bad = b"none at all\n" * 800
    good = body_of(LIBSVM, range(10))
    got = learned(client, bad + good, key="k")
    assert (got["count"], got["rejected"], len(got["errors"])) == (10, 800, 100)
    again = learned(client, bad + good, key="k")
    assert again == got | {"duplicate": True, "duplicate_chunks": 1}
    refused = assert_problem(send(client, bad), 422, "invalid-rows")
    assert refused["rejected"] == 800 and len(refused["errors"]) == 100
    assert_problem(send(client, b"\n" * 3 * CHUNK), 422, "invalid-rows")
    check_rows(store, list(range(10)))


BAD = b"none at all\n" * 800
"""Two chunks and a part of a third."""


def samples_with_ids(rows: range, y: int | None = None) -> bytes:
    got = [{"x": row(k)[1], "y": row(k)[0] if y is None else y, "id": k} for k in rows]
    return "".join(json.dumps(sample) + "\n" for sample in got).encode()


def test_a_key_is_known_though_the_first_chunks_have_no_good_row(client, serve, store):
    body, short = BAD + body_of(LIBSVM), body_of(LIBSVM, range(N, N + 5))
    first = learned(client, body, key="k")
    assert (first["count"], first["rejected"]) == (N, 800)
    for worker in (client, serve(store=store)):
        assert_problem(send(worker, short, key="k"), 422, "idempotency-key-reused")
        assert_problem(send(worker, body_of(LIBSVM), key="k"), 422, "idempotency-key-reused")
        again = send(worker, body, key="k")
        duplicates = first["chunks"] - 2
        assert again.json() == first | {"duplicate": True, "duplicate_chunks": duplicates}
        assert again.headers["idempotency-replayed"] == "true"
    learned(client, short, key="short")
    got = assert_problem(send(client, body, key="short"), 422, "idempotency-key-reused")
    assert got["chunks"] == 2
    check_rows(store, list(range(N + 5)))


def test_chunks_whose_ids_are_all_of_other_samples_are_passed_over_as_well(client):
    ids = range(0, 400, 2)
    learned(client, samples_with_ids(ids, y=1), NDJSON)
    others = samples_with_ids(ids, y=0)
    assert len(others) > 2 * CHUNK
    body = body_of(NDJSON) + others
    first = send(client, body, NDJSON, key="k")
    assert (first.json()["count"], first.json()["rejected"]) == (N, len(ids))
    again = send(client, body, NDJSON, key="k")
    assert again.json()["duplicate"] is True and again.json()["rejected"] == len(ids)
    assert 0 < again.json()["duplicate_chunks"] < first.json()["chunks"]
    assert again.headers["idempotency-replayed"] == "true"
    assert client.get("/models/m").json()["seq"] == N + len(ids)


def test_a_key_is_known_though_the_first_chunk_has_good_rows_only_for_a_model_that_is_gone(
    client, monkeypatch
):
    narrow = canonical(resolve_spec(SPEC | {"features": {"kind": "indexed", "dim": 1}}))

    async def make_narrow(journal):
        await journal.delete("m")
        await journal.create("m", narrow, narrow)

    before_appends(client, monkeypatch, {1: make_narrow})
    body = b"1 5:1\n" * 1000 + b"1 1:1\n" * 1000
    got = learned(client, body, key="k")
    assert (got["count"], got["rejected"]) == (1000, 1000)
    assert_problem(send(client, b"1 1:1\n", key="k"), 422, "idempotency-key-reused")
    assert send(client, body, key="k").headers["idempotency-replayed"] == "true"
    assert client.get("/models/m").json()["seq"] == 1000


@pytest.mark.parametrize("key", [None, "k"])
def test_rows_that_are_known_by_their_ids_are_no_answer_once_more(client, key):
    body = samples_with_ids(range(300))
    assert len(body) > 2 * CHUNK
    learned(client, body, NDJSON)
    got = send(client, body, NDJSON, key=key)
    assert got.json()["duplicate"] is True and got.json()["duplicate_rows"] == 300
    assert "idempotency-replayed" not in got.headers
    again = send(client, body, NDJSON, key=key)
    assert again.json()["duplicate"] is True
    assert ("idempotency-replayed" in again.headers) == (key is not None)


def test_answers_that_are_forgotten_are_not_shown_as_the_first_ones(
    client, serve, store, monkeypatch
):
    monkeypatch.setattr("dualstream.service.models.registry.MAX_KEPT_ANSWERS", 1)
    client = serve(store=store)
    learned(client, body_of(LIBSVM), key="k")
    again = send(client, body_of(LIBSVM), key="k")
    assert again.json()["duplicate"] is True and "idempotency-replayed" not in again.headers


@pytest.mark.parametrize("before", [b"", BAD], ids=["good", "bad"])
@pytest.mark.parametrize("failing", [1, 2, 5])
def test_what_was_interrupted_is_learned_once_wherever_good_rows_begin(
    client, store, monkeypatch, before, failing
):
    async def fail(journal):
        raise JournalUnavailable("the store is away")

    before_appends(client, monkeypatch, {failing: fail})
    body = before + body_of(LIBSVM)
    got = assert_problem(send(client, body, key="k"), 503, "store-unavailable")
    learned_chunks = failing - 1
    assert got["chunks"] == (2 if before else 0) + learned_chunks
    again = send(client, body, key="k")
    assert (again.json()["count"], again.json()["duplicate_chunks"]) == (N, learned_chunks)
    assert "idempotency-replayed" not in again.headers
    last = send(client, body, key="k")
    assert last.json()["duplicate"] is True
    assert last.headers["idempotency-replayed"] == "true"
    check_rows(store, list(range(N)))


def test_ids_are_known_across_chunks(client):
    samples = [{"x": row(k)[1], "y": row(k)[0], "id": k % 150} for k in range(300)]
    for sample in samples[150:]:
        sample |= {key: samples[sample["id"]][key] for key in ("x", "y")}
    body = "".join(json.dumps(sample) + "\n" for sample in samples).encode()
    got = learned(client, body, NDJSON, key="k")
    assert got["chunks"] > 2
    assert (got["count"], got["duplicate_rows"], got["rejected"]) == (150, 150, 0)
    answer = send(client, body, NDJSON, lines=True)
    *progress, total = map(json.loads, answer.text.splitlines())
    results = [previous for got in progress for previous in got["duplicates"]]
    assert [previous["index"] for previous in results] == list(range(300))
    assert [previous["seq"] for previous in results] == [1 + k % 150 for k in range(300)]
    assert total["duplicate"] is True and total["duplicate_rows"] == 300


def test_damage_and_limits_leave_whole_chunks(client, serve, store):
    packed = gzip.compress(body_of(LIBSVM))
    headers = {"content-encoding": "gzip"}
    got = assert_problem(send(client, packed[:-9], key="k", **headers), 400, "malformed-body")
    assert got["chunks"] > 2 and got["seq"] == client.get("/models/m").json()["seq"]
    assert learned(client, packed, key="k", **headers)["duplicate_chunks"] == got["chunks"]
    check_rows(store, list(range(N)))
    small = serve(store=store, max_upload_bytes=3 * CHUNK)
    for body, case in ((body_of(LIBSVM), {}), (packed, headers)):
        assert_problem(send(small, body, **case), 413, "body-too-large")
    long_row = b"1 1:1" + b" " * 20000 + b"\n"
    small = serve(store=store, max_body_bytes=10000)
    got = assert_problem(send(small, body_of(LIBSVM) + long_row), 413, "body-too-large")
    assert got["chunks"] > 2 and "more than 10000" in got["detail"]
    assert send(small, b"1 1:1" + b" " * 9000 + b"\n1 2:1\n").json()["count"] == 2


def before_appends(client, monkeypatch, happening: dict) -> None:
    """Let something happen before the n-th append."""
    journal, calls = client.app._registry.journal, 0
    append = journal.append

    async def watched(*args, **named):
        nonlocal calls
        calls += 1
        if calls in happening:
            await happening[calls](journal)
        return await append(*args, **named)

    monkeypatch.setattr(journal, "append", watched)


async def make_anew(journal) -> None:
    """As another process would."""
    record = await journal.get("m")
    await journal.delete("m")
    await journal.create("m", record.spec, record.given)


def test_upload_fails_if_the_store_becomes_unavailable(client, store, monkeypatch):
    """What stands is shown, in a problem or in a last line; the repetition goes on from there."""

    async def fail(journal):
        raise JournalUnavailable("the store is away")

    before_appends(client, monkeypatch, {4: fail, 7: fail})
    body = body_of(LIBSVM)
    got = assert_problem(send(client, body, key="k"), 503, "store-unavailable")
    assert got["chunks"] == 3
    stands = got["seq"]
    answer = send(client, body, key="k", lines=True)
    assert answer.status_code == 200
    *progress, problem = map(json.loads, answer.text.splitlines())
    assert [line["duplicate"] for line in progress] == [True] * 2
    assert problem["status"] == 503 and problem["chunks"] == 2 and problem["seq"] < stands
    *progress, total = map(json.loads, send(client, body, key="k", lines=True).text.splitlines())
    assert [line["duplicate"] for line in progress][:5] == [True] * 3 + [False] * 2
    assert (total["seq"], total["count"], total["duplicate_chunks"]) == (N, N, 3)
    check_rows(store, list(range(N)))


def test_chunks_whose_answers_are_forgotten_are_shown_by_their_places(
    client, serve, store, monkeypatch
):
    monkeypatch.setattr("dualstream.service.models.registry.MAX_KEPT_ANSWERS", 1)
    client = serve(store=store)
    got = learned(client, body_of(LIBSVM), key="k")
    again = learned(client, body_of(LIBSVM), key="k")
    assert (again["seq"], again["count"], again["chunks"]) == (N, N, got["chunks"])
    assert again["learned"] is again["loss"] is again["mistakes"] is again["rejected"] is None


def test_model_recreated_during_an_upload_gets_all_chunks_or_none(client, store, monkeypatch):
    before_appends(client, monkeypatch, {1: make_anew, 10: make_anew})
    assert learned(client, body_of(LIBSVM), key="k")["duplicate_chunks"] == 0
    check_rows(store, list(range(N)))
    got = assert_problem(send(client, body_of(LIBSVM), key="other"), 409, "model-changed")
    assert got["chunks"] > 0
    assert client.get("/models/m").json()["seq"] == 0
    assert_problem(send(client, body_of(LIBSVM), model="none"), 404, "unknown-model")
