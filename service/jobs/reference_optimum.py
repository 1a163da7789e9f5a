"""The optimum of a model's window, as a reference for what it serves; computed when asked for.

The problem is the model's own on its retained rows alone, with the rho that it has at present. The
dual value found is a certified lower bound, so that the gap to it is never negative; the regret is
measured against the weights that were found.
"""

import asyncio
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualstream.service.concurrency import background_task
from dualstream.service.journal.protocol import Place
from dualstream.service.models.job import Job
from dualstream.service.models.model import Model
from dualstream.solvers import RefitError, problems_of

TOL = 1e-4
MAX_EPOCHS, MIN_EPOCHS = 300, 3
MAX_VISITS = 20_000_000
"""About so many seconds' work as it has millions of visits; the bound is one all the same."""


@dataclass(frozen=True, slots=True)
class Found:
    """A reference, of the window at `place`."""

    place: Place
    lower: float
    objective: float
    served: float
    rows: int
    regret: float
    regret_rows: int
    epochs: int
    converged: bool
    at: float
    """When it was found, by the monotonic clock."""

    @property
    def gap(self) -> float:
        """How far the served weights are from the least possible objective, at most."""
        return self.served - self.lower


class References(Job):
    """The references of one model."""

    def __init__(self, model: Model) -> None:
        self._whose = weakref.ref(model)
        self._thread = model.deps.reference_thread
        self.found: Found | None = None
        """The newest reference."""
        self._finding: asyncio.Task[Found] | None = None
        self._is_ending = False

    @property
    def is_busy(self) -> bool:
        """Whether one is being computed."""
        return self._finding is not None

    async def close(self) -> None:
        """Leave what is under way: whoever waits gets what there is by then."""
        self._is_ending = True

    def _ends(self) -> bool:
        return self._is_ending

    async def find(self) -> Found:
        """The reference of the window as it is now, or was when somebody else asked for it.

        Raises RefitError where no rows are retained; JournalUnavailable while it is forked.
        """
        model = self._whose()
        assert model is not None  # held by whoever calls
        replica, found = model.replica, self.found
        if found is not None and found.place == replica.place and not replica.is_forked:
            return found
        if self._finding is None:
            self._finding = background_task(self._find(model))
            self._finding.add_done_callback(self._end)
        return await asyncio.shield(self._finding)

    def _end(self, _: "asyncio.Task[Found]") -> None:
        self._finding = None

    async def _find(self, model: Model) -> Found:
        replica = model.replica
        async with self._thread.turn:
            while True:
                async with model.committer.between_groups():
                    place = replica.place
                    problems = problems_of(replica.learner)
                    served = replica.losses.last(len(replica.losses))
                work = (place, problems, served, self._ends)
                try:
                    found: Found = await self._thread.run(_solve, *work)
                    if replica.leads_on_from(place):
                        break
                except RefitError:
                    if replica.leads_on_from(place):
                        raise
                # The store has lost that window meanwhile: whoever waits is told of the one that
                # there is, once the replica is of the journal again.
        self.found = found
        return found


def _solve(place: Place, problems: Any, served: np.ndarray, ends: Callable[[], bool]) -> Found:
    """In the thread. Raises RefitError."""
    # Its kernels are those of the learner, which are loaded.
    from dualstream.solvers.refit.window_problem import Refitting

    refitting = Refitting(problems, TOL, MAX_EPOCHS, alone=True)
    epochs = MAX_VISITS // (refitting.rows * len(problems))
    refitting.max_epochs = min(MAX_EPOCHS, max(MIN_EPOCHS, epochs))
    refitting.run(ends)
    found = refitting.reference()
    count = min(len(served), refitting.rows)
    optimal = found.losses[len(found.losses) - count :]
    regret = float(served[len(served) - count :].sum() - optimal.sum())
    return Found(
        place,
        found.lower,
        found.found,
        found.served,
        refitting.rows,
        regret,
        count,
        found.epochs,
        found.converged,
        time.monotonic(),
    )
