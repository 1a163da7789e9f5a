"""Arrow streams: tables as rows, by kernel and row by row; what is no table, or too much of one."""

import json
import math
import struct
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given, strategies as st

from dualstream.service.codecs import arrow as arrow_rows, as_batch, parse_body
from dualstream.service.codecs.row_schema import LONGEST_NAME
from dualstream.service.codecs.table_columns import columns_of
from dualstream.solvers.rows.hashing import hash_names
from dualstream.wire.problem_json import Problem
from tests.fuzzing import examples
from tests.service.codecs.line_strategies import SCHEMAS, labels_of, outcome
from tests.service.codecs.support import (
    ARROW,
    CSV,
    HASHED,
    INDEXED,
    bits,
    learn,
    schema_of,
    stream_of,
)
from tests.service.conftest import assert_problem

floats = st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0, 1.0, 1e100, 2e100, 0.1])
words = st.sampled_from(
    ["", "Oslo", "é", "a=b", "ham", "n" * LONGEST_NAME, "n" * (LONGEST_NAME + 1), "é" * 600]
)
KINDS = [
    (floats, pa.float64()),
    (st.floats(width=32), pa.float32()),
    (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    (st.integers(0, 200), pa.uint8()),
    (st.booleans(), pa.bool_()),
    (words, pa.string()),
    (words, pa.large_string()),
    (words, pa.string_view()),
    (words, pa.dictionary(pa.int8(), pa.string())),
    (st.integers(0, 9), pa.dictionary(pa.int8(), pa.int64())),
]


@st.composite
def tables(draw, schema):
    """A table of some columns, with few nulls."""
    names = ["a", "city", "1", "é"] if schema.is_hashed else ["5", "1", "3"]
    n = draw(st.integers(0, 6))
    columns = []
    for name in draw(st.lists(st.sampled_from(names), max_size=4, unique=True)):
        values, kind = draw(st.sampled_from(KINDS if schema.is_hashed else KINDS[:5]))
        columns.append((name, draw(cells(values, n)), kind))
    labels = labels_of(schema)
    if schema.class_names:
        columns.append(("y", draw(cells(st.sampled_from([*labels, "x"]), n)), pa.string()))
    else:
        columns.append(
            ("label", draw(cells(st.sampled_from([*map(float, labels), 7.0]), n)), pa.float64())
        )
    if draw(st.booleans()):
        columns.append(
            ("weight", draw(cells(st.sampled_from([1.0, 2.5, -1.0, 0.0]), n)), pa.float64())
        )
    columns = draw(st.permutations(columns))
    arrays = [pa.array(values, kind) for _, values, kind in columns]
    return pa.RecordBatch.from_arrays(arrays, [name for name, *_ in columns])


@st.composite
def cells(draw, values, n):
    result = draw(st.lists(values, min_size=n, max_size=n))
    if n and draw(st.integers(0, 3)) == 0:
        result[draw(st.integers(0, n - 1))] = None
    return result


@given(st.sampled_from(SCHEMAS), st.data(), st.booleans())
@examples(80)
def test_tables_by_kernel_are_tables_row_by_row(schema, data, labelled):
    table = data.draw(tables(schema))
    cut = data.draw(st.integers(0, table.num_rows))
    columns = columns_of(schema, table.schema.names, labelled)
    batches = [(table.slice(0, cut), columns), (table.slice(cut), columns)]
    quick = arrow_rows.parse_quickly(pa, schema, batches, labelled)
    slow = arrow_rows.parse_slowly(schema, batches, labelled)
    assert outcome(quick) == outcome(slow)


STREAM = stream_of(pa.table({"1": [1.0, 2.0], "y": [1, 0], "weight": [1.0, 2.0]}))
TEXTS = stream_of(
    pa.table({"a": pa.array(["x", "y"]).dictionary_encode(), "b": ["é", "f"], "y": [1, 0]})
)


@given(st.sampled_from([STREAM, TEXTS]), st.data())
@examples(100)
def test_damaged_streams_are_refused_or_rows(stream, data):
    damaged = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(damaged)[: data.draw(st.integers(0, len(stream)) | st.just(len(stream)))]
    for spec in (INDEXED, HASHED):
        schema = schema_of(spec)
        try:
            parsed = parse_body(schema, ARROW, body, labelled=True)
        except Problem as problem:
            assert problem.status in (400, 413, 415, 422)
        else:
            assert len(as_batch([parsed.rows])) == len(parsed.row_indices)


def test_nulls_and_strange_numbers_are_bad_rows():
    table = pa.table(
        {
            "a": [1.0, None, float("nan"), 1.0, 1.0],
            "b": ["x", "y", "z", None, "w" * (LONGEST_NAME + 1)],
            "y": [1, 1, 1, 0, 0],
        }
    )
    parsed = parse_body(schema_of(HASHED), ARROW, stream_of(table), labelled=True)
    assert list(parsed.row_indices) == [0]
    got = [(error.index, error.pointer) for error in parsed.errors]
    assert got == [(1, "/x/a"), (2, "/x/a"), (3, "/x/b"), (4, "/x/b")]
    assert "null" in parsed.errors[0].reason and "nan" in parsed.errors[1].reason


def test_rows_whose_shared_places_add_up_to_too_much_are_bad():
    """The names of the other rows are reported once."""
    spec = HASHED | {"features": {"kind": "hashed", "bits": 1}}
    names = ["a", next(n for n in "bcdefgh" if hash_names([n], 1) == hash_names(["a"], 1))]
    table = pa.RecordBatch.from_arrays(
        [pa.array([1.0, 1e100, 2.0]), pa.array([1.0, 1e100, 2.0]), pa.array([1, 0, 1])],
        [*names, "y"],
    )
    stream = stream_of(pa.Table.from_batches([table]))
    parsed = parse_body(schema_of(spec), ARROW, stream, labelled=True)
    assert [(error.index, error.pointer) for error in parsed.errors] == [(1, "/x")]
    assert list(parsed.row_indices) == [0, 2] and [name for _, name in parsed.names] == names[:1]
    assert as_batch([parsed.rows]).values.tolist() == [2.0, 4.0]


def test_reading_a_table_does_not_import_pandas():
    """For half a second of the first request, of a library that it makes no use of."""
    columns = {
        "a": [1.0, None, 2.0],
        "b": [True, None, False],
        "c": ["x", "y", None],
        "d": pa.array([1, None, 3], pa.uint8()).dictionary_encode(),
        "weight": [1, 2, 3],
        "y": [1, 0, 1],
    }
    reads = (
        "import json, sys; from dualstream.solvers import resolve_spec;"
        "from dualstream.solvers.rows.hashing import hash_names;"
        "from dualstream.service.codecs import RowSchema, parse_body;"
        "schema = RowSchema(resolve_spec(json.loads(sys.argv[1])));"
        "parsed = parse_body(schema, sys.argv[2], sys.stdin.buffer.read(), labelled=True);"
        "print(list(parsed.row_indices), 'pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", reads, json.dumps(HASHED), ARROW]
    run = subprocess.run(command, input=stream_of(pa.table(columns)), capture_output=True)
    assert run.stdout.split() == [b"[0]", b"False"], run.stderr


def test_fewer_rows_than_none_are_refused():
    """The library takes any number for the rows of a table that has no columns."""
    table = pa.table({"a": [1.0] * 77}).select([])
    body, count = stream_of(table), (77).to_bytes(8, "little")
    assert parse_body(schema_of(INDEXED), ARROW, body, labelled=False).count == 77
    assert body.count(count) == 1
    forged = body.replace(count, b"\xff" * 8)
    with pytest.raises(Problem) as refused:
        parse_body(schema_of(INDEXED), ARROW, forged, labelled=False)
    assert refused.value.status == 400


def test_labels_and_ids_that_are_not_asked_for_may_be_anything():
    """Not every value of Arrow has one in Python."""
    longest = pa.array([2**63 - 1] * 2).cast(pa.duration("s"))
    body = stream_of(pa.table({"1": [1.0, math.nan], "y": longest, "id": longest}))
    parsed = parse_body(schema_of(INDEXED), ARROW, body, labelled=False)
    assert list(parsed.row_indices) == [0] and [e.pointer for e in parsed.errors] == ["/x/1"]


def test_nan_is_a_bad_row_in_every_column():
    signalling = np.frombuffer(b"\x01\0\x80\x7f", np.float32)
    body = stream_of(pa.table({"1": signalling, "y": [1]}))
    assert not parse_body(schema_of(INDEXED), ARROW, body, labelled=True).row_indices
    for index in range(3):
        row = [1.0, 2.0, 3.0]
        row[index] = float("nan")
        columns = {str(j + 1): [1.0, x] for j, x in enumerate(row)} | {"y": [1, 1]}
        for more in ({}, {"id": ["a", "b"]}):
            body = stream_of(pa.table(columns | more))
            parsed = parse_body(schema_of(INDEXED), ARROW, body, labelled=True)
            assert [error.pointer for error in parsed.errors] == [f"/x/{index + 1}"]
            assert list(parsed.row_indices) == [0] and "nan" in parsed.errors[0].reason


@pytest.mark.parametrize(
    ("spec", "columns", "reason"),
    [
        (HASHED, {"a": [1.0]}, "the label column is missing"),
        (HASHED, {"a": [[1.0]], "y": [1]}, "has type list"),
        (INDEXED, {"1": ["x"], "y": [1]}, "has type string"),
        (INDEXED, {"age": [1.0], "y": [1]}, "not an index"),
        (INDEXED, {"1": [1.0], "y": [1], "weight": ["2"]}, "'weight' has type"),
        (HASHED, {"a": [None], "y": [1]}, "has type null"),
    ],
)
def test_columns_that_no_row_can_use_refuse_the_body(client, spec, columns, reason):
    client.put("/models/m", json=spec)
    got = assert_problem(learn(client, stream_of(pa.table(columns)), ARROW), 422, "invalid-body")
    assert reason in got["detail"]


def test_what_is_no_plain_stream_is_refused(client, monkeypatch):
    client.put("/models/m", json=INDEXED)
    for body in (b"", b"x", STREAM[:-60], b"\xff" * 64, STREAM[8:]):
        answer = learn(client, body, ARROW)
        assert answer.status_code in (400, 422), body
    packed = stream_of(
        pa.table({"1": np.zeros(100_000), "y": np.zeros(100_000)}),
        options=pa.ipc.IpcWriteOptions(compression="zstd"),
    )
    assert len(packed) < 10_000
    got = assert_problem(learn(client, packed, ARROW), 415, "unsupported-media-type")
    assert "compressed buffers" in got["detail"]
    wide = pa.table(
        {
            "1": pa.array(np.zeros(arrow_rows.MAX_ROWS + 8, np.bool_)),
            "y": pa.nulls(arrow_rows.MAX_ROWS + 8, pa.bool_()),
        }
    )
    assert_problem(learn(client, stream_of(wide), ARROW), 413, "body-too-large")
    assert learn(client, STREAM, ARROW).json()["learned"] == 2
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    got = assert_problem(learn(client, STREAM, ARROW), 415, "unsupported-media-type")
    assert "pip install 'dualstream[arrow]'" in got["detail"]


def test_compression_named_as_arrow_0_17_did_is_refused(client):
    client.put("/models/m", json=INDEXED)
    packed = pa.compress(pa.py_buffer(bytes(1 << 20)), "zstd", asbytes=True)
    size = struct.pack("<q", 1 << 20) + packed
    filler = struct.pack("<II", 0x184D2A50, -len(size) % 8) + bytes(-len(size) % 8)
    column = pa.py_buffer(size + filler)  # ends with a frame that zstd skips
    n = column.size // 8
    values = pa.Array.from_buffers(pa.float64(), n, [None, column])
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([values, values], ["1", "y"])
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "zstd"})
    body = sink.getvalue().to_pybytes()
    expanded = pa.ipc.open_stream(body).read_next_batch().column(0).buffers()[1]
    assert expanded.size == 1 << 20
    got = assert_problem(learn(client, body, ARROW), 415, "unsupported-media-type")
    assert "compressed buffers" in got["detail"]


def test_short_batches_read_only_what_they_use_of_a_long_dictionary():
    schema = schema_of(HASHED)
    words = pa.array([None, *(f"word {number}" for number in range(100_000))])
    layout = pa.schema([("a", pa.dictionary(pa.int32(), pa.string())), ("y", pa.float64())])
    cells = [[7, 100_000, 7], [3], [], [9, None, 0]]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, layout) as writer:
        for indices in cells * 100:
            column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), words)
            labels = pa.array(np.ones(len(indices)))
            writer.write_batch(pa.RecordBatch.from_arrays([column, labels], schema=layout))
    began = time.process_time()
    parsed = parse_body(schema, ARROW, sink.getvalue().to_pybytes(), labelled=True)
    assert time.process_time() - began < 5  # 20 s if every batch reads the dictionary
    used = [words[i].as_py() if i else None for indices in cells for i in indices]
    plain = pa.table({"a": pa.array(used * 100), "y": np.ones(700)})
    expected = parse_body(schema, ARROW, stream_of(plain), labelled=True)
    assert bits(parsed) == bits(expected)
    assert parsed.errors == expected.errors and len(parsed.errors) == 200


def test_ids_of_a_table_are_learned_once(client):
    client.put("/models/m", json=HASHED)
    table = pa.table({"a": [1.0, 2.0, 3.0], "id": ["x", None, "z"], "y": [1, 0, 1]})
    assert learn(client, stream_of(table), ARROW).json()["count"] == 3
    got = learn(client, stream_of(table), ARROW).json()
    assert got["count"] == 1 and [one["index"] for one in got["duplicates"]] == [0, 2]
    # The same samples are the same in another format.
    got = learn(client, "a,y,id\n1,1,x\n3,1,z\n", CSV).json()
    assert got["count"] == 0 and len(got["duplicates"]) == 2


def test_a_table_of_numbers_is_a_batch_of_them():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((700, 5)) * (rng.random((700, 5)) < 0.8)
    table = pa.table({str(j + 1): x[:, j] for j in (3, 0, 4, 1)} | {"y": x[:, 0] > 0})
    parsed = parse_body(schema_of(INDEXED), ARROW, stream_of(table), labelled=True)
    x[:, 2] = 0
    expected = as_batch([parsed.rows]).from_dense(x, np.where(x[:, 0] > 0, 1.0, -1.0))
    assert as_batch([parsed.rows]).values.tobytes() == expected.values.tobytes()
    assert as_batch([parsed.rows]).indices.tobytes() == expected.indices.tobytes()
    assert bits(parsed)["labels"] == expected.labels.tobytes()
