"""Clients that send one request after the other and record the responses."""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from dualstream.service.journal.protocol import JournalError
from dualstream.service.replica.requests import ControlRequest, OutcomeForgotten, Request
from dualstream.wire.problem_json import Problem
from tests.simulation import models
from tests.simulation.faults import Fault
from tests.simulation.late import learn, sweep
from tests.simulation.loop import Gone
from tests.simulation.notes import Acked

if TYPE_CHECKING:
    from tests.simulation.world import Work, Worker, World

LASTS_S = 0.15
"""Clients would be done by then if they were answered at once."""
TRIES = 4
VISITS, VISIT_S = 3, 0.03
PAUSES_S = (0.01, 0.01, 0.05, 1.5)


class Unforeseen(MemoryError):
    """Comes in the midst of a row: it is learned, and not counted."""


REFUSALS = (Gone, JournalError, Problem, Unforeseen)
"""Refusals that a client may get; any other is a fault of the service."""


class Client:
    """Sends a few requests, one after the other, each to some worker."""

    def __init__(self, world: "World", requests: int = 0, hangs_up: float | None = None) -> None:
        self._world, self._requests = world, requests
        self._chance: Random = world.chance
        if hangs_up is None:
            hangs_up = 0.25 if self._chance.random() < 0.25 else 0.0
        self._hangs_up = hangs_up

    async def run(self) -> None:
        for _ in range(self._requests):
            await asyncio.sleep(self._chance.random() * LASTS_S / self._requests)
            await self._act()

    async def visit(self, model_id: str) -> None:
        """Ask for a model several times in a moment, in which something has befallen it."""

        async def come(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            luck = self._chance.random()
            if luck < 0.45:
                await self.ask(lambda worker: worker.predict(model_id, 0))
            elif luck < 0.6:
                await self.ask(lambda worker: worker.refresh(model_id))
            elif luck < 0.65:
                await self.ask(lambda worker: worker.evict(model_id))
            elif luck < 0.7:
                await self.travel(model_id)
            elif luck < 0.8:
                await self._learn(model_id)
            elif keyed := [sent for sent in self._world.keyed if sent[0] == model_id]:
                await self.send(*self._chance.choice(keyed))

        moments = [self._chance.random() * VISIT_S for _ in range(VISITS)]
        await asyncio.gather(*[self._world.outside.create_task(come(at)) for at in moments])

    async def _act(self) -> None:
        luck = self._chance.random()
        model_id = self._chance.choice(list(self._world._kinds))
        kind = self._world.kind_of(model_id)
        if luck < (0.45 if kind.names_rows or kind.is_refitted else 0.55):
            await self._learn(model_id)
        elif luck < (0.85 if kind.is_refitted else 0.7):
            await self._order(model_id)
        elif luck < 0.9:
            request = self._chance.randrange(3)
            await self.ask(lambda worker: worker.predict(model_id, request))
        elif luck < 0.95:
            await self._refresh(model_id)
        else:
            await self.travel(model_id)

    async def _refresh(self, model_id: str) -> None:
        if self._world.kind_of(model_id).names_rows and self._chance.random() < 0.6:
            return await self.ask(sweep)
        await self.ask(lambda worker: worker.refresh(model_id))

    async def travel(self, model_id: str) -> None:
        """Take a version, or go back to one, or to a seq."""
        if self._chance.random() < 0.4:
            return await self.take_version(model_id)
        name = self._chance.choice("uv")
        log = self._world.store.logs.get(model_id)
        if log is None:
            return None
        first = log.trimmed
        if self._world.kind_of(model_id).is_guarded and self._chance.random() < 0.5:
            first = max(first, log.seq - 4)  # about where it was paused and went back
        saved = [kept.seq for kept in log.snapshots if kept.seq <= log.seq]
        seq = self._chance.choice([self._chance.randint(first, log.seq), *saved])
        to = name if name in log.versions else seq
        await self.change(model_id, lambda worker: worker.go_back(model_id, to))

    async def take_version(self, model_id: str) -> None:
        """Name the state as it is."""
        name = self._chance.choice("uv")
        await self.ask(lambda worker: worker.take_version(model_id, name))

    async def change(self, model_id: str, work: "Work", worker: "Worker | None" = None) -> None:
        """Ask for a control that a worker makes up; it may find that none is needed."""
        began = self._world.scheduler.steps
        answer = await self.ask(work, worker)
        if answer is not None:
            incarnation, request, receipt = answer
            acked = Acked(model_id, incarnation, None, request, receipt, began)
            self._world.notes.acked.append(acked)

    async def _learn(self, model_id: str) -> None:
        tag = self._world.new_tag()
        if self._world.kind_of(model_id).names_rows:
            if tag % 2:
                return await learn(self._world, self.ask, model_id, tag)
            request = models.named_request(tag, self._world.kind_of(model_id).width)
            return await self.send(model_id, request, tag, str(tag))
        key = f"k{tag}" if self._chance.random() < 0.65 else None
        await self.send(model_id, models.learn_request(tag, key), tag, key)
        if key is not None and self._chance.random() < self._world.repeats:
            # Again, as if it had not been answered; or the key for something else.
            other = tag if self._chance.random() < 0.5 else self._world.new_tag()
            await self.send(model_id, models.learn_request(other, key), other, key)

    async def _order(self, model_id: str) -> None:
        kind = self._world._kinds[model_id]
        if models.kinds()[kind].is_refitted and self._chance.random() < 0.7:
            asking = range(self._chance.choice((1, 2)))
            await asyncio.gather(*[self.ask(lambda w: w.refit(model_id)) for _ in asking])
            return
        if models.kinds()[kind].is_guarded and self._chance.random() < 0.8:
            rows = self._chance.choice(("learn", "drop"))
            return await self.change(model_id, lambda worker: worker.resume(model_id, rows))
        if models.kinds()[kind].has_history:
            tag = self._world.new_tag()
            request = models.observed_request(tag, models.kinds()[kind].width)
            return await self.send(model_id, request, -tag, str(-tag))
        if models.kinds()[kind].names_rows:
            return await self.unlearn(model_id)
        await self.control(model_id)

    async def unlearn(self, model_id: str) -> None:
        """One of the rows, mostly one that there is."""
        orders = len(self._world.kind_of(model_id).orders)
        await self._control(model_id, self._chance.randrange(min(orders, 1 + self._world.tags)))

    async def control(self, model_id: str, worker: "Worker | None" = None) -> None:
        """One of those that the model is sent."""
        orders = len(self._world.kind_of(model_id).orders)
        await self._control(model_id, self._chance.randrange(orders), worker)

    async def _control(self, model_id: str, order: int, worker: "Worker | None" = None) -> None:
        key = f"c{self._world.new_tag()}" if self._chance.random() < 0.5 else None
        control = models.control_request(self._world._kinds[model_id], order, key)
        await self.send(model_id, control, None, key, worker)

    async def bring(
        self, model_id: str, worker: "Worker", key: str | None = None, rows: int | None = None
    ) -> None:
        """Send new rows, some or the given number, to this worker."""
        tag = self._world.new_tag()
        while rows is not None and models.size_of(tag) != rows:
            tag = self._world.new_tag()
        request = models.learn_request(tag, key)
        if self._world.kind_of(model_id).names_rows:
            width = self._world.kind_of(model_id).width
            request, key = models.named_request(tag, width), str(tag)
        await self.send(model_id, request, tag, key, worker)

    async def send(
        self,
        model_id: str,
        request: Request | ControlRequest,
        tag: int | None,
        key: str | None,
        to: "Worker | None" = None,
    ) -> None:
        """Until it is answered, where there is a key that makes repeating harmless."""
        if key is not None:
            self._world.keyed.append((model_id, request, tag, key))
        for _ in range(TRIES if key is not None else 1):
            self._world.uses[model_id, key] += 1
            began = self._world.scheduler.steps
            worker = to or self._chance.choice(self._world.workers)
            answer = await self.ask(lambda worker: worker.submit(model_id, request), worker, tag)
            if answer is not None:
                incarnation, receipt = answer
                receipt.position = models.place_of(receipt)
                is_first = self._world.uses[model_id, key] == 1
                # The key still shows that it was done, though the store has forgotten the outcome.
                if receipt.position.duplicate and is_first and not self._world.store.most_nonces:
                    problem = (
                        f"{model_id}: {receipt.position} under {key}, which no other request used"
                    )
                    self._world.notes.problems.append(problem)
                acked = Acked(model_id, incarnation, tag, request, receipt, began)
                self._world.notes.acked.append(acked)
                self._world.tell(f"client got {receipt.position}")
                if self._chance.random() < (0.6 if receipt.position.duplicate else 0.2):
                    await self.ask(lambda worker: worker.predict(model_id, 0), worker)
                return
            await asyncio.sleep(self._chance.random() * self._chance.choice(PAUSES_S))

    async def ask(
        self, work: "Work", worker: "Worker | None" = None, tag: int | None = None
    ) -> Any:
        """Response of some worker; None if it refuses or does not answer."""
        worker = worker or self._chance.choice(self._world.workers)
        began = self._world.scheduler.steps
        reply = worker.ask(work)
        if self._hangs_up and self._chance.random() < self._hangs_up:
            self._world.scheduler.at(self._chance.random() * 0.01, worker.leave, reply)
        try:
            answer = await reply
            self._world.notes.saw_end(tag, None)
            return answer
        except REFUSALS as refusal:
            self._world.notes.saw_end(tag, refusal)
            self._world.tell(f"client of {worker.name} is refused: {refusal!r}")
            is_unread = isinstance(refusal, Problem) and refusal.slug == "unreadable-journal"
            is_failed = Unforeseen.__name__ in str(refusal)  # as it was read
            if is_unread and not is_failed and Fault.ROT not in self._world.network.happened:
                self._world.notes.problems.append(f"nothing is damaged, and told is: {refusal!r}")
            if isinstance(refusal, OutcomeForgotten):
                self._world.notes.saw_forgotten(refusal, began)
        except Exception as error:
            self._world.notes.problems.append(f"internal error: {error!r}")
        return None
