"""Options of the offline methods: names, defaults, and what they may be. Imports no kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.offline.refit_methods import regularizer_of
from dualstream.solvers.spec_fields import refuse_unknown


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a method: a number, a flag, or one of some names."""

    default: Any
    least: float = 0.0
    most: float = 0.0
    choices: tuple[str, ...] = ()
    whole: bool = False

    def read(self, field: str, value: Any) -> Any:
        """The value, if it is valid. Raises InvalidSpec, which names the field."""
        if self.choices:
            if value not in self.choices:
                raise InvalidSpec.not_one_of(field, value, self.choices)
            return value
        if isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise InvalidSpec(field, value, "true or false")
            return value
        kinds = int if self.whole else (int, float, np.floating)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InvalidSpec(field, value, self.allowed)
        if not self.least <= value <= self.most:
            raise InvalidSpec(field, value, self.allowed)
        return value

    @property
    def allowed(self) -> str:
        return f"a {'whole ' * self.whole}number in [{self.least:g}, {self.most:g}]"


PERMUTED, CYCLIC, RANDOM = "permuted", "cyclic", "random"
FIXED, CERTIFIED = "fixed", "certified"

_VISITS = {"visits": Option(PERMUTED, choices=(PERMUTED, CYCLIC, RANDOM))}
"""`permuted`: a new random order in each epoch. `cyclic`: the order of the rows. `random`: drawn
with replacement, as in papers; this leaves exp(-k) of the rows unvisited after k epochs."""
_DESCENT = _VISITS | {"shrinking": Option(True), "newton": Option(True)}


def _stages(epochs: int) -> dict[str, Option]:
    return _VISITS | {"stage_epochs": Option(epochs, 1, 1_000_000, whole=True)}


def _cuts(parts: int, rest: int) -> dict[str, Option]:
    """P, the margin that every cut keeps, whether it is kept only after a stall, and shrinking."""
    return {
        "parts": Option(parts, 1, 1000, whole=True),
        "safeguard": Option(0.1, 1e-6, 1.0),
        "lazy": Option(False),
        "rest": Option(rest, 0, 1_000_000, whole=True),
        "recall": Option(50, 1, 1_000_000, whole=True),
    }


_SETS = {
    "working": Option(0, 0, 1_000_000_000, whole=True),
    "fresh": Option(100, 1, 1_000_000_000, whole=True),
}
"""n_B, the coordinates of a working set, 0 for all; and n_c, how many of them are new."""
_KKT = {"kkt": Option(1e-3, 1e-12, 1.0)}
"""Largest violation of the optimality conditions at which the gap is computed."""

OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "dcd": _DESCENT,
    "sdca": _DESCENT,
    "spdc": _VISITS,
    "asdca": _stages(1),
    "aspdc": _VISITS,
    "aspdc_i": _stages(1) | {"stages": Option(FIXED, choices=(FIXED, CERTIFIED))},
    "svrg": _stages(2) | {"step": Option(0.25, 1e-6, 0.9)},
    "ocas": _cuts(parts=1, rest=0),
    "mcpa": _cuts(parts=4, rest=5),
    "newton_l1": {"members": Option(2000, 1, 20_000, whole=True)},
    "ipm": _SETS | _KKT,
    "pdsg": _SETS
    | _KKT
    | {"width": Option(2, 1, 1_000_000, whole=True), "theta": Option(1.0, 1e-3, 1e3)},
    "mpd": _SETS | _KKT,
}
"""Of each method of `solve`, and of `solve_semiparametric`."""


def read_options(method: str, options: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """The given options of a method. Raises InvalidSpec for one that is unknown or out of range.

    owner  path of the object that holds them, for errors
    """
    declared = OPTIONS[method]
    refuse_unknown(options, owner, tuple(declared))
    return {name: declared[name].read(f"{owner}/{name}", value) for name, value in options.items()}


def with_defaults(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a method, given or default. Raises InvalidSpec as `read_options`."""
    defaults = {name: option.default for name, option in OPTIONS[method].items()}
    return defaults | read_options(method, options)


def read_refit_options(
    spec: Mapping[str, Any], method: str, options: Any, owner: str = "/options"
) -> dict[str, Any]:
    """The given options of a refit of a model, whose resolved specification and method these are.

    Raises InvalidSpec.
    """
    if not isinstance(options, Mapping):
        raise InvalidSpec(owner, options, "an object")
    if options and spec["algorithm"] == "dual_ascent" and regularizer_of(spec) != "l2":
        # These windows are solved by the learner's own steps.
        raise InvalidSpec(owner, options, f"left out for {regularizer_of(spec)}: it has no options")
    return read_options(method, options, owner)
