"""Does the time that a wrong key takes tell how much of it is right?"""

import random
import statistics
import time
from collections.abc import Callable

from dualstream.service.api.api_keys import KeyRing, new_key

BLOCKS, CALLS = 10_000, 20
LEAK_T = 4.5
"""Welch's t beyond which a difference is no chance, as it is set for such tests."""

Compare = Callable[[bytes], object]


def welch_t(find: Compare, secret: bytes, seed: int = 1) -> float:
    """How much longer keys that begin right take than others, in standard errors.

    Each is another one and asked for a few times, in a shuffled order: where one falls in a table
    depends on it, and must not pass for what it has in common with the right one.
    """
    rng = random.Random(seed)
    order = [True, False] * BLOCKS
    rng.shuffle(order)
    took: dict[bool, list[int]] = {True: [], False: []}
    # All are made beforehand and in the same way: how they are must not be seen in the times.
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
    """What no interruption made longer: the shorter three quarters."""
    return sorted(times)[: 3 * len(times) // 4]


def measure() -> tuple[float, float]:
    """t of the server's own comparison; and of one that stops at the first wrong byte, which has
    to be found."""
    secret, key = new_key("someone", "learn")
    ring = KeyRing(key.line(), None)
    return welch_t(ring.find, secret.encode()), welch_t(
        _stops_early(secret.encode()), secret.encode()
    )


def _stops_early(secret: bytes) -> Compare:
    def compare(shown: bytes) -> bool:
        return all(one == other for one, other in zip(secret, shown, strict=False))

    return compare
