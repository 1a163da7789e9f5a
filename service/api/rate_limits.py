"""How much a key may send a second, in requests and in rows, over all workers.

Each worker leases a block from the store, which the key's bucket there has, and takes from that: to
ask for every request would cost a round trip each. So all together let in no more than the rate, a
second's worth that was saved up, and a block for each worker; and the rows of one request, as one
that has more rows than there are is let in and paid for afterwards.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal

from dualstream.service.api.api_keys import ANY, Key
from dualstream.service.concurrency import background_task
from dualstream.service.journal.protocol import JournalError
from dualstream.service.journal.rate_buckets import Bucket, Lease, RateBuckets, take
from dualstream.wire.problems import Problem

log = logging.getLogger("dualstream.rates")

Unit = Literal["requests", "rows"]

BLOCKS_PER_S = 10
"""A block is what comes in so many parts of a second, 1 at least."""
LOOK_S = 1 / BLOCKS_PER_S
"""Where there was nothing, the store is asked again after so long at the earliest."""
PATIENCE_S = 0.25
"""How long a request waits for the store, before its worker goes on by itself."""
ALONE_S = 1.0
"""How long it does so before the store is asked again."""


class Store:
    """The store that blocks come from; while it is away, buckets of this process alone."""

    def __init__(self, store: RateBuckets, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self.clock = clock
        self._is_alone = False
        self._alone_until = float("-inf")
        self._buckets: dict[str, Bucket] = {}

    async def lease(self, bucket: str, rate: int, needed: int, most: int) -> Lease:
        if self.clock() >= self._alone_until:
            # Whoever waits no longer leaves it to its end: it has a connection in use.
            asking = background_task(self._store.lease(bucket, rate, needed, most))
            done, _ = await asyncio.wait([asking], timeout=PATIENCE_S)
            try:
                if done:
                    lease = asking.result()
                    self._is_alone = False
                    return lease
                reason = f"no answer within {PATIENCE_S:g} s"
            except JournalError as error:
                reason = str(error)
            if not self._is_alone:
                log.warning("this worker keeps the rates of keys by itself: %s", reason)
            self._is_alone = True
            self._alone_until = self.clock() + ALONE_S
        now_ms = round(1000 * self.clock())
        self._buckets[bucket], lease = take(self._buckets.get(bucket), rate, needed, most, now_ms)
        return lease


class Allowance:
    """What this worker has leased of one bucket."""

    def __init__(self, store: Store, bucket: str, rate: int) -> None:
        self._store, self._bucket, self.rate = store, bucket, rate
        self._block = max(1, rate // BLOCKS_PER_S)
        self._left = 0
        self._turn = asyncio.Lock()
        # Where there was nothing: when there is some again, and when that may be asked.
        self._empty_until = self._ask_at = float("-inf")

    async def take(self, count: int) -> float:
        """Take so many; else the seconds after which there is something to take."""
        if count <= self._left:
            self._left -= count
            return 0.0
        async with self._turn:
            if count > self._left:  # whoever was before may have leased enough
                now = self._store.clock()
                if now < self._ask_at:
                    return max(self._empty_until - now, 0.001)
                needed = count - self._left
                lease = await self._store.lease(self._bucket, self.rate, needed, self._block)
                if not lease.taken:
                    now = self._store.clock()
                    self._empty_until = now + lease.wait_ms / 1000
                    self._ask_at = min(self._empty_until, now + LOOK_S)
                    return lease.wait_ms / 1000
                self._left += lease.taken
            self._left -= count
            return 0.0


class Limited:
    """What one key may send."""

    def __init__(
        self,
        requests: Allowance | None,
        rows: Allowance | None,
        on_refusal: Callable[[Unit], None],
    ) -> None:
        self._requests, self._rows = requests, rows
        self._on_refusal = on_refusal

    async def let_in(self) -> Problem | None:
        """Count a request; why it is refused, if it is."""
        if self._requests is None:
            return None
        wait_s = await self._requests.take(1)
        return self._refusal("requests", self._requests.rate, wait_s) if wait_s else None

    async def let_rows_in(self, count: int) -> None:
        """Count the rows of a request. Raises Problem 429."""
        if self._rows is not None and (wait_s := await self._rows.take(count)):
            raise self._refusal("rows", self._rows.rate, wait_s)

    async def wait_for_rows(self, count: int) -> None:
        """As `let_rows_in`, of a body that comes in as it is learned: that is slowed."""
        while self._rows is not None and (wait_s := await self._rows.take(count)):
            await asyncio.sleep(wait_s)

    def _refusal(self, unit: Unit, rate: int, wait_s: float) -> Problem:
        self._on_refusal(unit)
        detail = f"this key may send {rate} {unit} a second; nothing was done, send it again later"
        return Problem(429, "rate-exceeded", detail, retry_after_s=-int(-wait_s // 1))


class Rates:
    """The rates of all keys, in this worker.

    requests, rows  of keys whose line says none; None: as many as they like
    """

    def __init__(
        self,
        store: Store,
        requests: int | None,
        rows: int | None,
        on_refusal: Callable[[Unit], None] = lambda unit: None,
    ) -> None:
        self._store = store
        self._requests, self._rows = requests, rows
        self._has_defaults = requests is not None or rows is not None
        self._on_refusal = on_refusal
        self._limited: dict[tuple[str, int | None, int | None], Limited] = {}

    def of(self, key: Key) -> Limited | None:
        """What this key may send; None where it may send anything. Keys of one name share it."""
        if not self._has_defaults and key.requests is None and key.rows is None:
            return None
        place = (key.name, key.requests, key.rows)
        found = self._limited.get(place)
        if found is None:
            requests = self._allowance(key.name, "requests", key.requests, self._requests)
            rows = self._allowance(key.name, "rows", key.rows, self._rows)
            found = self._limited[place] = Limited(requests, rows, self._on_refusal)
        return found

    def _allowance(
        self, name: str, unit: Unit, own: int | None, default: int | None
    ) -> Allowance | None:
        rate = default if own is None else own
        return None if rate in (None, ANY) else Allowance(self._store, f"{name}:{unit}", rate)
