"""From a new process to one that serves: the store, its identity, its models, warm kernels."""

import asyncio
import logging
import time
from contextlib import suppress

from dualstream.service.journal.protocol import Journal, JournalError
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.store_status import OtherIdentity
from dualstream.wire.problems import Problem, unavailable

log = logging.getLogger("dualstream.startup")

RETRY_S = 1.0


class Readiness:
    """Brings the process up, again and again until the store is there; says why it is not.

    Once it is, it stays so, unless the store is taken over by a process that computes otherwise.
    """

    def __init__(self, journal: Journal, catalog: ModelRegistry) -> None:
        self._journal = journal
        self._catalog = catalog
        self.finished = asyncio.Event()
        self._waits_for: str | None = "starting"

    @property
    def durability(self) -> bytes:
        """What the store keeps, as it was read at its last connect."""
        return self._catalog.contact.durability

    @property
    def reason(self) -> str | None:
        """What keeps the process from serving; None where nothing does."""
        return self._waits_for or self._catalog.identity.trouble

    @property
    def is_ready(self) -> bool:
        return self.reason is None

    def check_ready(self) -> None:
        """Raises Problem 503 that tells what the process waits for."""
        reason = self.reason
        if reason is not None:
            raise unavailable(f"not ready: {reason}")

    async def run(self) -> None:
        """Return once the process can serve every model of the store that can be read."""
        while self._waits_for is not None:
            try:
                await self._bring_up()
                self._catalog.contact.reached(time.monotonic())
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
        identity = self._catalog.identity
        if not await identity.claim():
            if not self._catalog.settings.adopt:
                raise OtherIdentity(identity.difference())
            await self._adopt()
        await self._catalog.prepare()

    async def _adopt(self) -> None:
        """Take the store over, whose states were computed in another way.

        Its snapshots count for nothing here where a journal is whole: each model comes from the
        beginning, one at a time, and leaves memory again where there is no room for all. Where it
        is not, theirs is what mine goes on from.
        Until the last step the store is theirs, so that this may be interrupted and begun again.
        """
        async for record in self._catalog.records():
            with self._catalog.pinned(record.id), suppress(Problem):  # which set it aside
                model = await self._catalog.get(record.id)
                await model.write_snapshot(replaces=True)
        await self._catalog.identity.adopt()

    def _wait_for(self, reason: str, trace: Exception | None = None) -> None:
        """Say once what keeps the process from serving."""
        if reason != self._waits_for:
            log.warning("not ready: %s", reason, exc_info=trace)
        self._waits_for = reason
