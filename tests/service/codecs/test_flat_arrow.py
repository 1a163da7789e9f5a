"""Arrow tables of flat rows: kernels that read them as JSON give what the exact reader gives."""

import io
import math

import numpy as np
import pyarrow as pa
import pytest

from dualstream.service.codecs import RowSchema, flat_rows, parse_body
from dualstream.solvers import resolve_spec

SPEC = {"algorithm": "sgd", "columns": {"types": {"zip": "category"}}}
GOOD = {"y": [0, 1, 1], "zip": ["02134", None, 'a"\\b'], "price": [1.0, 2.5, None]}


def parsed(columns: dict) -> flat_rows.ParsedRows:
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
    monkeypatch.setattr(flat_rows, "_as_lines", lambda tables: None)
    exact = parsed(GOOD | more)
    assert fast.errors == exact.errors
    assert list(fast.row_indices) == list(exact.row_indices)
    for name in ("indptr", "indices", "values", "labels", "weights"):
        found, expected = getattr(fast.rows, name), getattr(exact.rows, name)
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes(), name
