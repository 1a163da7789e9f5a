"""Which models can be refitted on their window, and how what was computed enters them.

A refit solves the problem that the learner itself has on its retained rows, elsewhere and in its
own time (`window_problem.py`). What enters the model are numbers: the new dual variables of these
rows, each row with a print by which it is found again, since the window moves on meanwhile. Rows
that have come since keep their own, those that have left are left alone, and the part of u that
other rows have put in stays as it is. So a refit is valid wherever it comes to stand; it is taken
only as far as it brings the dual closer to the optimum.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from solvers._jit import Floats
from solvers.certificate import Certificate
from solvers.errors import RefitError
from solvers.learner import Learner, State

METHODS = ("sdca",)
"""How a window can be solved: by dual coordinate ascent in permuted order."""

# A dual that falls by less than this share of the objective has not fallen, but by rounding.
_ROUNDING = 1e-12
_LEAST_SHARE = 2.0**-6
"""Less of the way is not worth the while."""

_DERIVED = {
    "rda": "its weights are computed from the sum of all gradients, and no rows are retained",
    "rda_plus": "its weights are computed from the sum of all gradients",
    "romma": "its weights are computed from what it accumulates, and no rows are retained",
    "alma": "its weights are computed from what it accumulates, and no rows are retained",
    "dc": "its loss is not convex, and no rows are retained",
}


class DualProblem(Protocol):
    """A learner with one dual variable for each retained row."""

    spec: Mapping[str, Any]

    def state(self) -> State: ...

    def certificate(self) -> Certificate | None: ...


class Refittable(Learner, Protocol):
    """A learner whose retained rows can be given new dual variables."""

    @property
    def problems(self) -> Sequence[DualProblem]:
        """What it solves: one problem, or that of none of the known classes and each class's."""

    def take_duals(self, prints: Floats, duals: Floats, share: float) -> int:
        """Move the rows of these prints to these dual variables; how many of them are retained.

        prints, duals  (problems, n)  as `Refitted` has them
        share          of the way there, in (0, 1]

        Averages restart. Raises RefitError where a number would not be finite. Where it raises, or
        returns 0, the learner may have changed in part: see `take_refit`.
        """


def why_not_refit(spec: Mapping[str, Any]) -> str | None:
    """Why the model of a resolved specification cannot be refitted; None where it can."""
    algorithm = spec["algorithm"]
    if algorithm == "dual_ascent":
        return None
    if algorithm == "portfolio":
        return (
            "the shares of its members come from losses that they had as they were; "
            "of a model of its own, a member of algorithm dual_ascent can be refitted"
        )
    reason = _DERIVED.get(algorithm, "no rows are retained, and so there is no window to solve")
    return f"{algorithm} has no dual variables: {reason}"


def refittable(learner: Learner) -> Refittable:
    """The learner of a specification that `why_not_refit` finds nothing against."""
    return cast(Refittable, learner)


def problems_of(learner: Learner) -> list[tuple[Mapping[str, Any], State]]:
    """Specification and state of each problem, as copies; see `window_problem.Refitting`."""
    return [(problem.spec, problem.state()) for problem in refittable(learner).problems]


def take_refit(
    learner: Learner, prints: npt.NDArray[np.float64], duals: npt.NDArray[np.float64]
) -> int:
    """Let the learner take what a refit has computed; how many of its rows are still retained.

    prints, duals  (problems, n)  as `Refitted` has them

    Rows that came since have been learned on top of the old dual variables. Where the new ones
    would make the dual fall for that, they are taken half of the way, or a quarter ..., whatever
    lifts it most.

    Raises RefitError where none of the rows is retained in its order, where the dual would fall all
    the same, and where a number would not be finite; then nothing has changed.
    """
    own = refittable(learner)
    shape = prints.shape
    if duals.shape != shape or len(shape) != 2 or not 1 <= shape[0] <= len(own.problems):
        raise RefitError(
            f"prints of shape {shape} and dual variables of shape {duals.shape} "
            f"do not fit a learner of {len(own.problems)} problems"
        )
    before, dual = learner.state(), _dual_of(learner)
    least = dual - _ROUNDING * abs(dual)
    best, found, rows = -math.inf, 0.0, 0
    share = 1.0
    try:
        while share >= _LEAST_SHARE:
            rows = own.take_duals(prints, duals, share)
            if rows == 0:
                raise RefitError("the retained rows are others than those that it was computed of")
            now = _dual_of(learner)
            if now <= best:  # it is concave in the share: from here on it falls
                break
            best, found = now, share
            if share == 1.0 and now >= least:
                return rows
            learner.restore(before)
            share /= 2.0
        if not best >= least:
            raise RefitError(f"the window has moved on: the dual is {dual}, and would be {best}")
        learner.restore(before)
        return own.take_duals(prints, duals, found)
    except RefitError:
        learner.restore(before)
        raise


def _dual_of(learner: Learner) -> float:
    certificate = learner.certificate()
    assert certificate is not None
    return certificate.dual
