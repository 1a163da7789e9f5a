"""State of a model with its log position and bookkeeping.

A `PositionedState` is created empty, from a snapshot, or from a copy that a control names. It
does not read the journal; the subclass `Replica` does.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from copy import copy
from typing import Self

import numpy as np

from dualstream.service.journal.chain import first_chain
from dualstream.service.journal.protocol import ModelRecord, Snapshot
from dualstream.service.replica.first_responses import MAX_KEPT_ANSWERS, FirstResponses
from dualstream.service.replica.lineage import Lineage
from dualstream.service.replica.outcomes import ControlOutcomes
from dualstream.service.replica.retained_rows import ServedLosses
from dualstream.service.replica.spec import check_spec, fixed_spec
from dualstream.service.replica.state import Captured, ModelState, by_part, header_of, read_state
from dualstream.solvers import Batch, CorruptState, Outcome, check_arrays, width_of


class PositionedState:
    """State of a model after the record `seq`.

    kept_answers   number of requests with a key whose first responses are kept
    spec           used instead of the model's own spec

    Raises DamagedSpec.
    """

    seq: int
    chain: str
    # Class attributes: most replicas never set them, and an object with fewer attributes is made
    # faster.
    fetched: ModelState | None = None
    """State of the copy that the next control restores."""
    learned_copy: tuple[ModelState, ServedLosses, int] | None = None
    """State and losses after learning the quarantined rows, and the rows' number."""
    certified_at = float("-inf")
    """Time of the certificate; minus infinity if the weights have changed by a control since."""
    names_since = 0
    """Feature names journalled up to this seq may be missing from the state."""

    def __init__(
        self,
        record: ModelRecord,
        kept_answers: int = MAX_KEPT_ANSWERS,
        spec: bytes | None = None,
    ) -> None:
        self.id = record.id
        self.incarnation = record.incarnation
        check_spec(record)
        self.spec = fixed_spec(bytes(record.spec) if spec is None else spec)
        self.dim = width_of(self.spec["features"])
        self._kept_answers = kept_answers
        self.trail = Lineage()
        self._lock = asyncio.Lock()
        self._begin()

    @contextlib.asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """While entered, no slice is applied: everything read belongs to one `seq`."""
        async with self._lock:
            yield

    def learn_rows(self, batch: Batch, first_seq: int) -> Outcome:
        """Learn and count rows; the first is at `first_seq`."""
        raise NotImplementedError

    # -- the state ------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Return to the state before the first record."""
        self._use_state(ModelState.new(self.spec))
        self.answers = FirstResponses(self.spec["task"], self._kept_answers)
        self.verdicts = ControlOutcomes(self._kept_answers)
        self.losses = ServedLosses(self.spec)
        self.restored_seq = 0
        self._begin_at(0, first_chain(self.incarnation))

    def _use_state(self, state: ModelState) -> None:
        self.learner = state.learner
        self.progress = state.progress
        self.names = state.names
        self.retained = state.retained
        self.rejected = state.rejected
        self.refused_controls = state.refused_controls
        self.guarding = state.guarding

    @property
    def state(self) -> ModelState:
        """The part that is a function of spec and journal."""
        counts = (self.rejected, self.refused_controls)
        parts = self.learner, self.progress, self.names, self.retained
        return ModelState(*parts, *counts, self.guarding)

    def _begin_at(self, seq: int, chain: str) -> None:
        self.seq = seq
        self.chain = chain
        self.trail.begin(seq, chain)

    def _replace_state(self, other: Self) -> None:
        self.incarnation = other.incarnation
        self.spec = other.spec
        self._use_state(other.state)
        self.names_since = other.seq
        self.answers, self.verdicts = other.answers, other.verdicts
        self.losses = other.losses
        self.seq, self.restored_seq = other.seq, other.restored_seq
        self.chain = other.chain

    # -- controls --------------------------------------------------------------------------------

    def restore_copy(self, digest: str, seq: int) -> None:
        """Replace the state by the fetched copy, taken at `seq`.

        First responses stay, and so do the pause and its trips. Feature names are journalled again.
        """
        state, self.fetched = self.fetched, None
        assert state is not None
        if self.guarding is not None and state.guarding is not None:
            state.guarding = self.guarding.take_over(state.guarding, seq, self.seq + 1)
        self._use_state(state)
        self.names_since = self.seq + 1

    def adopt_copy(self) -> int:
        """Replace the state by the copy that learned the quarantined rows. Return their number."""
        taken, self.learned_copy = self.learned_copy, None
        assert taken is not None
        state, self.losses, learned = taken
        self._use_state(state)
        return learned

    def copied(self) -> Self:
        """Return a copy that learns independently. Call it between two groups."""
        other = copy(self)
        state = ModelState.new(self.spec)
        state.restore(by_part(self.state.arrays()))
        other._use_state(state)
        other.losses = ServedLosses(self.spec)
        other.losses.restore(self.losses.state())
        return other

    # -- snapshots -------------------------------------------------------------------------------

    def capture(self) -> Captured:
        """Copy the state for a snapshot. Call it between two entries."""
        header = header_of(self.seq, self.chain, self.incarnation)
        return Captured(self.seq, self.chain, self._state(), header)

    def _state(self) -> dict[str, np.ndarray]:
        arrays = self.state.arrays()
        arrays |= {f"answers.{name}": array for name, array in self.answers.state().items()}
        arrays |= {f"served.{name}": array for name, array in self.losses.state().items()}
        arrays |= {f"verdicts.{name}": array for name, array in self.verdicts.state().items()}
        if self.guarding is not None and self.guarding.pauses.held_bytes:
            arrays["held.bytes"] = np.array(self.guarding.pauses.held_bytes, np.int64)
        return arrays

    def restore(self, snapshot: Snapshot, any_identity: bool = False) -> None:
        """Restore from a snapshot.

        Raises CorruptState if the snapshot is damaged, has another log position or incarnation, or,
        unless `any_identity`, was computed on another kind of machine. The replica must start over
        after that.
        """
        arrays, seq, chain = read_state(snapshot.data, self.incarnation, any_identity)
        if (seq, chain) != (snapshot.seq, snapshot.chain):
            raise CorruptState(f"it holds the state at seq {seq} with chain {chain}")
        state, parts = self.state, by_part(arrays)
        state.restore(parts)
        self._use_state(state)
        self.answers.restore(parts["answers"])
        self.losses.restore(parts["served"])
        self.verdicts.restore(parts["verdicts"])
        if self.guarding is not None and "held.bytes" in arrays:
            check_arrays(arrays, {"held.bytes": ()})
            self.guarding.pauses.held_bytes = int(arrays["held.bytes"])
        self._begin_at(seq, chain)
        self.restored_seq = seq
