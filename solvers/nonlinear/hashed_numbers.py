"""Numbers that are drawn once and for all by a hash, for initial weights."""

import numpy as np

from dualstream.solvers.jit import kernel


@kernel(inline=True, inner=False)
def drawn_number(seed: int, counter: int) -> float:
    """A number of mean 0 and variance 1, uniform: number `counter` of the sequence of this seed.

    SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    z = np.uint64(counter) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    unit = float(z >> np.uint64(11)) * 2.0**-53
    return 3.4641016151377544 * (unit - 0.5)
