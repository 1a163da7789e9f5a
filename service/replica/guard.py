"""A model's learning under its guard: rows are learned up to where it trips, and set aside behind.

Nothing waits for the rollback that follows a trip: from the very row that trips on, every replica
sets rows aside, whenever the control comes that takes the state back.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dualstream.solvers import (
    QUANTITIES,
    Batch,
    CorruptState,
    Learner,
    Outcome,
    State,
    check_arrays,
    guard_of,
)

if TYPE_CHECKING:
    from dualstream.solvers.evaluation.guard.monitor import Guard, Trip

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
            self._check_guard(subject.learner, first_seq - 1)
            if not len(batch):
                return Outcome.joined(outcomes)
        like = subject.learner.learn(batch[:0])
        outcomes.append(Outcome.of_rows_set_aside(like, len(batch)))
        self.pauses.set_aside(len(batch), len(batch.values))
        return Outcome.joined(outcomes)

    def _check_guard(self, learner: Learner, seq: int) -> None:
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

    def resume(self, seq: int, learns_quarantine: bool) -> None:
        """The control that ends the pause stands at `seq`.

        Who lets rows in quarantine be learned after all takes them for good: they are no history to
        hold others against, and it begins anew.
        """
        if learns_quarantine:
            self.guard.begin_anew(seq)
        else:
            self.guard.calm(seq)
        self.pauses.resume(seq, learns_quarantine)

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


FEATURE_BYTES, ROW_BYTES = 16, 32
"""What a row in quarantine counts, by its features: about what it takes in memory."""
KEPT = 64
"""So many of the last trips are told, and as many spans of rows taken up are known."""


@dataclass(frozen=True, slots=True)
class Tripped:
    """A breaker that has tripped; see Trip."""

    quantity: str
    rows: int
    seq: int
    value: float
    limit: float
    paused: bool
    """Whether learning paused there."""


class Pauses:
    """The trips of one model, and its pause.

    since       the record at which learning paused; 0 while it goes on
    held_from   rows behind this record are in quarantine
    is_settled  whether the state has gone back to a good one, or there was none to go back to
    held_bytes  of the rows that were set aside; beside the state, as a bound of doors alone
    """

    def __init__(self) -> None:
        self.since = 0
        self.held_from = 0
        self.is_settled = True
        self.held_bytes = 0
        self.counts = dict.fromkeys(QUANTITIES, 0)
        self.trips: deque[Tripped] = deque(maxlen=KEPT)
        # From where to where rows in quarantine were learned after all.
        self._learned_spans: deque[tuple[int, int]] = deque(maxlen=KEPT)

    @property
    def is_paused(self) -> bool:
        return self.since > 0

    @property
    def needs_rollback(self) -> bool:
        """Whether the state is still the one that tripped the breaker."""
        return self.is_paused and not self.is_settled

    @property
    def learned_through(self) -> int:
        """Of a pause: the record up to which the state has rows that are in it."""
        return self.since if self.needs_rollback else self.held_from

    def trip(self, trips: Iterable["Trip"], pauses: bool) -> None:
        """Note them; with `pauses` learning does from their record on, the same for all."""
        for one in trips:
            self.counts[one.quantity] += 1
            self.trips.append(
                Tripped(one.quantity, one.rows, one.seq, one.value, one.limit, pauses)
            )
            if pauses:
                calm = one.calm_seq
                self.held_from = min(calm, self.held_from) if self.is_paused else calm
                self.since, self.is_settled = one.seq, False

    def set_aside(self, rows: int, features: int) -> None:
        """Count rows that come while learning pauses."""
        self.held_bytes += ROW_BYTES * rows + FEATURE_BYTES * features

    def settle(self, learned_through: int) -> None:
        """The state is one of all rows up to that record that are not in quarantine."""
        self.held_from = max(self.held_from, learned_through)
        self.is_settled = True

    def resume(self, seq: int, learns_quarantine: bool) -> None:
        """The control that ends the pause stands at `seq`."""
        if learns_quarantine:
            self._learned_spans.append((self.held_from, seq))
        self.since, self.held_from, self.is_settled = 0, 0, True
        self.held_bytes = 0

    def kept_after(self, oldest_snapshot: int) -> int | None:
        """The record after which the journal has to be kept for rows in quarantine.

        Those still there, and those that are learned once more by who begins from a snapshot as
        old as this one. None where there are none.
        """
        needed = [first for first, seq in self._learned_spans if oldest_snapshot < seq]
        if self.is_paused:
            needed.append(self.held_from)
        return min(needed, default=None)

    @property
    def has_taken_up(self) -> bool:
        """Whether rows in quarantine were ever learned after all."""
        return bool(self._learned_spans)

    def state(self) -> State:
        """As arrays, the oldest first."""
        trips = [
            (one.rows, one.seq, QUANTITIES.index(one.quantity), one.paused) for one in self.trips
        ]
        return {
            "pause": np.array([self.since, self.held_from, self.is_settled], np.int64),
            "counts": np.array(list(self.counts.values()), np.int64),
            "trips": np.array(trips, np.int64).reshape(-1, 4),
            "values": np.array([(t.value, t.limit) for t in self.trips]).reshape(-1, 2),
            "taken_up": np.array(list(self._learned_spans), np.int64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Hold these; without arrays nothing has happened yet. Raises CorruptState."""
        self.__init__()  # type: ignore[misc]
        if not state:
            return
        check_arrays(state, {"pause": (3,), "counts": (len(QUANTITIES),)})
        try:
            trips, values, spans = (state[name] for name in ("trips", "values", "taken_up"))
            for (rows, seq, quantity, paused), (value, limit) in zip(
                trips.tolist(), values.tolist(), strict=True
            ):
                one = Tripped(QUANTITIES[quantity], rows, seq, value, limit, bool(paused))
                self.trips.append(one)
            self._learned_spans.extend((int(first), int(seq)) for first, seq in spans.tolist())
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise CorruptState(f"the pauses are damaged: {error!r}") from error
        since, held_from, is_settled = state["pause"].tolist()
        self.since, self.held_from, self.is_settled = since, held_from, bool(is_settled)
        self.counts = dict(zip(QUANTITIES, state["counts"].tolist(), strict=True))
