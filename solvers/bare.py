"""What of a learner goes on learning where the rows that it retains are let go of.

Most algorithms choose a row's step by the weights and a few numbers beside them alone. Where such a
one retains rows, it does so for other ends, as certificates, refits and unlearning. Sliding
windows, visits to old rows and local phases take the rows themselves.
"""

from collections.abc import Callable
from typing import Protocol

from solvers.batch import Batch
from solvers.learner import Learner, Outcome


class BareLearner(Protocol):
    """Learns as the learner that it was taken from would, bit for bit, and does nothing else."""

    def learn(self, batch: Batch) -> Outcome:
        """See Learner."""


def bare(learner: Learner) -> BareLearner | None:
    """What of a learner goes on learning, as a copy; None where that takes all of it."""
    of: Callable[[], BareLearner | None] | None = getattr(learner, "bare", None)
    return None if of is None else of()
