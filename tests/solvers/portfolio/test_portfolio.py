"""The portfolio against a plain reference, its regret bound, its members, its memory."""

import math

import numpy as np
import pytest

from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.portfolio import PRESETS
from dualstream.solvers.portfolio.presets import presets_of
from dualstream.solvers.spec.algorithms import ALGORITHMS
from tests.solvers.portfolio_reference import LINEAR, PortfolioReference
from tests.solvers.staging import rows_of

TASKS = ("binary", "regression")
N = 60 if DISABLED else 400


def stream(n, dim=12, seed=0):
    """Rows with columns that are dense, rare, constant, of other sizes, and that come and go."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim)) * 10.0 ** rng.integers(-3, 4, dim)
    share = np.array([1.0, 0.95, 0.7, 0.5, 0.3, 0.3, 0.1, 0.05, 0.05, 1.0, 0.5, 0.5])[:dim]
    x *= rng.random((n, dim)) < share
    x[:, 9] = 3.0
    x[: n // 3, 10] = 0.0
    x[n // 3 :, 11] = 0.0
    w = rng.normal(size=dim) / (np.abs(x).max(0) + 1e-9)
    y = np.where(x @ w + 0.3 * rng.normal(size=n) > 0.1, 1.0, -1.0)
    y[n // 2 :] *= np.where(rng.random(n - n // 2) < 0.2, -1.0, 1.0)
    return Batch.from_dense(x, y, rng.choice([0.0, 0.5, 1.0, 1.0, 3.0], n))


def portfolio(dim=12, **fields):
    """Of linear members, unless the fields name others."""
    members = "ten" if fields.get("task") == "regression" else "eight"
    features = {"kind": "indexed", "dim": dim}
    return make_learner({"members": members, "features": features} | fields)


def probabilities(scores):
    return 1.0 / (1.0 + np.exp(-scores))


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_row_is_scored_and_learned_as_the_reference_does(name, seed):
    batch = stream(N, seed=seed)
    learner, reference = portfolio(members=name), PortfolioReference(PRESETS[name])
    found = probabilities(learner.learn(batch).scores)
    expected = [
        reference.learn(row, y, c)[0]
        for row, y, c in zip(
            rows_of(batch), batch.labels.tolist(), batch.weights.tolist(), strict=True
        )
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose([one.weight for one in learner.members()], reference.v, rtol=1e-5)
    for view, a, b in zip(learner.members(), reference.a, reference.b, strict=True):
        np.testing.assert_allclose(view.calibration, (a, b), rtol=1e-5, atol=1e-8)
    rows = stream(10, seed=9)
    np.testing.assert_allclose(
        probabilities(learner.predict(rows)),
        [reference.predict(row) for row in rows_of(rows)],
        rtol=1e-6,
        atol=1e-9,
    )


@pytest.mark.parametrize("name", LINEAR)
def test_the_regret_bound_holds(name):
    batch = stream(N)
    rows = [batch[i : i + 1] for i in range(N) if batch.weights[i] > 0.0]
    reference = PortfolioReference(PRESETS[name])
    mixture, each = 0.0, np.zeros(len(PRESETS[name]))
    for row in rows:
        v = list(reference.v)
        _, q = reference.learn(rows_of(row)[0], float(row.labels[0]))
        mixture -= math.log(sum(a * b for a, b in zip(v, q, strict=True)))
        each -= np.log(q)
    k, t = len(each), len(rows)
    assert mixture <= each.min() + 2.0 * math.log(k) + 2.0 * t * math.log(1.0 / 0.999)


@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if name not in ("portfolio", "semiparametric")]
)
def test_member_of_every_algorithm_resolves_to_itself(algorithm):
    learner = portfolio()
    resolved = learner.resolve_member({"algorithm": algorithm})
    assert learner.resolve_member(resolved) == resolved
    learner.learn(stream(30))
    assert learner.add_member(resolved) == f"{algorithm}-1"
    whole = learner.spec | {"members": [{"algorithm": algorithm}]}
    assert resolve_spec(resolve_spec(whole)) == resolve_spec(whole)


@pytest.mark.parametrize(
    ("task", "name"), [(task, name) for task in TASKS for name in presets_of(task)]
)
def test_member_of_every_preset_resolves_to_itself(task, name):
    learner = portfolio(task=task)
    for member in presets_of(task)[name]:
        body = {field: value for field, value in member.items() if field != "name"}
        assert learner.resolve_member(body) == body
