"""Learning under a guard, compared with a model that learns row by row and keeps every state.

Any split of the journal, from its beginning or from any snapshot, gives the same bits. What is
learned is what a manual application of the rules learns.
"""

import random
from typing import Any

import numpy as np
import pytest

import dualstream.service.features.guard.quarantine
from dualstream.service.features import ALL
from dualstream.service.features.guard.controls import Pause, Resume
from dualstream.service.features.guard.quarantine import learn_quarantined
from dualstream.service.features.guard.rollback import _last_good
from dualstream.service.features.guard.state import Guarding
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.replica.copies import Rollback
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest, Request
from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.evaluation.guard.monitor import Guard
from tests.service.replica.snapshot_damage import SPEC, Kept, bits, run

FIELDS = {"every": 5, "patience": 2, "history": 200, "after": 25}
GUARDED = SPEC | {"guard": {"mode": "pause", **FIELDS}}


def some_rows(rng: random.Random, count: int, bad: bool) -> Batch:
    x = np.random.default_rng(rng.getrandbits(32)).standard_normal((count, 5))
    y = np.where(x[:, 0] > 0, 1.0, -1.0)
    return Batch.from_dense(3.0 * x, -y if bad else y)


class ByHand:
    """The rules, row by row: nothing is clever, and every state is kept."""

    def __init__(self) -> None:
        spec = resolve_spec(GUARDED)
        self.learner, self.guard = make_learner(spec), Guard(spec)
        self.seq = self.since = self.held_from = 0
        self.rows: dict[int, Batch] = {}
        self.states = {0: self.state()}

    def state(self) -> Any:
        return self.learner.state(), self.guard.state()

    def go_back(self, seq: int) -> None:
        for part, state in zip((self.learner, self.guard), self.states[seq], strict=True):
            part.restore(state)
        self.guard.acknowledge(self.seq)

    def learn(self, batch: Batch) -> list[bool]:
        """Whether each row was set aside."""
        results = []
        for n in range(len(batch)):
            self.seq += 1
            self.rows[self.seq] = batch[n : n + 1]
            results.append(self.since > 0)
            if not self.since:
                self.guard.count(self.learner.learn(batch[n : n + 1]))
                if trips := self.guard.look(self.learner, self.seq):
                    self.held_from, self.since = min(t.calm_seq for t in trips), self.seq
            self.states[self.seq] = self.state()
        return results

    def control(self, order: Any) -> None:
        self.seq += 1
        if isinstance(order, Pause | Rollback):
            self.go_back(order.seq)
        elif isinstance(order, Resume):
            if order.rows == "learn":
                for seq in range(self.held_from + 1, self.seq):
                    if seq in self.rows:
                        self.learner.learn(self.rows[seq])
                self.guard.reset(self.seq)
            else:
                self.guard.acknowledge(self.seq)
            self.since = self.held_from = 0
        self.states[self.seq] = self.state()

    def agrees(self, replica: Replica) -> None:
        for mine, other in (
            (self.learner.state(), replica.learner.state()),
            (self.guard.state(), replica.parts.find(Guarding).guard.state()),
        ):
            assert {n: a.tobytes() for n, a in mine.items()} == {
                n: a.tobytes() for n, a in other.items()
            }
        assert (self.seq, self.since) == (replica.seq, replica.parts.find(Guarding).pauses.since)


async def rollback_of(kept: Kept) -> Pause:
    """As the worker that saw the trip makes it, of whatever is in the store."""
    pauses = kept.replica.parts.find(Guarding).pauses
    record = await kept.journal.get("m")
    good = await _last_good(
        kept.replica.features, kept.journal, record, pauses.held_from, pauses.since
    )
    copy = good.capture().as_copy()
    return Pause(pauses.since, copy.seq, await kept.journal.copy_put(*kept.where, copy.data))


async def order(kept: Kept, order: Any, key: bytes | None = None) -> Any:
    return await kept.committer.submit(ControlRequest.of(order, key))


async def live_through(kept: Kept, seed: int) -> tuple[int, int]:
    """How often learning paused and went on."""
    rng = random.Random(seed)
    by_hand, laggard, snapshots = ByHand(), Replica(kept.record, ALL), []
    trips = resumed = 0
    phases = [(40, False), (30, True), (30, False), (25, True), (30, False), (30, True)]
    for left, bad in phases:
        while left > 0:
            count = rng.randint(1, 12)
            left -= count
            batch = some_rows(rng, count, bad)
            receipt = await kept.committer.submit(Request.of(batch, None, None))
            set_aside = by_hand.learn(batch)
            assert receipt.set_aside == sum(set_aside)
            by_hand.agrees(kept.replica)
            pauses = kept.replica.parts.find(Guarding).pauses
            if pauses.is_paused:  # a worker that lags keeps its entries
                assert laggard.parts.kept_after(laggard.seq, laggard.seq) <= pauses.held_from
            if pauses.needs_rollback and rng.random() < 0.5:
                trips += 1
                pause = await rollback_of(kept)
                assert pause.seq == by_hand.held_from == pauses.held_from
                await order(kept, pause)
                by_hand.control(pause)
                # A second worker's is refused, and changes nothing.
                again = await order(kept, pause)
                assert again.control_outcome.refusal is not None
                by_hand.seq += 1
            elif pauses.is_paused and pauses.is_settled and rng.random() < 0.4:
                resume = Resume(pauses.since, rng.choice(["learn", "drop"]))
                receipt = await order(kept, resume)
                assert receipt.control_outcome.refusal is None
                by_hand.control(resume)
                resumed += 1
            by_hand.agrees(kept.replica)
            if rng.random() < 0.2:
                snapshots.append(kept.replica.capture().encode())
            if rng.random() < 0.2:
                await laggard.catch_up(kept.journal)
    await laggard.catch_up(kept.journal)
    assert bits(laggard) == bits(kept.replica) == bits(await kept.fresh())
    for snapshot in snapshots:
        replica = Replica(kept.record, ALL)
        replica.restore(snapshot)
        await replica.catch_up(kept.journal)
        assert bits(replica) == bits(kept.replica)
    await kept.journal.delete("m")
    return trips, resumed


def test_every_replica_learns_what_is_learned_by_hand(store):
    pauses = resumed = 0
    for seed in range(4 if store.startswith("sqlite") else 2):
        got = run(store, lambda kept, seed=seed: live_through(kept, seed), GUARDED)
        pauses, resumed = pauses + got[0], resumed + got[1]
    assert pauses and resumed


async def until_paused(kept: Kept) -> Any:
    """40 good rows and then bad ones, one by one; the pause that comes of it."""
    await kept.committer.submit(Request.of(some_rows(random.Random(1), 40, False), None, None))
    for n in range(60):
        pauses = kept.replica.parts.find(Guarding).pauses
        if pauses.is_paused:
            return pauses
        bad = some_rows(random.Random(n), 1, True)
        bad = Batch.from_dense(10.0 * bad.values.reshape(1, 5), bad.labels)
        await kept.committer.submit(Request.of(bad, None, None))
    raise AssertionError("it did not trip")


class Failing:
    """A journal that is away from some read on."""

    def __init__(self, journal: Any, reads: int) -> None:
        self._journal, self._left = journal, reads

    async def read(self, *args: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise JournalUnavailable("it is away")
        return await self._journal.read(*args)


def test_a_quarantine_is_learned_piece_by_piece(store, monkeypatch):
    """The bits are those of learning it as a whole, and a piece that is missing changes nothing."""
    pieces = []

    def learn_piece(copy: Replica, entries: Any) -> int:
        pieces.append(len(entries))
        return learn_quarantined(copy, entries)

    monkeypatch.setattr(
        dualstream.service.features.guard.quarantine, "learn_quarantined", learn_piece
    )

    async def scenario(kept: Kept) -> None:
        pauses = await until_paused(kept)
        await order(kept, await rollback_of(kept))
        for _ in range(12):
            await kept.learn(3)
        stored = kept.replica.seq - pauses.held_from - 1  # a control among them
        laggard = await kept.fresh()
        snapshot = kept.replica.capture().encode()
        got = await order(kept, Resume(pauses.since, "learn"))
        assert got.control_outcome.rows == stored and len(pieces) == 1
        monkeypatch.setattr(dualstream.service.features.guard.quarantine, "READ_BYTES", 1)
        before = bits(laggard)
        with pytest.raises(JournalUnavailable):
            await laggard.catch_up(Failing(kept.journal, 5))
        assert bits(laggard) == before and len(pieces) == 1 + 4
        await laggard.catch_up(kept.journal)
        assert set(pieces[1:]) == {1} and len(pieces) > 1 + 4 + 12
        assert bits(laggard) == bits(kept.replica) == bits(await kept.fresh())
        restored = Replica(kept.record, ALL)
        restored.restore(snapshot)
        await restored.catch_up(kept.journal)
        assert bits(restored) == bits(kept.replica)

    run(store, scenario, GUARDED)


def test_rows_that_a_state_has_are_not_learned_from_the_quarantine_once_more(tmp_path):
    async def scenario(kept: Kept) -> None:
        pauses = await until_paused(kept)
        held_from = pauses.held_from
        tripped = kept.replica.capture().as_copy()  # as no rollback was done yet
        await order(kept, await rollback_of(kept))
        assert kept.replica.learner.samples == held_from < pauses.since
        digest = await kept.journal.copy_put(*kept.where, tripped.data)
        await order(kept, Rollback(digest, tripped.seq))
        pauses = kept.replica.parts.find(Guarding).pauses
        assert pauses.held_from == pauses.since == kept.replica.learner.samples
        await kept.learn(3)
        receipt = await order(kept, Resume(pauses.since, "learn"))
        assert receipt.control_outcome.rows == 3
        assert kept.replica.learner.samples == kept.replica.seq - 3  # and three controls
        assert bits(kept.replica) == bits(await kept.fresh())

    run(f"sqlite:///{tmp_path / 'g.db'}", scenario, GUARDED)
