"""Random specifications and streams of extreme rows, for the test of reachable states."""

from typing import Any

import numpy as np

from dualstream.solvers import Batch
from dualstream.solvers.nonlinear import NONLINEAR
from tests.solvers.specs import DIM, SPECS

_VALUES = (1e-300, 1e-160, 1e-100, 1e-12, 1.0, 1.0, 3.0, 1e8, 1e50, 1e75, 1e98, 1e100)
_WEIGHTS = (0.0, 1e-300, 1e-100, 1e-8, 0.5, 1.0, 1.0, 2.0, 1e8, 1e50, 1e100)
_SCALINGS = (
    "balanced",
    {"kind": "balanced", "moments": False},
    {"kind": "balanced", "moments": False, "power": 1.0},
    {"kind": "balanced", "power": 0.0},
)
_MAPS = (
    {"kind": "fourier", "components": 9},
    {"kind": "nystroem", "components": 3},
    {"kind": "nystroem", "components": 9, "gamma": 1e12},
)
_WINDOWS = (
    "infinite",
    {"kind": "exponential", "beta": 0.9},
    {"kind": "exponential", "beta": 1e-300},
    {"kind": "sliding", "length": 2},
    {"kind": "sliding", "length": 5},
)
_MEMBERS = (
    {"kind": "dual_ascent", "scaling": "none"},
    {"kind": "dual_ascent", "scaling": "none", "strength": 1e-12},
    {"kind": "dual_ascent", "schedule": "inverse_sqrt", "scaling": _SCALINGS[2]},
    {"kind": "dual_ascent", "scaling": "none", "norm": "running", "strength": 1e12},
    {"kind": "spg_fixed_total", "scaling": "none", "strength": 1e-3},
    {"kind": "adagrad", "scaling": "none", "eta": 1e12},
    {"kind": "diagonal_newton", "scaling": "none", "gamma": 0.0},
    {"algorithm": "dual_ascent", "strength": 1e-3, "retain": 5},
    {"algorithm": "dual_ascent", "scaling": _SCALINGS[2], "retain": 5},
    {"algorithm": "sgd", "scaling": _SCALINGS[1]},
)
_OF_OWN_STAGES = ("portfolio", "semiparametric", *NONLINEAR)
STAGED = [name for name, spec in SPECS.items() if spec["algorithm"] not in _OF_OWN_STAGES]


def random_spec(rng: np.random.Generator) -> dict[str, Any]:
    """A specification of any algorithm, with random stages, window and task."""
    spec = dict(SPECS[str(rng.choice(list(SPECS)))])
    regresses = spec.get("task") == "regression"
    if spec["algorithm"] == "portfolio" and rng.random() < 0.7:
        count = int(rng.integers(1, 4))
        spec["members"] = [dict(_MEMBERS[i]) for i in rng.integers(0, len(_MEMBERS), count)]
        spec["share"] = float(rng.choice([0.0, 0.001]))
    elif spec["algorithm"] not in _OF_OWN_STAGES:
        if rng.random() < 0.6:
            spec["scaling"] = _SCALINGS[rng.integers(len(_SCALINGS))]
        if rng.random() < 0.3:
            spec["map"] = _MAPS[rng.integers(len(_MAPS))]
        if rng.random() < 0.3:
            spec["norm"] = str(rng.choice(["row", "running"]))
    if spec["algorithm"] == "dual_ascent" and rng.random() < 0.7:
        spec |= {"window": _WINDOWS[rng.integers(len(_WINDOWS))], "retain": 5}
        spec.pop("strength", None)
        spec["rho"] = float(rng.choice([1e-12, 1e-3, 1.0, 1e12]))
        if rng.random() < 0.3:
            spec["average"] = {"kappa": float(rng.choice([1e-3, 0.5, 1.0]))}
    if not regresses and spec["algorithm"] != "semiparametric" and rng.random() < 0.4:
        spec["task"] = "multiclass"
    return spec


def extreme_stream(rng: np.random.Generator, spec: dict[str, Any], n: int) -> Batch:
    """n rows: ordinary ones, and extremes of the values, labels and weights."""
    share = float(rng.choice([0.05, 0.3, 1.0]))
    pool = rng.choice(_VALUES, int(rng.integers(1, 5)))

    def numbers(shape: Any) -> Any:
        extreme = rng.choice(pool, shape) * rng.choice([-1.0, 1.0], shape)
        return np.where(rng.random(shape) < share, extreme, rng.normal(size=shape))

    x = numbers((n, DIM)) * (rng.random((n, DIM)) < rng.choice([0.1, 0.5, 1.0]))
    heavy = rng.choice(rng.choice(_WEIGHTS, 3), n)
    weights = np.where(rng.random(n) < rng.choice([0.0, 0.3, 1.0]), heavy, 1.0)
    task = spec.get("task", "binary")
    if task == "regression":
        return Batch.from_dense(x, np.clip(numbers(n), -1e100, 1e100), weights)
    if task == "binary":
        return Batch.from_dense(x, rng.choice([-1.0, 1.0], n), weights)
    labels = np.minimum(rng.integers(0, 4, n), np.arange(n) // 4).astype(np.float64)
    return Batch.from_dense(x, labels, weights).with_labels(labels, ("a", "b", "c", "d"))
