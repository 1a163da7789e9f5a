"""Lazy updates: k missed steps of w <- q w + g u in one, for coordinates that no row touched.

    w after k steps = q^k w + g_k u,   g_k = g (1 + q + ... + q^(k-1)) = (1 - q^k) g / (1 - q)

Powers come from two tables, with k = low + 4096 high: an exponential costs more than all the rest.
"""

from dataclasses import dataclass

import numpy as np

from dualstream.solvers.jit import Floats

LOW_BITS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """q^k and g_k for k up to a maximum."""

    low: Floats
    """(4096, 2) q^k, g_k for k < 4096."""
    high: Floats
    """(h, 2) the same for k = 0, 4096, 8192, ..."""

    @classmethod
    def of(cls, minus_log_q: float, rate: float, largest: int) -> "Affine":
        """Tables for g = (1 - q) / rate and k <= largest; minus_log_q = -log q > 0."""

        def table(k: Floats) -> Floats:
            e = -k * minus_log_q
            return np.ascontiguousarray(np.column_stack([np.exp(e), -np.expm1(e) / rate]))

        size = 1 << LOW_BITS
        return cls(
            table(np.arange(size, dtype=np.float64)),
            table(size * np.arange(largest // size + 1, dtype=np.float64)),
        )
