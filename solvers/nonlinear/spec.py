"""Specification fields of the learners of this package."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.rows.batch import MAX_DIM
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.spec_fields import Spec, read_choice, read_number, read_whole

MAX_WINDOW = 1_000_000
MAX_UNITS = 256
MAX_LAGS = 16


def read_boosted(spec: Mapping[str, Any], task: str) -> Spec:
    """The fields of `algorithm: boosted`, see boosted.py."""
    step = read_number(spec, "", "step", 0.3, 1e-6, 1.0, "a number in [1e-6, 1]")
    if "loss" in spec and task != "regression":
        raise InvalidSpec("/loss", spec["loss"], "left out unless the task is regression")
    loss = read_choice(spec, "loss", "squared", ("squared", "absolute"))
    lags = read_lags(spec, task, 0)
    # The squared loss is that of every nonlinear learner, and is not written out.
    return ({"loss": loss} if loss == "absolute" else {}) | {
        "window": read_whole(spec, "", "window", 20_480, 32, MAX_WINDOW),
        "trees": read_whole(spec, "", "trees", 30, 1, 1000),
        "renewal": read_whole(spec, "", "renewal", 60, 1, 1000),
        "step": step,
        "leaves": read_whole(spec, "", "leaves", 31, 2, 127),
        "seed": read_whole(spec, "", "seed", 0, 0, 2**63 - 1),
        **({"lags": lags} if lags else {}),
    }


def read_lags(spec: Mapping[str, Any], task: str, default: int) -> int:
    """The field `lags`, see lags.py; 0 for classes."""
    if task != "regression":
        if spec.get("lags"):
            raise InvalidSpec("/lags", spec["lags"], "left out unless the task is regression")
        return 0
    most = min(MAX_LAGS, MAX_DIM - width_of(spec["features"]))
    return read_whole(spec, "", "lags", min(default, most), 0, most)


def lag_name(spec: Mapping[str, Any], feature: int) -> str | None:
    """The name of a feature that is a past target of a resolved specification; None for others."""
    at = feature - width_of(spec["features"])
    if not 0 <= at < spec.get("lags", 0):
        return None
    return f"label.{at}-label.{at + 1}" if at else "label.1"


def read_net(spec: Mapping[str, Any], task: str) -> Spec:
    """The fields of `algorithm: net`, see net.py."""
    units = spec.get("units", [32, 16])
    is_pair = isinstance(units, list | tuple) and len(units) == 2
    if not is_pair or any(type(n) is not int or not 1 <= n <= MAX_UNITS for n in units):
        allowed = f"a list of two whole numbers in [1, {MAX_UNITS}]"
        raise InvalidSpec("/units", units, allowed)
    return {
        "units": list(units),
        "step": read_number(spec, "", "step", 0.1, 1e-6, 10.0, "a number in [1e-6, 10]"),
        "seed": read_whole(spec, "", "seed", 0, 0, 2**63 - 1),
    }


def read_neighbours(spec: Mapping[str, Any], task: str) -> Spec:
    """The fields of `algorithm: neighbours`, see neighbours.py."""
    return {
        "window": read_whole(spec, "", "window", 1000, 16, 10_000),
        "neighbours": read_whole(spec, "", "neighbours", 15, 1, 100),
    }


def read_splines(spec: Mapping[str, Any], task: str) -> Spec:
    """The fields of `algorithm: splines`, see splines.py."""
    return {"gamma": read_number(spec, "", "gamma", 0.99, 0.0, 1.0, "a number in [0, 1]")}
