"""One model in memory: what its journal says, applied in the journal's order.

The state (learner, progressive metrics, counts) is a pure function of spec and journal. What this
process appended itself and an entry read from the store go through the same learning and the same
controls; where one entry ends and the next begins leaves no trace in the state.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial

import numpy as np

from dualstream.service.clock import SYSTEM_CLOCK, Clock
from dualstream.service.concurrency import background_task, run_in_thread
from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.page import end_of, size_of
from dualstream.service.journal.protocol import (
    Base,
    Entry,
    Journal,
    JournalUnavailable,
    ModelRecord,
    Place,
)
from dualstream.service.journal.record import Control, CorruptRecord
from dualstream.service.replica.apply_control import apply_control
from dualstream.service.replica.controls import ControlOutcome, check_control, stands_alone
from dualstream.service.replica.entries import Content, content_beyond, parted_at
from dualstream.service.replica.first_responses import MAX_KEPT_ANSWERS, Asked, AskedIn
from dualstream.service.replica.lineage import Lineage, Lost, follows
from dualstream.service.replica.pending_outcomes import Applied, hand_over, take_back, within
from dualstream.service.replica.positioned_state import PlacedState
from dualstream.service.replica.recovery import Forked, recover
from dualstream.service.replica.retained_ids import NOBODY, Named
from dualstream.solvers import (
    AsServed,
    Batch,
    Certificate,
    Outcome,
    as_served,
    certificates_of_members,
)

# A batch expected to take less runs in the event loop: a thread costs some 80 us to reach, and then
# the two hand each other the interpreter's lock.
INLINE_S = 0.004
# Longer ones are cut, so that a prediction never waits much longer than this for its turn.
SLICE_S = 0.002
MEASURED_ROWS = 8
"""Fewer tell too little of what a row takes."""
READ_BYTES = 1024 * 1024


class Replica(PlacedState):
    """A model's state that is moved on along the journal, and served.

    s_per_row   about what learning a row takes, as far as it is known, in seconds
    spec        instead of the model's own
    """

    is_forked = False
    """Nobody is served: the journal does not lead here, or may not. Whoever moves it on sees."""
    _applying: Sequence[Entry] = ()
    """Entries behind which the next ones are being read."""
    certificate: Certificate | None = None
    certified_at = float("-inf")

    def __init__(
        self,
        record: ModelRecord,
        kept_answers: int = MAX_KEPT_ANSWERS,
        clock: Clock = SYSTEM_CLOCK,
        s_per_row: float = 1e-6,
        spec: bytes | None = None,
    ) -> None:
        super().__init__(record, kept_answers, spec)
        self._as_served: AsServed | None = as_served(self.spec)
        # Outcomes that a committer waits for, by the nonce of its append, should the entry reach
        # this replica by another way than the committer's own hands.
        self.watched: dict[bytes, Applied | None] = {}
        self.member_certificates: dict[str, Certificate] = {}
        self._clock = clock
        self._turn = asyncio.Lock()
        self._s_per_row = s_per_row

    @property
    def s_per_row(self) -> float:
        """About what learning a row takes, in seconds."""
        return self._s_per_row

    # -- reading ---------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """While held, no slice is applied: what is read belongs to one `seq`."""
        async with self._turn:
            yield

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """As `still`, for what a client is told. Raises JournalUnavailable while it is forked.

        Whoever asked the catalog before the fork was known may come here after.
        """
        async with self.still():
            if self.is_forked:
                raise JournalUnavailable(f"model {self.id!r} is being rebuilt from its journal")
            yield

    @property
    def place(self) -> Place:
        """Where it stands, between two groups."""
        return Place(self.seq, self.chain)

    def leads_on_from(self, place: Place) -> bool:
        """Whether it has come by this place, and nothing shows that the journal has lost that."""
        return not self.is_forked and self.trail.came_by(place.seq, place.chain)

    async def predict(self, batch: Batch) -> tuple[np.ndarray, int, str]:
        """Scores of the rows, and the seq and chain of the state that gave them.

        Raises JournalUnavailable while it is forked.
        """
        async with self.serving():
            return self.learner.predict(batch), self.seq, self.chain

    async def certify(self, max_age_s: float = 0.0) -> Certificate | None:
        """The certificate of the served weights, at most `max_age_s` old; None without a dual.

        Those of members are computed with it. Raises JournalUnavailable while it is forked.
        """
        async with self.serving():
            if self._clock.now() - self.certified_at > max_age_s:
                self.certificate = self.learner.certificate()
                self.member_certificates = certificates_of_members(self.learner)
                self.certified_at = self._clock.now()
            return self.certificate

    # -- applying --------------------------------------------------------------------------------

    async def apply_own(
        self,
        seq: int,
        chain: str,
        batch: Batch,
        names: Sequence[tuple[int, str]] = (),
        asked: Sequence[Asked] = (),
        named: Named = NOBODY,
    ) -> Outcome:
        """Learn what this process appended itself; the entry ends at `seq` with `chain`.

        `asked` are the requests with a key in it, `named` the rows with an id.
        """
        if names:
            self.names.keep(names)
        outcome = await self._learn(batch)
        self._keep_own(seq, chain, batch, asked, named, outcome)
        return outcome

    def learn_own(
        self,
        seq: int,
        chain: str,
        batch: Batch,
        names: Sequence[tuple[int, str]],
        asked: Sequence[Asked],
        named: Named,
    ) -> Outcome:
        """As `apply_own`, of rows that are learned at once."""
        if names:
            self.names.keep(names)
        outcome = self._learn_slice(batch)
        self._keep_own(seq, chain, batch, asked, named, outcome)
        return outcome

    def _keep_own(
        self,
        seq: int,
        chain: str,
        batch: Batch,
        asked: Sequence[Asked],
        named: Named,
        outcome: Outcome,
    ) -> None:
        """Stand behind rows that were learned, beside which their names and answers are kept."""
        first_seq = seq + 1 - len(batch)
        if asked:
            self.answers.keep(asked, first_seq, batch, outcome)
        self.retained.keep(named, batch, first_seq, outcome)
        self._stand_at(seq, chain)

    def learns_at_once(self, rows: int) -> bool:
        """Whether so many rows are learned in one turn of the event loop, and now."""
        return rows * self._s_per_row <= INLINE_S and not self._turn.locked()

    async def apply_own_control(
        self, seq: int, chain: str, control: Control, journal: Journal
    ) -> ControlOutcome:
        """Obey the control that this process appended itself, an entry of its own at `seq`.

        Raises UnreadableCopy and Trimmed, before anything is changed.
        """
        verdict = await apply_control(self, control, journal)
        self._stand_at(seq, chain)
        return verdict

    async def apply(self, entries: Sequence[Entry], journal: Journal) -> None:
        """Apply entries read from the journal, skipping records already applied.

        Raises Forked, and CorruptRecord for an entry out of its place, before anything is applied;
        CorruptRecord, UnknownRecord for what is of a later version (both name the entry) and
        UnreadableCopy and Trimmed for a rollback, standing at an entry's end before it.
        """
        self.check_order(entries)
        for some in parted_at(entries, stands_alone):
            await self.apply_run(some, journal)

    def rows_of(self, entries: Sequence[Entry]) -> Content | None:
        """What entries that are known to follow hold; None where a control is in it.

        Raises CorruptRecord, UnknownRecord, which name the entry.
        """
        content = self._beyond(entries)
        if any(isinstance(record, Control) for record in content.records):
            return None
        return content

    def learn_entries(self, entries: Sequence[Entry], content: Content) -> Outcome:
        """Apply entries of the rows that `rows_of` has found; what became of the last one.

        To be called where all their rows are learned at once.
        """
        self.names.keep(content.names)
        done: list[tuple[int, Applied]] = []
        for record in content.records:
            assert isinstance(record, Batch)
            first_seq, outcome = self.seq + 1, self._learn_slice(record)
            done.append((first_seq, self._kept(record, outcome, content.asked, content.named)))
        self._pass_entries(entries, done)
        last = within(done, entries[-1].first_seq, entries[-1].seq)
        assert isinstance(last, Outcome)
        return last

    def check_order(self, entries: Sequence[Entry]) -> None:
        """Raise Forked, or CorruptRecord, unless each entry follows the one before it."""
        chain, seq = self.chain, self.trail.end
        for entry in entries:
            chain = next_chain(chain, entry.nonce)
            if chain != entry.chain:
                raise Forked(
                    f"model {self.id!r}: the journal at seq {entry.seq} does not follow "
                    f"from seq {seq} of this replica"
                )
            if entry.first_seq != seq + 1:
                raise CorruptRecord(
                    f"the entry at seq {entry.seq} begins at seq {entry.first_seq}, "
                    f"the one before it ends at seq {seq}"
                )
            seq = entry.seq

    def pass_by(self, entry: Entry) -> None:
        """Leave out an entry: stand behind it as if it changed nothing."""
        self._stand_at(entry.seq, entry.chain)

    async def apply_part(self, entry: Entry, until: int) -> None:
        """Learn the rows of the next entry up to `until`, which lies in its midst.

        It stands there with the chain from before the entry. Raises Forked.
        """
        if not follows(entry, self.chain) or entry.first_seq > self.seq + 1:
            raise Forked(f"model {self.id!r}: the journal does not follow from seq {self.seq}")
        await self.learn_part(entry, until)

    async def learn_part(self, entry: Entry, until: int) -> None:
        """As `apply_part`, of an entry that is known to follow."""
        names, (record,), _, named = self._beyond([entry])
        assert isinstance(record, Batch)  # a control has no midst
        self.names.keep(names)
        first_seq, rows = self.seq + 1, record[: until - self.seq]
        self.retained.keep(named, rows, first_seq, await self._learn(rows))

    async def apply_run(self, entries: Sequence[Entry], journal: Journal) -> None:
        """Apply entries that are known to follow: a rollback alone, or others."""
        names, records, asked, named = self._beyond(entries)
        self.names.keep(names)
        done: list[tuple[int, Applied]] = []
        for record in records:
            first_seq = self.seq + 1
            if isinstance(record, Control):
                done.append((first_seq, await apply_control(self, record, journal)))
            else:
                outcome = await self._learn(record)
                done.append((first_seq, self._kept(record, outcome, asked, named)))
        self._pass_entries(entries, done)

    def _kept(self, rows: Batch, outcome: Outcome, asked: AskedIn, named: Named) -> Outcome:
        """The outcome of rows that were just learned, beside which answers and ids are kept."""
        first_seq = self.seq + 1 - len(rows)
        whole = asked.within(first_seq, self.seq, self._kept_answers)
        self.answers.keep(whole, first_seq, rows, outcome)
        self.retained.keep(named, rows, first_seq, outcome)
        return outcome

    def _pass_entries(self, entries: Sequence[Entry], done: Sequence[tuple[int, Applied]]) -> None:
        """Stand behind entries that were applied."""
        self.seq, self.chain = entries[-1].seq, entries[-1].chain
        self.trail.pass_entries(entries)
        hand_over(self.watched, entries, done)

    def _beyond(self, entries: Sequence[Entry]) -> Content:
        """What the next entries hold beyond this replica. Raises CorruptRecord, UnknownRecord."""
        check, can_unlearn = partial(check_control, self), self.retained.why_not is None
        return content_beyond(self.seq, entries, self.dim, check, can_unlearn)

    async def _learn(self, batch: Batch) -> Outcome:
        rows = len(batch)
        if rows * self._s_per_row <= INLINE_S:
            if self._turn.locked():
                async with self._turn:
                    return self._learn_slice(batch)
            return self._learn_slice(batch)  # all in this turn of the event loop
        outcomes = []
        done = 0
        while done < rows:
            step = max(1, int(SLICE_S / self._s_per_row))
            async with self._turn:
                piece = batch[done : done + step]
                outcomes.append(await run_in_thread(self._learn_slice, piece))
            done += step
        return Outcome.joined(outcomes)

    def _learn_slice(self, batch: Batch) -> Outcome:
        # Work, not time: a model that once waited for the core would be taken for a slow one, and
        # the next ones be learned in a thread and leave snapshots, which keep the core busy.
        is_measured = len(batch) >= MEASURED_ROWS
        began = self._clock.cpu_seconds() if is_measured else 0.0
        if self.guarding is None:
            outcome = self.learn_rows(batch, self.seq + 1)
        else:
            outcome = self.guarding.learn(self, batch, self.seq + 1)
        self.seq += len(batch)
        if is_measured:
            # Sets only where batches are cut, which the state cannot tell.
            spent = (self._clock.cpu_seconds() - began) / len(batch)
            self._s_per_row += 0.2 * (spent - self._s_per_row)
        return outcome

    def learn_rows(self, batch: Batch, first_seq: int) -> Outcome:
        """Learn and count rows, of which the first stands at `first_seq`."""
        outcome = self.learner.learn(batch)
        if self._as_served is not None:
            outcome = self._as_served.put(batch, outcome)
        self.progress.count(batch, outcome, first_seq)
        self.losses.keep(batch, outcome)
        if len(batch.labels) > 1:
            self.rejected += int(np.count_nonzero(outcome.rejected))
        elif outcome.rejected[0]:
            self.rejected += 1
        return outcome

    # -- the journal -----------------------------------------------------------------------------

    async def catch_up(self, journal: Journal, until: int | None = None) -> None:
        """Apply all that the journal holds beyond this replica. Raises Forked.

        With `until`, nothing is read any more once the replica has reached that seq. Where there
        is much to read, the next entries are read while these are parsed and applied.
        """
        entries = await self._read(journal, self.seq)
        while entries:
            ahead: asyncio.Task[Sequence[Entry]] | None = None
            end = end_of(entries)
            is_last = until is not None and end >= until
            try:
                if size_of(entries) > READ_BYTES // 2 and not is_last:
                    self._applying = entries
                    # Left to its end where these cannot be applied.
                    ahead = background_task(self._read_behind(journal, entries))
                    # In one turn of the event loop it asks, in the next one that is sent: the store
                    # is at work while these are applied, which leaves the loop no turn.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                await self.apply(entries, journal)
            finally:
                self._applying = ()
            if is_last:
                return
            entries = await (ahead or self._read(journal, self.seq))

    async def _read_behind(self, journal: Journal, some: Sequence[Entry]) -> Sequence[Entry]:
        """What comes behind entries that are applied meanwhile; nobody is served if it does not."""
        found, last = await self._read(journal, end_of(some)), some[-1]
        if found and self._applying is some and not follows(found[0], last.chain):
            self.is_forked = True
        return found

    async def _read(self, journal: Journal, after: int) -> Sequence[Entry]:
        return await journal.read(self.id, self.incarnation, after, READ_BYTES)

    def check_head(self, record: ModelRecord) -> None:
        """Raise Forked when the journal ends before this replica, or at its seq otherwise."""
        if (record.seq, record.chain) == (self.seq, self.chain) or record.seq > self.seq:
            return
        raise Forked(
            f"model {self.id!r}: the journal ends at seq {record.seq} with {record.chain}, "
            f"this replica stands at seq {self.seq}"
        )

    async def load(self, journal: Journal, adopts: bool = False, base: Base | None = None) -> None:
        """Come from before the first record to the journal's end; see `recover`.

        Raises NoBase.
        """
        await recover(self, journal, adopts, base)

    async def rebuild(self, record: ModelRecord, journal: Journal) -> Lost:
        """Throw the state away and take the journal's; what of it the journal had lost.

        As the journal is where its head was `record`, or later. Nobody is served from here
        meanwhile.
        """
        self.is_forked = True
        fresh = Replica(record, self._kept_answers, self._clock, self._s_per_row)
        fresh.watched = self.watched
        fresh.trail = Lineage(kept=None)
        await fresh.load(journal, base=Base(record))
        async with self._turn:
            lost = self.trail.give_way_to(fresh.trail)
            self._take_over(fresh)
            self.certified_at = float("-inf")
            self._s_per_row = fresh.s_per_row
        self.is_forked = False
        return lost

    def start_over(self) -> None:
        """Be before the first record."""
        take_back(self.watched)
        if self.is_forked:
            self.is_forked = False
        self._begin()

    def forget_what_served(self) -> None:
        """Count all rows with its own scores: another spec than this one served them."""
        self._as_served = None
