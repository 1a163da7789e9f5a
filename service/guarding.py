"""A model's learning under its guard: rows are learned up to where it trips, and set aside behind.

Nothing waits for the rollback that follows a trip: from the very row that trips on, every replica
sets rows aside, whenever the control comes that takes the state back.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from service.pauses import Pauses
from solvers import Batch, CorruptState, Learner, Outcome, State, guard_of

if TYPE_CHECKING:
    from solvers.guard.watch import Guard

PAUSED = "learning is paused since seq {}: resume the model first"


class Learning(Protocol):
    """What learns: a replica."""

    learner: Learner

    def learn_rows(self, batch: Batch, first_seq: int) -> Outcome:
        """Learn and count rows, of which the first stands at `first_seq`."""


class Guarding:
    """The guard of one model and its pauses."""

    def __init__(self, guard: "Guard", pauses_learning: bool) -> None:
        self.guard = guard
        self.pauses = Pauses()
        self._pauses_learning = pauses_learning

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Guarding | None":
        """For the model of a resolved specification; None where it asks for no guard."""
        guard = guard_of(spec)
        return None if guard is None else cls(guard, spec["guard"]["mode"] == "pause")

    def only_warn(self) -> None:
        """Trip, but never pause."""
        self._pauses_learning = False

    def learn(self, subject: Learning, batch: Batch, first_seq: int) -> Outcome:
        """Learn the rows up to where learning pauses, and set the others aside."""
        outcomes: list[Outcome] = []
        while not self.pauses.is_paused:
            piece = batch[: self.guard.rows_to_look]
            outcomes.append(subject.learn_rows(piece, first_seq))
            self.guard.count(outcomes[-1])
            first_seq += len(piece)
            batch = batch[len(piece) :]
            self._look(subject.learner, first_seq - 1)
            if not len(batch):
                return Outcome.joined(outcomes)
        like = subject.learner.learn(batch[:0])
        outcomes.append(Outcome.of_rows_set_aside(like, len(batch)))
        self.pauses.set_aside(len(batch), len(batch.values))
        return Outcome.joined(outcomes)

    def _look(self, learner: Learner, seq: int) -> None:
        trips = self.guard.look(learner, seq)
        if not trips:
            return
        self.pauses.trip(trips, self._pauses_learning)
        if not self._pauses_learning:
            for trip in trips:
                self.guard.begin_anew(seq, trip.quantity)

    def take_over(self, past: "Guarding", copy_seq: int, seq: int) -> "Guarding":
        """What guards a state of the `past` once it was gone back to, by the control at `seq`.

        copy_seq  where that state was
        """
        pauses = self.pauses
        if pauses.is_paused:
            was_paused = past.pauses.is_paused
            pauses.settle(past.pauses.learned_through if was_paused else copy_seq)
        past.pauses = pauses
        past._pauses_learning = self._pauses_learning
        past.guard.calm(seq)
        return past

    def kept_after(self, oldest_snapshot: int, first: int = 0) -> int | None:
        """The record after which the journal has to be kept; None where it need not be.

        For rows in quarantine, see Pauses; and for those behind the last good look, down to the
        record `first`, while nothing is wrong yet. Whoever trims the journal may come to it after
        a trip that his replica has not seen, and the rollback that names the first of these rows.
        """
        held = self.pauses.kept_after(oldest_snapshot)
        if not self._pauses_learning:
            return held
        calm = max(first, self.guard.calm_seq)
        return calm if held is None else min(held, calm)

    def resume(self, seq: int, takes_up: bool) -> None:
        """The control that ends the pause stands at `seq`.

        Who lets rows in quarantine be learned after all takes them for good: they are no history to
        hold others against, and it begins anew.
        """
        if takes_up:
            self.guard.begin_anew(seq)
        else:
            self.guard.calm(seq)
        self.pauses.resume(seq, takes_up)

    def state(self) -> State:
        """As arrays."""
        arrays = {f"guard.{name}": array for name, array in self.guard.state().items()}
        return arrays | {f"pauses.{name}": array for name, array in self.pauses.state().items()}

    def restore(self, guard: Mapping[str, np.ndarray], pauses: Mapping[str, np.ndarray]) -> None:
        """Be in this state. Raises CorruptState, and is of no use then."""
        self.guard.restore(guard)
        self.pauses.restore(pauses)
        if self.pauses.is_paused and self.pauses.held_from > self.pauses.since:
            raise CorruptState("the quarantine begins behind its pause")
