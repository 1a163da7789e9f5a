"""Refits: computed by one worker, resumed by another, journalled by the first result.

Some are requested, others fall due. The computing worker reports every BEAT_S. One that has not
reported for LOST_MS counts as lost, even if it only had to wait. Then two workers compute the same.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dualstream.service.features.refits.job import MAX_EPOCHS, Refits
from dualstream.service.features.refits.table import CURSOR, RefitJob
from dualstream.service.features.refits.window import Window
from dualstream.service.journal.record import Control
from dualstream.service.models.model import Model
from dualstream.service.replica.outcomes import ControlOutcome
from dualstream.solvers import State
from dualstream.solvers.refit.refit import begin_refit
from tests.simulation import models
from tests.simulation.log import Log
from tests.simulation.loop import Gone

if TYPE_CHECKING:
    from tests.simulation.world import Worker, World

BEAT_S = 0.01
LOST_MS = 2
DIES_S = 0.03
ENDED = {"done", "superseded", "refused"}


async def refit_all(world: "World") -> None:
    """At the end, some worker looks for models that are due for a refit."""
    for model_id in world._kinds:
        if world.kind_of(model_id).is_refitted:
            for worker in world.workers:
                await worker.ask(lambda worker, id=model_id: _wait_for(worker.registry.find(id)))
            if world.chance.random() < 0.4:
                await _die_over(world, model_id)
            worker = world.chance.choice(world.workers)
            await worker.ask(lambda worker, id=model_id: _come_by(worker, id))
            for worker in world.workers:  # who loads the model may find one that is due
                await worker.ask(lambda worker, id=model_id: _reach(worker, id))


async def _die_over(world: "World", model_id: str) -> None:
    """A worker looks for due refits and crashes at some moment after."""
    worker = world.chance.choice(world.workers)
    reply = worker.ask(lambda worker: _come_by(worker, model_id))
    await asyncio.sleep(world.chance.random() * DIES_S)
    worker.crash()
    with contextlib.suppress(Gone):
        await reply
    worker.boot()


async def _wait_for(model: Model | None) -> None:
    """Until nothing of the model is computed here."""
    while model is not None and model.job(Refits).is_busy:
        await asyncio.sleep(LOST_MS / 1000)


async def _reach(worker: "Worker", model_id: str) -> None:
    await _wait_for(await worker.reach(model_id))


async def _come_by(worker: "Worker", model_id: str) -> None:
    """Learn up to the next half of a period: what is due by then has entered soon after.

    It may have been due before, and have been lost with the process that computed it.
    """
    await worker.startup.finished.wait()
    model = await worker.reach(model_id)
    await _wait_for(model)
    half = models.EVERY // 2
    before = learned = model.replica.learner.samples
    while learned // half == before // half:
        if worker.world.chance.random() < 0.3:
            worker.let_go(model_id)
        await worker.submit(model_id, models.learn_request(worker.world.new_tag(), None))
        model = await worker.model(model_id)
        learned = model.replica.learner.samples
    due = learned // models.EVERY * models.EVERY
    await _wait_for(model)
    said = [job.status for job in await model.job(Refits).all() if job.due == due]
    if due and not ENDED.intersection(said):
        worker.world.notes.problems.append(f"{model_id}: the refit due at {due} is {said}")


Problems = Sequence[tuple[Mapping[str, Any], State]]
"""What a refit is computed of, but for rows of the journal."""


def refit_problems(
    log: Log,
    controls: Mapping[int, Control],
    control_outcomes: Mapping[int, ControlOutcome],
    windows: Mapping[int, Problems],
) -> Iterator[str]:
    """No two results of one refit are journalled, and every reported result is.

    windows   by seq, what is refitted there, of the records that the journal has
    """
    stored = log.cursors.get(CURSOR)
    jobs = [] if stored is None else msgspec.json.decode(stored, type=list[RefitJob])
    meant = {job.job: f"seq {job.seq}" if job.due is None else f"{job.due} rows" for job in jobs}
    refits = {
        seq: result.fields["job"] for seq, result in controls.items() if result.kind == "refit"
    }
    got = [meant[job] for job in refits.values() if job in meant]
    for seq, result in controls.items():
        # Weights know nothing of what came since they were computed: rows alone may have.
        of = result.fields["seq"] if result.kind == "refit" and "records" in result.fields else seq
        if control_outcomes[seq].refusal is None and any(of < other < seq for other in controls):
            yield f"{log.id}: the weights of seq {of} entered at {seq}, behind a control"
    for seq in refits:
        if control_outcomes[seq].refusal is None and not _is_of(log, controls[seq], windows):
            yield f"{log.id}: the refit at seq {seq} is not of the records before it"
    entered = Counter(what for what in got if what != "seq None")  # not shown how far it was
    for what, count in entered.items():
        if count > 1:
            yield f"{log.id}: {count} results for {what} entered"
    for job in () if log.cuts else jobs:
        at = job.entered_seq
        is_own = at is not None and refits.get(at) == job.job
        is_refused = is_own and control_outcomes[at].refusal is not None  # type: ignore[index]
        is_true = {
            "done": is_own and not is_refused,
            "refused": at is None or is_refused,
            "superseded": at in refits and not is_own,
        }
        if not is_true.get(job.status, True):
            yield f"{log.id}: the refit {job.job} is reported as {job.status} at {at}: {refits}"


def _is_of(log: Log, control: Control, windows: Mapping[int, Problems]) -> bool:
    """Whether the same is computed of the records that the journal has now."""
    seq, arrays, rows = control.fields["seq"], control.arrays, None
    if seq not in windows:
        return False
    if "rows" in arrays:  # as many as the journal still had of those that were asked for
        after = max(0, seq - models.WEIGHTS["refit"]["rows"])
        window = Window(models.DIM, seq)
        window.add([entry for entry in log.whole if entry.seq > after], after)
        result = window.batch()
        if result is None:
            return False
        rows = result[max(0, len(result) - int(arrays["rows"][0])) :]
    run = begin_refit(windows[seq], control.fields["method"], models.TOL, MAX_EPOCHS, rows)
    run.run(lambda: False, lambda _: None)
    computed = run.refitted().arrays
    return all(computed[name].tobytes() == arrays[name].tobytes() for name in arrays)
