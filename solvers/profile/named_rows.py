"""NamedRows: counts learned rows by features whose names arrive with the journal."""

from collections import deque
from collections.abc import Sequence

from dualstream.solvers.protocols.learner import Outcome
from dualstream.solvers.rows.batch import Batch

Pairs = Sequence[tuple[int, str]]
"""Index and name of features."""


class NamedRows:
    """A feature counts from the log position on from which its name is known. So it does not matter
    how early a reader of the journal finds the name."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Pairs]] = deque()
        """Names that become known at a later log position."""

    def add_names(self, pairs: Pairs, since: int, seq: int) -> None:
        """Add (index, name) of new features, known from log position `since` on.

        seq  log position of the last record that was applied
        """
        if since <= seq + 1 and not self._waiting:
            self._enter(pairs)
        else:
            self._waiting.append((since, pairs))

    def reach(self, seq: int) -> None:
        """Use the names that are known at log position `seq`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= seq:
            self._enter(waiting.popleft()[1])

    def count(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        """Count the learned rows of a batch, in order; the first is at log position `first_seq`."""
        done = 0
        while self._waiting and self._waiting[0][0] < first_seq + len(batch):
            n_counted = max(0, self._waiting[0][0] - first_seq)
            if n_counted > done:
                self._count(batch[done:n_counted], outcome[done:n_counted])
                done = n_counted
            self.reach(first_seq + done)
        if done:
            self._count(batch[done:], outcome[done:])
        else:
            self._count(batch, outcome)

    def _enter(self, pairs: Pairs) -> None:
        """Use these names from the next row on."""
        raise NotImplementedError

    def _count(self, batch: Batch, outcome: Outcome) -> None:
        """Count the learned rows of a batch by the names that were entered."""
        raise NotImplementedError
