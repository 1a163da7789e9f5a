"""Certificates of regression members, against the problem that each has learned."""

import numpy as np
import pytest

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.jit import DISABLED

N = 60 if DISABLED else 200


def test_certificate_of_a_row_whose_loss_overflows_is_no_better_than_the_truth():
    """The score of row 2 is 1e194 after row 3, so its loss and the true gap are above 1e308."""
    member = {"name": "own", "kind": "dual_ascent", "loss": "squared", "scaling": "none"}
    spec = {"algorithm": "portfolio", "task": "regression", "members": [member]}
    learner = make_learner(spec | {"features": {"kind": "indexed", "dim": 2}})
    x = np.array([[1.0, 1.0], [0.0, 1e100], [0.0, 1e-6]])
    learner.learn(Batch.from_dense(x, np.array([0.0, 0.0, 1e100])))
    result = learner.member_certificate("own")
    assert (result.rows, result.gap, result.primal) == (2, np.inf, np.inf)


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("base", ["mean", "last"])
def test_certificate_is_that_of_the_targets_learned(loss, base):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 4))
    y = 100.0 + x @ [1.0, 2.0, 3.0, 4.0] + 0.3 * rng.standard_t(2, N)
    member = {"name": "own", "kind": "dual_ascent", "base": base, "loss": loss, "strength": 1}
    spec = {"algorithm": "portfolio", "task": "regression", "retain": N}
    spec |= {"features": {"kind": "indexed", "dim": 4}, "members": [member | {"scaling": "none"}]}
    learner, u = make_learner(spec), np.zeros(5)
    rows, low = [], 0.0
    for i in range(N):
        scale, is_first = float(np.sqrt(learner._rule.g[9])), learner._rule.g[3] == 0.0
        learner.learn(Batch.from_dense(x[i : i + 1], y[i : i + 1]))
        if is_first:
            continue  # No member learns the first row.
        h, target = np.append(x[i], 1.0), float(learner._rule.scratch[5, 0])
        bound = scale if loss == "huber" and scale > 0.0 else np.inf
        tau = float(np.clip((target - h @ u) / (1.0 + h @ h), -bound, bound))
        u += tau * h
        low += tau * target - 0.5 * tau * tau
        rows.append((h, target, bound))
    np.testing.assert_allclose(np.append(*learner.member_weights("own")), u, rtol=1e-9)
    errors = [(abs(target - h @ u), bound) for h, target, bound in rows]
    losses = [0.5 * e * e if e <= b else b * e - 0.5 * b * b for e, b in errors]
    result, n = learner.member_certificate("own"), len(rows)
    assert result.primal == pytest.approx((sum(losses) + 0.5 * u @ u) / n, rel=1e-9)
    assert result.dual == pytest.approx((low - 0.5 * u @ u) / n, rel=1e-9)
    assert result.gap == pytest.approx(result.primal - result.dual, rel=1e-9)
    assert (result.rows, result.weight_share) == (N - 1, 1.0)
