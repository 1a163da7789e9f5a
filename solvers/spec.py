"""A model specification: what a user may write, with its defaults, and the learner it describes.

Every name is registered here, once. The module of an algorithm is imported when a specification
names it, and its kernels are compiled (or loaded from the cache) by that import.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from solvers import _jit
from solvers.batch import MAX_DIM
from solvers.errors import InvalidSpec, NotAvailable
from solvers.learner import Learner
from solvers.losses import LOSSES, MARGIN_LOSSES, NONSMOOTH_LOSSES, PARAMETERS

Spec = dict[str, Any]

MAX_RETAIN = 10_000_000


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Where the learner of an algorithm is, and what it takes beside what every one takes."""

    module: str
    maker: str
    fields: tuple[str, ...]


ALGORITHMS: Mapping[str, Algorithm] = {
    "dual_ascent": Algorithm(
        "solvers.dual_ascent",
        "DualAscent",
        ("loss", "regularizer", "rho", "strength", "window", "average", "replay", "map", "retain"),
    ),
}

LATER_ALGORITHMS = (
    "dc",
    "rda",
    "rda_plus",
    "sgd",
    "spg",
    "truncated_gradient",
    "fobos",
    "asset",
    "ogd",
    "perceptron",
    "romma",
    "alma",
    "passive_aggressive",
    "portfolio",
)

COMMON_FIELDS = ("algorithm", "task", "features", "scaling", "norm", "intercept", "seed", "labels")

# The order in which a resolved specification is written.
_ORDER = (
    "algorithm",
    "task",
    "loss",
    "regularizer",
    "rho",
    "window",
    "average",
    "replay",
    "features",
    "map",
    "scaling",
    "norm",
    "intercept",
    "retain",
    "seed",
    "labels",
)


def resolve_spec(spec: Mapping[str, Any]) -> Spec:
    """The same specification with every default written out, in one order.

    Raises InvalidSpec, naming the field, its value and what it may be.
    """
    if not isinstance(spec, Mapping):
        raise InvalidSpec("", spec, "an object")
    if not spec:
        raise NotAvailable("", {})
    algorithm = _choice(spec, "algorithm", "dual_ascent", tuple(ALGORITHMS), LATER_ALGORITHMS)
    _known(spec, "", (*COMMON_FIELDS, *ALGORITHMS[algorithm].fields))
    task = _choice(spec, "task", "binary", ("binary", "regression"), ("multiclass",))
    resolved = _dual_ascent(spec, task) | {
        "algorithm": algorithm,
        "task": task,
        "features": _features(spec),
        "scaling": _kind(spec, "scaling", "none", {"none": ()}, ("balanced",))["kind"],
        "norm": _choice(spec, "norm", "none", ("none",), ("row", "running")),
        "intercept": _flag(spec, "intercept", True),
        "seed": _whole(spec, "", "seed", 0, 0, 2**63 - 1),
        "labels": _labels(spec, task),
    }
    return {name: resolved[name] for name in _ORDER}


def make_learner(spec: Mapping[str, Any]) -> Learner:
    """A learner with no rows yet. Raises InvalidSpec."""
    resolved = resolve_spec(spec)
    algorithm = ALGORITHMS[resolved["algorithm"]]
    maker: Callable[[Spec], Learner] = getattr(_load(algorithm), algorithm.maker)
    return maker(resolved)


def warm(*algorithms: str) -> int:
    """Load these algorithms (every one, if none is named) and compile all that they need.

    Returns how many kernels there are. After it, no call compiles anything.
    """
    for name in algorithms or ALGORITHMS:
        _load(ALGORITHMS[name])
    importlib.import_module("solvers.progressive")
    return _jit.warm()


def _load(algorithm: Algorithm) -> Any:
    return importlib.import_module(algorithm.module)


def _dual_ascent(spec: Mapping[str, Any], task: str) -> Spec:
    loss = _loss(spec, task)
    window = _window(spec)
    if spec.get("strength") is not None:
        raise NotAvailable("/strength", spec["strength"])
    if spec.get("map") is not None:
        raise NotAvailable("/map", spec["map"])
    regularizer = _kind(spec, "regularizer", "l2", {"l2": ()}, ("elastic_net", "entropy"))
    length = window.get("length", 1)
    return {
        "loss": _short(loss),
        "regularizer": _short(regularizer),
        "rho": _number(spec, "", "rho", 0.001, 1e-12, 1e12, "a number in [1e-12, 1e12]"),
        "window": _short(window),
        "average": _average(spec, loss["kind"]),
        "replay": _replay(spec),
        "map": None,
        "retain": _whole(spec, "", "retain", max(1000, length), length, MAX_RETAIN),
    }


def _loss(spec: Mapping[str, Any], task: str) -> Spec:
    default = "squared" if task == "regression" else "logistic"
    fields = {name: (PARAMETERS[name].name,) if name in PARAMETERS else () for name in LOSSES}
    if task == "regression":
        fields = {name: takes for name, takes in fields.items() if name not in MARGIN_LOSSES}
    loss = _kind(spec, "loss", default, fields)
    if loss["kind"] in PARAMETERS:
        takes = PARAMETERS[loss["kind"]]
        loss[takes.name] = _number(
            loss, "/loss", takes.name, takes.default, takes.least, takes.most, takes.allowed
        )
    return loss


def _window(spec: Mapping[str, Any]) -> Spec:
    fields = {"infinite": (), "exponential": ("beta",), "sliding": ("length",)}
    window = _kind(spec, "window", "infinite", fields)
    if window["kind"] == "exponential":
        least = math.ulp(0.0)
        window["beta"] = _number(
            window, "/window", "beta", 0.9998, least, 1.0, "a number in (0, 1]"
        )
    if window["kind"] == "sliding":
        window["length"] = _whole(window, "/window", "length", 2000, 1, MAX_RETAIN)
    return window


def _average(spec: Mapping[str, Any], loss: str) -> Spec | None:
    if "average" not in spec:
        return {"kappa": 0.9995} if loss in NONSMOOTH_LOSSES else None
    average = spec["average"]
    if average is None:
        return None
    average = _object(average, "/average", ("kappa",), "null or an object with kappa")
    return {"kappa": _number(average, "/average", "kappa", 0.9995, 0.0, 1.0, "a number in [0, 1]")}


def _replay(spec: Mapping[str, Any]) -> Spec:
    replay = spec.get("replay", {})
    takes = ("steps", "until_gap", "max_steps", "every")
    replay = _object(replay, "/replay", takes, "an object with steps")
    for name in ("until_gap", "max_steps", "every"):
        if name in replay:
            raise NotAvailable(f"/replay/{name}", replay[name])
    steps = _whole(replay, "/replay", "steps", 0, 0, 1_000_000)
    if steps > 0:
        raise NotAvailable("/replay/steps", steps)
    return {"steps": 0}


def _features(spec: Mapping[str, Any]) -> Spec:
    if "features" not in spec:
        raise InvalidSpec("/features", None, 'an object, {"kind": "indexed", "dim": N}')
    features = _kind(spec, "features", "indexed", {"indexed": ("dim",)}, ("hashed",))
    return {"kind": "indexed", "dim": _whole(features, "/features", "dim", None, 1, MAX_DIM)}


def _labels(spec: Mapping[str, Any], task: str) -> list[str] | None:
    labels = spec.get("labels")
    if labels is None:
        return None
    allowed = "two different strings, [negative, positive]"
    if task != "binary":
        raise InvalidSpec("/labels", labels, "left out unless the task is binary")
    if not isinstance(labels, list | tuple) or len(labels) != 2 or labels[0] == labels[1]:
        raise InvalidSpec("/labels", labels, allowed)
    if not all(isinstance(label, str) for label in labels):
        raise InvalidSpec("/labels", labels, allowed)
    return list(labels)


def _known(fields: Mapping[str, Any], owner: str, takes: tuple[str, ...]) -> None:
    for name, value in fields.items():
        if name not in takes:
            raise InvalidSpec.unknown_field(f"{owner}/{name}", value, takes)


def _object(value: Any, field: str, takes: tuple[str, ...], allowed: str) -> Spec:
    if not isinstance(value, Mapping):
        raise InvalidSpec(field, value, allowed)
    _known(value, field, takes)
    return dict(value)


def _choice(
    fields: Mapping[str, Any],
    name: str,
    default: str,
    choices: tuple[str, ...],
    later: tuple[str, ...] = (),
) -> str:
    value = fields.get(name, default)
    if isinstance(value, str) and value in choices:
        return value
    if isinstance(value, str) and value in later:
        raise NotAvailable(f"/{name}", value)
    raise InvalidSpec(f"/{name}", value, f"one of {', '.join(choices)}")


def _kind(
    fields: Mapping[str, Any],
    name: str,
    default: str,
    kinds: Mapping[str, tuple[str, ...]],
    later: tuple[str, ...] = (),
) -> Spec:
    """A field with parameters: an object with `kind`, for which a bare string is short."""
    value = fields.get(name, default)
    if isinstance(value, str):
        return {"kind": _choice({name: value}, name, default, tuple(kinds), later)}
    allowed = f"a name or an object with kind, one of {', '.join(kinds)}"
    if not isinstance(value, Mapping) or "kind" not in value:
        raise InvalidSpec(f"/{name}", value, allowed)
    kind = value["kind"]
    if isinstance(kind, str) and kind in later:
        raise NotAvailable(f"/{name}/kind", kind)
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidSpec(f"/{name}/kind", kind, f"one of {', '.join(kinds)}")
    return _object(value, f"/{name}", ("kind", *kinds[kind]), allowed)


def _short(field: Spec) -> str | Spec:
    """A kind without parameters is written as its name."""
    return str(field["kind"]) if len(field) == 1 else field


def _number(
    fields: Mapping[str, Any],
    owner: str,
    name: str,
    default: float,
    least: float,
    most: float,
    allowed: str,
) -> float:
    value = fields.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise InvalidSpec(f"{owner}/{name}", value, allowed)
    return float(value)


def _whole(
    fields: Mapping[str, Any], owner: str, name: str, default: int | None, least: int, most: int
) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidSpec(f"{owner}/{name}", value, f"a whole number in [{least}, {most}]")
    return value


def _flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise InvalidSpec(f"/{name}", value, "true or false")
    return value
