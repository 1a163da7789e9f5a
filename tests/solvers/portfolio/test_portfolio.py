"""The portfolio against a plain reference, its regret bound, its members, its memory."""

import math
from copy import deepcopy

import numpy as np
import pytest

from dualstream.solvers import make_learner, resolve_spec
from dualstream.solvers.portfolio import PRESETS
from dualstream.solvers.portfolio.presets import presets_of
from dualstream.solvers.spec.algorithms import ALGORITHMS
from tests.solvers import specs
from tests.solvers.portfolio.support import N, portfolio, probabilities, stream
from tests.solvers.portfolio_reference import LINEAR, PortfolioReference
from tests.solvers.staging import rows_of
from tests.solvers.support import as_bytes

TASKS = ("binary", "regression")


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_row_is_scored_and_learned_as_the_reference_does(name, seed):
    batch = stream(N, seed=seed)
    learner, reference = portfolio(members=name), PortfolioReference(PRESETS[name])
    result = probabilities(learner.learn(batch).scores)
    expected = [
        reference.learn(row, y, c)[0]
        for row, y, c in zip(
            rows_of(batch), batch.labels.tolist(), batch.weights.tolist(), strict=True
        )
    ]
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-9)
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


def test_a_deep_copy_continues_alike_and_shares_nothing_that_changes(subtests):
    listed = [spec for spec in specs.SPECS.values() if spec.get("algorithm") == "portfolio"]
    for spec in [*listed, specs.FEATURES]:
        with subtests.test(spec=spec):
            rows = specs.stream(spec, 90)
            portfolio = make_learner(resolve_spec(spec))._learner
            portfolio.learn(rows[:60])
            before = as_bytes(portfolio.state())
            copied = deepcopy(portfolio)
            assert as_bytes(copied.state()) == before
            copied.learn(rows[60:])
            assert as_bytes(portfolio.state()) == before != as_bytes(copied.state())
            portfolio.learn(rows[60:])
            assert as_bytes(portfolio.state()) == as_bytes(copied.state())
