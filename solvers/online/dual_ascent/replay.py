"""Replay: pseudorandom choice of the retained rows to visit, a function of the seed.

Visit t of a learner is number t of the sequence SplitMix64 (Steele, Lea, Flood, "Fast splittable
pseudorandom number generators", 2014). So a state stores only the number of visits, and the visits
can be drawn in portions of any size.
"""

import numpy as np

from dualstream.solvers.jit import Floats


def draw_visits(seed: int, first: int, count: int) -> Floats:
    """(count,): visits `first`, first + 1, ..., each in [0, 1), uniform.

    A visit u is to the row that was learned int(u b) rows before the newest of b retained ones.
    """
    # Integer arrays wrap around, as the definition requires.
    z = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(first)
    z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    visits: Floats = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return visits
