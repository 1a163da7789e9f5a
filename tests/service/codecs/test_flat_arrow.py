"""Arrow tables of flat rows: kernels that read them as JSON give what the exact reader gives."""

import io
import math
from datetime import UTC, date, datetime

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from dualstream.service.codecs import RowSchema, flat_arrow, parse_body
from dualstream.service.codecs.parsed_rows import ParsedRows
from dualstream.solvers import resolve_spec
from dualstream.solvers.rows.columns.tables import rows_of

SPEC = {"algorithm": "sgd", "columns": {"types": {"zip": "category"}}}
GOOD = {"y": [0, 1, 1], "zip": ["02134", None, 'a"\\b'], "price": [1.0, 2.5, None]}


def parsed(columns: dict) -> ParsedRows:
    sink, table = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    kind = "application/vnd.apache.arrow.stream"
    return parse_body(RowSchema(resolve_spec(SPEC)), kind, sink.getvalue(), labelled=True)


@pytest.mark.parametrize(
    "more",
    [
        {"tags": [["a"], [], ["b", None]]},
        {"ok": [True, None, False], "count": [1, 2**60, None]},
        {"score": [0.5, math.nan, 1.0]},
        {"score": [0.5, math.inf, 1.0]},
        {"zip": ["x", "y" * 2000, "z"]},
        {"raw": [b"a", b"b", b"c"]},
        {"y": [0, 7, 1]},
    ],
)
def test_both_readers_agree(more, monkeypatch):
    fast = parsed(GOOD | more)
    monkeypatch.setattr(flat_arrow, "_as_lines", lambda tables: None)
    exact = parsed(GOOD | more)
    assert fast.errors == exact.errors
    assert list(fast.row_indices) == list(exact.row_indices)
    for name in ("indptr", "indices", "values", "labels", "weights"):
        result, expected = getattr(fast.rows, name), getattr(exact.rows, name)
        assert np.asarray(result).tobytes() == np.asarray(expected).tobytes(), name


COLUMNS = {
    'a,"b\n': pa.array(["x,y", None, 'q"\n\\', "x,y", "é"]),
    "view": pa.array(["long enough for a buffer", "", None, "b", "b"], pa.string_view()),
    "large": pa.array(["a", "b", None, "a", "c"], pa.large_string()),
    "coded": pa.array(["a", None, "b", "a", "a"]).dictionary_encode(),
    "codes": pa.array([7, None, -5, 7, 7]).dictionary_encode(),
    "shared": pa.DictionaryArray.from_arrays([1, None, 0, 1, 1], list("abcdefgh")),
    "with null": pa.DictionaryArray.from_arrays([1, None, 0, 1, 1], ["a", None]),
    "f": [0.1, -0.0, 1e300, 5e-324, None],
    "f32": pa.array([0.1, 1.5, None, 2.0, -3.0], pa.float32()),
    "i": [2**63 - 1, -(2**63), 0, None, 1],
    "u": pa.array([2**64 - 1, 0, None, 1, 2], pa.uint64()),
    "ok": [True, None, False, True, True],
    "none": pa.nulls(5),
    "list": [["a,b", None], [], None, ["c"], ["d\n"]],
    "at": pa.array([datetime(2024, 1, 2, tzinfo=UTC), None, *[datetime(1970, 1, 1)] * 3]),
    "ns": pa.array([1, None, 2_000, 3, 4], pa.timestamp("ns")),
    "day": [date(2024, 1, 2), None, *[date(1970, 1, 1)] * 3],
}


@pytest.mark.parametrize("rows", [slice(0, 5), slice(1, 4), slice(2, 3), slice(2, 2)])
def test_lines_are_the_json_of_the_rows(rows):
    """Of whole columns, and of slices, whose arrays have offsets."""
    batch = pa.RecordBatch.from_pydict(COLUMNS)[rows]
    columns = [(list(COLUMNS), batch.columns, batch.num_rows)]
    expected = [msgspec.json.encode(row) for row in rows_of(batch)]
    assert flat_arrow._as_lines(columns * 2) == b"\n".join(expected * 2)


def test_a_value_that_python_does_not_hold_is_no_line():
    far = pa.array([10**18], pa.timestamp("s"))
    assert flat_arrow._as_lines([(["a", "b"], [far, pa.array([1])], 1)]) is None
