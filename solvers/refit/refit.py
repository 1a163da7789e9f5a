"""A refit of a model on its window, and how what was computed enters it.

Of linear models with dual variables:

A refit solves the problem that the learner itself has on its retained rows, elsewhere and in its
own time (`window_problem.py`). What enters the model are numbers: the new dual variables of these
rows, each row with a print by which it is found again, since the window moves on meanwhile. Rows
that have come since keep their own, those that have left are left alone, and the part of u that
other rows have put in stays as it is. So a refit is valid wherever it comes to stand; it is taken
only as far as it brings the dual closer to the optimum.

A semiparametric model takes the solution itself, with the rows of its kernel expansion; one whose
state is its weights takes weights, solved for on rows of its journal (`weights_problem.py`).
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.errors import RefitError
from dualstream.solvers.core.learner import Learner, State
from dualstream.solvers.core.refit_methods import takes_weights
from dualstream.solvers.core.refit_weights import WEIGHTS, enter_weights
from dualstream.solvers.core.refittable import refittable

if TYPE_CHECKING:
    from dualstream.solvers.semiparametric.learner import Semiparametric

DUALS = ("prints", "duals")
"""What a refit of a linear model brings: see `take_refit`."""
SOLUTION = ("prints", "duals", "beta", "dropped", "unique", "indptr", "indices", "values")
"""What one of a semiparametric model brings: see `Semiparametric.take_solution`."""

# A dual that falls by less than this share of the objective has not fallen, but by rounding.
_ROUNDING = 1e-12
_MIN_SHARE = 2.0**-6
"""Less of the way is not worth the while."""


class Found(Protocol):
    """What a refit has computed."""

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """All that is journalled of it."""

    @property
    def dropped(self) -> list[str] | None:
        """Named functions that the window cannot tell from those before; None without any."""

    @property
    def coefficients_are_unique(self) -> bool | None:
        """Whether the window pins their coefficients down; None without any."""


class RefitRun(Protocol):
    """A refit under way."""

    @property
    def rows(self) -> int: ...

    @property
    def epochs(self) -> int: ...

    @property
    def converged(self) -> bool | None:
        """Whether the gap has come down to the tolerance; None where that is not known yet."""

    @property
    def relative_gap_before(self) -> float | None:
        """That of the model as it was; None where that is not known yet."""

    @property
    def relative_gap(self) -> float | None: ...

    @property
    def dual_before(self) -> float | None:
        """The dual of the model as it was; None where it has none."""

    @property
    def dual(self) -> float | None: ...

    def run(
        self, is_cancelled: Callable[[], bool] = ..., on_look: Callable[[Any], None] = ...
    ) -> bool:
        """Go on to the end; False where it was cancelled."""

    def refitted(self) -> Found: ...


def begin_refit(
    problems: Sequence[tuple[Mapping[str, Any], State]],
    method: str,
    tol: float,
    max_epochs: int,
    rows: Batch | None = None,
) -> RefitRun:
    """A refit of what `problems_of` gave. `max_epochs` is for linear models.

    rows  the last ones that the model has learned, for one that takes weights

    Raises RefitError where there are no rows.
    """
    # Imported when needed, as their kernels are those of the learner.
    spec, state = problems[0]
    if spec["algorithm"] == "semiparametric":
        module: Any = importlib.import_module("dualstream.solvers.semiparametric.refit")
        run: RefitRun = module.Refitting(problems, tol, method)
    elif takes_weights(spec):
        module = importlib.import_module("dualstream.solvers.refit.weights_problem")
        run = module.Refitting(spec, state, rows, method, tol, max_epochs)
    else:
        module = importlib.import_module("dualstream.solvers.refit.window_problem")
        run = module.Refitting(problems, tol, max_epochs, method)
    return run


def problems_of(learner: Learner) -> list[tuple[Mapping[str, Any], State]]:
    """Specification and state of each problem, as copies; of the whole where it takes weights."""
    if takes_weights(learner.spec):
        return [(learner.spec, learner.state())]
    return [(problem.spec, problem.state()) for problem in refittable(learner).problems]


def enter_refit(learner: Learner, arrays: Mapping[str, npt.NDArray[np.float64]]) -> int | None:
    """Let the learner take what a refit has computed.

    arrays  `arrays` of what `RefitRun.refitted` gave

    Returns how many of its rows are still retained, None of a learner that retains none. Raises
    RefitError where they do not fit the learner any more; then nothing has changed.
    """
    is_kernel = learner.spec["algorithm"] == "semiparametric"
    has_weights = takes_weights(learner.spec)
    if set(arrays) != set(SOLUTION if is_kernel else WEIGHTS if has_weights else DUALS):
        raise RefitError(f"it is of another kind of model: {', '.join(sorted(arrays))}")
    if is_kernel:
        return cast("Semiparametric", learner).take_solution(arrays)
    if has_weights:
        enter_weights(learner, arrays)
        return None
    return take_refit(learner, arrays["prints"], arrays["duals"])


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
        while share >= _MIN_SHARE:
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
