"""Registry of algorithms: the module of each learner, and readers of its specification fields.

A module is imported when a specification first names its algorithm. The import compiles its kernels
or loads them from the cache.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.losses.loss_table import NONSMOOTH_LOSSES
from dualstream.solvers.losses.spec import read_average, read_loss
from dualstream.solvers.nonlinear.spec import read_boosted, read_neighbours, read_net, read_splines
from dualstream.solvers.offline.refit_methods import MAX_WINDOW_ROWS, METHODS, WINDOW_ROWS
from dualstream.solvers.portfolio.spec import read_portfolio
from dualstream.solvers.semiparametric.spec import read_semiparametric
from dualstream.solvers.spec_fields import (
    Spec,
    read_choice,
    read_flag,
    read_kind,
    read_number,
    read_object,
    read_whole,
    short_form,
)

MAX_RETAIN = 10_000_000


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm; `read` returns its own fields, besides those of every model."""

    module: str
    maker: str
    fields: tuple[str, ...]
    """In the order of a resolved specification."""
    read: Callable[..., Spec]
    """Called with the specification, whose features are resolved, and the task; raises
    InvalidSpec.
    """
    stages_are_own: bool = False
    """Whether the model as a whole has no stages and no intercept: its parts have them, or it needs
    none."""
    has_members: bool = False
    """Whether members are models: `read` also takes the resolver, and the maker a ModelFactory."""


def read_dual_ascent(spec: Mapping[str, Any], task: str) -> Spec:
    loss = read_loss(spec, task)
    window = _window(spec)
    kinds = {"l2": (), "elastic_net": ("delta",), "entropy": ()}
    regularizer = read_kind(spec, "regularizer", "l2", kinds)
    if regularizer["kind"] == "elastic_net":
        regularizer["delta"] = read_number(
            regularizer, "/regularizer", "delta", 0.1, 0.0, 1e12, "a number in [0, 1e12]"
        )
    length = window.get("length", 1)
    return {
        "loss": short_form(loss),
        "regularizer": short_form(regularizer),
        **_rho_or_strength(spec),
        "window": short_form(window),
        "average": read_average(spec, loss["kind"]),
        "replay": _replay(spec),
        "retain": read_whole(spec, "", "retain", max(1000, length), length, MAX_RETAIN),
        **_refit(spec),
    }


def _refit(spec: Mapping[str, Any], is_of_journal: bool = False) -> Spec:
    """The interval of automatic refits; {} without them.

    resolve_spec later checks that the method and its options fit the rest of the specification; ""
    is the default method.
    """
    refit = spec.get("refit")
    if refit is None:
        return {}
    takes = ("every", "method", "tol", "options", *(("rows",) if is_of_journal else ()))
    refit = read_object(refit, "/refit", takes, "null or an object with every")
    every = read_whole(refit, "/refit", "every", 10_000, 100, 1_000_000_000)
    method = refit.get("method", "")
    if method not in ("", *METHODS):
        raise InvalidSpec.not_one_of("/refit/method", method, METHODS)
    tol = read_number(refit, "/refit", "tol", 1e-3, 1e-12, 1.0, "a number in [1e-12, 1]")
    read: Spec = {"every": every, "method": method, "tol": tol}
    if "options" in refit:
        read["options"] = refit["options"]
    if is_of_journal:
        read["rows"] = read_whole(refit, "/refit", "rows", WINDOW_ROWS, 1, MAX_WINDOW_ROWS)
    return {"refit": read}


def _rho_or_strength(spec: Mapping[str, Any]) -> Spec:
    """rho, or strength = fixed rho Delta: one of them, by default rho."""
    if spec.get("strength") is None:
        return {"rho": _positive(spec, "", "rho", 0.001)}
    if "rho" in spec:
        raise InvalidSpec("/strength", spec["strength"], "left out if rho is given")
    return {"strength": _positive(spec, "", "strength", 30.0)}


def _window(spec: Mapping[str, Any]) -> Spec:
    fields = {"infinite": (), "exponential": ("beta",), "sliding": ("length",)}
    window = read_kind(spec, "window", "infinite", fields)
    if window["kind"] == "exponential":
        least = math.ulp(0.0)
        window["beta"] = read_number(
            window, "/window", "beta", 0.9998, least, 1.0, "a number in (0, 1]"
        )
    if window["kind"] == "sliding":
        window["length"] = read_whole(window, "/window", "length", 2000, 1, MAX_RETAIN)
    return window


def _replay(spec: Mapping[str, Any]) -> Spec:
    """A number of steps after each row, or steps until a gap is reached, at intervals."""
    replay = spec.get("replay", {})
    takes = ("steps", "until_gap", "max_steps", "every")
    replay = read_object(replay, "/replay", takes, "an object with steps or until_gap")
    if "until_gap" not in replay:
        for name in ("max_steps", "every"):
            if name in replay:
                raise InvalidSpec(f"/replay/{name}", replay[name], "left out without until_gap")
        return {"steps": read_whole(replay, "/replay", "steps", 0, 0, 1_000_000)}
    if "steps" in replay:
        raise InvalidSpec("/replay/steps", replay["steps"], "left out if until_gap is given")
    return {
        "until_gap": _positive(replay, "/replay", "until_gap", 0.05),
        "max_steps": read_whole(replay, "/replay", "max_steps", 8, 1, 1000),
        "every": read_whole(replay, "/replay", "every", 100, 1, 1_000_000),
    }


def read_dc(spec: Mapping[str, Any], task: str) -> Spec:
    refuse_regression(task)
    kinds = {
        "pil1": ("tau1", "zero_tol"),
        "pil2": ("tau2", "tau3", "relative_tau2"),
        "sigmoid": ("kappa", "epsilon"),
    }
    surrogate = read_kind(spec, "surrogate", "pil2", kinds)
    inner = read_kind(spec, "inner", "one_step", {"one_step": (), "complete": ("tol", "max_inner")})
    steps = {"sqrt_t": (), "sqrt_T": ("horizon",), "strongly_convex": ("gamma",)}
    step = read_kind(spec, "step", "sqrt_t", steps)
    is_complete = inner["kind"] == "complete"
    c, kappa, owner = 16.0, 0.5, "/surrogate"
    if surrogate["kind"] == "pil1":
        surrogate["tau1"] = _positive(surrogate, owner, "tau1", 0.125)
        surrogate["zero_tol"] = read_number(
            surrogate, owner, "zero_tol", 1e-12, 0.0, 1.0, "a number in [0, 1]"
        )
    elif surrogate["kind"] == "pil2":
        c = 8.0
        surrogate["tau2"] = _positive(surrogate, owner, "tau2", 16.0)
        surrogate["tau3"] = _positive(surrogate, owner, "tau3", 1.0)
        surrogate.setdefault("relative_tau2", True)
        if not isinstance(surrogate["relative_tau2"], bool):
            raise InvalidSpec(
                "/surrogate/relative_tau2", surrogate["relative_tau2"], "true or false"
            )
    else:
        c, kappa = (0.25, 0.3) if is_complete else (4.0, 0.5)
        surrogate["kappa"] = _positive(surrogate, owner, "kappa", kappa)
        surrogate["epsilon"] = read_number(
            surrogate, owner, "epsilon", 0.9, 0.0, 1 - 1e-12, "a number in [0, 1 - 1e-12]"
        )
    if is_complete:
        inner["tol"] = read_number(inner, "/inner", "tol", 1e-4, 0.0, 1.0, "a number in [0, 1]")
        inner["max_inner"] = read_whole(inner, "/inner", "max_inner", 5000, 1, 1_000_000)
    if step["kind"] == "sqrt_T":
        step["horizon"] = read_whole(step, "/step", "horizon", 10_000, 1, 2**53)
    fields: Spec = {"surrogate": surrogate, "inner": short_form(inner)}
    if step["kind"] == "strongly_convex":
        step["gamma"] = _positive(step, "/step", "gamma", 1.0)
        if "C" in spec:
            raise InvalidSpec("/C", spec["C"], "left out if step is strongly_convex")
    else:
        fields["C"] = _positive(spec, "", "C", c)
    if spec.get("radius") is not None:
        fields["radius"] = _positive(spec, "", "radius", 1.0)
    return fields | {"step": short_form(step)}


def read_passive_aggressive(spec: Mapping[str, Any], task: str) -> Spec:
    refuse_regression(task)
    variant = read_choice(spec, "variant", "pa1", ("pa", "pa1", "pa2"))
    if variant == "pa":
        if "C" in spec:
            raise InvalidSpec("/C", spec["C"], "left out if variant is pa")
        return {"variant": variant, **_refit(spec, True)}
    return {"variant": variant, "C": _positive(spec, "", "C", 1.0), **_refit(spec, True)}


def read_alma(spec: Mapping[str, Any], task: str) -> Spec:
    refuse_regression(task)
    return {
        "alpha": read_number(spec, "", "alpha", 0.6, 1e-12, 1.0, "a number in [1e-12, 1]"),
        "C": _positive(spec, "", "C", 0.0625),
        "p": read_number(spec, "", "p", 2.0, 2.0, 1e12, "a number in [2, 1e12]"),
        "normalize": read_flag(spec, "normalize", True),
    }


def read_no_fields(spec: Mapping[str, Any], task: str) -> Spec:
    refuse_regression(task)
    return {}


def refuse_regression(task: str) -> None:
    """Raise InvalidSpec for regression, for algorithms that need margins."""
    if task == "regression":
        raise InvalidSpec("/task", task, "binary for this algorithm")


def _positive(fields: Mapping[str, Any], owner: str, name: str, default: float) -> float:
    return read_number(fields, owner, name, default, 1e-12, 1e12, "a number in [1e-12, 1e12]")


_POSITIVE = (1e-12, 1e12, "a number in [1e-12, 1e12]")
_NOT_NEGATIVE = (0.0, 1e12, "a number in [0, 1e12]")


def read_gradient_steps(spec: Mapping[str, Any], task: str) -> Spec:
    rho = read_number(spec, "", "rho", 0.001, *_NOT_NEGATIVE)
    mu = read_number(spec, "", "mu", 0.05, *_POSITIVE)
    if not mu * rho < 1.0:
        raise InvalidSpec("/mu", mu, f"below 1 / rho = {1.0 / rho}")
    loss = read_loss(spec, task)
    average = read_average({"average": spec.get("average")}, loss["kind"])
    fields = {"loss": short_form(loss), "rho": rho, "mu": mu, "average": average}
    return fields | _refit(spec, True)


def read_dual_averaging(spec: Mapping[str, Any], task: str) -> Spec:
    kinds = {"l1": ("lambda",), "l2": ("sigma",), "elastic_net": ("lambda", "sigma")}
    regularizer = read_kind(spec, "regularizer", "l1", kinds)
    for name in kinds[regularizer["kind"]]:
        regularizer[name] = read_number(regularizer, "/regularizer", name, 0.001, *_NOT_NEGATIVE)
    schedule = read_kind(spec, "schedule", "sqrt", {"sqrt": ("gamma",), "log": ("sigma",)})
    if schedule["kind"] == "sqrt":
        schedule["gamma"] = _positive(schedule, "/schedule", "gamma", 2.0)
    else:
        schedule["sigma"] = _positive(schedule, "/schedule", "sigma", 1.0)
    return {
        "loss": short_form(read_loss(spec, task)),
        "regularizer": regularizer,
        "schedule": schedule,
        "prox": read_choice(spec, "prox", "thesis", ("thesis", "xiao")),
        **_average_if_given(spec),
    }


def _average_if_given(spec: Mapping[str, Any]) -> Spec:
    """The primal average of an algorithm that has none by default; {} without it."""
    average = read_average({"average": spec.get("average")}, "")
    return {} if average is None else {"average": average}


def read_rda_plus(spec: Mapping[str, Any], task: str) -> Spec:
    fields = read_dual_averaging(spec, task)
    loss = fields["loss"] if isinstance(fields["loss"], str) else fields["loss"]["kind"]
    if loss in NONSMOOTH_LOSSES:
        raise InvalidSpec("/loss", loss, f"none of {', '.join(NONSMOOTH_LOSSES)} for rda_plus")
    tiny, share = (1e-15, 1.0, "a number in [1e-15, 1]"), (1e-12, 1.0, "a number in [1e-12, 1]")
    return fields | {
        "stable": read_whole(spec, "", "stable", 100, 1, 1_000_000_000),
        "safeguard": read_number(spec, "", "safeguard", 0.85, *share),
        "tol": read_number(spec, "", "tol", 1e-8, *tiny),
        "retain": read_whole(spec, "", "retain", 1000, 2, MAX_RETAIN),
    }


def read_asset(spec: Mapping[str, Any], task: str) -> Spec:
    refuse_regression(task)
    step = read_choice(spec, "step", "sqrt", ("sqrt", "strongly_convex"))
    bound = spec.get("bound")
    if bound is not None:
        if step != "sqrt" or spec.get("intercept", True) is not True:
            raise InvalidSpec("/bound", bound, "null without an intercept or with strongly_convex")
        bound = read_number(spec, "", "bound", 10.0, *_POSITIVE)
    average = spec.get("average")
    if isinstance(average, Mapping) and "from" in average:
        average = read_object(average, "/average", ("from",), "an object with kappa or from")
        average = {"from": read_whole(average, "/average", "from", None, 1, 2**53)}
    else:
        average = read_average(spec, "hinge")
    loss = read_loss({"loss": "hinge", **spec}, task)
    if loss["kind"] == "quantile":
        allowed = "a function of label times score, which quantile is not"
        raise InvalidSpec("/loss", spec["loss"], allowed)
    if loss["kind"] == "epsilon_insensitive" and not loss["epsilon"] < 1.0:
        raise InvalidSpec("/loss/epsilon", loss["epsilon"], "below 1, or weights of 0 are optimal")
    return {
        **({} if loss["kind"] == "hinge" else {"loss": short_form(loss)}),
        "lambda": read_number(spec, "", "lambda", 1e-5, *_POSITIVE),
        "step": step,
        "average": average,
        "bound": bound,
        **_refit(spec, True),
    }


def read_ogd(spec: Mapping[str, Any], task: str) -> Spec:
    if task == "regression":
        raise InvalidSpec("/task", task, "binary")
    return {"C": read_number(spec, "", "C", 0.5, *_POSITIVE)}


def read_sgd_l1(spec: Mapping[str, Any], task: str) -> Spec:
    return {
        "loss": short_form(read_loss(spec, task)),
        "lambda": read_number(spec, "", "lambda", 0.001, *_NOT_NEGATIVE),
        "gamma": read_number(spec, "", "gamma", 2.0, *_POSITIVE),
        **_average_if_given(spec),
        **_refit(spec, True),
    }


def read_fobos(spec: Mapping[str, Any], task: str) -> Spec:
    sigma = read_number(spec, "", "sigma", 0.0, *_NOT_NEGATIVE)
    return read_sgd_l1(spec, task) | ({"sigma": sigma} if sigma else {})


def read_truncated_gradient(spec: Mapping[str, Any], task: str) -> Spec:
    theta = spec.get("theta")
    if theta is not None:
        theta = read_number(spec, "", "theta", 0.0, *_NOT_NEGATIVE)
    period = read_whole(spec, "", "period", 10, 1, 1_000_000_000)
    return read_sgd_l1(spec, task) | {"period": period, "theta": theta}


ALGORITHMS: Mapping[str, Algorithm] = {
    "dual_ascent": Algorithm(
        "dualstream.solvers.online.dual_ascent.learner",
        "DualAscent",
        (
            "loss",
            "regularizer",
            "rho",
            "strength",
            "window",
            "average",
            "replay",
            "retain",
            "refit",
        ),
        read_dual_ascent,
    ),
    "rda": Algorithm(
        "dualstream.solvers.online.dual_averaging",
        "DualAveraging",
        ("loss", "regularizer", "schedule", "prox", "average"),
        read_dual_averaging,
    ),
    "rda_plus": Algorithm(
        "dualstream.solvers.online.rda_plus",
        "DualAveragingPlus",
        ("loss", "regularizer", "schedule", "prox", "stable", "safeguard", "tol", "retain"),
        read_rda_plus,
    ),
    "sgd": Algorithm(
        "dualstream.solvers.online.first_order",
        "FirstOrder",
        ("loss", "rho", "mu", "average", "refit"),
        read_gradient_steps,
    ),
    "spg": Algorithm(
        "dualstream.solvers.online.first_order",
        "FirstOrder",
        ("loss", "rho", "mu", "average", "refit"),
        read_gradient_steps,
    ),
    "ogd": Algorithm("dualstream.solvers.online.first_order", "FirstOrder", ("C",), read_ogd),
    "asset": Algorithm(
        "dualstream.solvers.online.asset",
        "Asset",
        ("loss", "lambda", "step", "average", "bound", "refit"),
        read_asset,
    ),
    "truncated_gradient": Algorithm(
        "dualstream.solvers.online.truncated_gradient",
        "TruncatedGradient",
        ("loss", "lambda", "gamma", "period", "theta", "average", "refit"),
        read_truncated_gradient,
    ),
    "fobos": Algorithm(
        "dualstream.solvers.online.truncated_gradient",
        "TruncatedGradient",
        ("loss", "lambda", "sigma", "gamma", "average", "refit"),
        read_fobos,
    ),
    "sgd_l1": Algorithm(
        "dualstream.solvers.online.truncated_gradient",
        "TruncatedGradient",
        ("loss", "lambda", "gamma", "average", "refit"),
        read_sgd_l1,
    ),
    "dc": Algorithm(
        "dualstream.solvers.online.difference_of_convex",
        "DC",
        ("surrogate", "inner", "C", "step", "radius"),
        read_dc,
    ),
    "perceptron": Algorithm("dualstream.solvers.online.margin", "Perceptron", (), read_no_fields),
    "passive_aggressive": Algorithm(
        "dualstream.solvers.online.margin",
        "PassiveAggressive",
        ("variant", "C", "refit"),
        read_passive_aggressive,
    ),
    "romma": Algorithm("dualstream.solvers.online.margin", "Romma", (), read_no_fields),
    "alma": Algorithm(
        "dualstream.solvers.online.margin", "Alma", ("alpha", "C", "p", "normalize"), read_alma
    ),
    "semiparametric": Algorithm(
        "dualstream.solvers.semiparametric.learner",
        "Semiparametric",
        ("loss", "basis", "gamma", "C", "retain", "refit"),
        read_semiparametric,
        stages_are_own=True,
    ),
    "boosted": Algorithm(
        "dualstream.solvers.nonlinear.boosted",
        "Boosted",
        ("loss", "window", "memory", "trees", "renewal", "step", "leaves", "seed", "lags"),
        read_boosted,
        stages_are_own=True,
    ),
    "net": Algorithm(
        "dualstream.solvers.nonlinear.net",
        "Net",
        ("units", "step", "seed"),
        read_net,
        stages_are_own=True,
    ),
    "neighbours": Algorithm(
        "dualstream.solvers.nonlinear.neighbours",
        "Neighbours",
        ("window", "neighbours"),
        read_neighbours,
        stages_are_own=True,
    ),
    "splines": Algorithm(
        "dualstream.solvers.nonlinear.splines",
        "Splines",
        ("gamma",),
        read_splines,
        stages_are_own=True,
    ),
    "portfolio": Algorithm(
        "dualstream.solvers.portfolio.learner",
        "Portfolio",
        ("members", "memory", "eta", "share", "retain", "lags", "number_pairs"),
        read_portfolio,
        stages_are_own=True,
        has_members=True,
    ),
}
