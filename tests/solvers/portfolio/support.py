"""Portfolios, streams of rows, and the bound of the regret."""

import math

import numpy as np

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.jit import DISABLED

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


def regression_portfolio(dim, **fields):
    features = {"kind": "indexed", "dim": dim}
    return make_learner({"members": "ten", "task": "regression", "features": features} | fields)


def regression_stream(n, dim=8, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim)) * 10.0 ** rng.integers(-3, 4, dim)
    x *= rng.random((n, dim)) < np.array([1.0, 0.9, 0.6, 0.5, 0.3, 0.1, 0.05, 1.0])[:dim]
    x[:, 7] = 2.0
    w = rng.normal(size=dim) / (np.abs(x).max(0) + 1e-9)
    y = 1e4 + 300.0 * (x @ w) + 40.0 * rng.standard_t(2, n) + np.cumsum(rng.normal(size=n))
    return Batch.from_dense(x, y, rng.choice([0.0, 0.5, 1.0, 1.0, 3.0], n))


def regret_terms(learner, batch, choose=None):
    """Losses of the mixture and of each member over the rows, (T,) and (T, K), in the rule's units.

    choose(score) returns the label of each row; by default the batch's own labels are used.
    """
    rule, eta = learner._rule, learner.spec["eta"]
    mixture, members = [], []
    for i in range(len(batch)):
        row = batch[i : i + 1]
        if choose is not None:
            row = row.with_labels(np.array([choose(float(learner.predict(row)[0]))]))
        shares, counted = rule.shares, int(rule.g[2])
        outcome = learner.learn(row)
        assert int(rule.g[2]) - counted in (0, 1)
        if int(rule.g[2]) == counted:
            continue
        c = float(row.weights[0])
        costs = rule.recent[counted % len(rule.recent), : rule.size].copy()
        exponents = eta * c * costs
        least = exponents.min()
        mixture.append((least - math.log(shares @ np.exp(least - exponents))) / eta)
        members.append(c * costs)
        if rule.classes:
            # q is p of the label, except for the floor of 1e-4.
            apart = shares @ np.exp(-costs) - math.exp(-outcome.losses[0])
            assert -1e-12 < apart < 1e-4 + 1e-12
    return np.array(mixture), np.array(members)


def assert_bounded(learner, mixture, members):
    """The bound holds at every row, not only at the last one."""
    eta, share, k = learner.spec["eta"], learner.spec["share"], members.shape[1]
    t = np.arange(1, len(mixture) + 1)
    bound = (math.log(k) - t * math.log(1.0 - share)) / eta
    excess = np.cumsum(mixture) - np.cumsum(members, axis=0).min(axis=1)
    assert np.all(excess <= bound + 1e-9 * t), float((excess - bound).max())
