"""Concatenated Arrow streams are read whole; anything else after the end of one is an error."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from dualstream.client.errors import BadInput
from dualstream.client.resumable_files import RowFile, kind_of
from dualstream.service.codecs import as_batch, parse_body, parse_chunk
from dualstream.wire.problem_json import Problem
from tests.service.codecs.support import HASHED, learn, schema_of, stream_of
from tests.service.conftest import assert_problem

ARROW = "application/vnd.apache.arrow.stream"
RUBBISH = [b"x" * 100, bytes(100), bytes(range(1, 101)), b"\xff" * 100, b"\xff\xff\xff\xff", b"1"]
COLUMNS = [f"c{k}" for k in range(8)]


def numbers(n: int, first: int = 0) -> pa.Table:
    rows = np.arange(first, first + n, dtype=float)
    return pa.table({name: rows for name in COLUMNS} | {"y": (rows % 2).astype(int)})


def words(*cities: str) -> pa.Table:
    """Another schema, with a dictionary of its own."""
    return pa.table({"city": pa.array(cities).dictionary_encode(), "y": [1] * len(cities)})


def unended(table: pa.Table) -> bytes:
    return stream_of(table).removesuffix(b"\xff\xff\xff\xff\0\0\0\0")


def read(body: bytes):
    return parse_body(schema_of(HASHED), ARROW, body, labelled=True)


def indices(parsed) -> list[int]:
    return as_batch([parsed.rows]).indices.tolist()


@pytest.mark.parametrize("form", [stream_of, unended])
def test_streams_one_after_the_other_are_all_rows(form):
    body = form(numbers(3)) + form(words("Oslo", "Rome")) + form(words("Rome")) + form(numbers(5))
    parsed = read(body)
    assert (len(parsed.rows), parsed.errors, list(parsed.row_indices)) == (11, [], list(range(11)))
    rome = indices(read(stream_of(words("Rome"))))
    batch = as_batch([parsed.rows])
    assert batch.indices[batch.indptr[4] : batch.indptr[6]].tolist() == rome * 2
    assert {name for _, name in parsed.names} == {*COLUMNS, "city=Oslo", "city=Rome"}
    ids = pa.table({"c0": [1.0], "y": [1], "id": ["r"]})
    parsed = read(stream_of(numbers(2)) + stream_of(ids))
    assert len(parsed.rows) == 3 and parsed.rows.ids == {2: "r"}
    bad = pa.table({"c0": [1.0, None], "y": [1, 1]})
    parsed = read(stream_of(bad) + stream_of(bad))
    assert [error.index for error in parsed.errors] == [1, 3]


def test_what_follows_the_end_of_a_stream_is_an_error(client):
    client.put("/models/m", json=HASHED)
    whole = stream_of(numbers(4))
    for rubbish in [*RUBBISH, unended(numbers(2))[-50:]]:
        answer = assert_problem(learn(client, whole + rubbish, ARROW), 400, "malformed-body")
        assert "follows the end" in answer["detail"]
    assert_problem(learn(client, whole + whole[:-20], ARROW), 400, "malformed-body")
    assert client.get("/models/m").json()["seq"] == 0


def test_long_streams_are_learned_whole(client, tmp_path):
    client.put("/models/m", json=HASHED)
    body = stream_of(numbers(100_000)) + stream_of(words("Oslo")) + stream_of(numbers(100_000))
    learned = learn(client, body, ARROW).json()
    assert (learned["count"], learned.get("rejected", 0)) == (200_001, 0)
    path = tmp_path / "rows.arrows"
    path.write_bytes(body)
    pieces = [piece.content for piece in RowFile(str(path), kind_of(path.name)).pieces()]
    assert len(pieces) > 3
    parsed = [parse_chunk(schema_of(HASHED), ARROW, piece, labelled=True) for piece in pieces]
    assert sum(len(chunk.rows) for chunk in parsed) == 200_001


@pytest.mark.parametrize("rubbish", [b"x" * 100, bytes(100), bytes(3_000_000), b"\xff" * 100])
def test_rubbish_after_a_long_stream_is_an_error_that_names_what_was_learned(
    client, tmp_path, rubbish
):
    client.put("/models/m", json=HASHED)
    body = stream_of(numbers(100_000)) + rubbish
    answer = assert_problem(learn(client, body, ARROW), 400, "malformed-body")
    learned = client.get("/models/m").json()["seq"]
    assert answer["seq"] == learned <= 100_000, "the row up to which it was learned"
    path = tmp_path / "rows.arrows"
    path.write_bytes(body)
    with pytest.raises((BadInput, Problem)):
        for piece in RowFile(str(path), kind_of(path.name)).pieces():
            parse_chunk(schema_of(HASHED), ARROW, piece.content, labelled=True)


def test_an_arrow_file_and_a_null_are_refused_with_what_to_do(client):
    client.put("/models/m", json=HASHED)
    for n in (3, 100_000):
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, numbers(n).schema) as writer:
            writer.write_table(numbers(n))
        answer = assert_problem(learn(client, sink.getvalue(), ARROW), 400, "malformed-body")
        assert "new_stream" in answer["detail"]
    parsed = read(stream_of(pa.table({"a": pa.array([None], pa.float64()), "y": [1]})))
    assert "fill it" in parsed.errors[0].reason
    parsed = parse_body(schema_of(HASHED), None, b'{"x": {"a": null}, "y": 1}', labelled=True)
    assert parsed.errors[0].reason.endswith("got null; leave a missing feature out")
