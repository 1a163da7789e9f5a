"""Regression portfolios after broken readings: values far from all others of their column."""

import functools

import numpy as np
import pytest

from dualstream.solvers import Batch, dump, make_learner
from dualstream.solvers.jit import DISABLED
from tests.solvers.staging import BalancedReference, rows_of

pytestmark = pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")

N, AT = 6000, 3000
WEIGHTS = np.array([1.0, -2.0, 0.5, 1.0, 0.0])


def stream(seed: int = 0, mean: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 5))
    return x + mean, x @ WEIGHTS + 0.3 * rng.normal(size=N)


def portfolio(**fields):
    features = {"kind": "indexed", "dim": 5}
    return make_learner({"task": "regression", "features": features} | fields)


def squares(x: np.ndarray, y: np.ndarray, truth: np.ndarray, **fields) -> np.ndarray:
    result = portfolio(**fields).learn(Batch.from_dense(x, y)).scores
    return np.asarray((result - truth) ** 2)


@functools.cache
def unbroken(mean: float) -> np.ndarray:
    x, y = stream(mean=mean)
    return squares(x, y, y)


BROKEN = {
    "one reading": [((AT, 1), 1e4)],
    "a negative one": [((AT, 1), -1e4)],
    "a whole row": [((AT, slice(None)), 1e4)],
    "the largest value": [((AT, 1), 1e100)],
    "an early one": [((5, 1), 1e4)],
    "ten in succession": [((slice(AT - 9, AT + 1), 1), 1e4)],
    "ten of both signs": [((slice(AT - 9, AT + 1), 1), [1e4, -1e4] * 5)],
    "one in a hundred rows": [((slice(AT - 900, AT + 1, 100), 1), 1e4)],
}


@pytest.mark.parametrize("mean", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("case", BROKEN)
def test_the_default_recovers_within_a_thousand_rows(case, mean):
    begin = AT if case != "an early one" else 5
    x, y = (one[: begin + 2000] for one in stream(mean=mean))
    for position, value in BROKEN[case]:
        x[position] = value
    after = squares(x, y, y)
    recent = slice(begin + 1000, begin + 2000)
    assert after[recent].mean() < 1.1 * unbroken(mean)[recent].mean()


def test_a_broken_target_does_no_lasting_damage():
    for at in (5, AT):
        x, y = stream()
        inputs = y.copy()
        inputs[at] = 1e4
        recent = slice(at + 1000, at + 2000)
        assert squares(x, inputs, y)[recent].mean() < 1.1 * squares(x, y, y)[recent].mean()


def test_a_new_unit_of_a_column_is_followed():
    """A column that is a thousand times as large from now on is not a broken reading."""
    x, y = stream()
    before = squares(x, y, y)
    x[2000:, 1] *= 1e3
    after = squares(x, y, y)
    assert after[5000:].mean() < 1.3 * before[5000:].mean()


def test_values_without_a_deviation_are_limited_by_their_mean():
    x, y = stream()
    x[:, 4] = 1.0
    x[np.arange(N) % 7 != 0, 3] = 0.0
    x[np.arange(N) % 7 == 0, 3] = 1.0
    before = squares(x, y, y)
    x[AT - AT % 7, 3] = x[AT, 4] = 1e4
    after = squares(x, y, y)
    assert after[AT + 1000 :].mean() < 1.05 * before[AT + 1000 :].mean()


def test_a_batch_of_broken_readings_equals_its_rows_and_its_restored_state():
    x, y = stream()
    x[100:N:61, 2] = 1e6
    x, y = x[:1500], y[:1500]
    whole, single = portfolio(), portfolio()
    batch = Batch.from_dense(x, y)
    whole.learn(batch)
    for row in range(1500):
        if row == 700:
            restored = portfolio()
            restored.restore(single.state())
            single = restored
        single.learn(batch[row : row + 1])
    assert dump(whole.state(), {}) == dump(single.state(), {})


def test_limits_are_those_of_the_definition():
    """The reference clips before it counts; no later value of a column is more than 8 deviations
    from its mean while it has at most 1,024 rows."""
    reference = BalancedReference(reach=8.0)
    x, y = stream()
    x[500, 0] = 1e9
    for row in rows_of(Batch.from_dense(x[:1000], y[:1000])):
        count, mean, m = reference.seen.get(0, (0, 0.0, 0.0))
        clipped = reference.limited(0, row[0])
        reference.scale(row)
        if count > 1:
            assert abs(clipped - mean) <= 8.0 * np.sqrt(m / count) * (1 + 1e-12)
    assert np.sqrt(reference.seen[0][2] / 1000) < 1.1
