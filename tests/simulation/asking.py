"""Requests for a model by its id alone, which may have to load it.

Now and then a process reads a damaged head, as a process does that has a bad page of the store's
file in memory. Until it has loaded the model it gets no other head. The store has the true head,
and so do all appenders and all processes that have loaded the model.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from dualstream.service.journal.protocol import ModelChanged, ModelRecord
from dualstream.service.models.model import Model
from dualstream.service.models.registry import MAX_RECREATIONS
from tests.simulation.log import Log

if TYPE_CHECKING:
    from tests.simulation.world import Worker

MISREADS_EVERY, MISREAD = 5, 0.3
"""One schedule of N has damaged heads, which this share of its loads read."""
UNREADABLE_S = 0.01
"""A model that could not be read is left alone so long."""


def misread_share(seed: int) -> float:
    """How often a load gets a damaged head. It depends on the seed alone."""
    return MISREAD if seed % MISREADS_EVERY == 1 else 0.0


@dataclass(frozen=True, slots=True)
class Misread:
    """The damaged head that a load got, and the chain value of the true head.

    writes   of the log at that time
    beyond   records that the head has in excess; if 0, the chain value is damaged
    """

    got: ModelRecord
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
    loads, clients = worker.connection.loads, worker.connection.clients
    clients[model_id] += 1
    loads.setdefault(model_id, None)
    try:
        model = await find(model_id)
        _check_not_gone(worker, model)
        if (bad := loads[model_id]) is not None:
            _check_loaded(worker, model, bad)
    except ModelChanged:
        _check_remade(worker, model_id)
        raise
    finally:
        clients[model_id] -= 1
        if not clients[model_id]:
            del loads[model_id]
    return model


def _check_loaded(worker: "Worker", model: Model, bad: Misread) -> None:
    """Nothing is served from a journal that does not lead to the head that was read.

    Entries appended since may lead beyond it.
    """
    if model.record is bad.got and bad.is_all_there_was:
        log, got = bad.log, bad.got
        worker.world.notes.problems.append(
            f"{worker.name} holds {log.id} at {log.seq} {log.chain[:8]}, and read that the "
            f"journal ends at {got.seq} {got.chain[:8]}"
        )


def _check_not_gone(worker: "Worker", model: Model) -> None:
    """A client that created a model again gets no response from the old one."""
    record, made = model.record, worker.made.get(model.record.id, "")
    if record.incarnation < made:
        problem = f"{worker.name} holds a {record.id} that is gone, and has made another"
        worker.world.notes.problems.append(problem)


def _check_remade(worker: "Worker", model_id: str) -> None:
    """A request for a model by its id alone may get any model of this id.

    Each deleted one may have been in the middle of a load once.
    """
    gone = sum(log.id == model_id for log in worker.world.store.gone)
    if gone <= MAX_RECREATIONS:
        problem = f"{worker.name} found {model_id} remade, {gone} are gone"
        worker.world.notes.problems.append(problem)
