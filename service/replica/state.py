"""A model's state as objects, arrays and bytes. It is a pure function of spec and journal.

A `PositionedState` is a state with its log position and bookkeeping. It is created empty, from a
snapshot, or from a copy that a control names. It does not read the journal; the subclass `Replica`
does.
"""

import asyncio
import contextlib
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np

from dualstream.service.concurrency import run_copy_in_thread, run_in_thread
from dualstream.service.journal.chain import first_chain
from dualstream.service.journal.protocol import ModelRecord, Snapshot
from dualstream.service.journal.record import RecordError
from dualstream.service.replica.absent import is_absent
from dualstream.service.replica.entries import NamesSince
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.first_responses import MAX_KEPT_ANSWERS, FirstResponses
from dualstream.service.replica.fork_detection import Lineage
from dualstream.service.replica.outcomes import ControlOutcomes
from dualstream.service.replica.parts import Arrays, ArraysByPrefix, MakeParts, Parts
from dualstream.service.replica.spec import check_spec, fixed_spec
from dualstream.solvers import (
    Batch,
    CorruptState,
    Learner,
    Outcome,
    Progressive,
    dump,
    load,
    make_learner,
    make_progressive,
    numeric_identity,
)
from dualstream.solvers.history.spec import column_names
from dualstream.solvers.protocols import checksummed_state
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.columns.inputs import row_width
from dualstream.solvers.rows.hashing import hash_names

NO_PREFIX = "."
"""Key of the arrays whose names have no prefix."""
_OF_CORE = {NO_PREFIX, "learner", "progress", "names", "absent", "answers", "outcomes"}
"""Prefixes of arrays that belong to no part of a feature."""


class UnreadableCopy(RecordError):
    """A full copy of a state is missing or damaged."""


@dataclass(slots=True)
class ModelState:
    """Learner, progressive metrics, feature names, counts, parts of features."""

    learner: Learner
    progress: Progressive
    names: FeatureNames
    parts: Parts
    rejected: int = 0
    refused_controls: int = 0

    @classmethod
    def new(
        cls, spec: dict[str, Any], make_parts: MakeParts, learner: Learner | None = None
    ) -> Self:
        """Create the state before the first record."""
        if learner is None:
            learner = make_learner(spec)
        progress = make_progressive(spec)
        return cls(learner, progress, FeatureNames(), make_parts(spec))

    def restore(self, arrays: ArraysByPrefix) -> None:
        """Restore from `by_prefix(arrays())`. Raises CorruptState; the object is unusable then."""
        unknown = arrays.keys() - _OF_CORE - self.parts.prefixes
        if unknown:
            raise CorruptState(f"it has arrays of no installed feature: {sorted(unknown)}")
        self.learner.restore(arrays["learner"])
        self.progress.restore(arrays["progress"])
        self.names.restore(arrays["names"])
        for part in self.parts:
            part.restore(arrays, self.names)
        self.parts.absent.restore(arrays["absent"])
        counts = arrays[NO_PREFIX]
        check_arrays(counts, {"rejected": (), "refused_controls": ()})
        self.rejected = int(counts["rejected"])
        self.refused_controls = int(counts["refused_controls"])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as named arrays, bit for bit."""
        arrays = {f"learner.{name}": array for name, array in self.learner.state().items()}
        arrays |= {f"progress.{name}": array for name, array in self.progress.state().items()}
        arrays |= {f"names.{name}": array for name, array in self.names.state().items()}
        arrays |= self.parts.arrays()
        arrays["rejected"] = np.array(self.rejected, np.int64)
        arrays["refused_controls"] = np.array(self.refused_controls, np.int64)
        return arrays


SHORT_BYTES = 1 << 20
"""A state of this size is encoded in a millisecond or two."""


@dataclass(frozen=True, slots=True)
class Captured:
    """Copy of a replica's state, not yet encoded.

    make_parts   of the replica
    bookkeeping  arrays of a snapshot that belong neither to the state nor to its digest
    """

    seq: int
    chain: str
    arrays: dict[str, np.ndarray]
    header: dict[str, str]
    make_parts: MakeParts
    bookkeeping: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def snapshot_arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a snapshot."""
        return self.arrays | self.bookkeeping

    def encode(self) -> Snapshot:
        return Snapshot(self.seq, self.chain, dump(self.snapshot_arrays, self.header))

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
        fresh = PositionedState(record, self.make_parts)
        fresh.restore(snapshot)
        restored, arrays = fresh.capture().snapshot_arrays, self.snapshot_arrays
        for name in restored.keys() | arrays.keys():
            one, other = restored.get(name), arrays.get(name)
            if one is None or other is None or np.asarray(one).tobytes() != other.tobytes():
                raise CorruptState(f"restoring it changes {name}")
        return snapshot

    def as_copy(self) -> Snapshot:
        """The state without bookkeeping: equal states give equal bytes."""
        return Snapshot(self.seq, self.chain, dump(self.arrays, self.header))

    def state_digest(self) -> str:
        """SHA-256 in hex, equal for two states with the same bits.

        Excludes bookkeeping and absent records: after a rollback it is that of the version.
        """
        learned = {name: array for name, array in self.arrays.items() if not is_absent(name)}
        return checksummed_state.digest_of(learned, {})


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
    data: bytes | None, digest: str, spec: dict[str, Any], incarnation: str, make_parts: MakeParts
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
        state = ModelState.new(spec, make_parts)
        state.restore(by_prefix(arrays))
    except CorruptState as error:
        raise UnreadableCopy(f"the copy {digest} cannot be read: {error}") from error
    return state, seq, chain


def by_prefix(arrays: Arrays) -> ArraysByPrefix:
    """Group arrays by the first word of their names; a missing group is empty."""
    groups: defaultdict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, array in arrays.items():
        prefix, dot, rest = name.partition(".")
        if dot:
            groups[prefix][rest] = array
        else:
            groups[NO_PREFIX][name] = array
    return groups


class PositionedState:
    """State of a model after the record `seq`.

    make_parts     makes the parts of the installed features
    kept_answers   number of requests with a key whose first responses are kept
    spec           used instead of the model's own spec
    learner        a learner of the spec without rows; None: build one

    Raises DamagedSpec.
    """

    seq: int
    chain: str
    # Class attributes: most replicas never set them, and an object with fewer attributes is made
    # faster.
    prepared: object = None
    """What the control that is being applied has read from the journal."""
    certified_at = float("-inf")
    """Time of the certificate; minus infinity if the weights have changed by a control since."""
    names_since = 0
    """Feature names journalled up to this seq may be missing from the state."""

    def __init__(
        self,
        record: ModelRecord,
        make_parts: MakeParts,
        kept_answers: int = MAX_KEPT_ANSWERS,
        spec: bytes | None = None,
        learner: Learner | None = None,
    ) -> None:
        self.id = record.id
        self.incarnation = record.incarnation
        check_spec(record)
        self.spec = fixed_spec(bytes(record.spec) if spec is None else spec)
        self.dim = row_width(self.spec)
        self.make_parts = make_parts
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
                for on_names in self.parts.on_names:
                    on_names(added, since, self.seq)

    # -- the state ------------------------------------------------------------------------------

    def _begin(self, learner: Learner | None = None) -> None:
        """Return to the state before the first record."""
        self.use_state(ModelState.new(self.spec, self.make_parts, learner))
        self.first_responses = FirstResponses(self.spec["task"], self._kept_answers)
        self.control_outcomes = ControlOutcomes(self._kept_answers)
        self.restored_seq = 0
        self._begin_at(0, first_chain(self.incarnation))
        if self.spec.get("history"):
            names = column_names(self.spec["history"], self.spec["task"])
            indices = hash_names(names, self.spec["features"]["bits"]).tolist()
            self.keep_names([(0, list(zip(indices, names, strict=True)))])

    def use_state(self, state: ModelState) -> None:
        self.learner = state.learner
        self.progress = state.progress
        self.names = state.names
        self.parts = state.parts
        self.rejected = state.rejected
        self.refused_controls = state.refused_controls

    @property
    def state(self) -> ModelState:
        """The part that is a function of spec and journal."""
        counts = (self.rejected, self.refused_controls)
        return ModelState(self.learner, self.progress, self.names, self.parts, *counts)

    def _begin_at(self, seq: int, chain: str) -> None:
        self.seq = seq
        self.chain = chain
        self.lineage.begin(seq, chain)

    def _replace_state(self, other: Self) -> None:
        self.incarnation = other.incarnation
        self.spec = other.spec
        self.use_state(other.state)
        self.names_since = other.seq
        self.first_responses, self.control_outcomes = other.first_responses, other.control_outcomes
        self.seq, self.restored_seq = other.seq, other.restored_seq
        self.chain = other.chain

    # -- controls --------------------------------------------------------------------------------

    def restore_copy(self, seq: int) -> None:
        """Replace the state by the prepared copy, taken at `seq`.

        First responses stay. Feature names are journalled again.
        """
        state = self.prepared
        assert isinstance(state, ModelState)
        for part in state.parts:
            if (present := self.parts.find(type(part))) is not None:
                part.on_restored(present, seq, self.seq + 1)
        state.parts.absent.add(seq + 1, self.seq)
        self.use_state(state)
        self.names_since = self.seq + 1

    def copied(self) -> Self:
        """Return a copy that learns independently. Call it between two groups."""
        other = copy(self)
        state = ModelState.new(self.spec, self.make_parts)
        state.restore(by_prefix(self.state.arrays() | self.parts.bookkeeping()))
        other.use_state(state)
        return other

    # -- snapshots -------------------------------------------------------------------------------

    def capture(self) -> Captured:
        """Copy the state for a snapshot. Call it between two entries."""
        return Captured(
            self.seq,
            self.chain,
            self.state.arrays(),
            header_of(self.seq, self.chain, self.incarnation),
            self.make_parts,
            self._bookkeeping(),
        )

    def _bookkeeping(self) -> dict[str, np.ndarray]:
        arrays = {f"answers.{name}": array for name, array in self.first_responses.state().items()}
        arrays |= {
            f"outcomes.{name}": array for name, array in self.control_outcomes.state().items()
        }
        return arrays | self.parts.bookkeeping()

    def restore(self, snapshot: Snapshot, any_identity: bool = False) -> None:
        """Restore from a snapshot.

        Raises CorruptState if the snapshot is damaged, has another log position or incarnation, or,
        unless `any_identity`, was computed on another kind of machine. The replica must start over
        after that.
        """
        arrays, seq, chain = read_state(snapshot.data, self.incarnation, any_identity)
        if (seq, chain) != (snapshot.seq, snapshot.chain):
            raise CorruptState(f"it holds the state at seq {seq} with chain {chain}")
        state, groups = self.state, by_prefix(arrays)
        state.restore(groups)
        self.use_state(state)
        self.first_responses.restore(groups["answers"])
        self.control_outcomes.restore(groups["outcomes"])
        self._begin_at(seq, chain)
        self.restored_seq = seq
