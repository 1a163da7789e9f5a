"""What of a learner goes on learning where the rows that it retains are let go of.

Most algorithms choose a row's step by the weights and a few numbers beside them alone. Where such a
one retains rows, it does so for other ends, as certificates, refits and unlearning. Sliding
windows, visits to old rows and local phases take the rows themselves.
"""

from typing import Any, Protocol

from solvers.batch import Batch
from solvers.learner import Outcome


class BareLearner(Protocol):
    """Learns as the learner that it was taken from would, bit for bit, and does nothing else."""

    def learn(self, batch: Batch) -> Outcome:
        """See Learner."""

    def bare(self) -> "BareLearner | None":
        """See `bare`."""


def bare(learner: Any) -> BareLearner | None:
    """What of a learner, bare or not, goes on learning; None where that takes all of it.

    They may share their weights: the learner is of no use once the other has learned a row.
    """
    of = getattr(learner, "bare", None)
    found: BareLearner | None = None if of is None else of()
    return found
