"""Rewind: restore a learner to the moment before a rejected row.

A stage in front of a learner, or another learner of the same row, must undo a row that some learner
rejects. Learning a batch equals learning its rows one by one, so a copy of the state and the rows
learned since reproduce any recent moment exactly. Rejected rows are rare, so this may be slow.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.rows.batch import Batch

_MIN_ROOM = 262_144


class Rewindable(Protocol):
    """The methods of a learner that Rewind needs."""

    def learn(self, batch: Batch) -> Outcome: ...

    def state(self) -> State: ...

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None: ...


class Rewind:
    """A learner that stops at the first rejected row.

    With `row_is_whole`, a single row that `learner` rejects has no effect on it. Memory: up to two
    copies of the learner's state, once a batch of several rows has been learned; none for a learner
    that `never_rejects`.
    """

    def __init__(self, learner: Rewindable, *, row_is_whole: bool) -> None:
        self._learner = learner
        self._row_is_whole = row_is_whole
        self._never_rejects: bool = getattr(learner, "never_rejects", False)
        self._saved: State | None = None
        self._since: list[Batch] = []
        self._room = 0

    def learn_prefix(self, batch: Batch) -> Outcome:
        """Learn rows up to and including the first rejected one; the outcome ends with it.

        The learner then has the state before the rejected row. Raises like the learner, and then
        nothing was learned.
        """
        if self._never_rejects:
            return self._learner.learn(batch)
        if self._saved is None and not (self._row_is_whole and len(batch) == 1):
            self._save()
        outcome = self._learner.learn(batch)
        if not outcome.rejected.any():
            self._note(batch)
            return outcome
        first = int(np.argmax(outcome.rejected))
        if self._row_is_whole and first == len(batch) - 1:
            self._note(batch)
        else:
            self._go_back(batch[:first])
        return outcome[: first + 1]

    def forget(self) -> None:
        """Drop the saved state, because the learner's state was set from outside."""
        self._saved = None
        self._since = []

    def _save(self) -> None:
        self._saved = self._learner.state()
        self._since = []
        size = sum(np.asarray(array).nbytes for array in self._saved.values())
        self._room = max(size, _MIN_ROOM)

    def _note(self, batch: Batch) -> None:
        if self._saved is None:
            return
        self._since.append(batch)
        self._room -= 12 * batch.nnz + 24 * len(batch) + 1000
        if self._room < 0:
            self.forget()

    def _go_back(self, rows: Batch) -> None:
        """Restore the saved state and learn again all rows learned since, and `rows`."""
        assert self._saved is not None
        self._learner.restore(self._saved)
        for batch in (*self._since, rows):
            if len(batch):
                self._learner.learn(batch)
        self._save()


def learn_in_pieces(batch: Batch, learn_prefix: Callable[[Batch], Outcome]) -> Outcome:
    """Learn all rows with a `learn_prefix` that stops at the first rejected one.

    The first piece is the whole batch, which finds an invalid label before any row is learned.
    After a rejected row, pieces begin at one row and double.
    """
    n = len(batch)
    if n == 0:
        return learn_prefix(batch)
    outcomes: list[Outcome] = []
    done, size = 0, n
    while done < n:
        outcome = learn_prefix(batch[done : done + size])
        outcomes.append(outcome)
        done += len(outcome)
        size = 1 if outcome.rejected[-1] else 2 * size
    return Outcome.joined(outcomes)
