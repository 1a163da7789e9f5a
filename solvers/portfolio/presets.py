"""Presets: named lists of members, as resolved specifications.

All members have an intercept. Besides the algorithms of models, members can have a `kind` that
exists only in portfolios; to use such a kind alone, create a portfolio of one member.

| kind              | is                                                                     |
|-------------------|------------------------------------------------------------------------|
| `prior`           | the log odds of the labels so far; for regression their mean           |
| `dual_ascent`     | O-DCA with `strength` C; `schedule: inverse_sqrt` has rho = C / sqrt N |
| `spg_fixed_total` | stochastic proximal gradient, step 1 / (C sqrt N), no shrinking        |
| `adagrad`         | the dual step with AdaGrad's diagonal, step `eta`                      |
| `diagonal_newton` | the dual step with a diagonal of second derivatives, fading by `gamma` |
| `stack`           | combines the scores of the other members: see stack_kernels.py         |

Members for regression correct a `base`: the `mean` of the targets or the `last` one. Kinds that
have weights can have `pairs`: see pairs.py.

Formulas in fused_kernels.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dualstream.solvers.nonlinear import SHARED

Member = dict[str, Any]

_BALANCED = {"kind": "balanced", "power": 0.25, "moments": True}
_COUNTS = {"kind": "balanced", "power": 0.25, "moments": False}
_STANDARD = {"kind": "balanced", "power": 0.0, "moments": True}
_SMOOTH_HINGE = {"kind": "smooth_hinge", "gamma": 1.0}

PRIOR: Member = {"name": "prior", "kind": "prior"}


def _dual(
    name: str,
    strength: float,
    scaling: Any = _BALANCED,
    norm: str = "none",
    *,
    loss: Any = "logistic",
    schedule: str = "constant",
) -> Member:
    return {
        "name": name,
        "kind": "dual_ascent",
        "loss": loss,
        "strength": strength,
        "schedule": schedule,
        "scaling": scaling,
        "norm": norm,
    }


def _spg(
    name: str, strength: float, scaling: Any = _BALANCED, norm: str = "none", *, loss: Any
) -> Member:
    return {
        "name": name,
        "kind": "spg_fixed_total",
        "loss": loss,
        "strength": strength,
        "scaling": scaling,
        "norm": norm,
    }


def _adagrad(name: str, eta: float, scaling: Any, norm: str, *, loss: Any) -> Member:
    return {
        "name": name,
        "kind": "adagrad",
        "loss": loss,
        "eta": eta,
        "scaling": scaling,
        "norm": norm,
    }


def _newton(name: str, gamma: float) -> Member:
    return {
        "name": name,
        "kind": "diagonal_newton",
        "loss": "logistic",
        "gamma": gamma,
        "scaling": _STANDARD,
        "norm": "row",
    }


_STEADY = _dual("dual-30", 30.0)
_TRACKING = _dual("dual-3", 3.0)
_COUNTED = _dual("dual-100-counts", 100.0, _COUNTS)
_SPG_HINGE = _spg("spg-1-hinge", 1.0, loss=_SMOOTH_HINGE)
_SPG_ROW = _spg("spg-0.1-row", 0.1, norm="row", loss="logistic")

_FIRST_FIVE = (
    _STEADY,
    _TRACKING,
    _dual("dual-0.03-running", 0.03, norm="running"),
    _COUNTED,
    _SPG_HINGE,
)
_ADAGRADS = (
    _adagrad("adagrad-0.5-hinge-row", 0.5, _STANDARD, "row", loss=_SMOOTH_HINGE),
    _adagrad("adagrad-0.5-running", 0.5, _STANDARD, "running", loss="logistic"),
)

EIGHT = (PRIOR, *_FIRST_FIVE, *_ADAGRADS, _newton("newton-row", 1.0))

TWELVE = (
    PRIOR,
    *_FIRST_FIVE,
    _SPG_ROW,
    _dual("dual-0.1-raw-row", 0.1, "none", "row"),
    *_ADAGRADS,
    _adagrad("adagrad-1.5-raw-row", 1.5, "none", "row", loss="logistic"),
    _newton("newton-row", 1.0),
    _newton("newton-0.99-row", 0.99),
)

PAPERS = (
    PRIOR,
    _STEADY,
    _dual("dual-0.03-running", 0.03, norm="running"),
    _spg("spg-3-counts", 3.0, _COUNTS, loss="logistic"),
    _spg("spg-1-hinge-standard", 1.0, _STANDARD, loss=_SMOOTH_HINGE),
    _SPG_ROW,
    _TRACKING,
    _COUNTED,
    _spg("spg-1-plain-hinge", 1.0, loss="hinge"),
    _spg("spg-1-hinge-row", 1.0, norm="row", loss=_SMOOTH_HINGE),
    _spg("spg-0.1-standard-running", 0.1, _STANDARD, "running", loss="logistic"),
    _dual("dual-0.3-rising", 0.3, schedule="inverse_sqrt"),
    _spg("spg-0.03-row", 0.03, norm="row", loss="logistic"),
    _spg("spg-1-plain-hinge-standard", 1.0, _STANDARD, loss="hinge"),
    _SPG_HINGE,
    _dual("dual-0.03-row", 0.03, norm="row"),
    _dual("dual-30-hinge", 30.0, loss=_SMOOTH_HINGE),
)

_HUBER = {"kind": "huber", "delta": 1.0}
"""Its delta is in units of S, the running size of the portfolio's errors."""


def _corrector(
    name: str, kind: str, base: str, norm: str, loss: Any = _HUBER, **fields: Any
) -> Member:
    return {
        "name": name,
        "kind": kind,
        "base": base,
        "loss": loss,
        **fields,
        "scaling": _BALANCED,
        "norm": norm,
    }


def _tracker(name: str, base: str, norm: str, strength: float, loss: Any) -> Member:
    fields = {"strength": strength, "schedule": "constant"}
    return _corrector(name, "dual_ascent", base, norm, loss, **fields)


TEN = (
    {"name": "mean", "kind": "prior", "base": "mean"},
    {"name": "last", "kind": "prior", "base": "last"},
    _tracker("dual-0.1", "mean", "none", 0.1, "squared"),
    _tracker("dual-3-running", "mean", "running", 3.0, "squared"),
    _corrector("spg-0.3-row", "spg_fixed_total", "mean", "row", strength=0.3),
    _tracker("last-dual-1", "last", "none", 1.0, _HUBER),
    _tracker("last-dual-100", "last", "none", 100.0, _HUBER),
    _corrector("newton", "diagonal_newton", "mean", "none", gamma=1.0),
    _corrector("newton-0.99", "diagonal_newton", "mean", "none", gamma=0.99),
    _corrector("newton-0.999-row", "diagonal_newton", "mean", "row", gamma=0.999),
)

NET: Member = {"name": "net", "algorithm": "net", "units": [32, 16], "step": 0.1, "seed": 0}
STACK: Member = {"name": "stack", "kind": "stack"}


def _boosted(window: int, renewal: int, leaves: int) -> Member:
    return {
        "name": f"boosted-{window}",
        "algorithm": "boosted",
        "window": window,
        "trees": 30,
        "renewal": renewal,
        "step": 0.3,
        "leaves": leaves,
        "seed": 0,
    }


# The short window grows a tree every 34 rows: every 17 err as often and cost 2 us a row more.
FAST_ADDS = (NET, _boosted(16_384, 60, 63), _boosted(1024, 30, 31))
FULL_ADDS = (
    *FAST_ADDS,
    {"name": "neighbours", "algorithm": "neighbours", "window": 1000, "neighbours": 15},
    {"name": "splines", "algorithm": "splines", "gamma": 0.99},
)

PRESETS: Mapping[str, tuple[Member, ...]] = {
    "eight": EIGHT,
    "twelve": TWELVE,
    "papers": PAPERS,
    "fast": (*EIGHT, *FAST_ADDS, STACK),
    "full": (*EIGHT, *FULL_ADDS, STACK),
}
"""Presets of the binary task by name."""

_ABSOLUTE = {**_boosted(2048, 30, 31), "name": "boosted-2048-absolute", "loss": "absolute"}


def _of_numbers(adds: Sequence[Member]) -> tuple[Member, ...]:
    """The same nonlinear members, with absolute errors in the short window, and fewer leaves."""
    others = {"boosted-1024": _ABSOLUTE, "boosted-16384": _boosted(16_384, 60, 31)}
    return tuple(others.get(one["name"], one) for one in adds)


REGRESSION_PRESETS: Mapping[str, tuple[Member, ...]] = {
    "ten": TEN,
    "fast": (*TEN, *_of_numbers(FAST_ADDS), STACK),
    "full": (*TEN, *_of_numbers(FULL_ADDS), STACK),
}
"""Presets of regression by name."""

LARGE: Member = {
    **_boosted(65_536, 120, 63),
    "memory": "large",
    "trees": 60,
    "step": 0.15,
    "seed": 1,
}
"""What `full` has besides with `memory: large`."""

PAIRS: Mapping[str, tuple[Member, ...]] = {
    "regression": (
        _tracker("pairs-dual-0.1", "mean", "none", 0.1, "squared") | {"pairs": True},
        _corrector("pairs-newton-0.99", "diagonal_newton", "mean", "none", gamma=0.99)
        | {"pairs": True},
    ),
    "binary": (_dual("pairs-dual-30", 30.0) | {"pairs": True},),
}
"""What `fast` and `full` have besides with `pairs`: see pairs.py."""

NUMBER_PAIRS = _corrector("number-pairs", "diagonal_newton", "mean", "none", gamma=0.999)
"""What `fast` and `full` get in a stream of numbers with columns of small whole numbers, `pairs`.
It corrects the last target instead if that is nearer to the next one than the mean is."""

DROPPED = frozenset(member["name"] for member in (*EIGHT[1:-1], *PAIRS["binary"])) | {"splines"}
"""Members of `fast` and `full` that the portfolio of one class among many does not have."""

DEFAULT = "full"
"""The preset of a portfolio that names no members."""


def presets_of(task: str) -> Mapping[str, tuple[Member, ...]]:
    """The presets of a task by name."""
    return REGRESSION_PRESETS if task == "regression" else PRESETS


def members_of(spec: Mapping[str, Any]) -> Sequence[Member]:
    """The members of a resolved portfolio: those of its preset, or those that it lists."""
    members = spec["members"]
    if not isinstance(members, str):
        return list(members)
    preset = presets_of(spec["task"])[members]
    more: tuple[Member, ...] = (LARGE,) if "memory" in spec else ()
    if spec.get("pairs"):
        more += PAIRS["regression" if spec["task"] == "regression" else "binary"]
    # The stack, which combines the others, is the last one.
    return (*preset[:-1], *more, preset[-1])


def shared_algorithms(spec: Mapping[str, Any]) -> list[Member]:
    """Specifications of the learners that score all classes of a resolved model at once.

    Those of nonlinear.SHARED, of multiclass models.
    """
    if spec["task"] != "multiclass":
        return []
    members = members_of(spec) if spec["algorithm"] == "portfolio" else [dict(spec)]
    return [member for member in members if member.get("algorithm") in SHARED]
