"""What must hold: at each answer, and for all of them together when everything is quiet."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from service.controls import KINDS, Verdict, copy_named_by, obey
from service.entries import as_batch
from service.guarding import Guarding
from service.journal.chain import first_chain
from service.journal.protocol import Entry, JournalUnavailable
from service.journal.record import Control, decode_merged
from service.model import Model
from service.receipts import Receipt
from service.requests import AnyRequest, ControlRequest
from service.retained import Named, RetainedIds
from service.states import read_copy
from solvers import Batch, Learner, Outcome, Progressive, make_learner, problems_of
from tests.history import Acknowledged, HistoryBroken, check_entries
from tests.simulation import models
from tests.simulation.faults import Fault
from tests.simulation.late import LateNotes, LateRow, late_problems, late_rows
from tests.simulation.log import Log
from tests.simulation.losses import LossNotes
from tests.simulation.refits import Problems, refit_problems
from tests.simulation.store import Store

if TYPE_CHECKING:
    from tests.simulation.world import Worker, World


@dataclass(slots=True)
class Acked:
    """A request that a client was answered; `tag` where it brought rows."""

    model: str
    incarnation: str
    tag: int | None
    request: AnyRequest
    receipt: Receipt
    began: int


class Notes:
    """What was seen while the schedule ran, and what was wrong with it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.problems: list[str] = []
        self.acked: list[Acked] = []
        self.settled: list[tuple[str, Model]] = []
        self.late = LateNotes()
        self.undone: dict[int, bool] = {}
        """Of tags: whether all that was told of them is that nothing was done."""
        self.losses = LossNotes(store)
        self.forks = self.bare_groups = 0
        self._told: dict[Hashable, int] = {}
        self._scores: dict[Hashable, bytes] = {}

    def saw_answer(self, worker: "Worker", model: Model, receipt: Receipt, began: int) -> None:
        """At an answer the replica holds what it acknowledges, and tells what learning it did."""
        replica, placed = model.replica, receipt.placed
        log = self.log_of(model)
        if log is None or placed.conflict:
            return
        place = (worker.name, worker.began, log.incarnation)
        self._told[place] = max(placed.seq, self._told.get(place, 0))
        self.losses.saw_standing(worker, log, replica.chain)
        if replica.seq < placed.seq:
            self.problems.append(
                f"{worker.name} acknowledged seq {placed.seq}, its replica is at {replica.seq}"
            )
        is_new = not placed.duplicate
        if is_new and receipt.scores is None and receipt.verdict is None:
            if log.covered < placed.first_seq and not log.was_cut_below(placed.seq, began):
                self.problems.append(f"{worker.name} does not know what came of {placed}")

    def saw_what_came_of(
        self, worker: "Worker", model: Model, receipt: Receipt, stood: str, began: int
    ) -> None:
        """Whoever stands right before the entry that his append makes tells what came of it.

        Nothing can come between, a snapshot neither: he has all that it takes to learn it. But an
        answer that comes once the entry has been trimmed says no more than where it was.
        """
        log, placed = self.log_of(model), receipt.placed
        if log is None or receipt.scores is not None or receipt.verdict is not None:
            return
        if placed.duplicate or placed.conflict or log.was_cut_below(placed.seq, began):
            return
        if log.trimmed >= placed.first_seq:
            return
        (entry,) = (one for one in log.entries if one.first_seq <= placed.seq <= one.seq)
        if log.before[entry.chain] == stood and not log.nonces[entry.nonce].left:
            self.problems.append(f"{worker.name} does not tell what came of {placed}")

    def ended(self, model: Model) -> int:
        """How often the end of the model's log has become another one."""
        log = self.log_of(model)
        return 0 if log is None else len(log.ends)

    def saw_refresh(self, worker: "Worker", model: Model, ended: int) -> None:
        """Whoever has refreshed stands where the journal ended since he began."""
        log, replica = self.log_of(model), model.replica
        if log is not None and replica.chain not in log.ends[max(0, ended - 1) :]:
            self.problems.append(
                f"{worker.name} has refreshed {log.id} and stands at {replica.seq} "
                f"{replica.chain[:8]}, where it has not ended since"
            )

    def saw_acknowledged(
        self, model: Model, tag: int, request: AnyRequest, receipt: Receipt, began: int
    ) -> None:
        """A client is told where its rows stand."""
        record = model.record
        self.acked.append(Acked(record.id, record.incarnation, tag, request, receipt, began))

    def saw_end(self, tag: int | None, refusal: BaseException | None) -> None:
        """A client was answered, or told why not; None: he was answered."""
        if tag is not None:
            is_undone = isinstance(refusal, JournalUnavailable)
            self.undone[tag] = self.undone.get(tag, True) and is_undone

    def told_by(self, worker: "Worker") -> dict[str, int]:
        """The last seq that this process has acknowledged, by incarnation."""
        return {
            incarnation: seq
            for (name, began, incarnation), seq in self._told.items()  # type: ignore[misc]
            if (name, began) == (worker.name, worker.began)
        }

    def saw_prediction(
        self,
        worker: "Worker",
        model: Model,
        asked: Hashable,
        seq: int,
        chain: str,
        scores: Any,
        told: dict[str, int],
    ) -> None:
        """Nothing forked is served once it could be known, and equal places have equal scores.

        `told` is what the process had acknowledged when it was asked: it does not go back behind.
        """
        log = self.log_of(model)
        if log is None:
            return
        self.losses.saw_standing(worker, log, chain)
        behind = told.get(log.incarnation, 0)
        if seq < behind and not log.was_cut_below(behind, worker.began):
            self.problems.append(f"{worker.name} serves seq {seq}, it had acknowledged {behind}")
        known = worker.connection.answered_at.get(log.incarnation, worker.began)
        if chain not in log.stood:
            self.problems.append(f"{worker.name} serves {chain[:8]}, which never was")
        elif log.died.get(chain, known) < known:
            self.problems.append(
                f"{worker.name} serves seq {seq} {chain[:8]}, lost at step {log.died[chain]},"
                f" which it could know since step {known}"
            )
        elif log.stood[chain] == seq:
            place = (log.incarnation, seq, chain, asked)
            if self._scores.setdefault(place, scores.tobytes()) != scores.tobytes():
                self.problems.append(f"{worker.name} predicts otherwise at seq {seq} {chain[:8]}")

    def log_of(self, model: Model) -> Log | None:
        log = self._store.logs.get(model.record.id)
        return log if log is not None and log.incarnation == model.record.incarnation else None


class Truth:
    """What one learner says that sees the final journal in one go."""

    def __init__(self, log: Log, kind: models.Kind) -> None:
        self.id = log.id
        self._log, self._kind = log, kind
        self.learned = self.refused_rows = 0
        self.learner: Learner = make_learner(kind.resolved)
        self.progress = Progressive.of(kind.resolved)
        self.retained = RetainedIds(kind.resolved)
        self.rejected = self.refused = self.rows = 0
        self.scores: list[float] = []
        """By seq - 1; NaN in the place of a control."""
        self.losses: list[float] = []
        self.verdicts: dict[int, Verdict] = {}
        self.controls: dict[int, Control] = {}
        self.late: dict[int, LateRow] = {}
        """Every row by its seq, where the model has rows with ids."""
        self.guarding = Guarding.of(kind.resolved)
        self.copies = {version.digest: version.seq for version in log.versions.values()}
        """The seqs of copies, by their digests."""
        self.states: dict[int, dict[str, bytes]] = {}
        """At each of these seqs."""
        self.made_here: set[str] = set()
        """The digests of copies that were made of the journal, for what was to go back there."""
        self.windows: dict[int, Problems] = {}
        """What refits were computed of, by their seqs."""
        self.problems: list[str] = []
        self._seen: list[tuple[int, Batch]] = []
        self._has: set[int] = set()
        self._had: dict[int, set[int]] = {}
        self.twice: set[int] = set()
        """The seqs of rows that a state has learned, and that came to it from its quarantine."""
        self.headers, self._blocks = decode_merged(b"".join(entry.body for entry in log.whole))
        self._named = Named.within(self.headers, 1)
        self._see()

    @property
    def seq(self) -> int:
        """Of the last record that was seen."""
        return len(self.scores)

    def _see(self) -> None:
        named_by = [block.fields for block in self._blocks if isinstance(block, Control)]
        marks = {fields["seq"] for fields in named_by if fields.get("digest") is not None}
        marks |= set(self.copies.values())
        computed = [block for block in self._blocks if isinstance(block, Control)]
        self._computed_of = {one.fields["seq"] for one in computed if one.kind == "refit"}
        marks |= self._computed_of
        self._mark(marks)
        for block in self._blocks:
            if isinstance(block, Control):
                self._obey(block)
                self._mark(marks)
                continue
            if self._kind.names_rows:
                self.late.update(late_rows(block, self.seq + 1))
            batch, first = as_batch(block, models.DIM), self.seq
            inside = [at - first for at in sorted(marks) if first < at < first + len(batch)]
            for begin, end in pairwise([0, *inside, len(batch)]):
                self._learn(batch[begin:end])
                self._mark(marks)

    def _mark(self, marks: set[int]) -> None:
        if self.seq in marks:
            self.states[self.seq] = self.state()
            self._had[self.seq] = set(self._has)
        if self.seq in self._computed_of:
            self.windows[self.seq] = problems_of(self.learner)

    def _learn(self, batch: Batch) -> None:
        before, first_seq = self.learner.samples, self.seq + 1
        if self.guarding is None:
            outcome = self.learn_rows(batch, first_seq)
        else:
            self._seen.append((first_seq, batch))
            outcome = self.guarding.learn(self, batch, first_seq)
        self.learned += self.learner.samples - before
        self.refused_rows += int(np.count_nonzero(outcome.rejected))
        self.retained.keep(self._named, batch, first_seq, outcome)
        self.rows += len(batch)
        self.scores += outcome.scores.tolist()
        self.losses += outcome.losses.tolist()

    def learn_rows(self, batch: Batch, first_seq: int) -> Outcome:
        """Learn and count rows that are not set aside."""
        outcome = self._kind.as_served.put(batch, self.learner.learn(batch))
        seqs = range(first_seq, first_seq + len(batch))
        self.twice |= self._has.intersection(seqs)
        self._has.update(seqs)
        self.progress.count(batch, outcome, first_seq)
        self.rejected += int(np.count_nonzero(outcome.rejected))
        return outcome

    def take_up(self) -> int:
        """Learn all rows behind those that were good, in their order."""
        assert self.guarding is not None
        learned, after = 0, self.guarding.pauses.held_from
        for first_seq, batch in self._seen:
            held = batch[max(0, after + 1 - first_seq) :]
            at = first_seq + len(batch) - len(held)
            outcome = self.learn_rows(held, at)
            self.retained.keep(self._named, held, at, outcome)
            learned += len(held) - int(np.count_nonzero(outcome.rejected))
        return learned

    def become(self, digest: str, seq: int) -> None:
        """Take on the state of a copy."""
        if seq > self.seq:
            self.problems.append(f"{self.id}: seq {self.seq} went back to {seq}, still to come")
        data = self._log.ever_stored[digest]
        found, _, _ = read_copy(data, digest, self._kind.resolved, self._log.incarnation)
        self.learner, self.progress, self.retained = found.learner, found.progress, found.retained
        self.rejected, self.refused = found.rejected, found.refused_controls
        if self.guarding is not None and found.guarding is not None:
            self.guarding = self.guarding.take_over(found.guarding, seq, self.seq + 1)
        self.copies[digest] = seq
        self._has = set(self._had.get(seq, ()))

    def _obey(self, control: Control) -> None:
        verdict = obey(self, control)
        digest = copy_named_by(control)
        if digest is not None and verdict.refusal is None and control.fields.get("version") is None:
            self.made_here.add(digest)
        self.refused += verdict.refusal is not None
        self.scores.append(float("nan"))
        self.losses.append(float("nan"))
        self.verdicts[len(self.scores)] = verdict
        self.controls[len(self.scores)] = control

    def state(self) -> dict[str, Any]:
        state = {f"learner.{name}": array for name, array in self.learner.state().items()}
        state |= {f"progress.{name}": array for name, array in self.progress.state().items()}
        state |= {f"retained.{name}": array for name, array in self.retained.state().items()}
        if self.guarding is not None:
            state |= self.guarding.state()
        state["rejected"] = np.array(self.rejected, np.int64)
        state["refused_controls"] = np.array(self.refused, np.int64)
        return {name: array.tobytes() for name, array in state.items()}


def check_world(world: "World") -> None:
    """All invariants, once everything is quiet; adds to the notes what does not hold."""
    problems = world.notes.problems
    if world.notes.forks and Fault.TAIL not in world.network.happened:
        problems.append(f"{world.notes.forks} rebuilt though nothing was lost")
    problems += _undone(world)
    problems += world.notes.losses.problems(world)
    problems += _remade(world)
    for worker in world.workers:
        problems += [f"{worker.name} lost {e!r}" for e in worker.loop.failed_tasks()]
    for log in world.store.logs.values():
        truth = Truth(log, world.kind_of(log.id))
        acked = [a for a in world.notes.acked if a.incarnation == log.incarnation]
        problems += _history(log, truth, acked)
        problems += _keys(truth)
        seqs = [snapshot.seq for snapshot in log.snapshots]
        if seqs != sorted(set(seqs)):
            problems.append(f"{log.id}: a snapshot took the place of a newer one: {seqs}")
        for one in acked:
            problems += _answer(log, truth, one)
        problems += _unlearned(log, truth, world.kind_of(log.id))
        problems += _quarantine(log, truth)
        problems += _retained(log, truth)
        problems += _audited(log, truth)
        problems += [f"{log.id}: version {name!r} is of what was lost" for name in log.misnamed]
        problems += truth.problems
        problems += _copies(log, truth, world.kind_of(log.id))
        problems += refit_problems(log, truth.controls, truth.verdicts, truth.windows)
        problems += late_problems(log, world.notes.late, truth.late)
        expected = truth.state()
        for name, model in world.notes.settled:
            if model.record.id == log.id:
                problems += _state(name, model, log, expected)


def _remade(world: "World") -> Iterator[str]:
    """Whatever was deleted is made again."""
    for model_id in world._kinds:
        if model_id not in world.store.logs:
            yield f"{model_id} is gone, which was made last"


def _undone(world: "World") -> Iterator[str]:
    """What was said not to be done is not journalled, nor ever was.

    A message that comes twice may have met an outage at first.
    """
    if Fault.TWICE in world.network.happened:
        return
    undone = {tag for tag, is_undone in world.notes.undone.items() if is_undone}
    for log in [*world.store.gone, *world.store.logs.values()]:
        for tag in undone & tags_in([*log.whole, *log.cut]):
            yield f"{log.id}: the rows {tag} are journalled, of which nothing was said to be done"


def _history(log: Log, truth: Truth, acked: Sequence[Acked]) -> list[str]:
    """Acknowledged is journalled once, unless it was among what was lost."""
    lost = tags_in(log.cut)
    kept = [
        Acknowledged(one.tag, one.receipt.placed.seq, one.receipt.placed.count)
        for one in acked
        if one.tag is not None and one.tag not in lost and not one.receipt.placed.conflict
    ]
    everything = _Sent()
    try:
        check_entries(
            log.whole,
            log.incarnation,
            kept,
            tags_of=models.tags_of,
            sent=everything,
            samples=truth.learned,
            rejected=truth.refused_rows,
        )
    except HistoryBroken as broken:
        return [f"{log.id}: {problem}" for problem in broken.report.problems]
    return []


def _copies(log: Log, truth: Truth, kind: models.Kind) -> list[str]:
    """Versions, and what was gone back to, are what the journal makes of its records up to there.

    A version of records that were lost is still one: of those nothing can be said here. What was
    gone back to by a seq, or by a pause, is of the records that there are.
    """
    problems = [
        f"{log.id}: the copy {digest[:8]} is gone" for digest in log.named - set(log.stored)
    ]
    ends = {0: first_chain(log.incarnation)} | {entry.seq: entry.chain for entry in log.whole}
    for digest, seq in truth.copies.items():
        data = log.ever_stored[digest]
        found, at, chain = read_copy(data, digest, kind.resolved, log.incarnation)
        if at != seq:
            problems.append(f"{log.id}: the copy {digest[:8]} of seq {seq} has seq {at}")
        may_be_lost = ends.get(at) != chain and (at in ends or log.cuts)
        if at not in truth.states or may_be_lost and digest not in truth.made_here:
            continue
        then = truth.states[at]
        arrays = {name: array.tobytes() for name, array in found.arrays().items()}
        wrong = [name for name in then if arrays[name] != then[name]]
        problems += [f"{log.id}: the copy of seq {at} is wrong: {', '.join(wrong)}"] * bool(wrong)
    return problems


class _Sent(dict[Hashable, int]):
    """How many rows each request brings: all of them may have come, none of them twice."""

    def get(self, tag: Any, default: Any = None) -> Any:
        return models.size_of(tag)


def tags_in(entries: Sequence[Entry]) -> set[int]:
    """The tags of all rows in some entries."""
    _, blocks = decode_merged(b"".join(entry.body for entry in entries))
    return {
        tag for block in blocks if not isinstance(block, Control) for tag in models.tags_of(block)
    }


def _keys(truth: Truth) -> list[str]:
    """Each key stands in the journal once."""
    counts = Counter(header.key for header in truth.headers if header.key is not None)
    return [f"{key!r} is journalled {n} times" for key, n in counts.items() if n > 1]


def _answer(log: Log, truth: Truth, acked: Acked) -> list[str]:
    """What a client was told of its rows or its control is what the journal makes of them."""
    placed, receipt = acked.receipt.placed, acked.receipt
    if placed.conflict or placed.duplicate or log.was_cut_below(placed.seq, acked.began):
        return []
    if isinstance(acked.request, ControlRequest):
        there, asked = truth.controls.get(placed.seq), acked.request.control
        if there is None or (there.kind, there.fields) != (asked.kind, asked.fields):
            return [f"{log.id}: the control acknowledged at seq {placed.seq} is not there"]
        if receipt.verdict is not None:
            told, true = receipt.verdict.refusal, truth.verdicts[placed.seq].refusal
            if told != true:
                return [f"{log.id}: at seq {placed.seq} {told!r} was told, it is {true!r}"]
        return []
    if placed.count != acked.request.part.count:
        return [f"{log.id}: {placed} for {acked.request.part.count} rows"]
    place = slice(placed.first_seq - 1, placed.seq)
    if receipt.scores is not None and not _same(receipt.scores, truth.scores[place]):
        return [f"{log.id}: other scores were told for {placed}"]
    if receipt.losses is not None and not _same(receipt.losses, truth.losses[place]):
        return [f"{log.id}: other losses were told for {placed}"]
    return []


def _same(told: Sequence[float], true: Sequence[float]) -> bool:
    """Rows that were set aside have NaN."""
    return told == true or np.array_equal(told, true, equal_nan=True)


def _unlearned(log: Log, truth: Truth, kind: models.Kind) -> list[str]:
    """What was unlearned is not in the store: the journal's part that held it, nor snapshots."""
    last = truth.retained.unlearned_seq
    snapshots = [snapshot.seq for snapshot in log.snapshots if snapshot.seq < last]
    entries = [entry.seq for entry in log.entries if entry.seq < last]
    copies = [
        at
        for digest, data in log.stored.items()
        if (at := read_copy(data, digest, kind.resolved, log.incarnation)[1]) < last
    ]
    if snapshots or entries or copies:
        kept = f"snapshots {snapshots}, entries {entries}, copies {copies}"
        return [f"{log.id}: from before {last} are kept: {kept}"]
    return []


def _quarantine(log: Log, truth: Truth) -> list[str]:
    """Rows that were set aside are there to be learned yet, and no state has them already."""
    if truth.twice:
        return [f"{log.id}: learned twice are the rows at {sorted(truth.twice)}"]
    pauses = None if truth.guarding is None else truth.guarding.pauses
    if pauses is None or not pauses.is_paused or log.trimmed <= pauses.held_from:
        return []
    return [f"{log.id}: rows are held from {pauses.held_from}, and kept from {log.trimmed}"]


def _retained(log: Log, truth: Truth) -> Iterator[str]:
    """Each row whose id is known is the one of its age that the learner retains."""
    if not truth.late:
        return
    ring, ids = truth.learner.state(), truth.retained.state()
    tags = (ring["ring_values"][ring["ring_indptr"][:-1]] * models.SCALE).astype(int).tolist()
    for age, seq in zip(ids["ages"].tolist(), ids["seqs"].tolist(), strict=True):
        if age >= len(tags) or tags[-1 - age] != truth.late[seq].tag:
            yield f"{log.id}: the row at seq {seq} is not the one of age {age} of {tags}"


def _audited(log: Log, truth: Truth) -> list[str]:
    """The log of changes tells of each control that is journalled, once, and of no other.

    Of refits it tells of those that somebody asked for.
    """
    told = [one.seq for one in log.changes if one.change.action in KINDS]
    controls = [seq for seq, one in truth.controls.items() if one.kind != "refit" or seq in told]
    if told != controls:
        return [f"{log.id}: told are controls at {told}, journalled at {controls}"]
    return []


def _state(name: str, model: Model, log: Log, expected: dict[str, bytes]) -> list[str]:
    """A worker's replica stands at the journal's end, with the bits of the one learner."""
    replica = model.replica
    if (replica.incarnation, replica.seq, replica.chain) != (log.incarnation, log.seq, log.chain):
        return [
            f"{name} holds {log.id} at seq {replica.seq} {replica.chain[:8]},"
            f" the journal ends at {log.seq} {log.chain[:8]}"
        ]
    found = replica.state.arrays()
    wrong = [key for key in expected if key not in found or found[key].tobytes() != expected[key]]
    return [f"{name} has other bits of {log.id} at seq {log.seq}: {', '.join(wrong)}"] * bool(wrong)
