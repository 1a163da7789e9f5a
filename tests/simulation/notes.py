"""What is seen while a schedule runs, and has to be so at each answer."""

from collections.abc import Hashable
from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING, Any

import numpy as np

from dualstream.service.features.certificate.reference_optimum import Reference, References, _solve
from dualstream.service.features.certificate.served_losses import ServedLosses
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.models.model import Model
from dualstream.service.replica.requests import AnyRequest, OutcomeForgotten, Receipt, Request
from dualstream.solvers.refit.refit import problems_of
from tests.simulation.late import LateNotes
from tests.simulation.log import Log
from tests.simulation.losses import LossNotes
from tests.simulation.store import Store

if TYPE_CHECKING:
    from tests.simulation.world import Worker


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
        """By tag: whether every response about it says that nothing was done."""
        self.losses = LossNotes(store)
        self.wholes: list[tuple[str, int]] = []
        """The tags of rows that are learned whole or not at all, by their models."""
        self.forks = 0
        self._shown: dict[Hashable, int] = {}
        self._scores: dict[Hashable, bytes] = {}

    def saw_answer(self, worker: "Worker", model: Model, receipt: Receipt, began: int) -> None:
        """At an answer the replica has learned what it acknowledges, with that outcome."""
        replica, placement = model.replica, receipt.position
        log = self.log_of(model)
        if log is None or placement.conflict:
            return
        position = (worker.name, worker.began, log.incarnation)
        self._shown[position] = max(placement.seq, self._shown.get(position, 0))
        self.losses.saw_standing(worker, log, replica.chain)
        if replica.seq < placement.seq:
            self.problems.append(
                f"{worker.name} acknowledged seq {placement.seq}, its replica is at {replica.seq}"
            )
        is_new = not placement.duplicate
        if is_new and receipt.scores is None and receipt.control_outcome is None:
            if log.covered < placement.first_seq and not log.was_cut_below(placement.seq, began):
                self.problems.append(f"{worker.name} does not know what came of {placement}")

    def saw_learned(
        self, worker: "Worker", model: Model, request: AnyRequest, receipt: Receipt
    ) -> None:
        """The replica has learned what it acknowledges, and no other rows with these seqs.

        This holds as far as it can know, which excludes entries before the snapshot that it loaded.
        """
        log, placement, replica = self.log_of(model), receipt.position, model.replica
        if log is None or not log.cuts or not isinstance(request, Request):
            return
        if placement.duplicate or placement.conflict or not placement.count:
            return
        if not replica.lineage.start <= placement.seq <= replica.seq:
            return
        entry = log.leading_to(replica.chain, placement.seq)
        if entry is not None and request.parts[0].body not in entry.body:
            self.problems.append(
                f"{worker.name} acknowledged {placement}, but other records are there"
            )

    def saw_reference(self, worker: "Worker", model: Model, result: Reference) -> None:
        """An optimum is of a window that the replica has had, and of that where it still stands."""
        replica, got = model.replica, f"{worker.name} reports {model.record.id} {result.position}"
        if not model.committer.is_idle or replica.is_forked:
            return  # it may be half way through some rows
        if not replica.lineage.includes(result.position.seq, result.position.chain):
            self.problems.append(f"{got}, but is at {replica.position}")
        elif result.position == replica.position and not model.job(References)._is_ending:
            kept = replica.parts.find(ServedLosses)
            losses = np.empty(0) if kept is None else kept.last(len(kept))
            again = _solve(result.position, problems_of(replica.learner), losses, lambda: False)
            # Of the same rows, which a rebuilding may have brought in another order.
            if not isclose(again.lower, result.lower) or not isclose(again.regret, result.regret):
                self.problems.append(f"{got}: {result.lower}, it is {again.lower}")

    def saw_forgotten(self, refusal: OutcomeForgotten, began: int) -> None:
        """No model has as many controls as outcomes are kept: an outcome is kept, or was lost."""
        if not any(log.was_cut_below(refusal.seq, began) for log in self._store.logs.values()):
            self.problems.append(f"nothing was lost, and told is: {refusal!r}")

    def saw_what_came_of(
        self, worker: "Worker", model: Model, receipt: Receipt, stood: str, began: int
    ) -> None:
        """A replica that is right before the entry of its own append reports its outcome.

        Nothing can come between, not even a snapshot: the replica has all that it needs to learn
        the entry. But an answer that arrives once the entry has been trimmed only holds its
        position.
        """
        log, placement = self.log_of(model), receipt.position
        if log is None or receipt.scores is not None or receipt.control_outcome is not None:
            return
        if placement.duplicate or placement.conflict or log.was_cut_below(placement.seq, began):
            return
        if log.trimmed >= placement.first_seq:
            return
        (entry,) = (one for one in log.entries if one.first_seq <= placement.seq <= one.seq)
        done = log.nonces[entry.nonce]
        if log.before[entry.chain] == stood and done.known == done.before and not done.left:
            self.problems.append(f"{worker.name} does not return the outcome of {placement}")

    def ended(self, model: Model) -> int:
        """How often the end of the model's log has become another one."""
        log = self.log_of(model)
        return 0 if log is None else len(log.ends)

    def saw_refresh(self, worker: "Worker", model: Model, ended: int) -> None:
        """After a refresh a replica is where the journal ended at some moment since its start."""
        log, replica = self.log_of(model), model.replica
        if log is not None and replica.chain not in log.ends[max(0, ended - 1) :]:
            self.problems.append(
                f"{worker.name} has refreshed {log.id} and is at {replica.seq} "
                f"{replica.chain[:8]}, where it has not ended since"
            )

    def saw_acknowledged(
        self, model: Model, tag: int, request: AnyRequest, receipt: Receipt, began: int
    ) -> None:
        """A client gets the position of its rows."""
        record = model.record
        self.acked.append(Acked(record.id, record.incarnation, tag, request, receipt, began))

    def saw_end(self, tag: int | None, refusal: BaseException | None) -> None:
        """A client was answered, or shown why not; None: he was answered."""
        if tag is not None:
            is_undone = isinstance(refusal, JournalUnavailable)
            self.undone[tag] = self.undone.get(tag, True) and is_undone

    def shown_by(self, worker: "Worker") -> dict[str, int]:
        """The last seq that this process has acknowledged, by incarnation."""
        return {
            incarnation: seq
            for (name, began, incarnation), seq in self._shown.items()  # type: ignore[misc]
            if (name, began) == (worker.name, worker.began)
        }

    def saw_prediction(
        self,
        worker: "Worker",
        model: Model,
        request: Hashable,
        seq: int,
        chain: str,
        scores: Any,
        got: dict[str, int],
    ) -> None:
        """Nothing forked is served once it could be known, and equal places have equal scores.

        `shown` is what the process had acknowledged when it was asked: it does not go back behind.
        """
        log = self.log_of(model)
        if log is None:
            return
        self.losses.saw_standing(worker, log, chain)
        later = got.get(log.incarnation, 0)
        if seq < later and not log.was_cut_below(later, worker.began):
            self.problems.append(f"{worker.name} serves seq {seq}, it had acknowledged {later}")
        previous = worker.connection.answered_at.get(log.incarnation, worker.began)
        died = log.died.get(chain, previous)
        if page := model.replica._applying:  # half of it may be learned
            previous = max(
                previous, worker.connection.read_at.get((log.incarnation, page[-1].seq), 0)
            )
            began = log.stood.get(chain, seq)
            of_page = [one.chain for one in page if began < one.first_seq <= seq]
            died = min(log.died.get(one, previous) for one in [chain, *of_page])
        if chain not in log.stood:
            self.problems.append(f"{worker.name} serves {chain[:8]}, which never was")
        elif died < previous:
            self.problems.append(
                f"{worker.name} serves seq {seq} {chain[:8]}, lost at step {died},"
                f" which it could know since step {previous}"
            )
        elif any(
            log.died.get(position.chain, asked_at) < asked_at and log.leads_past(position, chain)
            for incarnation, position, asked_at in worker.connection.unheld
            if incarnation == log.incarnation
        ):
            self.problems.append(f"{worker.name} serves what goes on from a place that is not held")
        elif log.stood[chain] == seq:
            position = (log.incarnation, seq, chain, request)
            if self._scores.setdefault(position, scores.tobytes()) != scores.tobytes():
                self.problems.append(f"{worker.name} predicts otherwise at seq {seq} {chain[:8]}")

    def log_of(self, model: Model) -> Log | None:
        log = self._store.logs.get(model.record.id)
        return log if log is not None and log.incarnation == model.record.incarnation else None
