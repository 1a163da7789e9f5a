"""A model's state as objects, arrays and bytes. It is a pure function of spec and journal."""

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
from dualstream.service.replica.retained_rows import RetainedIds
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
"""Key of the arrays that belong to no part."""


class UnreadableCopy(RecordError):
    """A full copy of a state is missing or damaged."""


@dataclass(slots=True)
class ModelState:
    """Learner, progressive metrics, feature names, retained ids, counts and guard."""

    learner: Learner
    progress: Progressive
    names: FeatureNames
    retained: RetainedIds
    rejected: int = 0
    refused_controls: int = 0
    guarding: Guarding | None = None

    @classmethod
    def new(cls, spec: dict[str, Any]) -> Self:
        """Create the state before the first record."""
        parts = make_learner(spec), Progressive.of(spec), FeatureNames(), RetainedIds(spec)
        return cls(*parts, guarding=Guarding.of(spec))

    def restore(self, parts: Parts) -> None:
        """Restore from `by_part(arrays())`. Raises CorruptState; the object is unusable then."""
        self.learner.restore(parts["learner"])
        self.progress.restore(parts["progress"])
        self.names.restore(parts["names"])
        self.retained.restore(parts["retained"])
        if self.guarding is not None:
            self.guarding.restore(parts["guard"], parts["pauses"])
        # Older snapshots, from before controls existed, lack this count.
        counts = {"refused_controls": np.array(0)} | parts[NO_PART]
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

    async def encoded(self) -> Snapshot:
        """As `encode`, in a thread.

        A large state gets a thread of its own. In the shared learning thread it delays other
        models' rows, and predictions by those models.
        """
        is_short = sum(array.nbytes for array in self.arrays.values()) <= SHORT_BYTES
        return await (run_in_thread if is_short else asyncio.to_thread)(self.encode)

    def as_copy(self) -> Snapshot:
        """The state without bookkeeping: equal states give equal bytes."""
        state = {name: a for name, a in self.arrays.items() if not name.startswith(NOT_IN_STATE)}
        return Snapshot(self.seq, self.chain, dump(state, self.header))

    def state_digest(self) -> str:
        """SHA-256 in hex, equal for two states with the same bits. Excludes bookkeeping."""
        state = {name: a for name, a in self.arrays.items() if not name.startswith(NOT_IN_STATE)}
        return hashlib.sha256(dump(state, {})).hexdigest()


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
