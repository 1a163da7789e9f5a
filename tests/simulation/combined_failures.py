"""What takes several misfortunes, each at its moment: played out in some of the schedules.

By chance they would meet once in a hundred thousand. What else befalls the worker, the store and
the model goes on as ever, so that most plots do not come off, and none comes off twice the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dualstream.service.replica.requests import Request
from tests.simulation.checks import left_forked
from tests.simulation.client import Client
from tests.simulation.faults import NO_LAG, Fault, Lags
from tests.simulation.late import label, label_both, revise, serve
from tests.simulation.log import Log
from tests.simulation.models import (
    DUALS,
    MISTAKES,
    PAIR,
    PATIENT,
    REMEMBERED,
    label_of,
    named_request,
    size_of,
    whole_request,
)

if TYPE_CHECKING:
    from tests.simulation.misfortune import Misfortune
    from tests.simulation.world import Work, Worker, World

EVERY = 5
"""One schedule of this many has a plot. It depends on the seed alone."""
SNAPSHOT_EVERY = 3
"""In those."""
SENT_LATE, ANSWERED_LATE = (0.08, 0.0), (0.0, 0.08)
"""How long a call that something comes before is on its way, and its answer."""
SENT_SOON = (0.015, 0.0)
SENT_AND_ANSWERED_LATE = (0.08, 0.4)
SENT_CLEANED = (10.0, 0.0)
"""What an unlearning leaves behind is cleaned up before."""
ANSWERED_CLEAN = (0.0, 1.5)
"""The remains of an unlearned sample are removed in the same time."""
MOMENT_S = 0.004
AWHILE_S = 0.03
MANY = 8


class Plot(NamedTuple):
    """What is played, with which model, and whether memory is full, few rows are in bulk, they take
    long to learn, few make a page that is learned while the next one is read, or the store keeps
    only the last nonce."""

    play: Callable[["Stage"], Coroutine[Any, Any, None]]
    spec: dict[str, Any] = MISTAKES
    is_full: bool = False
    is_bulk: bool = False
    is_slow: bool = False
    is_paged: bool = False
    is_forgetful: bool = False


class Stage:
    """One plot as it is played: about a model, at a worker, and with another one."""

    def __init__(self, misfortune: "Misfortune", world: "World") -> None:
        self._misfortune, self.world = misfortune, world
        self.model_id = next(iter(world._kinds))
        self.worker, self.other = world.chance.sample(world.workers, 2)
        self.client = Client(world, hangs_up=0.0)

    @property
    def log(self) -> Log | None:
        """Of the model, if that is there."""
        return self.world.store.logs.get(self.model_id)

    async def moment(self, at_most_s: float = MOMENT_S) -> None:
        await asyncio.sleep(self.world.chance.random() * at_most_s)

    def begin(self, work: Awaitable[None]) -> "asyncio.Task[None]":
        """Start this and do not wait for it."""

        async def done() -> None:
            await work

        return self.world.outside.create_task(done())

    def meet(
        self,
        call: str,
        lags: Lags = NO_LAG,
        fault: Fault | None = None,
        times: int = 1,
        by: "Worker | None" = None,
    ) -> None:
        """The worker's next calls of this name are so long on their way, or not done at all."""
        self._misfortune.meet(by or self.worker, call, self.model_id, lags, fault, times)

    def fail_rows(self, times: int = 1) -> None:
        """The next rows that are learned, by any worker, fail in the middle."""
        self._misfortune.fail_rows(times)

    def refuse_snapshots(self) -> None:
        """No worker writes one for some time."""
        for worker in self.world.workers:
            position = (worker, "snapshot_put", self.model_id)
            self._misfortune.meet(*position, fault=Fault.REFUSED, times=MANY)

    def lose_from(self, seq: int) -> None:
        """The log loses this record, and all behind it, but no snapshot."""
        if self.log is not None:
            count = sum(operation.seq >= seq for operation in self.log.operations)
            self._misfortune.lose(self.model_id, count, with_snapshots=False)

    async def ask(self, work: "Work", worker: "Worker") -> None:
        """Whatever it answers."""
        await self.client.ask(work, worker)

    async def bring(self, worker: "Worker", times: int = 1, rows: int | None = None) -> None:
        """Send the worker some rows, or this number of them, this number of times."""
        for _ in range(times):
            await self.client.bring(self.model_id, worker, rows=rows)

    async def predict(self, every_s: float = AWHILE_S) -> None:
        """Let the worker predict for a while."""
        for _ in range(MANY):
            await self.moment(every_s)
            await self.ask(lambda worker: worker.predict(self.model_id, 0), self.worker)

    async def remake(self) -> None:
        """The worker deletes the model and makes it again, or another one does if it cannot."""
        await self._misfortune.remake(0.0, self.model_id, self.worker)

    async def let_go(self) -> None:
        """The model leaves the worker's memory."""

        async def work(worker: "Worker") -> None:
            worker.let_go(self.model_id)

        await self.ask(work, self.worker)


async def all_leave(on: Stage) -> None:
    """All clients that wait for the lock leave, and then the model is deleted."""
    await on.ask(lambda worker: worker.predict(on.model_id, 0), on.worker)
    on.meet("get", ANSWERED_LATE)
    refresh = on.begin(on.ask(lambda worker: worker.refresh(on.model_id), on.worker))
    await on.moment()
    impatient = Client(on.world, hangs_up=1.0)
    rows = on.begin(impatient.bring(on.model_id, on.worker))
    await on.moment(AWHILE_S)
    await on.remake()
    await asyncio.gather(refresh, rows)


async def overtaken(on: Stage) -> None:
    """A model is loaded, and others write a snapshot before its first append is answered."""
    await on.bring(on.worker, rows=1)
    await on.let_go()
    await on.bring(on.other, 5)
    await on.moment(AWHILE_S)
    on.meet("append", ANSWERED_LATE)
    first = on.begin(on.bring(on.worker))
    await on.moment()
    await on.bring(on.other, 4)
    await first


async def failed_ahead(on: Stage) -> None:
    """Rows in bulk are appended behind those that fail in the midst, and something is lost."""
    await on.bring(on.worker, 2, rows=12)
    if on.log is not None and on.world.chance.random() < 0.5:
        on.meet("append", ANSWERED_LATE)
    first = on.begin(on.bring(on.worker, rows=12))
    on.fail_rows()
    await on.moment(AWHILE_S)
    second = on.begin(on.bring(on.worker, rows=5))
    await on.moment(AWHILE_S)
    if on.log is not None:
        on.lose_from(on.world.chance.choice((1, on.log.seq)))
    await asyncio.gather(first, second, on.begin(on.predict()))


async def lost_ahead(on: Stage) -> None:
    """Rows in bulk are appended behind those that are learned, which are lost before their turn."""
    await on.bring(on.worker, 2, rows=12)
    for _ in range(MANY // 2):
        rows = [on.begin(on.bring(on.worker, rows=12))]
        await on.moment(AWHILE_S)
        if on.world.chance.random() < 0.5:
            on.meet("append", SENT_LATE)
        rows.append(on.begin(on.bring(on.worker, rows=5)))
        rows.append(on.begin(on.predict(AWHILE_S / 2)))
        await on.moment(AWHILE_S)
        if on.log is not None:
            on.lose_from(on.world.chance.choice((1, on.log.seq)))
        await on.bring(on.other, rows=on.world.chance.choice((1, 3)))
        await asyncio.gather(*rows)


async def back_to_what_is_lost(on: Stage) -> None:
    """A snapshot outlives what it is of, and the log has grown past its seq since."""
    await on.bring(on.worker, 3)
    await on.moment(AWHILE_S)
    if on.log is None or not on.log.snapshots:
        return
    seq = on.log.snapshots[-1].seq
    on.refuse_snapshots()
    on.lose_from(seq)
    for _ in range(MANY):
        if on.log is not None and on.log.seq <= seq:
            await on.bring(on.other)
    await on.client.change(on.model_id, lambda worker: worker.go_back(on.model_id, seq))


async def late_alarm(on: Stage) -> None:
    """The journal is trimmed by a worker that has not seen the rows that trip another's guard.

    A client also rolls back to a state from about that time, which may have tripped already.
    """
    on.meet("trim", (2 * AWHILE_S, 0.0), times=2)
    await on.bring(on.worker, 6, rows=1)
    await on.ask(lambda worker: worker.refresh(on.model_id), on.other)
    on.meet("snapshots", ANSWERED_LATE, by=on.other)
    await on.bring(on.other, 6, rows=1)
    if on.log is not None and on.log.seq > SNAPSHOT_EVERY:
        seq = on.world.chance.randint(SNAPSHOT_EVERY, on.log.seq)
        await on.client.change(on.model_id, lambda worker: worker.go_back(on.model_id, seq))


async def unlearned_meanwhile(on: Stage) -> None:
    """A sample is unlearned while a state that has it is copied, to go back there."""
    await on.bring(on.worker, 4)
    if on.log is None:
        return
    seq = on.log.seq
    on.meet("copy_put", ANSWERED_CLEAN)
    back = on.begin(on.client.change(on.model_id, lambda w: w.go_back(on.model_id, seq), on.worker))
    await on.moment(AWHILE_S)
    await on.client.unlearn(on.model_id)
    await back


async def copy_trimmed(on: Stage) -> None:
    """A record names a copy; before who reads it asks for that, both are let go."""
    await on.bring(on.worker, 2)
    await on.client.change(on.model_id, lambda worker: worker.go_back(on.model_id, 1), on.other)
    on.meet("copy_get", SENT_LATE)
    refresh = on.begin(on.ask(lambda worker: worker.refresh(on.model_id), on.worker))
    await on.bring(on.other, MANY)
    await refresh


async def head_lost(on: Stage) -> None:
    """Between a look at the head and what is read then, the log loses what was read before, too."""
    await on.bring(on.worker, 2)
    await on.bring(on.other)
    on.meet("read", SENT_LATE)
    refresh = on.begin(on.ask(lambda worker: worker.refresh(on.model_id), on.worker))
    await on.moment(AWHILE_S)
    on.lose_from(1)
    await refresh


async def succeeded(on: Stage) -> None:
    """A rebuild fails; the model is loaded again and resumes with rows from before."""
    await on.bring(on.worker, 2)
    on.lose_from(1)
    on.meet("append", ANSWERED_LATE, times=2)
    on.meet("get", fault=Fault.REFUSED)
    rows = [on.begin(on.bring(on.worker))]
    await on.moment()
    rows.append(on.begin(on.bring(on.worker)))
    await asyncio.sleep(AWHILE_S)
    await on.moment(AWHILE_S)
    await on.ask(lambda worker: worker.predict(on.model_id, 0), on.worker)
    await asyncio.gather(*rows)


async def answered_in_between(on: Stage) -> None:
    """Rows in bulk are journalled just as those in front of them have been learned by a thread."""
    await on.bring(on.worker, rows=1)
    for _ in range(MANY):
        first = on.begin(on.bring(on.worker, rows=12))
        await on.moment(AWHILE_S)
        on.meet("append", (0.0, 2 * AWHILE_S * on.world.chance.random()))
        await asyncio.gather(first, on.begin(on.bring(on.worker, rows=5)))
        on.world.notes.problems += left_forked(on.world)


async def page_lost(on: Stage) -> None:
    """Of the journal a page is learned, the next one read; between them it loses both.

    And grows again past the first one.
    """
    on.refuse_snapshots()
    await on.bring(on.worker, 4, rows=12)
    began = 0 if on.log is None else on.log.seq
    await on.bring(on.other, 3, rows=5)
    on.meet("read", SENT_SOON, times=2)
    refresh = on.begin(on.ask(lambda worker: worker.refresh(on.model_id), on.worker))
    for _ in range(MANY * MANY):
        if on.log is None or (on.log.incarnation, began) in on.worker.connection.read_at:
            break
        await on.moment()
    on.lose_from(began + 1)
    rows = [on.begin(on.bring(on.other, rows=12)) for _ in range(2)]
    predictions = [on.begin(on.predict(AWHILE_S / 2)) for _ in range(2)]
    await asyncio.gather(refresh, *rows, *predictions)


async def control_passed(on: Stage) -> None:
    """Others append in front of a control, and write snapshots behind it, before it is answered."""
    await on.bring(on.worker, 2)
    on.meet("append", SENT_AND_ANSWERED_LATE)
    control = on.begin(on.client.control(on.model_id, on.worker))
    await on.moment()
    await on.bring(on.other, 2, rows=12)
    await asyncio.sleep(2 * AWHILE_S)
    await on.bring(on.other, MANY)
    await control


async def copied_late(on: Stage) -> None:
    """The copy that a version names is on its way while a sample that it has is unlearned."""
    await on.bring(on.worker, 3)
    on.meet("copy_put", SENT_CLEANED)
    version = on.begin(on.ask(lambda worker: worker.take_version(on.model_id, "late"), on.worker))
    await on.moment(AWHILE_S)
    for _ in range(MANY):
        await on.client.unlearn(on.model_id)
    await version


async def reference_lost(on: Stage) -> None:
    """The optimum of a window is asked for; of that the log loses rows, and others come there."""
    await on.bring(on.worker, 2)
    for _ in range(MANY):
        result = on.begin(on.ask(lambda worker: worker.refer(on.model_id), on.worker))
        await on.moment(AWHILE_S)
        if on.log is not None:
            on.lose_from(on.log.seq)
        await on.bring(on.other, rows=1)
        await asyncio.gather(
            result, on.ask(lambda worker: worker.refer(on.model_id), on.worker), on.bring(on.worker)
        )


async def forgotten(on: Stage) -> None:
    """The answer to an append is lost; other appends come before it is repeated."""
    for _ in range(MANY):
        on.meet("append", fault=Fault.UNANSWERED)
        rows = on.begin(on.bring(on.worker))
        await on.moment(3 * MOMENT_S)
        on.meet("append", SENT_LATE)
        await on.bring(on.other, on.world.chance.choice((1, 2)))
        if on.world.chance.random() < 0.2 and on.log is not None:
            on.lose_from(on.log.seq)
        await rows


async def served_again(on: Stage) -> None:
    """A client repeats a prediction whose answer was lost, and its row has its label by then."""
    for _ in range(MANY):
        tag = on.world.new_tag()
        y, by_default = label_of(tag), on.world.chance.random() < 0.5
        predicted = partial(serve, model_id=on.model_id, tag=tag, default=by_default)
        labelled = partial(label, model_id=on.model_id, tag=tag, y=y, keyed=False)
        await on.ask(predicted, on.worker)
        await on.ask(labelled, on.other)
        await on.moment()
        await on.ask(predicted, on.worker)


async def labels_repeated(on: Stage) -> None:
    """Of two labels one finds its row; the other one's waits, or has one, when both come again."""
    for _ in range(MANY):
        tags = on.world.new_tag(), on.world.new_tag()
        result, missed = (
            partial(serve, model_id=on.model_id, tag=tag, default=False) for tag in tags
        )
        both = partial(label_both, model_id=on.model_id, tags=tags)
        await on.ask(result, on.worker)
        await on.ask(both, on.worker)
        await on.ask(missed, on.other)
        if on.world.chance.random() < 0.5:
            y = label_of(tags[1])
            alone = partial(label, model_id=on.model_id, tag=tags[1], y=y, keyed=False)
            await on.ask(alone, on.other)
        await on.ask(both, on.other)


async def labels_revised(on: Stage) -> None:
    """Labels are revised by two workers at once, while calls are late and answers are lost."""
    for number in range(MANY):
        tag = on.world.new_tag()
        by_default = on.world.chance.random() < 0.2
        await on.ask(partial(serve, model_id=on.model_id, tag=tag, default=by_default), on.worker)
        for turn in range(4):
            if number % 3 == turn:
                on.meet("append", on.world.chance.choice([SENT_SOON, ANSWERED_LATE]))
            y = label_of(tag) if turn % 2 else -label_of(tag)
            labels = [partial(revise, model_id=on.model_id, tag=tag, y=each) for each in (y, -y)]
            first = on.begin(on.ask(labels[0], on.worker))
            await on.moment()
            if turn > 1:
                await on.ask(labels[1], on.other)
            await first


async def labels_revised_after_a_rollback(on: Stage) -> None:
    """The state goes back to before some labels, and they are revised."""
    chance, tags = on.world.chance, [on.world.new_tag() for _ in range(4)]
    for tag in tags:
        await on.ask(partial(serve, model_id=on.model_id, tag=tag, default=False), on.worker)
    for turn in range(MANY):
        tag = chance.choice(tags)
        if turn % 3 == 2:
            worker = chance.choice((on.worker, on.other))
            await on.client.change(
                on.model_id, lambda worker: worker.go_back(on.model_id, "z"), worker
            )
        elif turn % 3 == 0:
            await on.ask(lambda worker: worker.take_version(on.model_id, "z"), on.worker)
        for y in (label_of(tag), -label_of(tag)):
            on.meet("append", chance.choice([NO_LAG, NO_LAG, SENT_SOON, ANSWERED_LATE]))
            step = partial(revise, model_id=on.model_id, tag=tag, y=y)
            await on.ask(step, chance.choice((on.worker, on.other)))


async def learn(model_id: str, request: Request, worker: "Worker") -> None:
    await worker.submit(model_id, request)


async def whole_in_conflict(on: Stage) -> None:
    """Of rows that are to be learned whole or not at all one has the id of another."""
    for _ in range(MANY):
        previous, tag = on.world.new_tag(), on.world.new_tag()
        while size_of(tag) != 2:
            tag = on.world.new_tag()
        on.world.notes.wholes.append((on.model_id, tag))
        requests = [
            on.ask(partial(learn, on.model_id, request), worker)
            for request, worker in (
                (named_request(previous), on.worker),
                (whole_request(tag, previous), on.other),
            )
        ]
        if on.world.chance.random() < 0.5:
            await requests[0]
            await requests[1]
        else:
            await asyncio.gather(*map(on.begin, requests))


PLOTS = (
    Plot(all_leave),
    Plot(overtaken),
    Plot(failed_ahead, is_bulk=True, is_slow=True),
    Plot(lost_ahead, is_bulk=True, is_slow=True),
    Plot(back_to_what_is_lost),
    Plot(late_alarm, PATIENT),
    Plot(overtaken, is_full=True),
    Plot(lost_ahead, is_full=True, is_bulk=True),
    Plot(unlearned_meanwhile, DUALS),
    Plot(copy_trimmed),
    Plot(head_lost),
    Plot(succeeded),
)


RARE = (
    (31, Plot(answered_in_between, is_bulk=True, is_slow=True)),
    (41, Plot(page_lost, is_slow=True, is_paged=True)),
    (43, Plot(control_passed, PAIR)),
    (47, Plot(forgotten, is_forgetful=True)),
    (53, Plot(served_again, DUALS)),
    (59, Plot(reference_lost, DUALS)),
    (61, Plot(copied_late, DUALS)),
    (67, Plot(whole_in_conflict)),
    (71, Plot(labels_repeated, DUALS)),
    (83, Plot(labels_revised, DUALS)),
    (97, Plot(labels_revised_after_a_rollback, REMEMBERED)),
)
"""One of this many of the other schedules has this plot."""


def plot_of(seed: int) -> Plot | None:
    """What is plotted in the schedule of this seed, mostly nothing."""
    turn, rest = divmod(seed, EVERY)
    if not rest:
        return PLOTS[turn % len(PLOTS)]
    return next((plot for every, plot in RARE if not seed % every), None)
