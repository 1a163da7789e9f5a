"""Readiness: opens the store, claims its identity, and loads kernels and the first models."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress

from dualstream.service.concurrency import background_task
from dualstream.service.journal.protocol import JournalError, ModelChanged, ModelRecord
from dualstream.service.models.problems import unavailable
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.store_status import OtherIdentity
from dualstream.service.replica.spec import DamagedSpec, check_spec
from dualstream.wire.problem_json import Problem

log = logging.getLogger("dualstream.readiness")

RETRY_S = 1.0
PAGE = 1000
LOADED_AT_START = 100
"""Models that are loaded before the process is ready. Others are loaded on request."""
START_S = 10.0
"""Time of these loads. One that takes longer goes on while other models are served."""


class Readiness:
    """Starts the process, with retries until the store is there, and knows why it is not ready.

    A ready process stays ready unless a process with another numeric identity adopts the store.
    """

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self._identity, self._status = registry.store_identity, registry.store_status
        self.finished = asyncio.Event()
        self._waits_for: str | None = "starting"
        self.is_stopping = False
        """Does the process drain? It serves until it stops, but asks for no more requests."""

    @property
    def durability(self) -> bytes:
        """Durability of the store, as of the last connect."""
        return self._status.durability

    @property
    def reason(self) -> str | None:
        """Why the process is not ready. None if it is."""
        return self._waits_for or self._identity.trouble

    @property
    def is_ready(self) -> bool:
        return self.reason is None

    def check_ready(self) -> None:
        """Raise Problem 503 with the reason if the process is not ready."""
        reason = self.reason
        if reason is not None:
            raise unavailable(f"not ready: {reason}")

    async def run(self) -> None:
        """Return once the process can serve every readable model of the store."""
        while self._waits_for is not None:
            try:
                await self._bring_up()
                self._status.reached(time.monotonic())
                self._waits_for = None
            except JournalError as error:
                self._wait_for(str(error))
            except Exception as error:
                self._wait_for(f"{type(error).__name__}: {error}", trace=error)
            if self._waits_for is not None:
                await asyncio.sleep(RETRY_S)
        self.finished.set()

    def _wait_for(self, reason: str, trace: Exception | None = None) -> None:
        """Set the reason, and log it once."""
        if reason != self._waits_for:
            log.warning("not ready: %s", reason, exc_info=trace)
        self._waits_for = reason

    async def _bring_up(self) -> None:
        await self._registry.journal.open()
        if not await self._identity.claim():
            if not self._registry.settings.adopt:
                raise OtherIdentity(self._identity.difference())
            await self._adopt()
        await self._load_first()

    async def _adopt(self) -> None:
        """Adopt a store whose states were computed with another numeric identity.

        Each model is replayed from the beginning of its journal, one at a time, and may be evicted
        after that. Where the journal is trimmed, the replay begins from the old snapshot. The
        stored identity changes last, so an interrupted adoption can be repeated.
        """
        async for record in self._records():
            with self._registry.pinned(record.id), suppress(Problem):  # unreadable, and logged
                model = await self._registry.get(record.id)
                await model.snapshots.write(replaces=True)
        await self._identity.adopt()

    async def _load_first(self) -> None:
        """Load the kernels of all models of the store, and the first models as far as they fit.

        After START_S the rest is loaded on request. Models with an unreadable specification or
        journal are set aside.
        """
        registry = self._registry
        broken: dict[bytes, Exception] = {}
        first: list[str] = []
        async for record in self._records():
            if await self._has_kernels(record, broken) and len(first) < LOADED_AT_START:
                first.append(record.id)
        ends = time.monotonic() + START_S
        for model_id in first:
            if not registry.cache.has_room:
                return
            loading = background_task(registry.get(model_id))
            done, _ = await asyncio.wait([loading], timeout=max(0.0, ends - time.monotonic()))
            if not done:
                return
            with suppress(Problem, ModelChanged):  # unreadable, or deleted
                loading.result()

    async def _has_kernels(self, record: ModelRecord, broken: dict[bytes, Exception]) -> bool:
        """Load the kernels of the model's specification. False: the model is set aside.

        `broken` holds the errors of unreadable specifications: each is tried once.
        """
        try:
            check_spec(record)
            if record.spec not in broken:
                spec = await self._registry.specs.get(record.spec)
                spec.take_learner()  # frees it: the first request may come late
                return True
        except DamagedSpec as error:
            self._registry.set_aside(record.id, error)
            return False
        except Exception as error:
            broken[record.spec] = error
        self._registry.set_aside(record.id, broken[record.spec])
        return False

    async def _records(self) -> AsyncIterator[ModelRecord]:
        """All models of the store, ordered by id."""
        after = ""
        while page := await self._registry.journal.list(after, PAGE):
            for record in page:
                yield record
            after = page[-1].id
