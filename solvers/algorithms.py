"""Every algorithm by its name: where its learner is, which fields it takes, how they are read.

A module is imported when a specification names its algorithm; its kernels are compiled (or loaded
from the cache) by that import.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from solvers.errors import NotAvailable
from solvers.spec_fields import (
    Spec,
    read_average,
    read_kind,
    read_loss,
    read_number,
    read_object,
    read_whole,
    short_form,
)

MAX_RETAIN = 10_000_000


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm; `read` gives the fields that it takes beside those of every model."""

    module: str
    maker: str
    fields: tuple[str, ...]
    """In the order in which a resolved specification has them."""
    read: Callable[[Mapping[str, Any], str], Spec]
    """From the specification as given and its task; raises InvalidSpec."""


def read_dual_ascent(spec: Mapping[str, Any], task: str) -> Spec:
    loss = read_loss(spec, task)
    window = _window(spec)
    if spec.get("strength") is not None:
        raise NotAvailable("/strength", spec["strength"])
    regularizer = read_kind(spec, "regularizer", "l2", {"l2": ()}, ("elastic_net", "entropy"))
    length = window.get("length", 1)
    return {
        "loss": short_form(loss),
        "regularizer": short_form(regularizer),
        "rho": read_number(spec, "", "rho", 0.001, 1e-12, 1e12, "a number in [1e-12, 1e12]"),
        "window": short_form(window),
        "average": read_average(spec, loss["kind"]),
        "replay": _replay(spec),
        "retain": read_whole(spec, "", "retain", max(1000, length), length, MAX_RETAIN),
    }


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
    replay = spec.get("replay", {})
    takes = ("steps", "until_gap", "max_steps", "every")
    replay = read_object(replay, "/replay", takes, "an object with steps")
    for name in ("until_gap", "max_steps", "every"):
        if name in replay:
            raise NotAvailable(f"/replay/{name}", replay[name])
    steps = read_whole(replay, "/replay", "steps", 0, 0, 1_000_000)
    if steps > 0:
        raise NotAvailable("/replay/steps", steps)
    return {"steps": 0}


ALGORITHMS: Mapping[str, Algorithm] = {
    "dual_ascent": Algorithm(
        "solvers.dual_ascent",
        "DualAscent",
        ("loss", "regularizer", "rho", "strength", "window", "average", "replay", "retain"),
        read_dual_ascent,
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
"""Known, and not in this version."""
