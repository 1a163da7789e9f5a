"""One model in memory: what its journal says, applied in the journal's order.

The state (learner, progressive metrics, counts) is a pure function of spec and journal. A batch
that this process appended itself and an entry read from the store go through the same learning;
where one entry ends and the next begins leaves no trace in the state.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from service.codecs import labels_and_classes
from service.feature_names import FeatureNames
from service.journal.chain import first_chain, next_chain
from service.journal.protocol import Entry, Journal, ModelRecord, Snapshot
from service.journal.record import Control, Rows, UnknownRecord, decode_merged
from solvers import (
    Batch,
    Certificate,
    CorruptState,
    Outcome,
    Progressive,
    dump,
    load,
    make_learner,
    numeric_identity,
    width_of,
)

# A batch expected to take less runs in the event loop: a thread costs some 80 us to reach.
INLINE_S = 0.0005
# Longer ones are cut, so that a prediction never waits much longer than this for its turn.
SLICE_S = 0.002
READ_BYTES = 4 * 1024 * 1024


class Forked(Exception):
    """The journal does not go on from where this replica stands: entries were lost or replaced."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A copy of a replica's state, not yet bytes."""

    seq: int
    chain: str
    arrays: dict[str, np.ndarray]
    header: dict[str, str]

    def encode(self) -> Snapshot:
        return Snapshot(self.seq, self.chain, dump(self.arrays, self.header))


class Replica:
    """A model's state and its place in the journal."""

    def __init__(self, record: ModelRecord) -> None:
        self.id = record.id
        self.incarnation = record.incarnation
        self.spec = json.loads(record.spec)
        self.dim = width_of(self.spec["features"])
        self._start_over()
        self.is_forked = False
        self.certificate: Certificate | None = None
        self.certified_at = float("-inf")
        # Outcomes that a committer waits for, by the nonce of its append, should the entry reach
        # this replica by another way than the committer's own hands.
        self.watched: dict[bytes, Outcome | None] = {}
        self._turn = asyncio.Lock()
        self._s_per_row = 1e-6

    # -- reading ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """While held, no slice is applied: what is read belongs to one `seq`."""
        async with self._turn:
            yield

    async def predict(self, batch: Batch) -> tuple[np.ndarray, int, str]:
        """Scores of the rows, and the seq and chain of the state that gave them."""
        async with self._turn:
            return self.learner.predict(batch), self.seq, self.chain

    async def certify(self, max_age_s: float = 0.0) -> Certificate | None:
        """The certificate of the served weights, at most `max_age_s` old; None without a dual."""
        async with self._turn:
            if time.monotonic() - self.certified_at > max_age_s:
                self.certificate = self.learner.certificate()
                self.certified_at = time.monotonic()
            return self.certificate

    # -- applying --------------------------------------------------------------------------------

    async def apply_own(
        self, seq: int, chain: str, batch: Batch, names: Sequence[tuple[int, str]] = ()
    ) -> Outcome:
        """Learn what this process appended itself; the entry ends at `seq` with `chain`."""
        self.names.keep(names)
        outcome = await self._learn(batch)
        self.seq = seq
        self.chain = chain
        return outcome

    async def apply(self, entries: Sequence[Entry]) -> None:
        """Learn entries read from the journal, skipping rows already applied.

        Raises Forked before anything is learned when they do not follow from this state.
        """
        chain, seq = self.chain, self.seq
        for entry in entries:
            chain = next_chain(chain, entry.nonce)
            if chain != entry.chain or entry.first_seq > seq + 1:
                raise Forked(
                    f"model {self.id!r}: the journal at seq {entry.seq} does not follow "
                    f"from seq {seq} of this replica"
                )
            seq = entry.seq
        if not entries:
            return
        batch = self._rows_of(entries)
        before = self.seq
        outcome = await self._learn(batch)
        self.seq, self.chain = entries[-1].seq, chain
        self._hand_over(entries, before, outcome)

    async def _learn(self, batch: Batch) -> Outcome:
        rows = len(batch)
        if rows * self._s_per_row <= INLINE_S:
            async with self._turn:
                return self._learn_slice(batch)
        outcomes = []
        done = 0
        while done < rows:
            step = max(1, int(SLICE_S / self._s_per_row))
            async with self._turn:
                piece = batch[done : done + step]
                outcomes.append(await asyncio.to_thread(self._learn_slice, piece))
            done += step
        return Outcome.joined(outcomes)

    def _learn_slice(self, batch: Batch) -> Outcome:
        began = time.perf_counter()
        outcome = self.learner.learn(batch)
        self.progress.count(batch, outcome)
        self.rejected += int(np.count_nonzero(outcome.rejected))
        self.seq += len(batch)
        # Sets only where batches are cut, which the state cannot tell.
        spent = (time.perf_counter() - began) / max(1, len(batch))
        if len(batch) >= 8:
            self._s_per_row += 0.2 * (spent - self._s_per_row)
        return outcome

    def _rows_of(self, entries: Sequence[Entry]) -> Batch:
        """The rows of consecutive entries beyond those already applied."""
        _, blocks = decode_merged(b"".join(entry.body for entry in entries))
        batches = []
        for block in blocks:
            if isinstance(block, Control):
                raise UnknownRecord(
                    f"model {self.id!r}: the journal holds the control record {block.kind!r}, "
                    "which this version does not know"
                )
            self.names.keep(block.names)
            batches.append(as_batch(block, self.dim))
        return Batch.concat(batches)[max(0, self.seq + 1 - entries[0].first_seq) :]

    def _hand_over(self, entries: Sequence[Entry], before: int, outcome: Outcome) -> None:
        """Keep what a committer waits for; `before` is the seq that `outcome` begins after."""
        for entry in entries:
            if entry.nonce in self.watched and entry.first_seq > before:
                first = entry.first_seq - 1 - before
                self.watched[entry.nonce] = outcome[first : entry.seq - before]

    # -- the journal -----------------------------------------------------------------------------

    async def catch_up(self, journal: Journal) -> None:
        """Apply all that the journal holds beyond this replica. Raises Forked."""
        while True:
            entries = await journal.read(self.id, self.incarnation, self.seq, READ_BYTES)
            if not entries:
                return
            await self.apply(entries)

    async def load(self, journal: Journal) -> None:
        """From the newest snapshot that the journal goes on from, to the journal's end."""
        for n in (0, 1):
            snapshot = await journal.snapshot_get(self.id, self.incarnation, n)
            if snapshot is None:
                break
            try:
                self._restore(snapshot)
                await self.catch_up(journal)
                return
            except (CorruptState, Forked):
                self._start_over()
        await self.catch_up(journal)

    async def rebuild(self, record: ModelRecord, journal: Journal) -> None:
        """Throw the state away and take the journal's; nobody is served from here meanwhile."""
        self.is_forked = True
        fresh = Replica(record)
        fresh.watched = self.watched
        await fresh.load(journal)
        async with self._turn:
            self._take_over(fresh)
        self.is_forked = False

    def _start_over(self) -> None:
        self.learner = make_learner(self.spec)
        self.progress = Progressive.of(self.spec)
        self.names = FeatureNames()
        self.rejected = 0
        self.seq = 0
        self.chain = first_chain(self.incarnation)

    def _take_over(self, other: "Replica") -> None:
        self.incarnation = other.incarnation
        self.spec = other.spec
        self.learner = other.learner
        self.progress = other.progress
        self.names = other.names
        self.rejected = other.rejected
        self.seq = other.seq
        self.chain = other.chain
        self.certified_at = float("-inf")

    # -- snapshots -------------------------------------------------------------------------------

    def capture(self) -> Captured:
        """A copy of the state, to be made between two entries by whoever applies them."""
        header = {
            "seq": str(self.seq),
            "chain": self.chain,
            "incarnation": self.incarnation,
            "identity": numeric_identity(),
        }
        return Captured(self.seq, self.chain, self._state(), header)

    def _state(self) -> dict[str, np.ndarray]:
        arrays = {f"learner.{name}": array for name, array in self.learner.state().items()}
        arrays |= {f"progress.{name}": array for name, array in self.progress.state().items()}
        arrays |= {f"names.{name}": array for name, array in self.names.state().items()}
        arrays["rejected"] = np.array(self.rejected, np.int64)
        return arrays

    def _restore(self, snapshot: Snapshot) -> None:
        """Raises CorruptState when the snapshot is damaged or of another incarnation or machine."""
        arrays, header = load(snapshot.data)
        expected = {"incarnation": self.incarnation, "identity": numeric_identity()}
        for name, value in expected.items():
            if header.get(name) != value:
                raise CorruptState(f"snapshot has {name} {header.get(name)!r}, expected {value!r}")
        self.learner.restore(_under("learner.", arrays))
        self.progress.restore(_under("progress.", arrays))
        self.names.restore(_under("names.", arrays))
        self.rejected = int(arrays["rejected"])
        self.seq = int(header["seq"])
        self.chain = header["chain"]


def as_batch(rows: Rows, dim: int) -> Batch:
    """Journalled rows as the learner takes them."""
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    assert rows.labels is not None  # only rows that wait for their labels have none
    labels, classes = labels_and_classes(rows.labels)
    return Batch(rows.indptr, rows.indices, rows.values, labels, weights, dim, classes)


def _under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}
