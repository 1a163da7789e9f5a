"""Rate limits of API keys over all workers: token buckets in the store, leased in blocks.

Each worker leases a block of tokens from the key's bucket in the store, because one round trip for
each request would be too slow. In one second all workers together admit at most the rate, one
second of saved tokens, one block for each worker, and the excess of one request: a request with
more rows than there are tokens is admitted, and the debt delays later requests.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal

from starlette.types import Scope

from dualstream.service.concurrency import background_task
from dualstream.service.http.api_keys import ANY, Key
from dualstream.service.http.request_log import note_rows
from dualstream.service.journal.protocol import JournalError
from dualstream.service.journal.rate_buckets import Bucket, Lease, RateBuckets, take
from dualstream.wire.problem_json import Problem

log = logging.getLogger("dualstream.rates")

Unit = Literal["requests", "rows"]

BLOCKS_PER_S = 10
"""A block has the tokens of 1 / BLOCKS_PER_S seconds, at least 1."""
MIN_LEASE_INTERVAL_S = 1 / BLOCKS_PER_S
"""Minimum interval of leases from an empty bucket."""
LEASE_TIMEOUT_S = 0.25
"""Maximum wait for the store. After it the worker uses local buckets."""
LOCAL_S = 1.0
"""Time with local buckets until the store is tried again."""


class TokenStore:
    """Leases tokens from the store, or from local buckets while the store does not answer."""

    def __init__(self, store: RateBuckets, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self.clock = clock
        self._is_local = False
        self._local_until = float("-inf")
        self._buckets: dict[str, Bucket] = {}

    async def lease(self, bucket: str, rate: int, needed: int, most: int) -> Lease:
        if self.clock() >= self._local_until:
            # A lease that times out here still runs to its end, because it occupies a connection.
            leasing = background_task(self._store.lease(bucket, rate, needed, most))
            done, _ = await asyncio.wait([leasing], timeout=LEASE_TIMEOUT_S)
            try:
                if done:
                    lease = leasing.result()
                    self._is_local = False
                    return lease
                reason = f"no answer within {LEASE_TIMEOUT_S:g} s"
            except JournalError as error:
                reason = str(error)
            if not self._is_local:
                log.warning(
                    "rate limits apply per worker until the store answers again: %s", reason
                )
            self._is_local = True
            self._local_until = self.clock() + LOCAL_S
        now_ms = round(1000 * self.clock())
        self._buckets[bucket], lease = take(self._buckets.get(bucket), rate, needed, most, now_ms)
        return lease


class LeasedTokens:
    """The tokens of one bucket that this worker has leased."""

    def __init__(self, store: TokenStore, bucket: str, rate: int) -> None:
        self._store, self._bucket, self.rate = store, bucket, rate
        self._block = max(1, rate // BLOCKS_PER_S)
        self._left = 0
        self._turn = asyncio.Lock()
        # Of an empty bucket: when it has tokens again, and the earliest time of the next lease.
        self._empty_until = self._next_lease_at = float("-inf")

    def has(self, count: int) -> bool:
        """Are this many tokens leased?"""
        return count <= self._left

    def take_leased(self, count: int) -> None:
        """Take tokens that the bucket `has`."""
        self._left -= count

    async def take(self, count: int) -> float:
        """Take `count` tokens: 0.0. If the bucket is empty: seconds until it has tokens."""
        if count <= self._left:
            self._left -= count
            return 0.0
        async with self._turn:
            if count > self._left:  # the previous holder of the lock can have leased enough
                now = self._store.clock()
                if now < self._next_lease_at:
                    return max(self._empty_until - now, 0.001)
                needed = count - self._left
                lease = await self._store.lease(self._bucket, self.rate, needed, self._block)
                if not lease.taken:
                    now = self._store.clock()
                    self._empty_until = now + lease.wait_ms / 1000
                    self._next_lease_at = min(self._empty_until, now + MIN_LEASE_INTERVAL_S)
                    return lease.wait_ms / 1000
                self._left += lease.taken
            self._left -= count
            return 0.0


class KeyLimits:
    """The rate limits of one key."""

    def __init__(
        self,
        requests: LeasedTokens | None,
        rows: LeasedTokens | None,
        on_refusal: Callable[[Unit], None],
    ) -> None:
        self._requests, self._rows = requests, rows
        self._on_refusal = on_refusal

    def admit_row(self) -> bool:
        """Count a request of one row, if the leased tokens are enough. Returns whether it was."""
        limits = [one for one in (self._requests, self._rows) if one is not None]
        is_admitted = all([one.has(1) for one in limits])
        if is_admitted:
            for one in limits:
                one.take_leased(1)
        return is_admitted

    def return_row(self) -> None:
        """Take back the row of `admit_row`: all rows of the request are counted once parsed."""
        if self._rows is not None:
            self._rows.take_leased(-1)

    async def admit(self) -> Problem | None:
        """Count a request. Returns the problem if the rate is exceeded."""
        if self._requests is None:
            return None
        wait_s = await self._requests.take(1)
        return self._refusal("requests", self._requests.rate, wait_s) if wait_s else None

    async def admit_rows(self, count: int) -> None:
        """Count the rows of a request. Raises Problem 429."""
        if self._rows is not None and (wait_s := await self._rows.take(count)):
            raise self._refusal("rows", self._rows.rate, wait_s)

    async def wait_for_rows(self, count: int) -> None:
        """Count the rows of a chunk; waits, so that the upload slows down to the rate."""
        while self._rows is not None and (wait_s := await self._rows.take(count)):
            await asyncio.sleep(wait_s)

    def _refusal(self, unit: Unit, rate: int, wait_s: float) -> Problem:
        self._on_refusal(unit)
        detail = (
            f"the key's limit of {rate} {unit} a second is exceeded; nothing was done, retry later"
        )
        return Problem(429, "rate-exceeded", detail, retry_after_s=-int(-wait_s // 1))


class RateLimits:
    """The rate limits of all keys in this worker.

    requests, rows  defaults of keys without their own limits; None: no limit
    """

    def __init__(
        self,
        store: TokenStore,
        requests: int | None,
        rows: int | None,
        on_refusal: Callable[[Unit], None] = lambda unit: None,
    ) -> None:
        self._store = store
        self._requests, self._rows = requests, rows
        self._has_defaults = requests is not None or rows is not None
        self._on_refusal = on_refusal
        self._limits: dict[tuple[str, int | None, int | None], KeyLimits] = {}

    def of(self, key: Key) -> KeyLimits | None:
        """The limits of this key; None without limits. Keys of the same name share limits."""
        if not self._has_defaults and key.requests is None and key.rows is None:
            return None
        limits_key = (key.name, key.requests, key.rows)
        limits = self._limits.get(limits_key)
        if limits is None:
            requests = self._leased_tokens(key.name, "requests", key.requests, self._requests)
            rows = self._leased_tokens(key.name, "rows", key.rows, self._rows)
            limits = self._limits[limits_key] = KeyLimits(requests, rows, self._on_refusal)
        return limits

    def _leased_tokens(
        self, name: str, unit: Unit, of_key: int | None, default: int | None
    ) -> LeasedTokens | None:
        rate = default if of_key is None else of_key
        return None if rate in (None, ANY) else LeasedTokens(self._store, f"{name}:{unit}", rate)


def limits_of(scope: Scope) -> KeyLimits | None:
    """The rate limits of the request's key, which `AccessControl` sets; None without limits."""
    limits: KeyLimits | None = scope.get("key_limits")
    return limits


async def admit_rows(scope: Scope, count: int) -> None:
    """Note the rows for the log. Raise Problem 429 if they exceed the rate limit of the key."""
    note_rows(scope, count)
    if (limits := limits_of(scope)) is not None:
        await limits.admit_rows(count)
