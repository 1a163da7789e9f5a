"""Refit: solve the problem of a model's window on a copy, then apply the result.

For linear models with dual variables: a refit solves the learner's own problem on its retained
rows, on a copy and in another thread (`window_problem.py`). The result is the new dual variables of
these rows, each row with a fingerprint that finds it again, because the window moves on during the
refit. Newer rows keep their dual variables, rows that have left are ignored, and the contribution
of all other rows to u does not change. So the result is valid at any later log position. It is
applied only as far as it increases the dual.

A semiparametric model takes the solution itself, with the rows of its kernel expansion. A model
whose state is its weights takes weights, solved for on rows of its journal (`weights_problem.py`).
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import RefitError
from dualstream.solvers.offline.refit_methods import takes_weights
from dualstream.solvers.protocols.learner import Learner, State
from dualstream.solvers.protocols.refit_weights import WEIGHTS, enter_weights
from dualstream.solvers.protocols.refittable import refittable
from dualstream.solvers.rows.batch import Batch

if TYPE_CHECKING:
    from dualstream.solvers.semiparametric.learner import Semiparametric

DUALS = ("fingerprints", "duals")
"""Arrays of a refit of a linear model: see `take_refit`."""
SOLUTION = ("fingerprints", "duals", "beta", "dropped", "unique", "indptr", "indices", "values")
"""Arrays of a refit of a semiparametric model: see `Semiparametric.take_solution`."""

# A decrease of the dual below this share of the objective is rounding error.
_ROUNDING = 1e-12
_MIN_SHARE = 2.0**-6
"""Smaller shares of the step are not tried."""


class RefitResult(Protocol):
    """The result of a refit."""

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """The arrays that are journalled."""

    @property
    def dropped(self) -> list[str] | None:
        """Named functions that depend on earlier ones within the window; None without named
        functions."""

    @property
    def coefficients_are_unique(self) -> bool | None:
        """Whether the window determines their coefficients; None without named functions."""


class RefitRun(Protocol):
    """A running refit."""

    @property
    def rows(self) -> int: ...

    @property
    def epochs(self) -> int: ...

    @property
    def converged(self) -> bool | None:
        """Whether the gap reached the tolerance; None if not known yet."""

    @property
    def relative_gap_before(self) -> float | None:
        """The gap of the model before the refit; None if not known yet."""

    @property
    def relative_gap(self) -> float | None: ...

    @property
    def dual_before(self) -> float | None:
        """The dual of the model before the refit; None if it has none."""

    @property
    def dual(self) -> float | None: ...

    def run(
        self, is_cancelled: Callable[[], bool] = ..., on_look: Callable[[Any], None] = ...
    ) -> bool:
        """Run to the end; False if cancelled."""

    def refitted(self) -> RefitResult: ...


def begin_refit(
    problems: Sequence[tuple[Mapping[str, Any], State]],
    method: str,
    tol: float,
    max_epochs: int,
    rows: Batch | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> RefitRun:
    """Begin a refit with the result of `problems_of`. `max_epochs` is for linear models.

    rows     the last rows that the model has learned, for a model that takes weights
    options  of the method, see `offline/options.py`

    Raises RefitError if there are no rows.
    """
    # Imported on demand, because importing compiles kernels.
    spec, state = problems[0]
    if spec["algorithm"] == "semiparametric":
        module: Any = importlib.import_module("dualstream.solvers.semiparametric.refit")
        run: RefitRun = module.Refitting(problems, tol, method, options)
    elif takes_weights(spec):
        module = importlib.import_module("dualstream.solvers.refit.weights_problem")
        run = module.Refitting(spec, state, rows, method, tol, max_epochs, options)
    else:
        module = importlib.import_module("dualstream.solvers.refit.window_problem")
        run = module.Refitting(problems, tol, max_epochs, method, options)
    return run


def problems_of(learner: Learner) -> list[tuple[Mapping[str, Any], State]]:
    """Specification and state of each problem, as copies; of the whole model if it takes
    weights.
    """
    if takes_weights(learner.spec):
        return [(learner.spec, learner.state())]
    return [(problem.spec, problem.state()) for problem in refittable(learner).problems]


def enter_refit(learner: Learner, arrays: Mapping[str, npt.NDArray[np.float64]]) -> int | None:
    """Apply the result of a refit to the learner.

    arrays  `arrays` of `RefitRun.refitted()`

    Returns how many of its rows are still retained, None for a learner that retains none. Raises
    RefitError if they no longer fit the learner; then nothing has changed.
    """
    is_kernel = learner.spec["algorithm"] == "semiparametric"
    has_weights = takes_weights(learner.spec)
    if set(arrays) != set(SOLUTION if is_kernel else WEIGHTS if has_weights else DUALS):
        raise RefitError(f"the result is for another kind of model: {', '.join(sorted(arrays))}")
    if is_kernel:
        return cast("Semiparametric", learner).take_solution(arrays)
    if has_weights:
        enter_weights(learner, arrays)
        return None
    return take_refit(learner, arrays["fingerprints"], arrays["duals"])


def take_refit(
    learner: Learner, fingerprints: npt.NDArray[np.float64], duals: npt.NDArray[np.float64]
) -> int:
    """Apply new dual variables to the learner; returns how many of the rows are still retained.

    fingerprints, duals  (problems, n)  as `Refitted` has them

    Newer rows were learned on top of the old dual variables. If the new values would decrease the
    dual for this reason, the step to them is halved repeatedly, and the share with the largest dual
    is taken.

    Raises RefitError if none of the rows is retained in its order, if the dual would decrease at
    every share, or if a number would not be finite; then nothing has changed.
    """
    target = refittable(learner)
    shape = fingerprints.shape
    if duals.shape != shape or len(shape) != 2 or not 1 <= shape[0] <= len(target.problems):
        raise RefitError(
            f"fingerprints of shape {shape} and dual variables of shape {duals.shape} "
            f"do not fit a learner of {len(target.problems)} problems"
        )
    before, dual = learner.state(), _dual_of(learner)
    least = dual - _ROUNDING * abs(dual)
    best, best_share, rows = -math.inf, 0.0, 0
    share = 1.0
    try:
        while share >= _MIN_SHARE:
            rows = target.take_duals(fingerprints, duals, share)
            if rows == 0:
                raise RefitError("none of the refitted rows is still retained")
            now = _dual_of(learner)
            if now <= best:  # the dual is concave in the share: from here on it falls
                break
            best, best_share = now, share
            if share == 1.0 and now >= least:
                return rows
            learner.restore(before)
            share /= 2.0
        if not best >= least:
            raise RefitError(
                f"the window has moved on: the dual is {dual}, and would fall to {best}"
            )
        learner.restore(before)
        return target.take_duals(fingerprints, duals, best_share)
    except RefitError:
        learner.restore(before)
        raise


def _dual_of(learner: Learner) -> float:
    certificate = learner.certificate()
    assert certificate is not None
    return certificate.dual
