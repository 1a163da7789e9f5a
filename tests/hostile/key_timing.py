"""Timing attack: does the time for a wrong key depend on its correct prefix?"""

import random
import statistics
import time
from collections.abc import Callable

from dualstream.service.http.api_keys import KeyRing, new_key

BLOCKS, CALLS = 10_000, 20
LEAK_T = 4.5
"""Welch's t above which a difference is significant; the usual limit of such tests."""

Compare = Callable[[bytes], object]


def welch_t(find: Compare, secret: bytes, seed: int = 1) -> float:
    """Extra time of keys with a correct prefix, in standard errors.

    Each key is new, and asked a few times in shuffled order: its position in a hash table affects
    the time, and must not be confused with its prefix.
    """
    rng = random.Random(seed)
    order = [True, False] * BLOCKS
    rng.shuffle(order)
    took: dict[bool, list[int]] = {True: [], False: []}
    # Keys are made in advance and in the same way, so that their creation does not affect times.
    begins = [secret[:-4] if is_near else rng.randbytes(len(secret) - 4) for is_near in order]
    for is_near, shown in zip(order, [one + rng.randbytes(4) for one in begins], strict=True):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            find(shown)
        took[is_near].append(time.perf_counter_ns() - began)
    near, far = _least(took[True]), _least(took[False])
    variance = sum(statistics.variance(times) / len(times) for times in (near, far))
    return (statistics.fmean(near) - statistics.fmean(far)) / variance**0.5


def _least(times: list[int]) -> list[int]:
    """Times without interruptions: the shortest three quarters."""
    return sorted(times)[: 3 * len(times) // 4]


def measure() -> tuple[float, float]:
    """t of the server's comparison, and of one that stops at the first wrong byte as a control."""
    secret, key = new_key("someone", "learn")
    ring = KeyRing(key.line(), None)
    return welch_t(ring.find, secret.encode()), welch_t(
        _stops_early(secret.encode()), secret.encode()
    )


def _stops_early(secret: bytes) -> Compare:
    def compare(shown: bytes) -> bool:
        return all(one == other for one, other in zip(secret, shown, strict=False))

    return compare
