"""Reference optimum: the optimum of a model's window, computed on request.

The problem is the model's own, on its retained rows alone and with its present rho. The dual value
is a certified lower bound, so the gap to it is never negative. The regret is measured against the
weights at the optimum.
"""

import asyncio
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dualstream.service.concurrency import background_task
from dualstream.service.features.certificate.served_losses import ServedLosses
from dualstream.service.journal.protocol import LogPosition
from dualstream.service.models.job import Job
from dualstream.service.models.model import Model
from dualstream.solvers import RefitError
from dualstream.solvers.refit import refit

TOL = 1e-4
MAX_EPOCHS, MIN_EPOCHS = 300, 3
MAX_VISITS = 20_000_000
"""Limit of row visits: a solve takes about a second per million."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The optimum of the window at `position`, and the served weights compared with it."""

    position: LogPosition
    lower: float
    objective: float
    served: float
    rows: int
    regret: float
    regret_rows: int
    epochs: int
    converged: bool
    at: float
    """Monotonic time at which it was computed."""

    @property
    def gap(self) -> float:
        """Upper bound of the distance of the served objective from the optimum."""
        return self.served - self.lower


class References(Job):
    """Reference optima of one model."""

    def __init__(self, model: Model) -> None:
        self._model_ref = weakref.ref(model)
        self._thread = model.deps.reference_thread
        self.newest: Reference | None = None
        """The newest reference."""
        self._solving: asyncio.Task[Reference] | None = None
        self._is_ending = False

    @property
    def is_busy(self) -> bool:
        """Is a reference being computed?"""
        return self._solving is not None

    async def close(self) -> None:
        """End the solve under way early: waiting requests get the result so far."""
        self._is_ending = True

    async def find(self) -> Reference:
        """The reference of the present window, or of the solve under way.

        Raises RefitError if no rows are retained; JournalUnavailable if the replica is forked.
        """
        model = self._model_ref()
        assert model is not None  # the caller holds it
        replica, newest = model.replica, self.newest
        if newest is not None and newest.position == replica.position and not replica.is_forked:
            return newest
        if self._solving is None:
            self._solving = background_task(self._find(model))
            self._solving.add_done_callback(self._end)
        return await asyncio.shield(self._solving)

    def _end(self, _: "asyncio.Task[Reference]") -> None:
        self._solving = None

    async def _find(self, model: Model) -> Reference:
        replica = model.replica
        async with self._thread.turn:
            while True:
                async with model.committer.between_groups():
                    position = replica.position
                    problems = await replica.view(partial(refit.problems_of, replica.learner))
                    losses = replica.parts.find(ServedLosses)
                    served = np.empty(0) if losses is None else losses.last(len(losses))
                work = (position, problems, served, lambda: self._is_ending)
                try:
                    reference: Reference = await self._thread.run(_solve, *work)
                    if replica.leads_on_from(position):
                        break
                except RefitError:
                    if replica.leads_on_from(position):
                        raise
                # The store has lost this window: solve the window of the rebuilt replica.
        self.newest = reference
        return reference


def _solve(
    position: LogPosition, problems: Any, served: np.ndarray, ends: Callable[[], bool]
) -> Reference:
    """Runs in the solver thread. Raises RefitError."""
    # Compiles nothing: the learner has loaded these kernels.
    from dualstream.solvers.refit.window_problem import Refitting

    refitting = Refitting(problems, TOL, MAX_EPOCHS, alone=True)
    epochs = MAX_VISITS // (refitting.rows * len(problems))
    refitting.max_epochs = min(MAX_EPOCHS, max(MIN_EPOCHS, epochs))
    refitting.run(ends)
    optimum = refitting.reference()
    count = min(len(served), refitting.rows)
    optimal = optimum.losses[len(optimum.losses) - count :]
    regret = float(served[len(served) - count :].sum() - optimal.sum())
    return Reference(
        position,
        optimum.lower,
        optimum.found,
        optimum.served,
        refitting.rows,
        regret,
        count,
        optimum.epochs,
        optimum.converged,
        time.monotonic(),
    )
