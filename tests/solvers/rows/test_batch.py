"""Batch: parsing and checking of rows."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualstream.solvers import Batch, InvalidRow, ShapeMismatch
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.rows import scalar as _scalar
from dualstream.solvers.rows.batch import first_bad_row
from dualstream.solvers.rows.shared_ones import are_shared_ones, shared_ones
from tests.fuzzing import examples

EXAMPLES = examples(50 if DISABLED else 300)
NUMBERS = st.floats(-1e100, 1e100)


def dense(batch):
    x = np.zeros((len(batch), batch.dim))
    for i in range(len(batch)):
        at = slice(batch.indptr[i], batch.indptr[i + 1])
        x[i, batch.indices[at]] = batch.values[at]
    return x


def assert_same(a, b):
    for name in ("indptr", "indices", "values", "labels", "weights"):
        left, right = getattr(a, name), getattr(b, name)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    assert a.dim == b.dim


@pytest.fixture
def batch():
    x = np.array([[0.0, 2.0, -0.0], [1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [4.0, 5.0, 6.0]])
    return Batch.from_dense(x, [1.0, -1.0, 1.0, -1.0], [1.0, 2.0, 0.0, 0.5])


def test_dense_rows_lose_their_zeros(batch):
    assert batch.indptr.tolist() == [0, 1, 3, 3, 6]
    assert batch.indices.tolist() == [1, 0, 2, 0, 1, 2]
    assert batch.values.tolist() == [2.0, 1.0, 3.0, 4.0, 5.0, 6.0]
    assert (len(batch), batch.nnz, batch.dim) == (4, 6, 3)


def test_one_dense_row_is_a_batch_of_one():
    one = Batch.from_dense([1.0, 0.0, 2.0], 1.0)
    assert (len(one), one.nnz, one.labels.tolist(), one.weights.tolist()) == (1, 2, [1.0], [1.0])


def test_rows_without_labels_hold_nan():
    assert np.isnan(Batch.from_dense(np.eye(2)).labels).all()
    assert np.isnan(Batch.from_csr([0, 1], [0], [1.0], dim=2).labels).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.1e100])
def test_a_number_out_of_bounds_is_refused_by_row(bad):
    x = np.eye(3)
    x[1, 2] = bad
    with pytest.raises(InvalidRow, match="row 1: the number at index 3 is not finite"):
        Batch.from_dense(x, np.ones(3))
    with pytest.raises(InvalidRow, match="row 0: the number at index 2 is not finite"):
        Batch.from_csr([0, 2], [0, 1], [1.0, bad], [1.0], dim=2)
    with pytest.raises(InvalidRow, match="row 2: the weight is negative, not finite"):
        Batch.from_dense(np.eye(3), np.ones(3), [1.0, 1.0, bad])
    if not math.isnan(bad):
        with pytest.raises(InvalidRow, match="row 2: the label is not finite"):
            Batch.from_dense(np.eye(3), [1.0, 1.0, bad])


def test_numbers_at_the_bound_are_kept():
    assert Batch.from_dense([[1e100, -1e100]], [1e100], [1e100]).nnz == 2


def test_a_negative_weight_is_refused():
    with pytest.raises(InvalidRow, match="row 0: the weight is negative"):
        Batch.from_dense(np.eye(1), [1.0], [-1.0])


@EXAMPLES
@given(
    st.lists(
        st.dictionaries(st.integers(0, 99), st.one_of(st.just(0.0), st.just(-0.0), NUMBERS)),
        max_size=6,
    ),
    st.randoms(),
)
def test_csr_rows_are_sorted_and_lose_their_zeros(rows, random):
    shuffled = [random.sample(list(row.items()), len(row)) for row in rows]
    indptr = np.cumsum([0, *map(len, rows)])
    indices = [j for row in shuffled for j, _ in row]
    values = [x for row in shuffled for _, x in row]
    batch = Batch.from_csr(indptr, indices, values, np.ones(len(rows)), dim=100)
    kept = [sorted((j, x) for j, x in row.items() if x != 0.0) for row in rows]
    assert batch.indices.tolist() == [j for row in kept for j, _ in row]
    assert batch.values.tolist() == [x for row in kept for _, x in row]
    assert np.diff(batch.indptr).tolist() == [len(row) for row in kept]


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 500])
@pytest.mark.parametrize("order", ["sorted", "reversed", "shuffled", "few"])
def test_a_row_of_any_length_is_sorted(count, order):
    random = np.random.default_rng(count)
    indices = {
        "sorted": np.arange(count),
        "reversed": np.arange(count)[::-1],
        "shuffled": random.permutation(count),
        "few": random.integers(0, 4, count),
    }[order].astype(np.int32)
    values = indices * 2.0
    padded = np.concatenate([[9, 9], indices, [9]]).astype(np.int32)
    numbers = np.concatenate([[0.0, 0.0], values, [0.0]])
    _scalar.sort_row(padded, numbers, 2, 2 + count)
    assert padded[2:-1].tolist() == sorted(indices.tolist())
    assert numbers[2:-1].tolist() == sorted(values.tolist())
    assert padded[[0, 1, -1]].tolist() == [9, 9, 9]


def test_input_arrays_are_left_alone():
    indptr, indices = np.array([0, 3]), np.array([2, 0, 1], np.int32)
    values, y = np.array([1.0, 0.0, 2.0]), np.array([1.0])
    copies = [a.copy() for a in (indptr, indices, values, y)]
    Batch.from_csr(indptr, indices, values, y, dim=3)
    for before, after in zip(copies, (indptr, indices, values, y), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("indices", "reason"),
    [
        ([3, 1, 3], "index 4 is duplicated"),
        ([0, 1, 5], "index 6 is above 5"),
        ([0, -1, 2], "index 0 is below 1"),
        ([0, 2**40, 2], "is above 5"),
    ],
)
def test_bad_indices_are_named_as_users_count_them(indices, reason):
    with pytest.raises(InvalidRow, match=f"row 1: .*{reason}"):
        Batch.from_csr([0, 1, 4], [4, *indices], [1.0, 1.0, 2.0, 3.0], [1.0, 1.0], dim=5)


def test_an_index_twice_is_refused_even_where_it_holds_zero():
    with pytest.raises(InvalidRow, match="index 1 is duplicated"):
        Batch.from_csr([0, 2], [0, 0], [0.0, 1.0], dim=1)


@pytest.mark.parametrize(
    "columns",
    [
        ([0, 2, 1, 3], [0, 1, 2], [1.0, 1.0, 1.0]),
        ([1, 3], [0, 1, 2], [1.0, 1.0, 1.0]),
        ([0, 2], [0, 1, 2], [1.0, 1.0, 1.0]),
        ([0, 3], [0, 1, 2], [1.0, 1.0]),
        ([], [], []),
    ],
)
def test_pointers_that_do_not_fit_are_refused(columns):
    with pytest.raises(ShapeMismatch):
        Batch.from_csr(*columns, dim=3)


def test_labels_of_another_length_are_refused():
    with pytest.raises(ShapeMismatch, match="labels"):
        Batch.from_dense(np.eye(2), [1.0])
    with pytest.raises(ShapeMismatch, match="weights"):
        Batch.from_dense(np.eye(2), [1.0, 1.0], [1.0])


def test_a_batch_made_directly_is_checked(batch):
    columns = [batch.indptr, batch.indices, batch.values, batch.labels, batch.weights]

    def but(place, column, dim=3):
        return Batch(*columns[:place], column, *columns[place + 1 :], dim)

    assert_same(but(0, batch.indptr), batch)
    wrong = [
        (0, np.array([0, 1, 3, 3, 7])),
        (0, np.array([0, 3, 1, 3, 6])),
        (0, np.array([1, 1, 3, 3, 6])),
        (1, np.array([1, 2, 0, 0, 1, 2], np.int32)),
        (1, np.array([1, 0, 0, 0, 1, 2], np.int32)),
        (1, np.array([1, 0, 2, 0, 1, 3], np.int32)),
        (1, np.array([-1, 0, 2, 0, 1, 2], np.int32)),
        (2, np.array([2.0, 1.0, 0.0, 4.0, 5.0, 6.0])),
        (2, np.array([2.0, 1.0, math.nan, 4.0, 5.0, 6.0])),
        (3, np.array([1.0, math.inf, 1.0, 1.0])),
        (4, np.array([1.0, 1.0, 1.0, -1.0])),
    ]
    for place, column in wrong:
        with pytest.raises(InvalidRow):
            but(place, column)
    with pytest.raises(ShapeMismatch):
        but(2, np.ones(5))


def breaks_a_rule(indptr, indices, values, labels, weights, dim):
    rows = [range(begin, end) for begin, end in pairwise(indptr)]
    return not (
        indptr[0] == 0
        and indptr[-1] == len(values)
        and all(begin <= end <= len(values) for begin, end in pairwise(indptr))
        and all(0 <= indices[p] < dim for row in rows for p in row)
        and all(indices[p] < indices[q] for row in rows for p, q in pairwise(row))
        and all(abs(x) <= 1e100 and x != 0.0 for x in values)
        and not any(abs(y) > 1e100 for y in labels)
        and all(0.0 <= c <= 1e100 for c in weights)
    )


EDGES = (math.nan, math.inf, -math.inf, 1e100, -1e100, 1.1e100, 0.0, -0.0, -1.0, 5e-324)


@pytest.mark.parametrize("column", range(5))
def test_every_invalid_number_is_reported(batch, column):
    # Includes a row without entries in the middle, and one at the end.
    good = [batch.indptr, batch.indices, batch.values, batch.labels, batch.weights]
    good[0], good[3], good[4] = (np.append(good[k], good[k][-1]) for k in (0, 3, 4))
    edges = EDGES if good[column].dtype == float else range(-2, 8)
    for index, edge in product(range(len(good[column])), edges):
        columns = [array.copy() for array in good]
        columns[column][index] = edge
        row, _, _ = first_bad_row(*columns, batch.dim)
        assert (row >= 0) == breaks_a_rule(*columns, batch.dim), (index, edge)


@pytest.mark.parametrize("column", range(5))
def test_invalid_number_among_shared_ones_is_reported(batch, column):
    good = [batch.indptr, batch.indices, shared_ones(batch.nnz), batch.labels, shared_ones(4)]
    made = Batch.of_columns(*good, batch.dim)
    assert made.values is good[2] and are_shared_ones(made.weights)
    edges = EDGES if good[column].dtype == float else range(-2, 8)
    for index, edge in product(range(len(good[column])), edges):
        columns = list(good)
        columns[column] = good[column].copy()
        columns[column][index] = edge
        if breaks_a_rule(*columns, batch.dim):
            with pytest.raises(InvalidRow) as got:
                Batch.of_columns(*columns, batch.dim)
            with pytest.raises(InvalidRow) as shown_of_all:
                Batch(*(array.copy() for array in columns), batch.dim)
            assert str(got.value) == str(shown_of_all.value)
        else:
            Batch.of_columns(*columns, batch.dim)


def test_ones_are_shared_until_they_are_very_many():
    few, many = shared_ones(5), shared_ones(1 << 18)
    assert few.tolist() == [1.0] * 5 and len(many) == many.sum() == 1 << 18
    assert are_shared_ones(few) and are_shared_ones(few[2:]) and not are_shared_ones(many)
    with pytest.raises(ValueError, match="read-only"):
        few[0] = 2.0


def test_arrays_from_bytes_are_taken(batch):
    """Read-only and unaligned, as np.frombuffer returns for columns inside a record."""

    def column(array):
        raw = b"x" + array.tobytes()
        return np.frombuffer(raw, array.dtype, offset=1)

    columns = (batch.indptr, batch.indices, batch.values, batch.labels, batch.weights)
    assert_same(Batch(*map(column, columns), batch.dim), batch)


@pytest.mark.parametrize(("first", "last"), [(0, 4), (1, 3), (2, 2), (3, 1), (-2, 9), (0, 0)])
def test_a_slice_is_these_rows(batch, first, last):
    part = batch[first:last]
    np.testing.assert_array_equal(dense(part), dense(batch)[first:last])
    np.testing.assert_array_equal(part.labels, batch.labels[first:last])
    np.testing.assert_array_equal(part.weights, batch.weights[first:last])
    assert part.indptr[0] == 0 and part.indptr[-1] == len(part.values) == len(part.indices)
    assert_same(Batch(part.indptr, part.indices, part.values, part.labels, part.weights, 3), part)


def test_a_slice_copies_no_entries(batch):
    assert np.shares_memory(batch[1:3].values, batch.values)


def test_a_batch_is_not_cut_in_steps(batch):
    with pytest.raises(ValueError, match="a step of 1"):
        batch[::2]


def test_concat_puts_the_parts_together_again(batch):
    assert_same(Batch.concat([batch[:1], batch[1:1], batch[1:3], batch[3:]]), batch)
    assert Batch.concat([batch]) is batch


def test_concat_refuses_other_widths_and_nothing(batch):
    with pytest.raises(ShapeMismatch, match=r"different widths: \[2, 3\]"):
        Batch.concat([batch, Batch.from_dense(np.eye(2))])
    with pytest.raises(ValueError, match="no batch"):
        Batch.concat([])


@pytest.mark.parametrize("rows", [[2, 0, 0, 3], [], [False, True, False, True]])
def test_take_gathers_rows(batch, rows):
    part = batch.take(rows)
    expected = np.array(rows, bool if rows and isinstance(rows[0], bool) else int)
    np.testing.assert_array_equal(dense(part), dense(batch)[expected])
    np.testing.assert_array_equal(part.labels, batch.labels[expected])


def test_a_batch_does_not_change(batch):
    with pytest.raises(AttributeError):
        batch.dim = 4
