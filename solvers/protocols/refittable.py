"""Refittable: the protocol of learners with one dual variable per retained row.

`refit/refit.py` solves their problems; wrappers (feature stages, one-vs-all) pass the calls on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.learner import Learner, State


class DualProblem(Protocol):
    """A learner with one dual variable for each retained row."""

    spec: Mapping[str, Any]

    def state(self) -> State: ...

    def certificate(self) -> Certificate | None: ...


class Refittable(Learner, Protocol):
    """A learner that accepts new dual variables for its retained rows."""

    @property
    def problems(self) -> Sequence[DualProblem]:
        """The learner's problems: one; with classes, the prototype's followed by those of the
        classes."""

    def take_duals(self, fingerprints: Floats, duals: Floats, share: float) -> int:
        """Move the dual variables of the rows with these fingerprints; the number of rows found.

        fingerprints, duals  (problems, n)  as `Refitted` has them
        share          of the step from the old to the new values, in (0, 1]

        Averages restart. Raises RefitError for a result that is not finite. When it raises or
        returns 0, the learner may be partly changed: `take_refit` restores it.
        """


def refittable(learner: Learner) -> Refittable:
    """Cast a learner whose specification can be refitted through dual variables."""
    return cast(Refittable, learner)
