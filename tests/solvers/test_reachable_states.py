"""Every state that learning can reach is finite, is restored bit for bit, and goes on equal.

Random specifications and extreme rows: `make test` tries a sample, `make fuzz` many. Then cases by
name.
"""

from typing import Any

import numpy as np
import pytest

from dualstream.solvers import Batch, Learner, Outcome, dump, make_learner
from dualstream.solvers.portfolio.weighting_kernels import share_out
from dualstream.solvers.protocols.state_numbers import is_storable
from tests.fuzzing import SCALE
from tests.solvers.extreme_streams import extreme_stream, random_spec

SAMPLE = 200
CHUNK = 50


def content(learner: Learner) -> bytes:
    return dump(learner.state(), {})


def restored(learner: Learner, spec: dict[str, Any]) -> Learner:
    other = make_learner(spec)
    other.restore(learner.state())
    return other


def look_at(learner: Learner, rows: Batch) -> None:
    """Reads that must work whatever was learned."""
    learner.predict(rows)
    learner.certificate()
    assert is_storable(learner.weights) and is_storable(learner.intercept)
    assert learner.nonzeros >= 0


def learn_in_random_pieces(
    rng: np.random.Generator, learner: Learner, batch: Batch
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Learn single rows and then the rest; which rows were rejected."""
    cut = int(rng.integers(0, len(batch) + 1))
    outcomes = [learner.learn(batch[row : row + 1]) for row in range(cut)]
    outcomes.append(learner.learn(batch[cut:]))
    rejected: np.ndarray[Any, np.dtype[np.bool_]] = Outcome.joined(outcomes).rejected
    return rejected


@pytest.mark.parametrize("first", range(0, int(SAMPLE * SCALE), CHUNK))
def test_reachable_states_are_restored_and_rejected_rows_leave_no_trace(first):
    for seed in range(first, first + CHUNK):
        rng = np.random.default_rng(seed)
        spec = random_spec(rng)
        batch = extreme_stream(rng, spec, int(rng.integers(2, 30)))
        more = extreme_stream(rng, spec, 6)
        shown = f"seed {seed}: {spec}"
        learner = make_learner(spec)
        rejected = learn_in_random_pieces(rng, learner, batch)
        for name, array in learner.state().items():
            assert is_storable(array), f"{name}, {shown}"
        whole = make_learner(spec)
        whole.learn(batch)
        assert content(whole) == content(learner), shown
        other = restored(learner, spec)
        assert content(other) == content(learner), shown
        buffers_rows = (spec.get("map") or {}).get("kind") == "nystroem"
        if rejected.any() and not buffers_rows:
            clean = make_learner(spec)
            assert not clean.learn(batch.take(~rejected)).rejected.any(), shown
            assert content(clean) == content(learner), shown
        for one in (learner, other):
            look_at(one, more)
            one.learn(more)
        assert content(other) == content(learner), shown


LIFTED = {"scaling": {"kind": "balanced", "moments": False, "power": 1.0}}
HUGE = np.eye(3)[[0, 0, 0, 0, 1]] * [1.0, 1e100, 1.0]
NEAR_THE_END = [
    ([1.0, -1.0, 0.0], 1e98, 1e100),
    ([1e-100, 1.0, 0.0], -1.0, 1e100),
    ([1e98, 1.0, 0.0], 1e98, 1.0),
    ([-1.0, 1e98, 0.0], 1e-100, 1e-300),
]
SUMS = {
    "algorithm": "portfolio",
    "task": "regression",
    "members": [
        {"kind": "dual_ascent", "loss": "squared", "scaling": "none", "base": "last"}
        | {"strength": 1.0}
    ],
    "features": {"kind": "indexed", "dim": 3},
}


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": "dual_ascent"},
        {"algorithm": "dual_ascent", "window": {"kind": "sliding", "length": 10}},
        {"algorithm": "dual_ascent", "regularizer": "elastic_net"},
        {"algorithm": "dual_ascent", "regularizer": "entropy"},
        {"algorithm": "rda_plus", "stable": 1},
        {"algorithm": "perceptron", "map": {"kind": "nystroem", "components": 2}},
        {"algorithm": "perceptron", "map": {"kind": "nystroem", "components": 9}},
        {"algorithm": "romma", "norm": "running"},
    ],
    ids=str,
)
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_row_that_a_stage_lifts_beyond_the_limit_of_rows_is_restored(fields, task):
    spec = {"features": {"kind": "indexed", "dim": 3}, "task": task} | LIFTED | fields
    batch = Batch.from_dense(HUGE, [0.0, 0.0, 0.0, 0.0, 1.0])
    if task == "multiclass":
        batch = batch.with_labels(batch.labels, ("a", "b"))
    learner = make_learner(spec)
    for row in (2, 4, 4, 4, 0, 4, 4):
        learner.learn(batch[row : row + 1])
    assert content(restored(learner, spec)) == content(learner)


def rows_of(listed: list[tuple[list[float], float, float]]) -> Batch:
    x, y, weights = zip(*listed, strict=True)
    return Batch.from_dense(list(x), list(y), list(weights))


def test_member_whose_sum_of_conjugates_would_overflow_is_reset():
    learner = make_learner(SUMS)
    learner.learn(rows_of(NEAR_THE_END))
    assert is_storable(learner.state()["crew.fused.dual_sums"])
    assert [view.resets for view in learner.members()] == [1]
    assert content(restored(learner, SUMS)) == content(learner)


@pytest.mark.parametrize("least", [1e-300, 1e-309, 5e-324])
def test_share_that_became_subnormal_is_raised_again(least):
    v, gain, active = np.array([1.0, least]), np.array([0.0, 1.0]), np.ones(2)
    share_out(v, gain, active, 0.0)
    assert v[0] == 0.0 and abs(v[1] - 1.0) < 1e-15
