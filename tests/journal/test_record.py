"""The record codec: what goes in comes out, damage is seen, and the format stands still."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.journal.record import (
    KeyKind,
    Rows,
    decode,
    encode_rows,
    make_key,
)

FINGERPRINT = bytes(range(16))
COLUMNS = ("labels", "weights", "ids", "served_scores", "served_seqs")

ones = st.just(1.0)
singles = st.floats(width=32)
doubles = st.floats()
numbers = st.sampled_from([ones, singles, doubles]).flatmap(lambda kind: st.lists(kind, max_size=6))
texts = st.text(max_size=6) | st.text(min_size=300, max_size=301)
keys = st.builds(make_key, st.sampled_from(KeyKind), st.text(min_size=1, max_size=20))


def exactly(count: int, numbers: st.SearchStrategy) -> st.SearchStrategy[list]:
    return st.lists(numbers, min_size=count, max_size=count)


def column(draw, count: int) -> list[float]:
    return draw(st.sampled_from([ones, singles, doubles]).flatmap(lambda of: exactly(count, of)))


@st.composite
def rows(draw) -> Rows:
    """Rows with any columns; weights of all ones are left out, as decoding leaves them out."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=12))
    if draw(st.booleans()):
        lengths = lengths[:1] * len(lengths)
    count, nnz = len(lengths), sum(lengths)
    top = draw(st.sampled_from([255, 65535, 2**31 - 1]))
    indices = draw(exactly(nnz, st.integers(0, top)))
    if draw(st.booleans()):
        indices = [index for length in lengths for index in range(length)]
    signs = exactly(count, st.sampled_from([-1.0, 1.0]))
    labels = draw(
        st.none()
        | signs
        | exactly(count, singles)
        | exactly(count, doubles)
        | exactly(count, texts)
    )
    weights = draw(st.none() | exactly(count, singles) | exactly(count, doubles))
    if weights is not None and all(weight == 1.0 for weight in weights):
        weights = None
    return Rows(
        indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        indices=np.array(indices, np.int32),
        values=np.array(column(draw, nnz), np.float64),
        labels=labels if labels is None or isinstance(labels[0], str) else np.array(labels),
        weights=None if weights is None else np.array(weights),
        ids=draw(st.none() | exactly(count, texts)),
        served_scores=draw(st.none() | exactly(count, doubles).map(np.array)),
        served_seqs=draw(
            st.none() | exactly(count, st.integers(-(2**63), 2**63 - 1)).map(np.array)
        ),
        names=tuple(draw(st.lists(st.tuples(st.integers(0, 2**31 - 1), texts), max_size=3))),
    )


def encoded(rows: Rows, **header) -> bytes:
    return encode_rows(
        rows.indptr,
        rows.indices,
        rows.values,
        rows.labels,
        **{name: getattr(rows, name) for name in COLUMNS[1:]},
        names=rows.names,
        **header,
    )


def assert_same(got: Rows, want: Rows) -> None:
    """Equal to the bit."""
    for name in ("indptr", "indices", "values", *COLUMNS):
        left, right = getattr(got, name), getattr(want, name)
        if isinstance(right, np.ndarray):
            assert left.dtype == right.dtype, name
            assert left.tobytes() == right.tobytes(), name
        else:
            assert left == right, name
    assert got.names == want.names


@given(rows(), st.none() | keys, st.none() | st.just(FINGERPRINT), st.booleans())
def test_rows_come_back_to_the_bit(rows, key, fingerprint, continues):
    body = encoded(rows, key=key, fingerprint=fingerprint, continues=continues)
    [(header, got)] = decode(body)
    assert_same(got, rows)
    assert (header.count, header.key, header.fingerprint, header.continues) == (
        len(rows),
        key,
        fingerprint,
        continues,
    )
