"""A model's state as objects, arrays and bytes. It is a pure function of spec and journal.

A `PositionedState` is a state with its log position and bookkeeping. It is created empty, from a
snapshot, or from a copy that a control names. It does not read the journal; the subclass `Replica`
does.
"""

import asyncio
import contextlib
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from dualstream.service.concurrency import run_copy_in_thread, run_in_thread
from dualstream.service.journal.chain import first_chain
from dualstream.service.journal.protocol import ModelRecord, Snapshot
from dualstream.service.journal.record import RecordError
from dualstream.service.replica.entries import NamesSince
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.first_responses import MAX_KEPT_ANSWERS, FirstResponses
from dualstream.service.replica.fork_detection import Lineage
from dualstream.service.replica.guard import Guarding
from dualstream.service.replica.outcomes import ControlOutcomes
from dualstream.service.replica.retained_rows import RetainedIds, ServedLosses
from dualstream.service.replica.spec import check_spec, fixed_spec
from dualstream.solvers import (
    Batch,
    ColumnProfile,
    CorruptState,
    Learner,
    Outcome,
    Progressive,
    check_arrays,
    digest_of,
    dump,
    load,
    make_learner,
    numeric_identity,
    width_of,
)

Arrays = Mapping[str, np.ndarray]
Parts = defaultdict[str, dict[str, np.ndarray]]
NO_PART = "."
"""Key of the arrays that belong to no part."""


class UnreadableCopy(RecordError):
    """A full copy of a state is missing or damaged."""


@dataclass(slots=True)
class ModelState:
    """Learner, progressive metrics, feature names, retained ids, counts, guard and profile."""

    learner: Learner
    progress: Progressive
    names: FeatureNames
    retained: RetainedIds
    profile: ColumnProfile
    rejected: int = 0
    refused_controls: int = 0
    guarding: Guarding | None = None

    @classmethod
    def new(cls, spec: dict[str, Any], learner: Learner | None = None) -> Self:
        """Create the state before the first record."""
        if learner is None:
            learner = make_learner(spec)
        parts = learner, Progressive.of(spec), FeatureNames(), RetainedIds(spec)
        return cls(*parts, ColumnProfile(spec), guarding=Guarding.of(spec))

    def restore(self, parts: Parts) -> None:
        """Restore from `by_part(arrays())`. Raises CorruptState; the object is unusable then."""
        self.learner.restore(parts["learner"])
        self.progress.restore(parts["progress"])
        self.names.restore(parts["names"])
        self.retained.restore(parts["retained"])
        if self.guarding is not None:
            self.guarding.restore(parts["guard"], parts["pauses"])
        self.profile.restore(parts["profile"], self.names.pairs())
        counts = parts[NO_PART]
        check_arrays(counts, {"rejected": (), "refused_controls": ()})
        self.rejected = int(counts["rejected"])
        self.refused_controls = int(counts["refused_controls"])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as named arrays, bit for bit."""
        arrays = {f"learner.{name}": array for name, array in self.learner.state().items()}
        arrays |= {f"progress.{name}": array for name, array in self.progress.state().items()}
        arrays |= {f"names.{name}": array for name, array in self.names.state().items()}
        arrays |= {f"retained.{name}": array for name, array in self.retained.state().items()}
        if self.guarding is not None:
            arrays |= self.guarding.state()
        arrays |= {f"profile.{name}": array for name, array in self.profile.state().items()}
        arrays["rejected"] = np.array(self.rejected, np.int64)
        arrays["refused_controls"] = np.array(self.refused_controls, np.int64)
        return arrays


SHORT_BYTES = 1 << 20
"""A state of this size is encoded in a millisecond or two."""
NOT_IN_STATE = ("answers.", "served.", "verdicts.", "held.")
"""Prefixes of a snapshot's arrays that are bookkeeping and not part of the state."""


@dataclass(frozen=True, slots=True)
class Captured:
    """Copy of a replica's state, not yet encoded."""

    seq: int
    chain: str
    arrays: dict[str, np.ndarray]
    header: dict[str, str]

    def encode(self) -> Snapshot:
        return Snapshot(self.seq, self.chain, dump(self.arrays, self.header))

    async def encoded(self, read_back_as: ModelRecord | None = None) -> Snapshot:
        """As `encode`, in a thread. With a record, also restore the snapshot as a check.

        A large state does not use the learning thread. There it delays other models' rows, and
        predictions by those models. Raises CorruptState if the check fails.
        """
        is_short = sum(array.nbytes for array in self.arrays.values()) <= SHORT_BYTES
        work = self.encode if read_back_as is None else partial(self._readable, read_back_as)
        return await (run_in_thread if is_short else run_copy_in_thread)(work)

    def _readable(self, record: ModelRecord) -> Snapshot:
        """The snapshot, after restoring it as a load does gave the captured state bit for bit."""
        snapshot = self.encode()
        fresh = PositionedState(record)
        fresh.restore(snapshot)
        restored = fresh.capture().arrays
        for name in restored.keys() | self.arrays.keys():
            one, other = restored.get(name), self.arrays.get(name)
            if one is None or other is None or np.asarray(one).tobytes() != other.tobytes():
                raise CorruptState(f"restoring it changes {name}")
        return snapshot

    def as_copy(self) -> Snapshot:
        """The state without bookkeeping: equal states give equal bytes."""
        state = {name: a for name, a in self.arrays.items() if not name.startswith(NOT_IN_STATE)}
        return Snapshot(self.seq, self.chain, dump(state, self.header))

    def state_digest(self) -> str:
        """SHA-256 in hex, equal for two states with the same bits. Excludes bookkeeping."""
        state = {name: a for name, a in self.arrays.items() if not name.startswith(NOT_IN_STATE)}
        return digest_of(state, {})


def header_of(seq: int, chain: str, incarnation: str) -> dict[str, str]:
    """Header of a snapshot or copy."""
    return {
        "seq": str(seq),
        "chain": chain,
        "incarnation": incarnation,
        "identity": numeric_identity(),
    }


def read_state(
    data: bytes, incarnation: str, any_identity: bool = False
) -> tuple[dict[str, np.ndarray], int, str]:
    """Decode arrays, seq and chain from a snapshot or copy.

    Raises CorruptState if it is damaged, has another format or incarnation, or, unless
    `any_identity`, was computed on another kind of machine or by another version.
    """
    arrays, header = load(data)
    expected = {"incarnation": incarnation, "identity": numeric_identity()}
    if any_identity:
        del expected["identity"]
    for name, value in expected.items():
        if header.get(name) != value:
            raise CorruptState(f"it has {name} {header.get(name)!r}, expected {value!r}")
    try:
        return arrays, int(header["seq"]), header["chain"]
    except (KeyError, ValueError) as error:
        raise CorruptState(f"its header has no valid log position: {error!r}") from error


def read_copy(
    data: bytes | None, digest: str, spec: dict[str, Any], incarnation: str
) -> tuple[ModelState, int, str]:
    """Decode the state, seq and chain from the copy with this digest, made on any machine.

    Raises UnreadableCopy if the bytes are missing or do not match the digest.
    """
    try:
        if data is None:
            raise CorruptState("the store does not hold it")
        if hashlib.sha256(data).hexdigest() != digest:
            raise CorruptState("the bytes do not match their SHA-256")
        arrays, seq, chain = read_state(data, incarnation, any_identity=True)
        state = ModelState.new(spec)
        state.restore(by_part(arrays))
    except CorruptState as error:
        raise UnreadableCopy(f"the copy {digest} cannot be read: {error}") from error
    return state, seq, chain


def by_part(arrays: Arrays) -> Parts:
    """Group arrays by part of the state; a missing part is empty."""
    parts: Parts = defaultdict(dict)
    for name, array in arrays.items():
        part, dot, own = name.partition(".")
        if dot:
            parts[part][own] = array
        else:
            parts[NO_PART][name] = array
    return parts


class PositionedState:
    """State of a model after the record `seq`.

    kept_answers   number of requests with a key whose first responses are kept
    spec           used instead of the model's own spec
    learner        a learner of the spec without rows; None: build one

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
        learner: Learner | None = None,
    ) -> None:
        self.id = record.id
        self.incarnation = record.incarnation
        check_spec(record)
        self.spec = fixed_spec(bytes(record.spec) if spec is None else spec)
        self.dim = width_of(self.spec["features"])
        self._kept_answers = kept_answers
        self.lineage = Lineage()
        self._lock = asyncio.Lock()
        self._begin(learner)

    @contextlib.asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """While entered, no slice is applied: everything read belongs to one `seq`."""
        async with self._lock:
            yield

    def learn_rows(self, batch: Batch, first_seq: int) -> Outcome:
        """Learn and count rows; the first is at `first_seq`."""
        raise NotImplementedError

    def keep_names(self, names: Iterable[NamesSince]) -> None:
        """Keep names of features, each known from a log position on."""
        for since, pairs in names:
            added = self.names.keep(pairs)
            if added:
                self.profile.add_names(added, since, self.seq)

    # -- the state ------------------------------------------------------------------------------

    def _begin(self, learner: Learner | None = None) -> None:
        """Return to the state before the first record."""
        self._use_state(ModelState.new(self.spec, learner))
        self.first_responses = FirstResponses(self.spec["task"], self._kept_answers)
        self.control_outcomes = ControlOutcomes(self._kept_answers)
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
        self.profile = state.profile

    @property
    def state(self) -> ModelState:
        """The part that is a function of spec and journal."""
        counts = (self.rejected, self.refused_controls)
        parts = self.learner, self.progress, self.names, self.retained, self.profile
        return ModelState(*parts, *counts, self.guarding)

    def _begin_at(self, seq: int, chain: str) -> None:
        self.seq = seq
        self.chain = chain
        self.lineage.begin(seq, chain)

    def _replace_state(self, other: Self) -> None:
        self.incarnation = other.incarnation
        self.spec = other.spec
        self._use_state(other.state)
        self.names_since = other.seq
        self.first_responses, self.control_outcomes = other.first_responses, other.control_outcomes
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
        arrays |= {f"answers.{name}": array for name, array in self.first_responses.state().items()}
        arrays |= {f"served.{name}": array for name, array in self.losses.state().items()}
        arrays |= {
            f"verdicts.{name}": array for name, array in self.control_outcomes.state().items()
        }
        if self.guarding is not None:
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
        self.first_responses.restore(parts["answers"])
        self.losses.restore(parts["served"])
        self.control_outcomes.restore(parts["verdicts"])
        if self.guarding is not None:
            check_arrays(arrays, {"held.bytes": ()})
            self.guarding.pauses.held_bytes = int(arrays["held.bytes"])
        self._begin_at(seq, chain)
        self.restored_seq = seq
