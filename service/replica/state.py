"""A model's state: what spec and journal make of it, as objects, as arrays and as bytes."""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dualstream.service.concurrency import run_in_thread
from dualstream.service.journal.protocol import Snapshot
from dualstream.service.journal.record import RecordError
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.guard import Guarding
from dualstream.service.replica.retained_ids import RetainedIds
from dualstream.solvers import (
    CorruptState,
    Learner,
    Progressive,
    check_arrays,
    dump,
    load,
    make_learner,
    numeric_identity,
)

Arrays = Mapping[str, np.ndarray]
Parts = defaultdict[str, dict[str, np.ndarray]]
NO_PART = "."
"""The part of the arrays that are of none."""


class UnreadableCopy(RecordError):
    """A full copy of a state is gone or damaged."""


@dataclass(slots=True)
class ModelState:
    """Learner, progressive metrics, feature names and counts; and what guards it, if asked for."""

    learner: Learner
    progress: Progressive
    names: FeatureNames
    retained: RetainedIds
    rejected: int = 0
    refused_controls: int = 0
    guarding: Guarding | None = None

    @classmethod
    def new(cls, spec: dict[str, Any]) -> Self:
        """Before the first record."""
        parts = make_learner(spec), Progressive.of(spec), FeatureNames(), RetainedIds(spec)
        return cls(*parts, guarding=Guarding.of(spec))

    def restore(self, parts: Parts) -> None:
        """Be what `arrays` gave these parts. Raises CorruptState, and is of no use then."""
        self.learner.restore(parts["learner"])
        self.progress.restore(parts["progress"])
        self.names.restore(parts["names"])
        self.retained.restore(parts["retained"])
        if self.guarding is not None:
            self.guarding.restore(parts["guard"], parts["pauses"])
        # Snapshots from before there were controls have no count of them.
        counts = {"refused_controls": np.array(0)} | parts[NO_PART]
        check_arrays(counts, {"rejected": (), "refused_controls": ()})
        self.rejected = int(counts["rejected"])
        self.refused_controls = int(counts["refused_controls"])

    def arrays(self) -> dict[str, np.ndarray]:
        """Bit for bit what it is."""
        arrays = {f"learner.{name}": array for name, array in self.learner.state().items()}
        arrays |= {f"progress.{name}": array for name, array in self.progress.state().items()}
        arrays |= {f"names.{name}": array for name, array in self.names.state().items()}
        arrays |= {f"retained.{name}": array for name, array in self.retained.state().items()}
        if self.guarding is not None:
            arrays |= self.guarding.state()
        arrays["rejected"] = np.array(self.rejected, np.int64)
        arrays["refused_controls"] = np.array(self.refused_controls, np.int64)
        return arrays


SHORT_BYTES = 1 << 20
"""Of a state, that are encoded in a millisecond or two."""
NOT_IN_STATE = ("answers.", "served.", "verdicts.", "held.")
"""Parts of a snapshot that are no part of the state."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A copy of a replica's state, not yet bytes."""

    seq: int
    chain: str
    arrays: dict[str, np.ndarray]
    header: dict[str, str]

    def encode(self) -> Snapshot:
        return Snapshot(self.seq, self.chain, dump(self.arrays, self.header))

    async def encoded(self) -> Snapshot:
        """As `encode`, out of the event loop's way.

        What takes long has a thread of its own: those whose rows are learned beside the loop, and
        whoever predicts by their models, would wait for it.
        """
        is_short = sum(array.nbytes for array in self.arrays.values()) <= SHORT_BYTES
        return await (run_in_thread if is_short else asyncio.to_thread)(self.encode)

    def as_copy(self) -> Snapshot:
        """The state alone, without the answers kept beside it: equal states give equal bytes."""
        state = {name: a for name, a in self.arrays.items() if not name.startswith(NOT_IN_STATE)}
        return Snapshot(self.seq, self.chain, dump(state, self.header))

    def state_digest(self) -> str:
        """64 hex characters, equal where two states have the same bits.

        Of learner, metrics, names and counts, in sha256; not of the answers kept beside them.
        """
        state = {name: a for name, a in self.arrays.items() if not name.startswith(NOT_IN_STATE)}
        return hashlib.sha256(dump(state, {})).hexdigest()


def header_of(seq: int, chain: str, incarnation: str) -> dict[str, str]:
    """What stands before the arrays of a snapshot or a copy."""
    return {
        "seq": str(seq),
        "chain": chain,
        "incarnation": incarnation,
        "identity": numeric_identity(),
    }


def read_state(
    data: bytes, incarnation: str, any_identity: bool = False
) -> tuple[dict[str, np.ndarray], int, str]:
    """The arrays, seq and chain in a snapshot or a copy.

    Raises CorruptState when it is damaged, of another format or incarnation, or, unless
    `any_identity`, computed by another kind of machine or another version.
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
        raise CorruptState(f"its header has no place in a journal: {error!r}") from error


def read_copy(
    data: bytes | None, digest: str, spec: dict[str, Any], incarnation: str
) -> tuple[ModelState, int, str]:
    """The state in the copy of this digest, its seq and chain, on whatever machine it was made.

    Raises UnreadableCopy where there are no bytes, or others.
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
    """The arrays of each part of a state; a part that has none is empty."""
    parts: Parts = defaultdict(dict)
    for name, array in arrays.items():
        part, dot, own = name.partition(".")
        if dot:
            parts[part][own] = array
        else:
            parts[NO_PART][name] = array
    return parts
