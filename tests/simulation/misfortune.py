"""What befalls workers, their store and its models: at some moment, or while some call is made.

Most faults show where two things happen at once. Moments meet by chance what takes long; what is
done between two calls is met by what is aimed at the second.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch, Outcome
from tests.simulation.client import LASTS_S, REFUSALS, Client, Unforeseen
from tests.simulation.combined_failures import Stage
from tests.simulation.faults import HOP_S, NO_LAG, Fault, Lags

if TYPE_CHECKING:
    from tests.simulation.world import Worker, World

LAG_S = 0.04
"""A call that something is aimed at may be on its way so long."""
FAILS_EVERY, FAILS = 23, 0.1
"""One schedule of N has this share of learned slices fail in the middle of a row."""
MAKING_S = 0.02
"""A refit or a rollback is made in about that time."""
AIMED, HITS, MAX_HITS = 0.5, 0.8, 3
"""Share of schedules with failures aimed at calls, share of these calls, and the maximum."""

LearnRows = Callable[[Replica, Batch, int], Outcome]


class Misfortune:
    """All that befalls one world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._chance, self._at = world.chance, world.scheduler.at
        # Faults that take two misfortunes are found where one of them is frequent.
        self._losses = self._chance.choice((0.3, 0.5, 0.75))
        self._call, self._befall = self._chance.choice(self._aims())
        self._hits = MAX_HITS if self._chance.random() < AIMED else 0
        if self._hits and self._call == "read":
            world.store.answer_bytes = 1  # so that there is something between two of them
        self._failing = 0
        self._fails = FAILS if world.plot is None and not world.seed % FAILS_EVERY else 0.0
        self._others: list[asyncio.Task[None]] = []
        # What the next calls of some name meet, by worker, name and model.
        self._met: dict[tuple[str, str, str], list[tuple[Lags, Fault | None]]] = {}

    def plan(self) -> list["asyncio.Task[None]"]:
        """Let it come; what it returns ends once models that were deleted are there again."""
        for moment in self._moments(0.35):
            self._at(moment, self._crash, self._some_worker())
        for moment in self._moments(self._losses):
            self._at(moment, self._lose_tail, self._some_model())
        for moment in self._moments(0.15):
            self._at(moment, self._go_down)
        for moment in self._moments(0.5):
            self._at(moment, self._evict, self._some_worker(), self._some_model())
        for moment in self._moments(0.9):
            self._at(moment, self._spoil, self._some_model())
        others = [self.remake(at) for at in self._moments(0.2)]
        plot = self._world.plot
        if plot is not None:
            self._hits = 0
            others.append(plot.play(Stage(self, self._world)))
        return [self._outside(other) for other in others]

    def end(self) -> None:
        """Nothing new befalls them any more."""
        self._hits = 0
        self._fails, self._failing = 0.0, 0
        self._met.clear()

    async def others(self) -> None:
        """Wait for all that clients do because of something that befell them."""
        while self._others:
            await self._others.pop()

    def meet(
        self,
        worker: "Worker",
        call: str,
        model_id: str,
        lags: Lags = NO_LAG,
        fault: Fault | None = None,
        times: int = 1,
    ) -> None:
        """So it goes with the worker's next calls of this name, instead of what is aimed at it."""
        self._met[worker.name, call, model_id] = times * [(lags, fault)]

    def lag_of(self, worker: "Worker", call: str, model_id: str) -> Lags:
        """What is aimed at this call comes now; how long the call is on its way, and its answer."""
        met = self._met.get((worker.name, call, model_id))
        if met:
            lags, fault = met.pop()
            self._world.network.next = fault or self._world.network.next
            return lags
        if call != self._call or not self._hits or self._chance.random() > HITS:
            return NO_LAG
        self._hits -= 1
        if self._befall == self._cut_off:
            self._cut_off(worker, model_id)
            return NO_LAG
        lags = (LAG_S, 0.0)
        if self._chance.random() < 0.3:
            lags = NO_LAG
        elif self._befall in (self._remake_here, self._read_elsewhere, self._be_away):
            lags = (0.0, LAG_S)
        within = MAKING_S if call in ("refit", "go_back") else max(2 * HOP_S, *lags)
        self._at(within * self._chance.random(), self._befall, worker, model_id)
        return lags

    def fail_rows(self, times: int) -> None:
        """The next rows that are learned fail, this number of them."""
        self._failing = times

    def learn_rows(self, true: "LearnRows", replica: Replica, batch: Batch, seq: int) -> Outcome:
        """What a replica learns, and mostly counts."""
        fails = self._failing > 0 or (self._fails and self._chance.random() < self._fails)
        if fails:
            self._failing = max(0, self._failing - 1)
            self._world.tell(f"{replica.id} fails in the midst of the rows from seq {seq} on")
            replica.learner.learn(batch)
            raise Unforeseen("planted")
        return true(replica, batch, seq)

    def restart(self, worker: "Worker") -> None:
        if not worker.is_alive:
            self._world.tell(f"{worker.name} starts")
            worker.boot()

    def _aims(self) -> Sequence[tuple[str, Callable[["Worker", str], None]]]:
        """Calls, and what may happen to their callers: mostly calls about these kinds of models."""
        kinds = [self._world.kind_of(model_id) for model_id in self._world._kinds]
        if self._chance.random() < 0.3:
            pass
        elif any(kind.is_refitted for kind in kinds):
            lose = ("enter", "enter", "enter", "refit", "refit")
            return [("enter", self._cut_off), *self._losing(*lose)]
        elif any(kind.is_guarded for kind in kinds):
            return self._losing("control", "control", "control", "go_back")
        elif any(kind.names_rows for kind in kinds):
            others = [
                ("version_put", self._unlearn_here),
                ("copy_put", self._unlearn_here),
                ("snapshots_drop", self._travel_here),
            ]
            return [*others, *self._losing("snapshots_drop", "control")]
        lose = ("control", "read", "get", "go_back", "version_put", "snapshot_put")
        remake = [(call, self._remake_here) for call in ("append", "base", "read")]
        others = [("append", self._visit_here), ("append", self._read_elsewhere)]
        others += [("append", self._be_away)]
        return [*remake, *others, *self._losing(*lose)]

    def _losing(self, *calls: str) -> Sequence[tuple[str, Callable[["Worker", str], None]]]:
        return [(call, self._lose_here) for call in calls]

    # -- what there is to befall them ------------------------------------------------------------

    def _moments(self, probability: float) -> Iterator[float]:
        """When something happens, if it happens at all."""
        while self._chance.random() < probability:
            yield self._chance.random() * 1.5 * LASTS_S

    def _some_worker(self) -> "Worker":
        return self._chance.choice(self._world.workers)

    def _some_model(self) -> str:
        return self._chance.choice(list(self._world._kinds))

    def _outside(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self._world.outside.create_task(work)

    def _crash(self, worker: "Worker") -> None:
        self._world.network.happened.add(Fault.CRASH)
        worker.crash()
        self._at(self._chance.random() * LASTS_S / 3, self.restart, worker)

    def _evict(self, worker: "Worker", model_id: str) -> None:
        if worker.is_alive:
            self._world.tell(f"{worker.name} has no room for {model_id}")
            worker.loop.create_task(worker.evict(model_id))

    def _lose_here(self, worker: "Worker", model_id: str) -> None:
        self._lose_tail(model_id)

    def _lose_tail(self, model_id: str) -> None:
        log = self._world.store.logs.get(model_id)
        if log is not None and log.operations:
            count = min(self._chance.randint(1, 5), len(log.operations))
            self.lose(model_id, count, self._chance.random() < 0.5)

    def lose(self, model_id: str, count: int, with_snapshots: bool) -> None:
        """The log loses its last operations, and the snapshots that stand on them or not."""
        log = self._world.store.logs[model_id]
        log.lose(count, self._world.scheduler.steps, with_snapshots)
        self._world.network.happened.add(Fault.TAIL)
        self._world.tell(f"{model_id} is back at seq {log.seq} {log.chain[:8]}")
        self._visit(model_id)

    def _visit_here(self, worker: "Worker", model_id: str) -> None:
        self._visit(model_id)

    def _read_elsewhere(self, worker: "Worker", model_id: str) -> None:
        """Another process comes to the journal's end, and may write a snapshot there."""
        other = self._chance.choice([one for one in self._world.workers if one is not worker])
        if other.is_alive:
            other.loop.create_task(other.refresh_quietly(model_id))

    def _visit(self, model_id: str) -> None:
        self._others.append(self._outside(Client(self._world).visit(model_id)))

    def _spoil(self, model_id: str) -> None:
        log = self._world.store.logs.get(model_id)
        if log is not None and log.snapshots:
            log.spoil(self._chance.random())
            self._world.network.happened.add(Fault.ROT)
            self._world.tell(f"the newest snapshot of {model_id} is spoiled")

    def _go_down(self) -> None:
        self._world.network.is_down = True
        self._world.network.happened.add(Fault.OUTAGE)
        self._at(self._chance.random() * LASTS_S, self._come_up)

    def _be_away(self, worker: "Worker", model_id: str) -> None:
        self._go_down()

    def _cut_off(self, worker: "Worker", model_id: str) -> None:
        """What is being sent is done, but its sender gives up before it gets the answer."""
        self._world.network.next = Fault.UNANSWERED
        self._at(2 * HOP_S, self._go_down)

    def _come_up(self) -> None:
        self._world.network.is_down = False

    def _remake_here(self, worker: "Worker", model_id: str) -> None:
        self._others.append(self._outside(self.remake(0.0, model_id, worker)))

    async def remake(
        self, at: float, model_id: str | None = None, first: "Worker | None" = None
    ) -> None:
        """Delete a model and make it again; goes on until it is there."""
        await asyncio.sleep(at)
        model_id = model_id or self._some_model()
        self._world.network.happened.add(Fault.REMADE)
        while True:
            worker, first = first or self._some_worker(), None
            self._world.tell(f"{worker.name} makes {model_id} again")
            reply = worker.ask(lambda worker: worker.remake(model_id))
            if self._chance.random() < 0.5:  # the caller does not wait long
                self._at(self._chance.random() * 0.02, worker.leave, reply)
            try:
                return await reply
            except REFUSALS:
                await asyncio.sleep(0.02)

    def _travel_here(self, worker: "Worker", model_id: str) -> None:
        self._others.append(self._outside(Client(self._world).travel(model_id)))

    def _unlearn_here(self, worker: "Worker", model_id: str) -> None:
        self._others.append(self._outside(Client(self._world).unlearn(model_id)))
