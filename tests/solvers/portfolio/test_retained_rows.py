"""Retained rows of a portfolio, independent of batch boundaries."""

import numpy as np
import pytest

from dualstream.solvers import Batch
from dualstream.solvers.portfolio.retained_rows import RetainedRows

DIM = 9


@pytest.mark.parametrize("retain", [1, 7, 50, 400])
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 40), (700,)])
def test_the_newest_rows_that_count_are_retained_however_they_are_cut(retain, sizes):
    batch = a_stream(700)
    retained, first = RetainedRows(DIM, retain), 0
    while first < len(batch):
        for size in sizes:
            retained.add(batch[first : first + size])
            first += size
    expected = batch.take(batch.weights > 0.0)
    expected = expected[max(0, len(expected) - retain) :]
    for name in ("indptr", "indices", "values", "labels", "weights"):
        assert np.array_equal(getattr(retained.rows(), name), getattr(expected, name)), name


def test_the_cut_of_a_large_batch_does_not_keep_it_in_memory():
    batch, retained = a_stream(100), RetainedRows(DIM, 5)
    retained.add(batch)
    assert not np.shares_memory(retained.rows().values, batch.values)


def test_rows_that_are_given_out_stay_as_they_are():
    batch, retained = a_stream(100), RetainedRows(DIM, 50)
    retained.add(batch[:60])
    rows, state = retained.rows(), retained.state()
    before = rows.values.copy()
    retained.add(batch[60:])
    retained.restore(state)
    retained.add(batch[60:])
    assert np.array_equal(rows.values, before) and np.array_equal(state["values"], before)


def a_stream(n: int) -> Batch:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, DIM)) * (rng.random((n, DIM)) < 0.5)
    return Batch.from_dense(x, np.where(rng.random(n) < 0.5, 1.0, -1.0), rng.integers(0, 3, n))
