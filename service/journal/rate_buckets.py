"""The part of the journal's contract by which processes share what somebody may take a second.

A bucket fills at its rate, up to a second's worth. Whoever takes from it takes a block, so that few
ask the store. It is no part of a journal: what is lost of it was only not taken.
"""

from typing import NamedTuple, Protocol

SET_BACK_MS = 1000
"""By less, processes that have read one clock may come to a bucket in another order."""


class Lease(NamedTuple):
    """So much was taken; where that is nothing, when there will be something."""

    taken: int
    wait_ms: int


class Bucket(NamedTuple):
    """What is in a bucket: thousandths, and when that was (ms). Below 0 it is owed."""

    held: int
    at_ms: int


class RateBuckets(Protocol):
    """What a store promises of buckets."""

    async def lease(
        self, bucket: str, rate: int, needed: int, most: int, at_ms: int | None = None
    ) -> Lease:
        """Take `needed` at least, and up to `most`, from a bucket that fills by `rate` a second.

        Where there is anything in it that is given: what it lacks then is owed, and nobody is given
        any until that has come. So over t seconds all together take rate * (t + 1) + needed - 1
        at most. A bucket that nobody knows is full. `at_ms` takes the place of the store's clock.
        Where that goes back by up to SET_BACK_MS it stands still; by more, it was set back, and
        nobody knows the bucket any more. Atomic.

        Raises JournalUnavailable.
        """


def take(
    bucket: Bucket | None, rate: int, needed: int, most: int, now_ms: int
) -> tuple[Bucket, Lease]:
    """What is in the bucket afterwards, and what was taken. lease.lua does the same."""
    full = 1000 * rate
    if bucket is None or bucket.at_ms - now_ms > SET_BACK_MS:
        bucket = Bucket(full, now_ms)
    now_ms = max(now_ms, bucket.at_ms)
    held = min(full, bucket.held + rate * (now_ms - bucket.at_ms))
    if held < 1000:
        return bucket, Lease(0, -(-(1000 - held) // rate))
    taken = max(needed, min(most, held // 1000))
    return Bucket(held - 1000 * taken, now_ms), Lease(taken, 0)
