"""Which models can be refitted, by which methods, and why others cannot.

A model with dual variables of its retained rows accepts new dual variables
(`refit/window_problem.py`). A model whose state is its weights accepts weights, solved for on the
last rows of its journal (`refit/weights_problem.py`). A semiparametric model accepts its solution.
This module imports no kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dualstream.solvers.losses.loss_table import LOSSES, NONSMOOTH_LOSSES
from dualstream.solvers.spec_cache import derived_once

WINDOW_ROWS = 10_000
"""Default number of rows, the last of the journal, for a refit of weights."""
MAX_WINDOW_ROWS = 1_000_000

_SMOOTH = tuple(loss for loss in LOSSES if loss not in NONSMOOTH_LOSSES)
_MIN_RHO = 1e-100


@dataclass(frozen=True, slots=True)
class _Method:
    """Properties of an offline method that decide whether it can refit a model; see
    `offline.methods`."""

    losses: tuple[str, ...]
    regularizer: str = "l2"
    gives_duals: bool = True
    takes_fixed: bool = False
    intercept_may_be_free: bool = False


METHODS: Mapping[str, _Method] = {
    "sdca": _Method(LOSSES, takes_fixed=True),
    "dcd": _Method(("hinge", "squared_hinge"), takes_fixed=True),
    "spdc": _Method(_SMOOTH),
    "asdca": _Method(_SMOOTH),
    "aspdc": _Method(_SMOOTH),
    "aspdc_i": _Method(_SMOOTH),
    "svrg": _Method(_SMOOTH, gives_duals=False),
    "mcpa": _Method(("hinge",), gives_duals=False, intercept_may_be_free=True),
    "ocas": _Method(("hinge",), gives_duals=False, intercept_may_be_free=True),
    "newton_l1": _Method(_SMOOTH, regularizer="l1", gives_duals=False),
}
"""Methods for linear models; the first that fits a model is its default."""

SEMIPARAMETRIC_METHODS = ("ipm", "pdsg", "mpd")
"""Methods of `solve_semiparametric`; the first is the default.

The interior point method converges for any C and any number of basis functions:
docs/guides/semiparametric.md.
"""

ALL_METHODS = (*METHODS, *SEMIPARAMETRIC_METHODS)

SPARSE_STEPS = ("truncated_gradient", "fobos", "sgd_l1")
"""Algorithms of online/truncated_gradient.py."""
_TAKES_WEIGHTS = ("sgd", "spg", "asset", *SPARSE_STEPS, "passive_aggressive")

_DERIVED = {
    "rda": "its weights are computed from the sum of all gradients",
    "rda_plus": "its weights are computed from the sum of all gradients",
    "romma": "its weights are computed from what it accumulates",
    "alma": "its weights are computed from what it accumulates",
}
_NO_PROBLEM = {
    "dc": "its loss is not convex: no dual value bounds the distance to the optimum",
    "perceptron": "it corrects misclassified rows and minimises no objective",
    "boosted": "it replaces its trees all the time",
    "net": "its loss is not convex in its weights",
    "neighbours": "it keeps rows and minimises no objective",
    "splines": "its knots move, so the objective of a window is not that of its steps",
    "ogd": "its steps minimise a loss without a regularizer: a window has no unique optimum",
}


def takes_weights(spec: Mapping[str, Any]) -> bool:
    """Whether a refit of this model solves for weights, on rows of its journal."""
    return spec["algorithm"] in _TAKES_WEIGHTS


@derived_once
def why_not_refit(spec: Mapping[str, Any]) -> str | None:
    """Why a model of this resolved specification cannot be refitted; None if it can."""
    algorithm = spec["algorithm"]
    if spec.get("intercept") == "prior":
        return "the centre of the penalty, `intercept: prior`, moves with every label"
    if algorithm in ("dual_ascent", "semiparametric"):
        return None
    if algorithm == "portfolio":
        return (
            "the shares of its members follow from their past losses; "
            "create the member as a separate model to refit it"
        )
    if algorithm in _DERIVED:
        return f"{algorithm} cannot take other weights: {_DERIVED[algorithm]}"
    reason = _NO_PROBLEM[algorithm] if algorithm in _NO_PROBLEM else _why_no_problem(spec)
    return None if reason is None else f"{algorithm} has no problem to solve: {reason}"


def _why_no_problem(spec: Mapping[str, Any]) -> str | None:
    """`why_not_refit` for a model whose state is its weights."""
    algorithm = spec["algorithm"]
    if algorithm == "passive_aggressive" and spec["variant"] == "pa":
        return (
            "variant pa requires the full margin of every row; "
            "pa1 and pa2 have an objective even if no weights satisfy that"
        )
    if algorithm in ("sgd", "spg") and not spec["rho"] >= _MIN_RHO:
        return "with rho 0 a window has no unique optimum"
    if algorithm == "asset" and spec["bound"] is not None and _loss(spec) != "hinge":
        return f"no method here leaves the intercept unpenalised with the {_loss(spec)} loss"
    if algorithm in SPARSE_STEPS:
        kind = regularizer_of(spec)
        if kind == "elastic_net":
            return "no method here minimises a loss with both lambda and sigma"
        if not spec["sigma" if kind == "l2" else "lambda"] >= _MIN_RHO:
            return "with lambda 0 a window has no unique optimum"
        if spec.get("theta") is not None:
            return "weights beyond theta are not truncated, which no regularizer expresses"
        if kind == "l1" and (loss := _loss(spec)) in NONSMOOTH_LOSSES:
            return f"no method here minimises the {loss} loss with lambda |w|_1"
    return None


@derived_once
def why_no_reference(spec: Mapping[str, Any]) -> str | None:
    """Why the window has no reference optimum to compare with; None if it has one."""
    if spec["algorithm"] == "semiparametric":
        return "a refit of a semiparametric model solves the same problem and reports its gap"
    if takes_weights(spec):
        return f"{spec['algorithm']} retains no rows"
    return why_not_refit(spec)


@derived_once
def refit_methods(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The methods that can refit a model of this resolved specification; the default first."""
    if spec["algorithm"] == "semiparametric":
        return SEMIPARAMETRIC_METHODS
    fit = tuple(method for method in METHODS if why_not_method(spec, method) is None)
    if not takes_weights(spec):
        return fit
    # Cutting planes are faster after a feature map and with lambda near 0. dcd is faster otherwise:
    # it skips rows at their bounds.
    first = "mcpa" if spec["algorithm"] == "asset" else "dcd"
    return tuple(sorted(fit, key=lambda method: method != first))


def why_not_method(spec: Mapping[str, Any], method: str) -> str | None:
    """Why a method cannot solve the problem of a resolved specification; None if it can."""
    if spec["algorithm"] == "semiparametric":
        if method in SEMIPARAMETRIC_METHODS:
            return None
        allowed = ", ".join(SEMIPARAMETRIC_METHODS)
        return f"a semiparametric model is refitted by {allowed}, not {method}"
    if method not in METHODS:
        return f"{method} is not a method for linear models; use one of {', '.join(METHODS)}"
    is_of = METHODS[method]
    loss, regularizer = _loss(spec), regularizer_of(spec)
    if loss not in is_of.losses:
        return f"{method} supports the losses {', '.join(is_of.losses)}, not {loss}"
    if takes_weights(spec):
        if regularizer != is_of.regularizer:
            return f"{method} supports the regularizer {is_of.regularizer}, not {regularizer}"
        if spec.get("bound") is not None and not is_of.intercept_may_be_free:
            return f"{method} cannot leave the intercept unpenalised, which `bound` requires"
        return None
    if method == "sdca":
        return None
    if spec["intercept"] == "prior":
        return f"{method} penalises the distance of the intercept from 0, not from the prior"
    if not is_of.gives_duals:
        return f"{method} gives no dual variables, which the model needs"
    if regularizer != is_of.regularizer:
        return f"{method} supports the regularizer {is_of.regularizer}, not {regularizer}"
    window = spec["window"]
    kind = window if isinstance(window, str) else window["kind"]
    if kind != "sliding" and not is_of.takes_fixed:
        return (
            f"{method} cannot hold fixed what rows that are not retained have in the weights of "
            f"a window that is {kind}; a sliding one has none"
        )
    return None


def _loss(spec: Mapping[str, Any]) -> str:
    if spec["algorithm"] == "passive_aggressive":
        return "hinge" if spec["variant"] == "pa1" else "squared_hinge"
    # Only `asset` may have none: hinge.
    loss = spec.get("loss", "hinge")
    return str(loss if isinstance(loss, str) else loss["kind"])


def regularizer_of(spec: Mapping[str, Any]) -> str:
    if spec["algorithm"] in SPARSE_STEPS:
        if "sigma" not in spec:
            return "l1"
        return "elastic_net" if spec["lambda"] else "l2"
    regularizer = spec.get("regularizer", "l2")
    return str(regularizer if isinstance(regularizer, str) else regularizer["kind"])
