"""Which of a model's retained rows have which ids, and which ids were unlearned.

A learner knows its retained rows by their age alone. Rows that were rejected, rows of weight 0 and
controls take a seq and are not retained, so that whoever is to unlearn a row by its id has to keep,
in step with the learner, who stands where. It is part of the state: what an `unlearn` does depends
on it. An id is kept as a digest, of which there is one for each retained row that has an id.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualstream.service.journal.record import ROW_KINDS, KeyKind, Parts
from dualstream.solvers import (
    Batch,
    CorruptState,
    Learner,
    Outcome,
    State,
    UnlearningError,
    unlearner,
    why_not_unlearn,
)

MAX_UNLEARNED_IDS = 1000
"""Unlearned ids of a model that are known as such."""
DIGEST_BYTES = 16

_SAMPLE = bytes((KeyKind.SAMPLE,))
_ROW = struct.Struct(f"<qq{DIGEST_BYTES}s")
_FIELDS = np.dtype([("number", "<i8"), ("seq", "<i8"), ("digest", "u1", (DIGEST_BYTES,))])


@dataclass(frozen=True, slots=True)
class Named:
    """The rows of some entries that have an id.

    seqs  (n,) int64  where they stand in the journal, in order
    key               the id of the one of a number from 0, as the journal keeps it
    """

    seqs: np.ndarray
    key: Callable[[int], bytes]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, bytes]]) -> "Named":
        """Of rows by seq and key."""
        return cls(np.array([seq for seq, _ in rows], np.int64), lambda number: rows[number][1])

    @classmethod
    def within(cls, parts: Parts, first_seq: int) -> "Named":
        """Of parts of which the first stands at `first_seq`."""
        if not parts.has_keys:
            return NO_IDS
        numbers = np.flatnonzero(np.isin(parts.key_kinds, ROW_KINDS))
        seqs = first_seq + np.cumsum(parts.counts) - parts.counts
        return cls(seqs[numbers], lambda number: parts.key(int(numbers[number])))


NO_IDS = Named.of(())


def names_a_row(key: bytes | None) -> bool:
    """Whether it is the id of a sample, or of its label that came late."""
    return key is not None and key[0] in ROW_KINDS


def digest_of(key: bytes) -> bytes:
    """What a model's state keeps of an id, which the journal keeps under `key`.

    However the label came, it is the id of one sample.
    """
    return hashlib.sha256(_SAMPLE + key[1:]).digest()[:DIGEST_BYTES]


class RetainedIds:
    """The ids of one model's retained rows.

    A model that cannot unlearn keeps none, and one without ids spends no time on them.
    """

    __slots__ = ("_entered", "_retain", "_rows", "_unlearned", "why_not")

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.why_not = why_not_unlearn(spec)
        """Why the model cannot unlearn a row; None where it can."""
        self._retain: int = 0 if self.why_not is not None else spec["retain"]
        # Number, seq and digest of each row with an id, packed, the oldest first. Rows are numbered
        # as they enter the learner's ring; from where does not matter. Most models never have any.
        self._rows: deque[bytes] | tuple[()] = ()
        self._entered = 0
        self._unlearned: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Ids that are known: of rows, and unlearned."""
        return len(self._rows) + len(self._unlearned)

    @property
    def unlearned_seq(self) -> int:
        """Where the last row was unlearned; 0 where none was."""
        return next(reversed(self._unlearned.values())) if self._unlearned else 0

    def unlearned_at(self, digest: bytes) -> int | None:
        """Where the sample of this id was unlearned, if it was lately and did not come again."""
        return None if self.seqs(digest) else self._unlearned.get(digest)

    def seqs(self, digest: bytes) -> list[int]:
        """Where the retained rows of this id stand in the journal."""
        return [seq for _, seq, own in map(_ROW.unpack, self._rows) if own == digest]

    def keep(self, named: Named, batch: Batch, first_seq: int, outcome: Outcome) -> None:
        """Keep in step with the learner, which has learned the batch that begins at `first_seq`."""
        if not self._retain or not (self._rows or len(named.seqs)):
            return
        if len(batch) == 1 and len(named.seqs) <= 1:
            self._keep_one(named, batch, first_seq, outcome)
        else:
            self._keep_all(named, batch, first_seq, outcome)
        rows = self._rows
        while rows and self._age(rows[0]) >= self._retain:
            rows.popleft()

    def _keep_one(self, named: Named, batch: Batch, first_seq: int, outcome: Outcome) -> None:
        """As `_keep_all`, in less time: of single rows there may be many."""
        if outcome.rejected[0] or not batch.weights[0] > 0.0:
            return
        self._entered += 1
        if len(named.seqs) and named.seqs[0] == first_seq:
            self._append(self._entered, first_seq, digest_of(named.key(0)))

    def _keep_all(self, named: Named, batch: Batch, first_seq: int, outcome: Outcome) -> None:
        enters = ~outcome.rejected & (batch.weights > 0.0)
        numbers = self._entered + np.cumsum(enters)
        self._entered = int(numbers[-1]) if len(numbers) else self._entered
        begin, end = np.searchsorted(named.seqs, (first_seq, first_seq + len(batch))).tolist()
        places = named.seqs[begin:end] - first_seq
        stays = enters[places] & (self._entered - numbers[places] < self._retain)
        for at in np.flatnonzero(stays).tolist():
            place, digest = int(places[at]), digest_of(named.key(begin + at))
            self._append(int(numbers[place]), first_seq + place, digest)

    def _append(self, number: int, seq: int, digest: bytes) -> None:
        rows = self._rows = self._rows or deque()
        rows.append(_ROW.pack(number, seq, digest))

    def _age(self, row: bytes) -> int:
        number: int = _ROW.unpack(row)[0]
        return self._entered - number

    def unlearn(self, learner: Learner, digest: bytes, seq: int) -> None:
        """Let the learner unlearn every retained row of this id; the control stands at `seq`.

        Raises UnlearningError, and then nothing has changed.
        """
        if self.why_not is not None:
            raise UnlearningError(self.why_not)
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
        """Number the other rows as if those of this id had never entered."""
        rows, gone = deque[bytes](), 0
        for number, seq, own in map(_ROW.unpack, self._rows):
            if own == digest:
                gone += 1
            else:
                rows.append(_ROW.pack(number - gone, seq, own))
        self._rows = rows
        self._entered -= gone

    def state(self) -> State:
        """As arrays, the oldest first: ages, seqs and digests of rows; ids unlearned, and where."""
        if self.why_not is not None:
            return {}
        rows = np.frombuffer(b"".join(self._rows), _FIELDS)
        return {
            "ages": self._entered - rows["number"],
            "seqs": rows["seq"].copy(),
            "digests": rows["digest"].copy(),
            "unlearned_seqs": np.array(list(self._unlearned.values()), np.int64),
            "unlearned_digests": _joined(self._unlearned),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Hold these; without arrays there are none. Raises CorruptState."""
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
