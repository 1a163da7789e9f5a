"""Readiness: opens the store, claims its identity, loads kernels and the first models."""

import asyncio
import logging
import time
from contextlib import suppress

from dualstream.service.journal.protocol import Journal, JournalError
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.store_status import OtherIdentity
from dualstream.wire.problems import Problem, unavailable

log = logging.getLogger("dualstream.readiness")

RETRY_S = 1.0


class Readiness:
    """Starts the process, with retries until the store is there, and knows why it is not
    ready.

    A ready process stays ready unless a process with another numeric identity adopts the
    store.
    """

    def __init__(self, journal: Journal, registry: ModelRegistry) -> None:
        self._journal = journal
        self._registry = registry
        self.finished = asyncio.Event()
        self._waits_for: str | None = "starting"

    @property
    def durability(self) -> bytes:
        """Durability of the store, as of the last connect."""
        return self._registry.store_status.durability

    @property
    def reason(self) -> str | None:
        """Why the process is not ready. None if it is."""
        return self._waits_for or self._registry.store_identity.trouble

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
                self._registry.store_status.reached(time.monotonic())
                self._waits_for = None
            except JournalError as error:
                self._wait_for(str(error))
            except Exception as error:
                self._wait_for(f"{type(error).__name__}: {error}", trace=error)
            if self._waits_for is not None:
                await asyncio.sleep(RETRY_S)
        self.finished.set()

    async def _bring_up(self) -> None:
        await self._journal.open()
        identity = self._registry.store_identity
        if not await identity.claim():
            if not self._registry.settings.adopt:
                raise OtherIdentity(identity.difference())
            await self._adopt()
        await self._registry.prepare()

    async def _adopt(self) -> None:
        """Adopt a store whose states were computed with another numeric identity.

        Each model is replayed from the beginning of its journal, one at a time, and may be
        evicted after that. Where the journal is trimmed, the replay begins from the old
        snapshot. The stored identity changes last, so an interrupted adoption can be
        repeated.
        """
        async for record in self._registry.records():
            with self._registry.pinned(record.id), suppress(Problem):  # unreadable, and logged
                model = await self._registry.get(record.id)
                await model.snapshots.write(replaces=True)
        await self._registry.store_identity.adopt()

    def _wait_for(self, reason: str, trace: Exception | None = None) -> None:
        """Set the reason, and log it once."""
        if reason != self._waits_for:
            log.warning("not ready: %s", reason, exc_info=trace)
        self._waits_for = reason
