"""One specification of each algorithm and of its main variants, for the contract suite.

To add a learner, add a line: the whole suite runs on it.
"""

from typing import Any

import numpy as np

from dualstream.solvers import Batch

DIM = 12
FEATURES = {"features": {"kind": "indexed", "dim": DIM}}
_EXPONENTIAL = {"kind": "exponential", "beta": 0.98}
_SLIDING = {"kind": "sliding", "length": 20}
_REGRESSION = {"task": "regression"}

_PAIRS: list[dict[str, Any]] = [
    {"kind": "diagonal_newton", "pairs": True},
    {"kind": "dual_ascent", "pairs": True},
    {"kind": "spg_fixed_total"},
]
_NONLINEAR: list[dict[str, Any]] = [
    {"kind": "prior"},
    {"kind": "diagonal_newton"},
    {"algorithm": "net"},
    {"algorithm": "boosted", "window": 64, "trees": 5, "renewal": 8},
    {"algorithm": "neighbours", "window": 40},
    {"algorithm": "splines"},
    {"kind": "stack"},
]
"""The members that `full` adds, with short windows."""

_SPECS: dict[str, dict[str, Any]] = {
    "dual_ascent-logistic": {"algorithm": "dual_ascent", "retain": 50},
    "dual_ascent-hinge-exponential": {
        "algorithm": "dual_ascent",
        "loss": "hinge",
        "window": _EXPONENTIAL,
        "retain": 30,
    },
    "dual_ascent-hinge-sliding": {
        "algorithm": "dual_ascent",
        "loss": "hinge",
        "window": _SLIDING,
        "retain": 30,
    },
    "dual_ascent-squared_hinge-no-intercept": {
        "algorithm": "dual_ascent",
        "loss": "squared_hinge",
        "intercept": False,
        "retain": 10,
    },
    "dual_ascent-huber": {
        "algorithm": "dual_ascent",
        "loss": "huber",
        "window": _SLIDING,
        "retain": 20,
        **_REGRESSION,
    },
    "dual_ascent-absolute": {
        "algorithm": "dual_ascent",
        "loss": "absolute",
        "retain": 10,
        **_REGRESSION,
    },
    "dual_ascent-strength": {"algorithm": "dual_ascent", "strength": 3, "retain": 20},
    "dual_ascent-replay": {"algorithm": "dual_ascent", "replay": {"steps": 2}, "retain": 20},
    "dual_ascent-hinge-exponential-replay": {
        "algorithm": "dual_ascent",
        "loss": "hinge",
        "window": _EXPONENTIAL,
        "replay": {"steps": 3},
        "retain": 20,
    },
    "dual_ascent-squared-sliding-until_gap": {
        "algorithm": "dual_ascent",
        "average": {"kappa": 0.9},
        "window": _SLIDING,
        "replay": {"until_gap": 0.01, "every": 7, "max_steps": 2},
        "retain": 20,
        **_REGRESSION,
    },
    "dual_ascent-elastic_net": {
        "algorithm": "dual_ascent",
        "regularizer": {"kind": "elastic_net", "delta": 0.2},
        "retain": 20,
    },
    "dual_ascent-elastic_net-absolute-sliding-replay": {
        "algorithm": "dual_ascent",
        "loss": "absolute",
        "regularizer": "elastic_net",
        "window": _SLIDING,
        "replay": {"steps": 2},
        "retain": 20,
        **_REGRESSION,
    },
    "dual_ascent-entropy-hinge-exponential": {
        "algorithm": "dual_ascent",
        "loss": "hinge",
        "regularizer": "entropy",
        "window": _EXPONENTIAL,
        "retain": 20,
    },
    "dual_ascent-entropy-no-intercept-until_gap": {
        "algorithm": "dual_ascent",
        "regularizer": "entropy",
        "strength": 2,
        "average": {"kappa": 0.9},
        "replay": {"until_gap": 0.01, "every": 20, "max_steps": 2},
        "intercept": False,
        "retain": 20,
    },
    "dual_ascent-prior-exponential-replay": {
        "algorithm": "dual_ascent",
        "intercept": "prior",
        "window": _EXPONENTIAL,
        "average": {"kappa": 0.9},
        "replay": {"steps": 2},
        "retain": 20,
    },
    "sgd-prior": {"algorithm": "sgd", "intercept": "prior", "average": {"kappa": 0.9}},
    "spg-prior": {"algorithm": "spg", "intercept": "prior"},
    "rda-prior": {"algorithm": "rda", "intercept": "prior"},
    "rda-prior-average": {"algorithm": "rda", "intercept": "prior", "average": {"kappa": 0.9}},
    "sgd-logistic": {"algorithm": "sgd"},
    "sgd-hinge": {"algorithm": "sgd", "loss": "hinge"},
    "sgd-squared": {"algorithm": "sgd", **_REGRESSION},
    "spg-hinge": {"algorithm": "spg", "loss": "hinge"},
    "spg-quantile": {"algorithm": "spg", "loss": "quantile", **_REGRESSION},
    "ogd": {"algorithm": "ogd"},
    "truncated_gradient": {"algorithm": "truncated_gradient"},
    "truncated_gradient-squared": {"algorithm": "truncated_gradient", "period": 1, **_REGRESSION},
    "fobos": {"algorithm": "fobos"},
    "fobos-hinge": {"algorithm": "fobos", "loss": "hinge"},
    "rda-l1": {"algorithm": "rda"},
    "rda-elastic_net-log": {
        "algorithm": "rda",
        "loss": "squared_hinge",
        "regularizer": "elastic_net",
        "schedule": "log",
        "prox": "xiao",
    },
    "rda-squared": {"algorithm": "rda", **_REGRESSION},
    "rda-averaged": {"algorithm": "rda", "average": {"kappa": 1.0}},
    "fobos-elastic_net-averaged": {
        "algorithm": "fobos",
        "sigma": 0.5,
        "average": {"kappa": 0.9},
        **_REGRESSION,
    },
    "fobos-l2": {"algorithm": "fobos", "lambda": 0.0, "sigma": 0.1},
    "truncated_gradient-theta-averaged": {
        "algorithm": "truncated_gradient",
        "theta": 0.1,
        "period": 3,
        "average": {"kappa": 0.5},
    },
    "sgd_l1": {"algorithm": "sgd_l1"},
    "sgd_l1-averaged": {"algorithm": "sgd_l1", "loss": "hinge", "average": {"kappa": 1.0}},
    "rda_plus-l1": {"algorithm": "rda_plus", "stable": 1, "retain": 15},
    "rda_plus-squared": {
        "algorithm": "rda_plus",
        "regularizer": {"kind": "elastic_net", "lambda": 0.05, "sigma": 0.01},
        "stable": 2,
        "retain": 20,
        **_REGRESSION,
    },
    "sgd-averaged": {"algorithm": "sgd", "loss": "hinge", "average": {"kappa": 0.9}},
    "truncated_gradient-theta": {
        "algorithm": "truncated_gradient",
        "lambda": 0.05,
        "period": 3,
        "theta": 0.1,
    },
    "dc-pil1": {"algorithm": "dc", "surrogate": "pil1"},
    "dc-pil1-complete": {"algorithm": "dc", "surrogate": "pil1", "inner": "complete"},
    "dc-pil2": {"algorithm": "dc", "surrogate": "pil2"},
    "dc-pil2-complete": {"algorithm": "dc", "surrogate": "pil2", "inner": "complete"},
    "dc-pil2-printed": {
        "algorithm": "dc",
        "surrogate": {"kind": "pil2", "relative_tau2": False},
        "step": {"kind": "sqrt_T", "horizon": 100},
        "intercept": False,
    },
    "dc-sigmoid": {"algorithm": "dc", "surrogate": "sigmoid"},
    "dc-sigmoid-ball": {
        "algorithm": "dc",
        "surrogate": "sigmoid",
        "step": {"kind": "strongly_convex", "gamma": 0.1},
        "radius": 0.5,
    },
    "dc-sigmoid-complete": {
        "algorithm": "dc",
        "surrogate": "sigmoid",
        "inner": {"kind": "complete", "max_inner": 100},
    },
    "perceptron": {"algorithm": "perceptron"},
    "perceptron-no-intercept": {"algorithm": "perceptron", "intercept": False},
    "passive_aggressive-pa": {"algorithm": "passive_aggressive", "variant": "pa"},
    "passive_aggressive-pa1": {"algorithm": "passive_aggressive"},
    "passive_aggressive-pa2": {
        "algorithm": "passive_aggressive",
        "variant": "pa2",
        "intercept": False,
    },
    "romma": {"algorithm": "romma"},
    "romma-no-intercept": {"algorithm": "romma", "intercept": False},
    "alma": {"algorithm": "alma"},
    "alma-raw": {"algorithm": "alma", "normalize": False, "p": 4, "intercept": False},
    "balanced-dual_ascent": {"scaling": "balanced", "retain": 20},
    "balanced-dc": {"algorithm": "dc", "scaling": {"kind": "balanced", "moments": False}},
    "norm-row-perceptron": {"algorithm": "perceptron", "norm": "row"},
    "norm-running-sgd": {"algorithm": "sgd", "norm": "running", **_REGRESSION},
    "asset": {"algorithm": "asset", "lambda": 0.01},
    "asset-bound": {"algorithm": "asset", "bound": 3, "average": {"from": 50}},
    "asset-logistic": {"algorithm": "asset", "loss": "logistic", "lambda": 0.01},
    "asset-squared-bound": {
        "algorithm": "asset",
        "loss": "squared",
        "bound": 3,
        "average": {"kappa": 0.9},
    },
    "asset-strongly_convex": {"algorithm": "asset", "step": "strongly_convex", "average": None},
    "asset-fourier": {
        "algorithm": "asset",
        "lambda": 0.001,
        "intercept": False,
        "map": {"kind": "fourier", "components": 20},
    },
    "nystroem-balanced-norm-row": {
        "scaling": "balanced",
        "map": {"kind": "nystroem", "components": 25},
        "norm": "row",
        "retain": 20,
    },
    "balanced-norm-running-romma": {"algorithm": "romma", "scaling": "balanced", "norm": "running"},
    "semiparametric": {
        "algorithm": "semiparametric",
        "basis": ["constant", {"kind": "linear", "feature": 3}],
        "retain": 30,
        **_REGRESSION,
    },
    "boosted": {"algorithm": "boosted", "window": 64, "trees": 5, "renewal": 8},
    "boosted-numbers": {
        "algorithm": "boosted",
        "window": 64,
        "trees": 5,
        "renewal": 8,
        "leaves": 4,
        **_REGRESSION,
    },
    "boosted-lags": {
        "algorithm": "boosted",
        "window": 64,
        "trees": 5,
        "renewal": 8,
        "lags": 2,
        **_REGRESSION,
    },
    "boosted-absolute": {
        "algorithm": "boosted",
        "loss": "absolute",
        "window": 64,
        "trees": 5,
        "renewal": 8,
        **_REGRESSION,
    },
    "net": {"algorithm": "net"},
    "net-numbers": {"algorithm": "net", "units": [8, 3], **_REGRESSION},
    "neighbours": {"algorithm": "neighbours", "window": 40, "neighbours": 5},
    "neighbours-numbers": {"algorithm": "neighbours", "window": 40, "neighbours": 5, **_REGRESSION},
    "splines": {"algorithm": "splines"},
    "splines-numbers": {"algorithm": "splines", **_REGRESSION},
    "portfolio-pairs": {"algorithm": "portfolio", "members": _PAIRS, "retain": 20},
    "portfolio-pairs-numbers": {
        "algorithm": "portfolio",
        "members": _PAIRS,
        "retain": 20,
        **_REGRESSION,
    },
    "portfolio-pairs-of-columns": {
        "algorithm": "portfolio",
        "members": [{"kind": "diagonal_newton", "base": "last", "pairs": [0, 2, 5]}, *_PAIRS],
        "retain": 20,
        **_REGRESSION,
    },
    "portfolio-nonlinear": {"algorithm": "portfolio", "members": _NONLINEAR, "retain": 20},
    "portfolio-nonlinear-numbers": {
        "algorithm": "portfolio",
        "members": _NONLINEAR,
        "retain": 20,
        **_REGRESSION,
    },
    "portfolio-eight": {"algorithm": "portfolio", "members": "eight", "retain": 20},
    "portfolio-twelve": {"algorithm": "portfolio", "members": "twelve", "retain": 20},
    "portfolio-papers": {"algorithm": "portfolio", "members": "papers", "retain": 20},
    "portfolio-guests": {
        "algorithm": "portfolio",
        "members": [
            {"name": "sparse", "algorithm": "rda"},
            {"kind": "diagonal_newton", "gamma": 0.9},
            {"strength": 3, "scaling": "balanced", "retain": 20},
            {"kind": "prior"},
            {"algorithm": "romma", "norm": "row"},
            {"kind": "dual_ascent", "loss": "smooth_hinge", "norm": "running"},
        ],
        "share": 0.01,
        "retain": 20,
    },
    "portfolio-one": {
        "algorithm": "portfolio",
        "members": [{"kind": "adagrad", "scaling": "none", "norm": "row"}],
        "retain": 20,
    },
    "portfolio-regression": {
        "algorithm": "portfolio",
        "members": "ten",
        "retain": 20,
        **_REGRESSION,
    },
    "portfolio-regression-guests": {
        "algorithm": "portfolio",
        "members": [
            {"kind": "prior"},
            {"algorithm": "spg", "norm": "row"},
            {"kind": "dual_ascent", "loss": "huber", "base": "last"},
        ],
        "retain": 20,
        **_REGRESSION,
    },
    "portfolio-guests-alone": {
        "algorithm": "portfolio",
        "members": [{"algorithm": "sgd"}, {"algorithm": "perceptron"}],
        "retain": 20,
    },
}

SPECS = {name: {"algorithm": "dual_ascent"} | FEATURES | spec for name, spec in _SPECS.items()}

WITHOUT_STAND: frozenset[str] = frozenset()
"""Algorithms without a line above, with the reason in a comment."""


def stream(spec: dict[str, Any], n: int, *, seed: int = 0, weighted: bool = True) -> Batch:
    """n sparse rows with noisy labels and weights in 0, 0.5, 1, 2; the last weight is 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM)) * (rng.random((n, DIM)) < 0.5)
    y = x @ np.linspace(-1.0, 2.0, DIM) + 0.5 * rng.normal(size=n)
    if spec.get("task", "binary") == "binary":
        y = np.where(y > 0.0, 1.0, -1.0)
    weights = rng.choice([0.0, 0.5, 1.0, 1.0, 1.0, 2.0], n) if weighted else np.ones(n)
    weights[-1] = 1.0
    return Batch.from_dense(x, y, weights)
