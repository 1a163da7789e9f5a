"""Learners whose weights a refit replaces."""

import numpy as np
import pytest

from dualstream.solvers import Batch

DIM = 8
FEATURES = {"features": {"kind": "indexed", "dim": DIM}}
SPECS = {
    "sgd-logistic": {"algorithm": "sgd", "rho": 0.02},
    "spg-hinge-average": {"algorithm": "spg", "loss": "hinge", "rho": 0.02},
    "sgd-absolute": {"algorithm": "sgd", "loss": "absolute", "task": "regression", "rho": 0.02},
    "asset": {"algorithm": "asset", "lambda": 0.02},
    "asset-bound": {"algorithm": "asset", "lambda": 0.02, "bound": 2.0},
    "asset-from": {"algorithm": "asset", "lambda": 0.02, "average": {"from": 5}},
    "asset-strongly_convex": {
        "algorithm": "asset", "lambda": 0.02, "step": "strongly_convex", "average": None,
    },
    "asset-logistic": {"algorithm": "asset", "loss": "logistic", "lambda": 0.02},
    "fobos": {"algorithm": "fobos", "lambda": 0.05},
    "fobos-l2": {"algorithm": "fobos", "loss": "hinge", "lambda": 0.0, "sigma": 0.05},
    "fobos-average": {"algorithm": "fobos", "lambda": 0.05, "average": {"kappa": 1.0}},
    "sgd_l1": {"algorithm": "sgd_l1", "lambda": 0.05},
    "truncated_gradient": {
        "algorithm": "truncated_gradient", "lambda": 0.05, "loss": "squared_hinge", "period": 3,
    },
    "pa1": {"algorithm": "passive_aggressive", "C": 0.05, "intercept": False},
    "pa2": {"algorithm": "passive_aggressive", "variant": "pa2", "C": 0.05},
}  # fmt: skip
every = pytest.mark.parametrize("name", SPECS)


def rows_of(n=160, seed=0, is_regression=False):
    random = np.random.default_rng(seed)
    x = random.standard_normal((n, DIM)) * (random.random((n, DIM)) < 0.6)
    y = x @ np.linspace(-1.5, 1.5, DIM) + 0.8 * random.standard_normal(n) + 0.3
    y = y if is_regression else (y > 0.0).astype(float)
    return Batch.from_dense(x, y, random.integers(0, 3, n).astype(float)), x


def served(learner):
    return np.append(learner.weights, learner.intercept)
