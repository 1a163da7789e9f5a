"""One schedule from its seed: workers, their clients, and failures.

Workers run the service's registry, committers and replicas, each in an event loop of its own.
Clients live outside and never die; their responses are compared with the journal.
"""

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import dualstream.service.features.refits.job
import dualstream.service.features.refits.table
import dualstream.service.jobs.follower
import dualstream.service.models.compiled_specs
import dualstream.service.models.creation
import dualstream.service.models.model
import dualstream.service.models.readiness
import dualstream.service.models.registry
import dualstream.service.replica.groups
import dualstream.service.replica.replica
import dualstream.solvers.spec.make_learner
from dualstream.service.features import ALL, FEATURES
from dualstream.service.features.certificate.reference_optimum import References
from dualstream.service.features.feature import jobs_of
from dualstream.service.features.guard.controls import Resume
from dualstream.service.features.guard.rollback import GuardRollback
from dualstream.service.features.refits.job import Refits
from dualstream.service.features.refits.table import UnderWay
from dualstream.service.features.unlearning.cleanup import UnlearnCleanup
from dualstream.service.jobs.follower import Follower
from dualstream.service.journal.audit import SERVER
from dualstream.service.journal.protocol import ENTRY_BYTES, LogPosition, ModelChanged
from dualstream.service.models import creation
from dualstream.service.models.model import Model
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.versions import roll_back_to_seq, roll_back_to_version, take_version
from dualstream.service.replica.clock import Clock
from dualstream.service.replica.groups import BULK_ROWS
from dualstream.service.replica.requests import AnyRequest, ControlRequest, Receipt
from dualstream.service.settings import Settings
from dualstream.solvers import RefitError
from dualstream.wire.problem_json import Problem
from tests.simulation import models
from tests.simulation.asking import UNREADABLE_S, found, misread_share
from tests.simulation.checks import check_world, held_unclean, left_behind, left_forked
from tests.simulation.client import REFUSALS, Client
from tests.simulation.combined_failures import SNAPSHOT_EVERY, plot_of
from tests.simulation.faults import Connection, Fault, Network
from tests.simulation.late import DEFAULT_S, REMEMBER_S, sweep
from tests.simulation.log import Log
from tests.simulation.loop import Gone, Loop, Scheduler
from tests.simulation.misfortune import Misfortune
from tests.simulation.notes import Notes
from tests.simulation.refits import BEAT_S, LOST_MS, refit_all
from tests.simulation.store import Store

QUIET_S = 30.0
CALM_SWEEP_S = 2.0
APPEND_TIMEOUT_S = 0.1
SLOWNESS_S = 0.02
VERY_SLOW_S = (0.06, 0.02)
"""A look at the clock takes so long, and a thread's work at most, where few rows take long."""
BODY_S = 0.005
"""How long a body may be on its way when the model is already found."""
MODEL_BYTES = 10_000
"""What a model takes of memory, which has room for all of them."""
FULL_EVERY = 3
"""So often the memory of all workers is full."""
BULK_EVERY, FEW = 7, 3
"""So often so few rows are in bulk, and appended while others are learned."""
PAGE_BYTES = 400
"""Of one entry of some rows, where pages are small."""
FOLLOWED_EVERY, SWEEP_S = 29, 0.03
"""One schedule of N has workers that follow appends; seconds between two looks at the heads."""
HISTORY_EVERY, HISTORY_AT = 19, 17
"""One schedule of N has models with a history: those of seeds that find no planted fault else."""
CLEANED_WITHIN = 20
"""A store without faults is clean before it was looked at so often; retries take some seconds."""
REBUILDS = 5
"""So often a model may be found being rebuilt when all is quiet."""

Work = Callable[["Worker"], Awaitable[Any]]


@lru_cache
def settings_of(snapshot_every: int) -> Settings:
    """No request is refused for its waiting time: time passes while others are slow."""
    return Settings(store="memory", request_timeout_s=inf, snapshot_every=snapshot_every)


class Telemetry:
    """What a registry tells; nothing of it is needed here but the forks."""

    def __init__(self, notes: Notes, happened: set[Fault]) -> None:
        self._notes, self._happened = notes, happened
        self.lost = Counter[str]()
        """Records reported as lost, by model."""
        notes.losses.counted.append(self.lost)

    def saw_group(self, rows: int, seconds: float) -> None:
        pass

    def saw_fork(self, model: str) -> None:
        self._notes.forks += 1

    def saw_loss(self, model: str, records: int) -> None:
        self.lost[model] += records

    def saw_load(self, seconds: float) -> None:
        pass

    def saw_eviction(self) -> None:
        self._happened.add(Fault.EVICTED)

    def saw_delete(self, model: str) -> None:
        pass

    def saw_waiting(self, rows: dict[str, int]) -> None:
        pass

    def saw_expired(self, model: str, rows: int) -> None:
        pass

    def saw_default_labels(self, rows: int) -> None:
        pass

    def saw_refit(self, model: str, has_entered: bool) -> None:
        pass


class Worker:
    """A process with a registry; it may die at any of its awaits and be started again."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.is_alive = False
        self.boot()

    def boot(self) -> None:
        world = self.world
        self.is_alive = True
        self.began = world.scheduler.steps
        self.loop = Loop(world.scheduler)
        lag_of = partial(world.misfortune.lag_of, self)
        inputs = (self.loop, self.name, lag_of, self._stands_at)
        self.connection = Connection(world.network, *inputs)
        self.telemetry = Telemetry(world.notes, world.network.happened)
        self.registry = ModelRegistry(
            self.connection,
            world.settings,
            self.telemetry,  # type: ignore[arg-type]
            ALL,
            jobs_of(FEATURES),
            Clock(world.clock, world.nonce, world.clock),
        )
        self.startup = Readiness(self.registry)
        self.loop.create_task(self.startup.run())
        if world.is_followed:
            self.loop.create_task(Follower(self.registry, self.connection).run())
        self.asked: dict[asyncio.Future[Any], asyncio.Task[None]] = {}
        self.made: dict[str, str] = {}
        """The last incarnations that it has made, or found made, by their models."""

    def crash(self) -> None:
        if not self.is_alive:
            return
        self.world.tell(f"{self.name} crashes")
        self.is_alive = False
        self.loop.kill()
        for reply in self.asked:
            if not reply.done():
                reply.set_exception(Gone())

    def ask(self, work: Work) -> "asyncio.Future[Any]":
        """Let the worker do something for a client; the future is the client's."""
        reply = self.world.outside.create_future()
        if self.is_alive:
            self.asked[reply] = self.loop.create_task(self._answer(work, reply))
        else:
            reply.set_exception(Gone())
        return reply

    def leave(self, reply: "asyncio.Future[Any]") -> None:
        """The client hangs up."""
        if not reply.done() and self.is_alive:
            self.world.network.happened.add(Fault.HANGUP)
            self.asked[reply].cancel()
            reply.set_exception(Gone())

    async def _answer(self, work: Work, reply: "asyncio.Future[Any]") -> None:
        try:
            result = await work(self)
        except Exception as error:
            if not reply.done():
                reply.set_exception(error)
        else:
            if not reply.done():
                reply.set_result(result)

    # -- what the routes do ----------------------------------------------------------------------

    async def model(self, model_id: str) -> Model:
        self.startup.check_ready()
        return await found(self, self.registry.get, model_id)

    async def submit(self, model_id: str, request: AnyRequest) -> tuple[str, Receipt]:
        """The incarnation of the model, and the receipt."""
        began = self.world.scheduler.steps
        with self.registry.pinned(model_id):
            self.startup.check_ready()
            is_control = isinstance(request, ControlRequest)
            model = await found(self, self.registry.get, model_id)
            await asyncio.sleep(BODY_S * self.world.chance.choice((0, 0, 1)))
            if is_control:
                await self._refresh(model)
            stood = model.replica.chain
            receipt = await model.submit(request)
        self.world.notes.saw_answer(self, model, receipt, began)
        self.world.notes.saw_learned(self, model, request, receipt)
        self.world.notes.saw_what_came_of(self, model, receipt, stood, began)
        if self.world.is_full:
            self.let_go(model_id)
        return model.record.incarnation, receipt

    async def take_version(self, model_id: str, name: str) -> None:
        with self.registry.pinned(model_id):
            model = await self.model(model_id)
            await take_version(model, self.connection, name, "")

    async def go_back(self, model_id: str, to: str | int) -> tuple[str, ControlRequest, Receipt]:
        """To a version, or to a seq: the incarnation of the model, the order and the receipt."""
        began = self.world.scheduler.steps
        with self.registry.pinned(model_id):
            model = await self.model(model_id)
            await self._refresh(model)
            self.world.misfortune.lag_of(self, "go_back", model_id)
            go = roll_back_to_version if isinstance(to, str) else roll_back_to_seq
            order, receipt = await go(model, self.connection, to, None, b"")  # type: ignore[operator]
        self.world.notes.saw_answer(self, model, receipt, began)
        return model.record.incarnation, ControlRequest.of(order), receipt

    async def resume(
        self, model_id: str, rows: Literal["learn", "drop"], key: bytes | None = None
    ) -> tuple[str, ControlRequest, Receipt] | None:
        """As `go_back`; None where learning is not paused."""
        began = self.world.scheduler.steps
        with self.registry.pinned(model_id):
            model = await self.model(model_id)
            await self._refresh(model)
            await model.job(GuardRollback).settled()
            kept = await model.position()
            since = model.replica.parts.paused_since
            if not since:
                return None
            request = ControlRequest.of(Resume(since, rows), key, rows.encode(), held=kept)
            receipt = await model.submit(request)
        self.world.notes.saw_answer(self, model, receipt, began)
        return model.record.incarnation, request, receipt

    async def predict(self, model_id: str, request: int) -> None:
        got = self.world.notes.shown_by(self)
        with self.registry.pinned(model_id):
            model = await self.model(model_id)
            await asyncio.sleep(BODY_S * request)
            rows = models.asked_rows(model.replica.dim)[request]
            scores, seq, chain = await model.replica.predict(rows)
        self.world.notes.saw_prediction(self, model, request, seq, chain, scores, got)

    async def refit(self, model_id: str) -> None:
        with self.registry.pinned(model_id):
            model = await self.model(model_id)
            if model.replica.learner.samples:
                self.world.misfortune.lag_of(self, "refit", model_id)
                with contextlib.suppress(UnderWay):
                    await model.job(Refits).begin(
                        model.job(Refits).methods[0], models.TOL, by=SERVER
                    )

    async def refer(self, model_id: str) -> None:
        """Compute the optimum of the window, and compare it with the replica's lineage."""
        with self.registry.pinned(model_id):
            model = await self.model(model_id)
            with contextlib.suppress(RefitError):  # no row is retained
                result = await model.job(References).find()
                self.world.notes.saw_reference(self, model, result)

    async def refresh(self, model_id: str) -> None:
        with self.registry.pinned(model_id):
            await self._refresh(await self.model(model_id))

    async def refresh_quietly(self, model_id: str) -> None:
        """As the follower does, which has no client to report an error to."""
        with contextlib.suppress(*REFUSALS):
            await self.refresh(model_id)

    async def evict(self, model_id: str) -> None:
        """Evict as if memory were full, and sometimes request the model right after."""
        if self.let_go(model_id):
            with contextlib.suppress(*REFUSALS):
                if self.world.chance.random() < 0.5:
                    await self.model(model_id)

    def cached(self, log: Log) -> Model | None:
        """The model, if it is cached and at the end of its log."""
        model = self.registry.cache.find(log.id) if self.is_alive else None
        return model if model is not None and model.replica.chain == log.chain else None

    def _stands_at(self, model_id: str) -> LogPosition | None:
        model = self.registry.find(model_id)
        if model is None or model.replica.seq != model.replica.lineage.end:
            return None
        return LogPosition(model.replica.seq, model.replica.chain)

    def let_go(self, model_id: str) -> bool:
        """Whether the model was held and may leave memory."""
        kept = self.registry.cache
        model = kept.find(model_id)
        if model is None or not kept._may_go(model):
            return False
        kept._begin_eviction(model)
        return True

    async def _refresh(self, model: Model) -> None:
        began, notes = self.world.scheduler.steps, self.world.notes
        ended = notes.ended(model)
        await model.refresh()
        notes.saw_refresh(self, model, ended)
        previous = self.connection.answered_at
        previous[model.record.incarnation] = max(began, previous.get(model.record.incarnation, 0))

    async def remake(self, model_id: str) -> None:
        kind = self.world.kind_of(model_id)
        with contextlib.suppress(Problem):
            await creation.delete(self.registry, model_id)
        gone = {log.incarnation for log in self.world.store.gone}
        model, is_new = await creation.create(self.registry, model_id, kind.given)
        if is_new and model.record.incarnation in gone:
            problem = f"{self.name} made {model_id}, and holds one that was gone before"
            self.world.notes.problems.append(problem)
        self.made[model_id] = max(model.record.incarnation, self.made.get(model_id, ""))

    async def reach(self, model_id: str) -> Model:
        """Bring the model to the journal's end, and wait for its clean-up and its rollback.

        Raises Problem where it is not served for long.
        """
        for tried in count():
            try:
                await self.startup.finished.wait()
                model = await self.registry.get(model_id)
                await model.refresh()
                while model.job(UnlearnCleanup).is_busy or model.job(GuardRollback).is_busy:
                    await asyncio.sleep(1.0)
                return model
            except ModelChanged:
                pass  # the next one is loaded
            except Problem as refusal:
                if refusal.status != 503 or tried == REBUILDS:
                    raise
                await asyncio.sleep(1.0)  # it is being rebuilt
        raise AssertionError

    async def settle(self, model_id: str) -> Model:
        """As `reach`, with nothing under way after it."""
        model = await self.reach(model_id)
        await model.close()
        return model


@dataclass(slots=True)
class Result:
    """What became of a schedule."""

    seed: int
    steps: int
    workers: int
    happened: set[Fault]
    problems: list[str] = field(default_factory=list)


class World:
    """A store, a network, workers and clients."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        chance = self.chance = self.scheduler.chance
        answer_bytes = chance.choice((ENTRY_BYTES, ENTRY_BYTES, 300))
        self.store = Store(answer_bytes, lambda: self.scheduler.now, REMEMBER_S)
        self.network = Network(self.scheduler, self.store)
        self.network.tells_bases = chance.random() < 0.5
        self._trace = trace
        self.network.trace = None if trace is None else self.tell
        # By the seed, so that chance stays as it is.
        self.plot = plot = plot_of(seed)
        self.is_full = seed % FULL_EVERY == 0 if plot is None else plot.is_full
        """Whether models leave memory once they are answered. In every other such schedule no
        snapshot is due for long."""
        few = seed % BULK_EVERY == 0 if plot is None else plot.is_bulk
        self.is_followed = plot is None and seed % FOLLOWED_EVERY == 0
        if plot is not None and plot.is_forgetful:
            self.store.most_nonces = 1
        self.bulk_rows = FEW if few else BULK_ROWS
        self.network.misread = misread_share(seed)
        every = chance.choice((3, 3, 6, 40))
        every = every if plot is None else SNAPSHOT_EVERY
        self.settings = settings_of(40 if self.is_full and seed % 2 else every)
        self.notes = Notes(self.store)
        self.outside = Loop(self.scheduler)
        self._spent = 0.0
        self._slowness = 0.0
        if chance.random() < 0.15 or (plot is not None and plot.is_slow):
            self._slowness = SLOWNESS_S
            if plot is not None and plot.is_paged:
                self._slowness, self.scheduler.thread_s = VERY_SLOW_S
            self.network.happened.add(Fault.SLOW)
        self.repeats = chance.choice((0.2, 0.2, 0.6))
        self.tags = 0
        self.keyed: list[tuple[str, Any, int | None, str]] = []
        """The requests that clients have sent with a key or an id."""
        self.uses = Counter[tuple[str, str | None]]()
        """How often each was sent, by model and key."""
        kinds = models.kinds()
        last = len(kinds) - 1
        self._kinds = {
            f"m{n}": chance.randrange(last) for n in range(chance.choice((1, 1, 1, 1, 2)))
        }
        if plot is None and seed % HISTORY_EVERY == HISTORY_AT:
            self._kinds = dict.fromkeys(self._kinds, last)
        if plot is not None:
            self._kinds["m0"] = [kind.given for kind in kinds].index(plot.spec)
        self.misfortune = Misfortune(self)
        self.workers = [
            Worker(self, f"w{n}") for n in range(chance.choice((2, 2, 2, 2, 2, 2, 3, 4)))
        ]

    def run(self) -> Result:
        """Play the schedule and check it."""
        main = self.outside.create_task(self._play())
        try:
            self.scheduler.run(main)
            main.result()
            check_world(self)
        except Exception as error:
            self.notes.problems.append(f"broken off: {error!r}")
        finally:
            for loop in list(self.scheduler.loops):
                loop.kill()
        return Result(
            self.seed,
            self.scheduler.steps,
            len(self.workers),
            self.network.happened,
            self.notes.problems,
        )

    # -- what the workers take from outside ------------------------------------------------------

    def clock(self) -> float:
        """Time passes by looking at it where the machines are slow."""
        self._spent += self._slowness
        return self.scheduler.now + self._spent

    def now_ms(self) -> int:
        return round(1000 * self.scheduler.now)

    def new_tag(self) -> int:
        self.tags += 1
        return self.tags

    def nonce(self) -> bytes:
        return self.chance.randbytes(16)

    def kind_of(self, model_id: str) -> models.Kind:
        return models.kinds()[self._kinds[model_id]]

    def tell(self, what: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.scheduler.steps:6} {self.scheduler.now * 1000:9.2f} ms  {what}")

    # -- the schedule ----------------------------------------------------------------------------

    async def _play(self) -> None:
        chance = self.chance
        for worker in self.workers:
            await worker.ask(lambda worker: worker.startup.finished.wait())
        for model_id in self._kinds:  # which workers load when they are asked for them
            kind = self.kind_of(model_id)
            self.store.create(model_id, kind.spec, kind.as_given)
        self.network.break_down()
        clients = [
            self.outside.create_task(Client(self, chance.randint(1, 3)).run()) for _ in range(2)
        ]
        operators = self.misfortune.plan()
        await asyncio.gather(*clients, *operators)
        await self.misfortune.others()
        await self._become_quiet()

    async def _become_quiet(self) -> None:
        """No more faults; what is still on its way arrives; every worker catches up."""
        self.tell("from here on there are no more faults")
        self.network.heal()
        self.misfortune.end()
        dualstream.service.jobs.follower.SWEEP_S = CALM_SWEEP_S
        await asyncio.sleep(QUIET_S)
        await self.misfortune.others()  # because of what befell them since the clients are done
        for _ in range(CLEANED_WITHIN):
            if undone := [*held_unclean(self), *left_behind(self), *left_forked(self)]:
                await asyncio.sleep(1.0)
        self.notes.problems += undone
        if self.chance.random() < 0.5:
            self.chance.choice(self.workers).crash()
        for worker in self.workers:
            self.misfortune.restart(worker)
        await refit_all(self)
        await self._resume_some()
        if any(self.kind_of(model_id).names_rows for model_id in self._kinds):
            await asyncio.sleep(2 * DEFAULT_S)  # rows that a client sent at last
            for worker in self.workers:
                await worker.ask(sweep)
        ends = dict.fromkeys(self._kinds)
        # One that was slow may have had a rollback to append when the others were done.
        while ends != (ends := {id: self._end(id) for id in self._kinds}):
            self.notes.settled = [
                (worker.name, await worker.ask(lambda worker, id=model_id: worker.settle(id)))
                for worker in self.workers
                for model_id in self._kinds
            ]

    def _end(self, model_id: str) -> str | None:
        """The chain at the end of the model's log."""
        log = self.store.logs.get(model_id)
        return None if log is None else log.chain

    async def _resume_some(self) -> None:
        for model_id in self._kinds:
            if self.kind_of(model_id).is_guarded and self.chance.random() < 0.7:
                worker = self.chance.choice(self.workers)
                await worker.ask(lambda worker, id=model_id: worker.reach(id))
                rows = self.chance.choice(("learn", "learn", "drop"))
                await worker.ask(lambda worker, id=model_id, rows=rows: worker.resume(id, rows))


def _some_bytes(*of: object) -> int:
    return MODEL_BYTES


def play(seed: int, trace: Callable[[str], None] | None = None) -> Result:
    """The schedule of this seed.

    Memory of models is not measured, and specs are resolved once for all schedules: this saves a
    fifth of the time, and nothing depends on it. A worker that starts loads a model when a client
    asks for it. Refits report by the schedule's clock, and count as lost after moments.
    """
    # Workers collect garbage after evictions, without traversing what is older than the schedule.
    gc.collect()
    gc.freeze()
    with contextlib.ExitStack() as patched:
        for owner, name, planted in (
            (dualstream.service.models.model, "bytes_of", _some_bytes),
            (dualstream.service.models.compiled_specs, "bytes_of", _some_bytes),
            (dualstream.service.models.readiness, "LOADED_AT_START", 0),
            (dualstream.service.models.model, "MAX_APPEND_S", APPEND_TIMEOUT_S),
            (dualstream.service.models.registry, "UNREADABLE_S", UNREADABLE_S),
            (dualstream.service.models.creation, "resolve_spec", models.resolved_once),
            (dualstream.solvers.spec.make_learner, "resolve_spec", models.resolved_once),
            (dualstream.service.jobs.follower, "SWEEP_S", SWEEP_S),
            (dualstream.service.features.refits.job, "HEARTBEAT_S", BEAT_S),
            (dualstream.service.features.refits.table, "LOST_MS", LOST_MS),
        ):
            patched.enter_context(patch.object(owner, name, planted))
        world = World(seed, trace)
        patched.enter_context(
            patch.object(dualstream.service.replica.groups, "BULK_ROWS", world.bulk_rows)
        )
        learn_rows = partial(
            world.misfortune.learn_rows, dualstream.service.replica.replica.Replica.learn_rows
        )
        learning = patch.object(
            dualstream.service.replica.replica.Replica,
            "learn_rows",
            lambda *args: learn_rows(*args),
        )
        patched.enter_context(learning)
        if world.plot is not None and world.plot.is_paged:
            patched.enter_context(
                patch.object(dualstream.service.replica.replica, "READ_BYTES", PAGE_BYTES)
            )
        clock = SimpleNamespace(monotonic=lambda: world.scheduler.now)
        for owner in (dualstream.service.models.registry, dualstream.service.jobs.follower):
            patched.enter_context(patch.object(owner, "time", clock))
        for owner in (
            dualstream.service.features.refits.job,
            dualstream.service.features.refits.table,
        ):
            patched.enter_context(patch.object(owner, "now_ms", world.now_ms))
        return world.run()
