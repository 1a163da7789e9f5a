"""Tables of a model's retained rows: their ids, and their losses as served.

A learner identifies its retained rows by age alone. Rejected rows, rows of weight 0 and controls
take a seq but are not retained. So unlearning by id needs a table of ids, which is updated with
every learned batch. It is part of the state, because the effect of `unlearn` depends on it. Each
retained row with an id has one digest of that id.

The losses are those from before each row of the window was learned. They are the basis of the
stream's regret, and nothing else depends on them. They are bookkeeping next to the state, and
snapshots carry them. If the window changes in another way than by learning (rollback, unlearn), all
losses are dropped.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
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
    why_no_reference,
    why_not_unlearn,
)
from dualstream.solvers.spec_cache import worked_out_once

MAX_UNLEARNED_IDS = 1000
"""Number of unlearned ids that a model remembers."""
DIGEST_BYTES = 16

_SAMPLE = bytes((KeyKind.SAMPLE,))
_ROW = struct.Struct(f"<qq{DIGEST_BYTES}s")
_FIELDS = np.dtype([("number", "<i8"), ("seq", "<i8"), ("digest", "u1", (DIGEST_BYTES,))])
_MIN_LENGTH = 64
_NO_LOSSES = np.empty(0)


@dataclass(frozen=True, slots=True)
class Named:
    """Rows with an id among some entries.

    seqs  (n,) int64  seqs of the rows, ascending
    key               returns the stored key of row 0 .. n - 1
    """

    seqs: np.ndarray
    key: Callable[[int], bytes]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, bytes]]) -> "Named":
        """Create from (seq, key) pairs."""
        return cls(np.array([seq for seq, _ in rows], np.int64), lambda number: rows[number][1])

    @classmethod
    def within(cls, parts: Parts, first_seq: int) -> "Named":
        """Create from parts; the first part begins at `first_seq`."""
        if not parts.has_keys:
            return NO_IDS
        numbers = np.flatnonzero(np.isin(parts.key_kinds, ROW_KINDS))
        seqs = first_seq + np.cumsum(parts.counts) - parts.counts
        return cls(seqs[numbers], lambda number: parts.key(int(numbers[number])))


NO_IDS = Named.of(())


def names_a_row(key: bytes | None) -> bool:
    """Is this the key of a sample id, or of a late label's sample id?"""
    return key is not None and key[0] in ROW_KINDS


def digest_of(key: bytes) -> bytes:
    """Digest of an id from its stored key.

    A sample and its late label have different key kinds but one id, so they get one digest.
    """
    return hashlib.sha256(_SAMPLE + key[1:]).digest()[:DIGEST_BYTES]


class RetainedIds:
    """Ids of one model's retained rows.

    A model that cannot unlearn keeps none. A model without ids spends no time here.
    """

    __slots__ = ("_entered", "_retain", "_rows", "_unlearned", "why_not")

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.why_not = why_not_unlearn(spec)
        """Reason why the model cannot unlearn a row, or None."""
        self._retain: int = 0 if self.why_not is not None else spec["retain"]
        # Packed number, seq and digest of each row with an id, oldest first. Rows are numbered as
        # the learner retains them; only differences matter. An empty tuple saves memory: most
        # models have no ids.
        self._rows: deque[bytes] | tuple[()] = ()
        self._entered = 0
        self._unlearned: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Number of known ids, unlearned ones included."""
        return len(self._rows) + len(self._unlearned)

    @property
    def unlearned_seq(self) -> int:
        """Seq of the last unlearn; 0 without one."""
        return next(reversed(self._unlearned.values())) if self._unlearned else 0

    def unlearned_at(self, digest: bytes) -> int | None:
        """Seq at which this id was unlearned, if it is remembered and was not learned since."""
        return None if self.seqs(digest) else self._unlearned.get(digest)

    def seqs(self, digest: bytes) -> list[int]:
        """Seqs of the retained rows with this id."""
        return [seq for _, seq, own in map(_ROW.unpack, self._rows) if own == digest]

    def keep(self, named: Named, batch: Batch, first_seq: int, outcome: Outcome) -> None:
        """Update after the learner learned the batch that begins at `first_seq`."""
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
        """As `_keep_all`, faster, for a batch of one row."""
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
        """Unlearn every retained row of this id by the control at `seq`.

        Raises UnlearningError; nothing has changed then.
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
        """Renumber the other rows as if the rows of this id were never retained."""
        rows, gone = deque[bytes](), 0
        for number, seq, own in map(_ROW.unpack, self._rows):
            if own == digest:
                gone += 1
            else:
                rows.append(_ROW.pack(number - gone, seq, own))
        self._rows = rows
        self._entered -= gone

    def state(self) -> State:
        """Return the rows' ages, seqs and digests, oldest first, and the unlearned ids."""
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
        """Restore from arrays; without arrays there are no ids. Raises CorruptState."""
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


class ServedLosses:
    """Losses of the window's last rows; empty for a model without a reference optimum."""

    __slots__ = ("_entered", "_capacity", "_ring")

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._capacity = _capacity_of(spec)
        self._ring = _NO_LOSSES
        # Rows added since the ring was created; row n is at index n mod its length.
        self._entered = 0

    def __len__(self) -> int:
        return min(self._entered, self._capacity)

    @property
    def bytes_held(self) -> int:
        """Memory in bytes."""
        return getsizeof(self._ring)

    def keep(self, batch: Batch, outcome: Outcome) -> None:
        """Add the losses of rows that were learned and have a weight."""
        most, losses = self._capacity, outcome.losses
        if not most:
            return
        if len(losses) == 1:
            if not outcome.rejected[0] and batch.weights[0] > 0.0:
                entered = self._entered
                if entered >= len(self._ring) != most:
                    self._grow(1)
                    entered = self._entered
                self._ring[entered % len(self._ring)] = losses[0]
                self._entered = entered + 1
            return
        # If all of the last rows enter, earlier rows fall out anyway.
        enters = batch.weights[-most:] > 0.0
        enters &= ~outcome.rejected[-most:]
        if np.count_nonzero(enters) < len(enters):
            losses = losses[~outcome.rejected & (batch.weights > 0.0)]
        self._put(losses)

    def _put(self, losses: np.ndarray) -> None:
        kept = losses[-self._capacity :]
        if len(kept) == self._capacity:
            self._ring, self._entered = kept.copy(), len(kept)
            return
        if not len(kept):
            return
        self._grow(len(kept))
        self._entered += len(kept)
        at = (self._entered - len(kept)) % len(self._ring)
        up_to_end = len(self._ring) - at
        self._ring[at : at + len(kept)] = kept[:up_to_end]
        self._ring[: max(0, len(kept) - up_to_end)] = kept[up_to_end:]

    def _grow(self, more: int) -> None:
        """Enlarge the ring if needed. Until it has its final length, no row is overwritten."""
        length = len(self._ring)
        if length == self._capacity or self._entered + more <= length:
            return
        length = min(self._capacity, max(_MIN_LENGTH, 2 * length, self._entered + more))
        if not self._entered:
            self._ring = np.empty(length)
            return
        kept = self.last(len(self))
        self._ring = np.empty(length)
        self._ring[: len(kept)] = kept
        self._entered = len(kept)

    def last(self, count: int) -> np.ndarray:
        """Return the last `count` losses, oldest first; `count` is at most len(self)."""
        numbers = np.arange(self._entered - count, self._entered)
        losses: np.ndarray = self._ring[numbers % max(1, len(self._ring))]
        return losses

    def forget(self) -> None:
        """Drop all losses."""
        self._ring, self._entered = _NO_LOSSES, 0

    def state(self) -> dict[str, np.ndarray]:
        """Return the losses as arrays."""
        return {"losses": self.last(len(self))} if self._capacity else {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore from arrays; without arrays there are none. Raises CorruptState."""
        self.forget()
        losses = arrays.get("losses", np.empty(0))
        if losses.ndim != 1 or losses.dtype != np.float64:
            raise CorruptState(f"the losses served have shape {losses.shape}, {losses.dtype}")
        if self._capacity:
            self._put(losses)


@worked_out_once
def _capacity_of(spec: Mapping[str, Any]) -> int:
    """Number of rows whose losses are kept: the rows that a reference optimum covers."""
    if why_no_reference(spec) is not None:
        return 0
    window = spec["window"]
    length = 0 if isinstance(window, str) else int(window.get("length", 0))
    return length or int(spec["retain"])
