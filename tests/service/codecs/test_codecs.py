"""Whatever the bytes are, the schema answers with rows or with a refusal, and never guesses."""

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualstream.service.codecs import ListedRows, RowSchema, as_batch, parse_body
from dualstream.solvers import Batch, InvalidRow, resolve_spec
from dualstream.wire.problem_json import Problem
from tests.fuzzing import examples

DIM = 4
SCHEMA = RowSchema(
    resolve_spec({"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": DIM}})
)
MANY = examples(400)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "1", "-1", "true", "x:y", '"', "é"]),
)
names = st.sampled_from(["1", "2", "4", "5", "0", "01", "a", "é", "~/", "1e0", " 1", "x:1"])
things = st.recursive(
    scalars, lambda t: st.lists(t, max_size=5) | st.dictionaries(names, t, max_size=4), max_leaves=6
)
samples = st.dictionaries(st.sampled_from(["x", "y", "weight", "id", "z"]), things, max_size=4)
bodies = st.one_of(
    samples,
    st.fixed_dictionaries({"samples": st.lists(samples | things, max_size=4)}),
    st.fixed_dictionaries({"x": st.lists(things, max_size=4), "y": st.lists(things, max_size=4)}),
    things,
)


def parse(body: bytes, media: str, labelled: bool = True):
    """The parsed, checked for what must hold of any; None for a refusal of the whole body."""
    try:
        parsed = parse_body(SCHEMA, media, body, labelled=labelled)
    except Problem as problem:
        assert problem.status in (400, 422), problem
        return None
    positions = sorted([*parsed.row_indices, *(error.index for error in parsed.errors)])
    assert positions == list(range(parsed.count))
    batch = as_batch([parsed.rows])
    assert len(batch) == len(parsed.row_indices) and batch.dim == DIM
    # Has every rule of it checked: the rows of a schema become batches without.
    Batch(batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, DIM)
    if labelled:
        assert set(batch.labels.tolist()) <= {-1.0, 1.0}
    return parsed


def test_a_row_that_waited_in_the_store_is_checked_as_it_becomes_a_batch():
    rows = ListedRows([0, 1], [DIM], [1.0], [1.0], [1.0], DIM, served_scores=[0.5])
    with pytest.raises(InvalidRow):
        as_batch([rows])


@given(bodies, st.booleans())
@MANY
def test_any_json_is_rows_or_a_refusal(body, labelled):
    parse(json.dumps(body).encode(), "application/json", labelled)


@given(st.binary(max_size=60) | st.text(' {}[]",:x1y0.5e-+\\ samples', max_size=60).map(str.encode))
@MANY
def test_any_bytes_are_rows_or_a_refusal(body):
    for media in ("application/json", "text/x-libsvm"):
        parse(body, media)


@given(st.text(" \n\t\r:#+-.eE0123459xnaif", max_size=80))
@MANY
def test_any_libsvm_text_is_rows_or_bad_lines(text):
    parsed = parse(text.encode(), "text/x-libsvm")
    lines = [line.split("#")[0].strip() for line in text.replace("\r", " ").split("\n")]
    assert parsed.count == sum(1 for line in lines if line)
    for error in parsed.errors:
        assert 1 <= error.line <= len(lines) and lines[error.line - 1]


numbers = st.floats(-1e100, 1e100) | st.sampled_from([0.0, -0.0, 1.0, 5e-324])


@given(
    st.lists(st.tuples(st.lists(numbers, min_size=DIM, max_size=DIM), st.booleans()), min_size=1)
)
@MANY
def test_good_rows_come_in_to_the_bit_in_every_form(rows):
    expected = Batch.from_dense([x for x, _ in rows], [1.0 if y else -1.0 for _, y in rows])
    dense = {"samples": [{"x": x, "y": y} for x, y in rows]}
    columns = {"x": [x for x, _ in rows], "y": [int(y) for _, y in rows]}
    named = {
        "samples": [
            {"x": {str(j + 1): v for j, v in reversed(list(enumerate(x)))}, "y": str(int(y))}
            for x, y in rows
        ]
    }
    text = "\n".join(
        " ".join([str(int(y)), *(f"{j + 1}:{v!r}" for j, v in enumerate(x))]) for x, y in rows
    )
    parsed_bodies = [
        parse(json.dumps(b).encode(), "application/json") for b in (dense, columns, named)
    ]
    parsed_bodies.append(parse(text.encode(), "text/x-libsvm"))
    for parsed in parsed_bodies:
        batch = as_batch([parsed.rows])
        for name in ("indptr", "indices", "values", "labels", "weights"):
            assert getattr(batch, name).tobytes() == getattr(expected, name).tobytes(), name


def test_pieces_join_to_the_batch_of_their_rows():
    rows = [[0, 1, 0, 2.5], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 3, 0]]
    body = [json.dumps({"x": x, "y": 1, "weight": k}).encode() for k, x in enumerate(rows)]
    pieces = [parse(b, "application/json").rows for b in body]
    whole = Batch.from_dense(rows, np.ones(4), np.arange(4.0))
    arrays = [as_batch([piece]) for piece in pieces]
    for joined in (as_batch(pieces), as_batch(arrays), as_batch([pieces[0], *arrays[1:]])):
        for name in ("indptr", "indices", "values", "labels", "weights"):
            assert getattr(joined, name).tobytes() == getattr(whole, name).tobytes(), name
