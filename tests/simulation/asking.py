"""Whoever asks for a model by its id alone, which may have to be loaded for that.

Now and then a process reads the head of a model damaged, as one that has a bad page of the store's
file in its memory: as long as it loads the model it is told no other head. The store has the true
one, and whoever appends, or holds the model, is told that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from dualstream.service.journal.protocol import ModelChanged, ModelRecord
from dualstream.service.models.loader import MAX_RECREATIONS
from dualstream.service.models.model import Model
from tests.simulation.log import Log

if TYPE_CHECKING:
    from tests.simulation.world import Worker

MISREADS_EVERY, MISREAD = 5, 0.3
"""In so many schedules one, and there so often a load, has to do with a damaged head."""
UNREADABLE_S = 0.01
"""A model that could not be read is left alone so long."""


def misread_share(seed: int) -> float:
    """How often a load is told a damaged head; by the seed, so that chance stays as it is."""
    return MISREAD if seed % MISREADS_EVERY == 1 else 0.0


@dataclass(frozen=True, slots=True)
class Misread:
    """What a load was told of a log's head, and the chain value that the head has.

    writes   of the log by then
    beyond   so many records more are told than there are; with 0 it is the chain value that is bad
    """

    told: ModelRecord
    chain: str
    log: Log
    writes: tuple[int, int]
    beyond: int

    @property
    def is_all_there_was(self) -> bool:
        """Whether the log has been the same since, and ends where the true head said."""
        return self.log.writes == self.writes and self.log.chain == self.chain


def misread(record: ModelRecord, beyond: int) -> ModelRecord:
    """A head that is not there; of one head always the same."""
    if beyond:
        return msgspec.structs.replace(record, seq=record.seq + beyond)
    chain = ("1" if record.chain[0] == "0" else "0") + record.chain[1:]
    return msgspec.structs.replace(record, chain=chain)


async def found(worker: "Worker", find: Callable[[str], Awaitable[Model]], model_id: str) -> Model:
    """What `find` has of this id; what it loads for that is checked."""
    loads, task = worker.connection.loads, asyncio.current_task()
    loads[task] = None
    try:
        model = await find(model_id)
        check_not_gone(worker, model)
        if (bad := loads[task]) is not None:
            _check_loaded(worker, model, bad)
    except ModelChanged:
        _check_remade(worker, model_id)
        raise
    finally:
        del loads[task]
    return model


def _check_loaded(worker: "Worker", model: Model, bad: Misread) -> None:
    """Nothing is served of a journal that does not lead to its head, as far as that was told.

    Entries that came since lead beyond it.
    """
    if model.record is bad.told and bad.is_all_there_was:
        log, told = bad.log, bad.told
        worker.world.notes.problems.append(
            f"{worker.name} holds {log.id} at {log.seq} {log.chain[:8]}, and was told that the "
            f"journal ends at {told.seq} {told.chain[:8]}"
        )


def check_not_gone(worker: "Worker", model: Model) -> None:
    """Whoever has made a model anew has no use for the one before."""
    record, made = model.record, worker.made.get(model.record.id, "")
    if record.incarnation < made:
        problem = f"{worker.name} holds a {record.id} that is gone, and has made another"
        worker.world.notes.problems.append(problem)


def _check_remade(worker: "Worker", model_id: str) -> None:
    """Whoever asked for a model by its id alone asked for any of this id.

    Each one that is gone may have been on its way into memory once.
    """
    gone = sum(log.id == model_id for log in worker.world.store.gone)
    if gone <= MAX_RECREATIONS:
        problem = f"{worker.name} found {model_id} remade, {gone} are gone"
        worker.world.notes.problems.append(problem)
