"""What must hold for all workers together, once everything is quiet."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dualstream.service.features import ALL
from dualstream.service.features.guard.state import Guarding
from dualstream.service.features.unlearning.state import RetainedIds
from dualstream.service.journal.chain import first_chain
from dualstream.service.journal.protocol import Entry
from dualstream.service.journal.record import Control, KeyKind, Rows, decode_merged, make_key
from dualstream.service.models.model import Model
from dualstream.service.replica.requests import ControlRequest
from dualstream.service.replica.state import read_copy
from tests.history import Acknowledged, HistoryBroken, check_entries
from tests.simulation import models
from tests.simulation.client import Unforeseen
from tests.simulation.faults import Fault
from tests.simulation.late import history_problems, late_problems
from tests.simulation.log import Log
from tests.simulation.notes import Acked
from tests.simulation.refits import refit_problems
from tests.simulation.truth import Truth

if TYPE_CHECKING:
    from tests.simulation.world import World


def check_world(world: "World") -> None:
    """All invariants, once everything is quiet; adds to the notes what does not hold."""
    problems = world.notes.problems
    if world.notes.forks and Fault.TAIL not in world.network.happened:
        problems.append(f"{world.notes.forks} rebuilt though nothing was lost")
    problems += _undone(world)
    problems += world.notes.losses.problems(world)
    problems += _remade(world)
    for worker in world.workers:
        problems += [
            f"{worker.name} lost {error!r}"
            for error in worker.loop.failed_tasks()
            if not isinstance(error, Unforeseen)
        ]
    for log in world.store.logs.values():
        truth = Truth(log, world.kind_of(log.id))
        acked = [a for a in world.notes.acked if a.incarnation == log.incarnation]
        revised = {tag for made, tag in world.notes.late.revised if made == log.incarnation}
        problems += _history(log, truth, acked, revised)
        problems += _keys(truth, {make_key(KeyKind.LABEL, str(tag)) for tag in revised})
        problems += _wholes(log, {tag for id, tag in world.notes.wholes if id == log.id})
        seqs = [snapshot.seq for snapshot in log.snapshots]
        if seqs != sorted(set(seqs)):
            problems.append(f"{log.id}: a snapshot took the place of a newer one: {seqs}")
        for one in acked:
            problems += _answer(log, truth, one)
        problems += _unlearned(log, truth.parts.forgotten_seq, world.kind_of(log.id))
        problems += _quarantine(log, truth)
        problems += _retained(log, truth)
        problems += _audited(log, truth)
        problems += [f"{log.id}: version {name!r} is of what was lost" for name in log.misnamed]
        problems += truth.problems
        problems += _copies(log, truth, world.kind_of(log.id))
        problems += refit_problems(log, truth.controls, truth.control_outcomes, truth.windows)
        problems += late_problems(log, world.notes.late, truth.late)
        if world.kind_of(log.id).has_history:
            problems += history_problems(log, truth.late, truth.observed)
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
            yield f"{log.id}: the rows {tag} are journalled, but all responses deny it"


def _history(log: Log, truth: Truth, acked: Sequence[Acked], revised: Collection[int]) -> list[str]:
    """Acknowledged is journalled once, unless it was among what was lost."""
    lost = tags_in(log.cut)
    kept = [
        Acknowledged(one.tag, one.receipt.position.seq, one.receipt.position.count)
        for one in acked
        if one.tag is not None and one.tag not in lost and not one.receipt.position.conflict
    ]
    everything = _Sent(dict.fromkeys(revised, MOST_LABELS))
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
        result, at, chain = read_copy(data, digest, kind.resolved, log.incarnation, ALL.parts)
        if at != seq:
            problems.append(f"{log.id}: the copy {digest[:8]} of seq {seq} has seq {at}")
        may_be_lost = ends.get(at) != chain and (at in ends or log.cuts)
        if at not in truth.states or may_be_lost and digest not in truth.made_here:
            continue
        then = truth.states[at]
        arrays = {name: array.tobytes() for name, array in result.arrays().items()}
        wrong = [name for name in then if arrays[name] != then[name]]
        problems += [f"{log.id}: the copy of seq {at} is wrong: {', '.join(wrong)}"] * bool(wrong)
    return problems


MOST_LABELS = 100
"""Records of a row whose label is revised again and again."""


class _Sent(dict[Hashable, int]):
    """How many rows each request brings: all of them may have come, none of them twice."""

    def get(self, tag: Any, default: Any = None) -> Any:
        if tag in self:
            return self[tag]
        return models.size_of(tag) if tag > 0 else 1


def tags_in(entries: Sequence[Entry]) -> set[int]:
    """The tags of all rows in some entries."""
    _, blocks = decode_merged(b"".join(entry.body for entry in entries))
    return {
        tag for block in blocks if not isinstance(block, Control) for tag in models.tags_of(block)
    }


def _wholes(log: Log, tags: set[int]) -> Iterator[str]:
    """Rows that are journalled whole or not at all are in one entry."""
    for entry in log.whole:
        _, blocks = decode_merged(entry.body)
        rows = [tag for block in blocks if isinstance(block, Rows) for tag in models.tags_of(block)]
        for tag in tags.intersection(rows):
            if rows.count(tag) != models.size_of(tag):
                yield f"{log.id}: of the rows {tag} {rows.count(tag)} are journalled alone"


def _keys(truth: Truth, revised: Collection[bytes]) -> list[str]:
    """Each key is in the journal once, except those of labels that were revised."""
    keys = (header.key for header in truth.headers if header.key not in revised)
    counts = Counter(key for key in keys if key is not None)
    return [f"{key!r} is journalled {n} times" for key, n in counts.items() if n > 1]


def _answer(log: Log, truth: Truth, acked: Acked) -> list[str]:
    """The response about rows or a control is what the journal makes of them."""
    placement, receipt = acked.receipt.position, acked.receipt
    if placement.conflict or placement.duplicate or log.was_cut_below(placement.seq, acked.began):
        return []
    if isinstance(acked.request, ControlRequest):
        there, request = truth.controls.get(placement.seq), acked.request.control
        if there is None or (there.kind, there.fields) != (request.kind, request.fields):
            return [f"{log.id}: the control acknowledged at seq {placement.seq} is not there"]
        got, true = receipt.control_outcome, truth.control_outcomes[placement.seq]
        if got is None:
            return [f"{log.id}: no outcome was returned for the control at {placement.seq}"]
        if (got.refusal, got.rows) != (true.refusal, true.rows):
            return [
                f"{log.id}: at seq {placement.seq} the response was {got!r}, the truth is {true!r}"
            ]
        return []
    if placement.count != acked.request.parts[0].count:
        return [f"{log.id}: {placement} for {acked.request.parts[0].count} rows"]
    position = slice(placement.first_seq - 1, placement.seq)
    if receipt.scores is not None and not _same(receipt.scores, truth.scores[position]):
        return [f"{log.id}: the response has other scores for {placement}"]
    if receipt.losses is not None and not _same(receipt.losses, truth.losses[position]):
        return [f"{log.id}: the response has other losses for {placement}"]
    return []


def _same(got: Sequence[float], true: Sequence[float]) -> bool:
    """Rows that were set aside have NaN."""
    return got == true or np.array_equal(got, true, equal_nan=True)


def _unlearned(log: Log, last: int, kind: models.Kind) -> list[str]:
    """What was unlearned is not in the store: the journal's part that held it, nor snapshots."""
    if not last:
        return []
    snapshots = [snapshot.seq for snapshot in log.snapshots if snapshot.seq < last]
    entries = [entry.seq for entry in log.entries if entry.seq < last]
    copies = [
        at
        for digest, data in log.stored.items()
        if (at := read_copy(data, digest, kind.resolved, log.incarnation, ALL.parts)[1]) < last
    ]
    if snapshots or entries or copies:
        kept = f"snapshots {snapshots}, entries {entries}, copies {copies}"
        return [f"{log.id}: from before {last} are kept: {kept}"]
    return []


def held_unclean(world: "World") -> list[str]:
    """A process that has loaded a model removes unlearned samples from the store."""
    problems = []
    for log in world.store.logs.values():
        kept = [model for worker in world.workers if (model := worker.cached(log)) is not None]
        for model in kept[:1]:
            unlearned_seq = model.replica.parts.forgotten_seq
            problems += _unlearned(log, unlearned_seq, world.kind_of(log.id))
    return problems


def left_forked(world: "World") -> Iterator[str]:
    """A replica that refuses as forked is being rebuilt, or was evicted."""
    for worker in world.workers:
        for model in worker.registry if worker.is_alive else ():
            if model.replica.is_forked and model.is_idle:
                yield f"{worker.name} is left forked with {model.record.id}"


def left_behind(world: "World") -> Iterator[str]:
    """Every follower is at the journal's end, though no client sends it anything."""
    for worker in world.workers if world.is_followed else ():
        for model in worker.registry if worker.is_alive else ():
            log, replica = world.store.logs.get(model.record.id), model.replica
            if log is None or log.incarnation != replica.incarnation:
                yield f"{worker.name} still holds a {model.record.id} that is gone"
            elif replica.chain != log.chain:
                yield f"{worker.name} is left behind with {log.id} at seq {replica.seq}"


def _quarantine(log: Log, truth: Truth) -> list[str]:
    """Rows that were set aside are there to be learned yet, and no state has them already.

    Unless the end of their pause was lost, by which they were let go.
    """
    if truth.twice:
        return [f"{log.id}: learned twice are the rows at {sorted(truth.twice)}"]
    guarding = truth.parts.find(Guarding)
    pauses = None if guarding is None else guarding.pauses
    if pauses is None or not pauses.is_paused or log.trimmed <= pauses.held_from:
        return []
    if any(kept >= pauses.since for _, kept in log.cuts):
        return []
    return [f"{log.id}: rows are held from {pauses.held_from}, and kept from {log.trimmed}"]


def _retained(log: Log, truth: Truth) -> Iterator[str]:
    """Each row whose id is known is the one of its age that the learner retains.

    After a rollback to a version of lost rows, other rows have their seqs.
    """
    has_gone_back = any(control.kind == "rollback" for control in truth.controls.values())
    if not truth.late or (log.cuts and has_gone_back):
        return
    retained = truth.parts.find(RetainedIds)
    ids = {} if retained is None else retained.arrays()
    if not ids:
        return
    ring = truth.learner.state()
    tags = (ring["ring_values"][ring["ring_indptr"][:-1]] * models.SCALE).astype(int).tolist()
    for age, seq in zip(ids["retained.ages"], ids["retained.seqs"], strict=True):
        if age >= len(tags) or tags[-1 - age] != truth.late[seq].tag:
            yield f"{log.id}: the row at seq {seq} is not the one of age {age} of {tags}"


def _audited(log: Log, truth: Truth) -> list[str]:
    """The audit log has each journalled control once, and no other.

    It has the refits that a client requested.
    """
    got = [one.seq for one in log.changes if one.change.action in ALL.kinds]
    controls = [seq for seq, one in truth.controls.items() if one.kind != "refit" or seq in got]
    if got != controls:
        return [f"{log.id}: told are controls at {got}, journalled at {controls}"]
    return []


def _state(name: str, model: Model, log: Log, expected: dict[str, bytes]) -> list[str]:
    """A worker's replica is at the journal's end and has the bits of the one learner."""
    replica = model.replica
    if (replica.incarnation, replica.seq, replica.chain) != (log.incarnation, log.seq, log.chain):
        return [
            f"{name} holds {log.id} at seq {replica.seq} {replica.chain[:8]},"
            f" the journal ends at {log.seq} {log.chain[:8]}"
        ]
    result = replica.state.arrays()
    wrong = [key for key in expected if key not in result or result[key].tobytes() != expected[key]]
    return [f"{name} has other bits of {log.id} at seq {log.seq}: {', '.join(wrong)}"] * bool(wrong)
