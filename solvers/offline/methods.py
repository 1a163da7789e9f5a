"""Every method by its name; the file of each is imported when it is first asked for.

A method is a class that is made with a Problem, options and a seed, and then has the attributes of
Run; its file ends with `METHOD = Method(...)`. A new one is a file and a line of FILES.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dualstream.solvers.core.errors import InvalidSpec
from dualstream.solvers.core.losses import LOSSES
from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.problem import Bounds, Problem

FILES: Mapping[str, str] = {
    "dcd": "dcd",
    "mcpa": "mcpa",
    "ocas": "ocas",
    "sdca": "sdca",
    "spdc": "spdc",
    "asdca": "asdca",
    "aspdc": "aspdc",
    "aspdc_i": "aspdc_i",
    "svrg": "svrg",
    "newton_l1": "newton_l1",
}
"""Methods, and the files beside this one that they stand in."""

METHODS = tuple(FILES)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins; of the two only one is given, or none: at 0."""

    duals: Floats | None = None
    """(n,) dual variables of the rows; those that are not allowed are moved to the nearest."""
    weights: Floats | None = None
    """(dim + 1,) weights and intercept."""


def first_duals(problem: Problem, start: Start) -> Floats:
    """(n,) where a method with dual variables begins."""
    if start.duals is not None:
        return problem.clipped(start.duals)
    if start.weights is not None:
        return problem.duals_at(start.weights)
    return problem.clipped(np.zeros(problem.n))


class Run(Protocol):
    """A method at work on one problem."""

    @property
    def weights(self) -> Floats:
        """(dim + 1,) where it stands; the intercept is last."""
        ...

    @property
    def duals(self) -> Floats | None:
        """(n,) where it stands, or None for a method that has none."""
        ...

    def advance(self) -> float:
        """Work for one epoch or less; return how many epochs that was.

        An epoch is as much work as one step on each row. Kernels release the GIL meanwhile.
        0 is said by a method that can get no further: the run is over.
        """
        ...

    def bounds(self) -> Bounds:
        """Primal, dual and gap of weights and dual variables as they stand, from all rows."""
        ...

    @property
    def promise(self) -> float:
        """About what the gap may be; NaN where nothing is known. Cheap."""
        ...


@dataclass(frozen=True, slots=True)
class Option:
    """A number that a method takes, or one of some names."""

    default: Any
    least: float = 0.0
    most: float = 0.0
    choices: tuple[str, ...] = ()
    whole: bool = False

    def read(self, name: str, value: Any) -> Any:
        """The value, if it is allowed. Raises InvalidSpec."""
        if self.choices:
            if value not in self.choices:
                raise InvalidSpec(f"/{name}", value, f"one of {', '.join(self.choices)}")
            return value
        if isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise InvalidSpec(f"/{name}", value, "true or false")
            return value
        kinds = int if self.whole else (int, float, np.floating)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InvalidSpec(f"/{name}", value, self.allowed)
        if not self.least <= value <= self.most:
            raise InvalidSpec(f"/{name}", value, self.allowed)
        return value

    @property
    def allowed(self) -> str:
        return f"a {'whole ' * self.whole}number in [{self.least:g}, {self.most:g}]"


@dataclass(frozen=True, slots=True)
class Method:
    """What a method can do, and how it is begun."""

    begin: Callable[[Problem, Start, Mapping[str, Any], np.random.Generator], Run]
    losses: tuple[str, ...] = LOSSES
    regularizers: tuple[str, ...] = ("l2",)
    intercepts: Mapping[str, str] = field(
        default_factory=lambda: {
            "free": "a free intercept ties all dual variables together "
            "(sum_i c_i lambda_i = 0), which steps on one of them cannot keep"
        }
    )
    """Of none, penalized and free those that it cannot have, each with the reason."""
    options: Mapping[str, Option] = field(default_factory=dict)
    takes_fixed: bool = False
    """Whether the problem may have a part of rows that are not there."""
    least_gap: float = 0.0
    """A gap that is none, whatever the objective is, which may be 0."""
    is_seen_through: bool = False
    """Whether bounds() costs nothing, and is asked after each epoch."""


def method_of(name: str) -> Method:
    """The method of this name, imported if need be. Raises InvalidSpec."""
    if name not in FILES:
        raise InvalidSpec("/method", name, f"one of {', '.join(METHODS)}")
    module: Any = importlib.import_module(f"dualstream.solvers.offline.{FILES[name]}")
    method: Method = module.METHOD
    return method
