"""Guard of a learning model: learn rows up to a trip, then quarantine the rest.

A trip pauses every replica at the same row. It does not wait for the rollback control: from the
tripping row on, every replica quarantines rows, however late that control is journalled.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.parts import ArraysByPrefix, LearnRows, StatePart
from dualstream.solvers import Batch, CorruptState, Learner, Outcome, State
from dualstream.solvers.evaluation.guard.spec import FIELD, QUANTITIES
from dualstream.solvers.evaluation.late_label_scores import counted_once
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.wire.problem_json import Problem
from dualstream.wire.responses import GuardTripped, Pause

if TYPE_CHECKING:
    from dualstream.solvers.evaluation.guard.monitor import Guard, Trip

MAX_QUARANTINE_RECORDS = 100_000
"""Records in the quarantine of a paused model. Then learning is refused."""
MAX_QUARANTINE_BYTES = 256 * 1024**2
"""Bytes of rows in quarantine, at 16 per non-zero feature and 32 per row."""


class Guarding(StatePart):
    """The guard of one model and its pauses."""

    prefixes = ("guard", "pauses", "held")

    def __init__(self, guard: "Guard", pauses_learning: bool) -> None:
        self.guard = guard
        self.pauses = Pauses()
        self._pauses_learning = pauses_learning

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Guarding | None":
        """Create the guard of a resolved specification; None if it has no guard."""
        if FIELD not in spec:
            return None
        # Imported on demand, because importing compiles its kernel.
        from dualstream.solvers.evaluation.guard.monitor import Guard

        return cls(Guard(spec), spec[FIELD]["mode"] == "pause")

    def ignore_pauses(self) -> None:
        """Record trips but never pause."""
        self._pauses_learning = False

    def learn(
        self, learner: Learner, learn_rows: LearnRows, batch: Batch, first_seq: int
    ) -> Outcome:
        """Learn the rows before a pause with `learn_rows`, and quarantine the others.

        The batch is split at the guard's checks, so a trip is at the same row for every replica.
        """
        outcomes: list[Outcome] = []
        while not self.pauses.is_paused:
            piece = batch[: self.guard.rows_to_look]
            outcomes.append(learn_rows(piece, first_seq))
            self.guard.count(counted_once(piece, outcomes[-1]))
            first_seq += len(piece)
            batch = batch[len(piece) :]
            self._check_guard(learner, first_seq - 1)
            if not len(batch):
                return Outcome.joined(outcomes)
        like = learner.learn(batch[:0])
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
                self.guard.reset(seq, trip.quantity)

    def on_restored(self, present: Self, copy_seq: int, seq: int) -> None:
        """Keep the present pause and trips: they are not rolled back."""
        pauses = present.pauses
        if pauses.is_paused:
            was_paused = self.pauses.is_paused
            pauses.settle(self.pauses.learned_through if was_paused else copy_seq)
        self.pauses = pauses
        self._pauses_learning = present._pauses_learning
        self.guard.acknowledge(seq)

    def on_weights_set(self, seq: int) -> None:
        """Restart the history of weight norms."""
        self.guard.reset(seq, "norm")

    def on_forgotten(self, seq: int) -> None:
        self.guard.not_before(seq)

    @property
    def paused_since(self) -> int:
        return self.pauses.since

    @property
    def replays_past(self) -> bool:
        return self.pauses.has_taken_up

    def kept_after(self, oldest_snapshot: int, seq: int) -> int | None:
        """Seq after which the journal must be kept; None if it need not be kept.

        Entries are kept for quarantined rows, see `Pauses.kept_after`. A guard that pauses also
        keeps entries after its last good check, but not more than a quarantine holds. The reason: a
        worker may trim the journal before its replica has seen a trip, and the rollback of that
        trip needs those entries.
        """
        kept = self.pauses.kept_after(oldest_snapshot)
        if not self._pauses_learning:
            return kept
        calm = max(seq - MAX_QUARANTINE_RECORDS, self.guard.calm_seq)
        return calm if kept is None else min(kept, calm)

    def resume(self, seq: int, learns_quarantine: bool) -> None:
        """End the pause by the control at `seq`.

        If the quarantined rows are learned, the guard starts a new history: the user accepted those
        rows, and the old history trips on them again.
        """
        if learns_quarantine:
            self.guard.reset(seq)
        else:
            self.guard.acknowledge(seq)
        self.pauses.resume(seq, learns_quarantine)

    def check_learning(self, model: str, seq: int) -> None:
        """Raise Problem 429 if the quarantine is full."""
        pauses = self.pauses
        if not pauses.is_paused:
            return
        is_full = seq - pauses.held_from >= MAX_QUARANTINE_RECORDS
        if is_full or pauses.held_bytes >= MAX_QUARANTINE_BYTES:
            full = (
                f"{MAX_QUARANTINE_RECORDS} records" if is_full else f"{MAX_QUARANTINE_BYTES} bytes"
            )
            detail = (
                f"model {model!r} is paused since seq {pauses.since}, and its quarantine "
                f"is full ({full}); resume the model and learn or drop these rows"
            )
            raise Problem(429, "quarantine-full", detail, retry_after_s=60)

    def fields(self, seq: int) -> Mapping[str, Any]:
        return {"paused": self._pause_at(seq)}

    def progress(self, seq: int) -> Mapping[str, Any]:
        return {"paused": self._pause_at(seq), "trips": self.pauses.counts}

    def events(self) -> Iterable[GuardTripped]:
        return [GuardTripped(**asdict(trip)) for trip in self.pauses.trips]

    def _pause_at(self, seq: int) -> Pause | None:
        """The pause of a model at `seq`; None if it is not paused."""
        pauses = self.pauses
        if not pauses.is_paused:
            return None
        trip = next(one for one in pauses.trips if one.paused and one.seq == pauses.since)
        return Pause(
            since=pauses.since,
            quantity=trip.quantity,
            value=trip.value,
            limit=trip.limit,
            is_settled=pauses.is_settled,
            held_from=pauses.held_from,
            held_records=seq - pauses.held_from,
            held_bytes=pauses.held_bytes,
        )

    def arrays(self) -> State:
        arrays = {f"guard.{name}": array for name, array in self.guard.state().items()}
        return arrays | {f"pauses.{name}": array for name, array in self.pauses.state().items()}

    def bookkeeping(self) -> State:
        held_bytes = self.pauses.held_bytes
        return {"held.bytes": np.array(held_bytes, np.int64)} if held_bytes else {}

    def restore(self, arrays: ArraysByPrefix, names: FeatureNames) -> None:
        self.guard.restore(arrays["guard"])
        self.pauses.restore(arrays["pauses"])
        if "bytes" in arrays["held"]:
            check_arrays(arrays["held"], {"bytes": ()})
            self.pauses.held_bytes = int(arrays["held"]["bytes"])
        if self.pauses.is_paused and self.pauses.held_from > self.pauses.since:
            raise CorruptState("the quarantine begins after its pause")


FEATURE_BYTES, ROW_BYTES = 16, 32
"""Estimated memory of a quarantined row: per feature, and per row."""
KEPT = 64
"""Number of trips, and of spans of learned quarantines, that are remembered."""


@dataclass(frozen=True, slots=True)
class Tripped:
    """A trip of the guard; see `Trip`."""

    quantity: str
    rows: int
    seq: int
    value: float
    limit: float
    paused: bool
    """Did learning pause at this trip?"""


class Pauses:
    """Trips of one model's guard, and its current pause.

    since       seq at which learning paused; 0 if it is not paused
    held_from   rows after this seq are quarantined
    is_settled  the state was rolled back, or there was no good state to roll back to
    held_bytes  estimated size of the quarantine; not part of the state, it only limits admission
    """

    def __init__(self) -> None:
        self.since = 0
        self.held_from = 0
        self.is_settled = True
        self.held_bytes = 0
        self.counts = dict.fromkeys(QUANTITIES, 0)
        self.trips: deque[Tripped] = deque(maxlen=KEPT)
        # Spans of quarantined rows that were learned by a resume.
        self._learned_spans: deque[tuple[int, int]] = deque(maxlen=KEPT)

    @property
    def is_paused(self) -> bool:
        return self.since > 0

    @property
    def needs_rollback(self) -> bool:
        """Is the state still the one that tripped the guard?"""
        return self.is_paused and not self.is_settled

    @property
    def learned_through(self) -> int:
        """During a pause: the last seq whose rows are in the state."""
        return self.since if self.needs_rollback else self.held_from

    def trip(self, trips: Iterable["Trip"], pauses: bool) -> None:
        """Record trips; with `pauses`, learning stops at their seq."""
        for trip in trips:
            self.counts[trip.quantity] += 1
            self.trips.append(
                Tripped(trip.quantity, trip.rows, trip.seq, trip.value, trip.limit, pauses)
            )
            if pauses:
                calm = trip.calm_seq
                self.held_from = min(calm, self.held_from) if self.is_paused else calm
                self.since, self.is_settled = trip.seq, False

    def set_aside(self, rows: int, features: int) -> None:
        """Count rows that arrive during a pause."""
        self.held_bytes += ROW_BYTES * rows + FEATURE_BYTES * features

    def settle(self, learned_through: int) -> None:
        """Record that the state holds all rows up to `learned_through` that are not quarantined."""
        self.held_from = max(self.held_from, learned_through)
        self.is_settled = True

    def resume(self, seq: int, learns_quarantine: bool) -> None:
        """End the pause by the control at `seq`."""
        if learns_quarantine:
            self._learned_spans.append((self.held_from, seq))
        self.since, self.held_from, self.is_settled = 0, 0, True
        self.held_bytes = 0

    def kept_after(self, oldest_snapshot: int) -> int | None:
        """Seq after which the journal must be kept for quarantined rows, or None.

        These are the rows in quarantine now. They are also rows of ended quarantines that a replica
        must learn again if it starts from a snapshot as old as `oldest_snapshot`.
        """
        needed = [first for first, seq in self._learned_spans if oldest_snapshot < seq]
        if self.is_paused:
            needed.append(self.held_from)
        return min(needed, default=None)

    @property
    def has_taken_up(self) -> bool:
        """Were quarantined rows ever learned?"""
        return bool(self._learned_spans)

    def state(self) -> State:
        """Return the pauses as arrays, oldest first."""
        trips = [
            (trip.rows, trip.seq, QUANTITIES.index(trip.quantity), trip.paused)
            for trip in self.trips
        ]
        return {
            "pause": np.array([self.since, self.held_from, self.is_settled], np.int64),
            "counts": np.array(list(self.counts.values()), np.int64),
            "trips": np.array(trips, np.int64).reshape(-1, 4),
            "values": np.array([(t.value, t.limit) for t in self.trips]).reshape(-1, 2),
            "taken_up": np.array(list(self._learned_spans), np.int64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore from arrays; without arrays nothing has tripped. Raises CorruptState."""
        self.__init__()  # type: ignore[misc]
        if not state:
            return
        check_arrays(state, {"pause": (3,), "counts": (len(QUANTITIES),)})
        try:
            trips, values, spans = (state[name] for name in ("trips", "values", "taken_up"))
            for (rows, seq, quantity, paused), (value, limit) in zip(
                trips.tolist(), values.tolist(), strict=True
            ):
                trip = Tripped(QUANTITIES[quantity], rows, seq, value, limit, bool(paused))
                self.trips.append(trip)
            self._learned_spans.extend((int(first), int(seq)) for first, seq in spans.tolist())
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise CorruptState(f"the pauses are damaged: {error!r}") from error
        since, held_from, is_settled = state["pause"].tolist()
        self.since, self.held_from, self.is_settled = since, held_from, bool(is_settled)
        self.counts = dict(zip(QUANTITIES, state["counts"].tolist(), strict=True))
