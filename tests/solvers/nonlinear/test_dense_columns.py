"""Which features have a column: against a plain count, and as features come and go."""

import numpy as np

from dualstream.solvers.nonlinear.dense_columns import (
    COLUMNS,
    MAX_CANDIDATES,
    MAX_COLUMNS,
    N_OF_COLUMNS,
    REVIEW_ROWS,
    SINCE_REVIEW,
    DenseColumns,
    count_features,
)


def count(table, k, features):
    row = np.array(sorted(features), np.int32)
    assert count_features(row, 0, len(row), MAX_COLUMNS, *table.arrays, k) == 1


def features_with_columns(table, k):
    return set(table.features(int(k[COLUMNS])).tolist())


def test_features_get_columns_in_the_order_in_which_they_come():
    table, k = DenseColumns(), np.zeros(N_OF_COLUMNS, np.int64)
    count(table, k, [70, 5])
    count(table, k, [5, 9])
    assert table.features(3).tolist() == [5, 70, 9]
    row = np.array([11], np.int32)
    assert count_features(row, 0, 1, 3, *table.arrays, k) == 0
    assert k[COLUMNS] == 3 and k[SINCE_REVIEW] == 2


def test_frequent_features_replace_rare_ones():
    table, k = DenseColumns(), np.zeros(N_OF_COLUMNS, np.int64)
    first = list(range(0, 5 * MAX_COLUMNS, 5))
    count(table, k, first)
    for row in range(REVIEW_ROWS - 1):
        count(table, k, [*first[:100], 10_000 + row % 20])
    assert features_with_columns(table, k) == set(first)
    changed = table.review(k)
    assert len(changed) == 20 and k[SINCE_REVIEW] == 0
    assert features_with_columns(table, k) == {*first[:100], *first[-8:], *range(10_000, 10_020)}
    assert {int(table.features(MAX_COLUMNS)[column]) for column in changed} == set(
        range(10_000, 10_020)
    )


def test_a_hundred_thousand_features_take_no_more_room():
    table, k = DenseColumns(), np.zeros(N_OF_COLUMNS, np.int64)
    for row in range(3000):
        count(table, k, [7, *range(50 * row + 100, 50 * row + 150)])
        if k[SINCE_REVIEW] == REVIEW_ROWS:
            table.review(k)
    assert k[COLUMNS] == MAX_COLUMNS and len(table.state(k)["features"]) <= MAX_CANDIDATES
    assert 7 in features_with_columns(table, k)


def test_a_table_continues_from_its_state():
    rng = np.random.default_rng(0)
    table, k = DenseColumns(), np.zeros(N_OF_COLUMNS, np.int64)
    copy, mine = DenseColumns(), np.zeros(N_OF_COLUMNS, np.int64)
    for row in range(2500):
        features = np.unique(rng.zipf(1.3, 12) % 5000)
        count(table, k, features)
        if row > 700:
            count(copy, mine, features)
        if k[SINCE_REVIEW] == REVIEW_ROWS:
            changed = table.review(k)
            if row > 700:
                assert copy.review(mine) == changed
        if row == 700:
            copy.restore(table.state(k), 5000, mine)
    assert (k == mine).all()
    for name, array in table.state(k).items():
        assert np.array_equal(array, copy.state(mine)[name]), name
