"""Token buckets in the store: rate limits that several processes share.

A bucket fills at its rate, up to the tokens of one second. Processes take blocks of tokens, so that
few requests ask the store. Buckets are not part of the journal: a lost bucket only counts as full.
"""

from typing import NamedTuple, Protocol

SET_BACK_MS = 1000
"""Smaller backward steps of the clock are normal between processes."""


class Lease(NamedTuple):
    """Tokens taken; if none, when there will be some."""

    taken: int
    wait_ms: int


class Bucket(NamedTuple):
    """Content of a bucket in thousandths of a token (negative: owed), and its time in ms."""

    level: int
    at_ms: int


class RateBuckets(Protocol):
    """Token buckets of a store."""

    async def lease(
        self, bucket: str, rate: int, needed: int, most: int, at_ms: int | None = None
    ) -> Lease:
        """Take `needed` to `most` tokens from a bucket that gets `rate` tokens per second.

        Succeeds if the bucket has a whole token. Missing tokens are owed: nothing is given until
        they have come in. Over t seconds, all processes together take at most rate * (t + 1) +
        needed - 1. A new bucket is full. `at_ms` replaces the store's clock. If the clock goes back
        by up to SET_BACK_MS, the bucket's time does not move; if it goes back further, the bucket
        starts full. Atomic.

        Raises JournalUnavailable.
        """


def take(
    bucket: Bucket | None, rate: int, needed: int, most: int, now_ms: int
) -> tuple[Bucket, Lease]:
    """Return the bucket after taking tokens, and the lease. rate_bucket.lua does the same."""
    full = 1000 * rate
    if bucket is None or bucket.at_ms - now_ms > SET_BACK_MS:
        bucket = Bucket(full, now_ms)
    now_ms = max(now_ms, bucket.at_ms)
    level = min(full, bucket.level + rate * (now_ms - bucket.at_ms))
    if level < 1000:
        return bucket, Lease(0, -(-(1000 - level) // rate))
    taken = max(needed, min(most, level // 1000))
    return Bucket(level - 1000 * taken, now_ms), Lease(taken, 0)
