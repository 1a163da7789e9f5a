"""Random permutation kernel; the caller supplies the random numbers."""

from dualstream.solvers.jit import I8, RO_F8, kernel


@kernel
def shuffle(order: I8, count: int, draws: RO_F8) -> None:
    """Shuffle the first `count` indices (Fisher, Yates); draws in [0, 1)."""
    for i in range(count - 1):
        j = i + int(draws[i] * (count - i))
        order[i], order[j] = order[j], order[i]
