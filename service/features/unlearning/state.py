"""Ids of a model's retained rows.

A learner identifies its retained rows by age alone. Rejected rows, rows of weight 0 and controls
take a seq but are not retained. So unlearning by id needs a table of ids, which is updated with
every learned batch. It is part of the state, because the effect of `unlearn` depends on it. Each
retained row with an id has one digest of that id.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dualstream.service.journal.record import KeyKind
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.parts import ArraysByPrefix, StatePart
from dualstream.service.replica.row_ids import RowIds
from dualstream.solvers import Batch, CorruptState, Learner, Outcome, State, UnlearningError
from dualstream.solvers.protocols.unlearner import unlearner, why_not_unlearn

MAX_UNLEARNED_IDS = 1000
"""Number of unlearned ids that a model remembers."""
DIGEST_BYTES = 16

_SAMPLE = bytes((KeyKind.SAMPLE,))
_ROW = struct.Struct(f"<qq{DIGEST_BYTES}s")
_FIELDS = np.dtype([("number", "<i8"), ("seq", "<i8"), ("digest", "u1", (DIGEST_BYTES,))])


def digest_of(key: bytes) -> bytes:
    """Digest of an id from its stored key.

    A sample and its late label have different key kinds but one id, so they get one digest.
    """
    return hashlib.sha256(_SAMPLE + key[1:]).digest()[:DIGEST_BYTES]


class RetainedIds(StatePart):
    """Ids of the retained rows of a model that can unlearn. Without ids it spends no time here."""

    __slots__ = ("_entered", "_retain", "_rows", "_unlearned")
    prefixes = ("retained",)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self | None:
        """The ids of a new model; None if it cannot unlearn."""
        return cls(spec) if why_not_unlearn(spec) is None else None

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._retain: int = spec["retain"]
        # Packed number, seq and digest of each row with an id, oldest first. Rows are numbered as
        # the learner retains them; only differences matter. An empty tuple saves memory: most
        # models have no ids.
        self._rows: deque[bytes] | tuple[()] = ()
        self._entered = 0
        self._unlearned: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Number of known ids, unlearned ones included."""
        return len(self._rows) + len(self._unlearned)

    def roots(self) -> Sequence[object]:
        return (self,) if len(self) else ()

    @property
    def forgotten_seq(self) -> int:
        """Seq of the last unlearn; 0 without one."""
        return next(reversed(self._unlearned.values())) if self._unlearned else 0

    def unlearned_at(self, digest: bytes) -> int | None:
        """Seq at which this id was unlearned, if it is remembered and was not learned since."""
        return None if self.seqs(digest) else self._unlearned.get(digest)

    def seqs(self, digest: bytes) -> list[int]:
        """Seqs of the retained rows with this id."""
        return [seq for _, seq, own in map(_ROW.unpack, self._rows) if own == digest]

    def on_ids(self, ids: RowIds, batch: Batch, first_seq: int, outcome: Outcome) -> None:
        """Update after the learner learned the batch that begins at `first_seq`."""
        if not (self._rows or len(ids.seqs)):
            return
        if len(batch) == 1 and len(ids.seqs) <= 1:
            self._keep_one(ids, batch, first_seq, outcome)
        else:
            self._keep_all(ids, batch, first_seq, outcome)
        rows = self._rows
        while rows and self._age(rows[0]) >= self._retain:
            rows.popleft()

    def _keep_one(self, ids: RowIds, batch: Batch, first_seq: int, outcome: Outcome) -> None:
        """As `_keep_all`, faster, for a batch of one row."""
        if outcome.rejected[0] or not batch.weights[0] > 0.0:
            return
        self._entered += 1
        if len(ids.seqs) and ids.seqs[0] == first_seq:
            self._append(self._entered, first_seq, digest_of(ids.key(0)))

    def _keep_all(self, ids: RowIds, batch: Batch, first_seq: int, outcome: Outcome) -> None:
        enters = ~outcome.rejected & (batch.weights > 0.0)
        numbers = self._entered + np.cumsum(enters)
        self._entered = int(numbers[-1]) if len(numbers) else self._entered
        begin, end = np.searchsorted(ids.seqs, (first_seq, first_seq + len(batch))).tolist()
        rows = ids.seqs[begin:end] - first_seq
        stays = enters[rows] & (self._entered - numbers[rows] < self._retain)
        for at in np.flatnonzero(stays).tolist():
            row, digest = int(rows[at]), digest_of(ids.key(begin + at))
            self._append(int(numbers[row]), first_seq + row, digest)

    def _append(self, number: int, seq: int, digest: bytes) -> None:
        rows = self._rows = self._rows or deque()
        rows.append(_ROW.pack(number, seq, digest))

    def _age(self, row: bytes) -> int:
        number: int = _ROW.unpack(row)[0]
        return self._entered - number

    def unlearn(self, learner: Learner, digest: bytes, seq: int) -> None:
        """Unlearn every retained row of this id by the control at `seq`.

        Raises UnlearningError; nothing has changed then.
        """
        ages = [self._age(row) for row in self._rows if _ROW.unpack(row)[2] == digest]
        if not ages:
            raise UnlearningError("the sample's row is not retained")
        before = learner.state() if len(ages) > 1 else None
        try:
            for done, age in enumerate(sorted(ages)):
                unlearner(learner).unlearn(age - done)
        except UnlearningError:
            if before is not None:
                learner.restore(before)
            raise
        self._close_up(digest)
        self._unlearned.pop(digest, None)
        self._unlearned[digest] = seq
        while len(self._unlearned) > MAX_UNLEARNED_IDS:
            del self._unlearned[next(iter(self._unlearned))]

    def _close_up(self, digest: bytes) -> None:
        """Renumber the other rows as if the rows of this id were never retained."""
        rows, gone = deque[bytes](), 0
        for number, seq, own in map(_ROW.unpack, self._rows):
            if own == digest:
                gone += 1
            else:
                rows.append(_ROW.pack(number - gone, seq, own))
        self._rows = rows
        self._entered -= gone

    def arrays(self) -> State:
        """The rows' ages, seqs and digests, oldest first, and the unlearned ids."""
        if not len(self):
            return {}
        rows = np.frombuffer(b"".join(self._rows), _FIELDS)
        return {
            "retained.ages": self._entered - rows["number"],
            "retained.seqs": rows["seq"].copy(),
            "retained.digests": rows["digest"].copy(),
            "retained.unlearned_seqs": np.array(list(self._unlearned.values()), np.int64),
            "retained.unlearned_digests": _joined(self._unlearned),
        }

    def restore(self, arrays: ArraysByPrefix, names: FeatureNames) -> None:
        """Restore from arrays; without arrays there are no ids. Raises CorruptState."""
        state = arrays["retained"]
        self._rows, self._entered, self._unlearned = (), 0, {}
        if not state:
            return
        try:
            ages, seqs, digests = (state[name] for name in ("ages", "seqs", "digests"))
            for age, seq, digest in zip(ages.tolist(), seqs.tolist(), digests, strict=True):
                self._append(-age, seq, digest.tobytes())
            unlearned = state["unlearned_digests"]
            if not digests.shape[1:] == unlearned.shape[1:] == (DIGEST_BYTES,):
                raise ValueError(f"digests of shape {digests.shape}, {unlearned.shape}")
            gone = zip(unlearned, state["unlearned_seqs"].tolist(), strict=True)
            self._unlearned.update((digest.tobytes(), int(seq)) for digest, seq in gone)
        except (KeyError, ValueError, TypeError, struct.error) as error:
            raise CorruptState(f"the ids of retained rows are damaged: {error!r}") from error


def _joined(digests: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES).copy()
