"""Result of one learner on one stream."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from dualstream.solvers.jit import Floats

LIMIT = 30.0
"""Scores are clipped there before their loss is taken."""


@dataclass(frozen=True)
class Run:
    mistakes: float
    """Percent; a score of 0 counts as 1."""
    log_loss: float
    """Mean, in nats, of the clipped scores."""
    rows: int
    block: int
    counts: tuple[int, ...]
    """Mistakes in each `block` rows; the last block may be shorter."""

    @classmethod
    def of(cls, scores: Floats, labels: Floats, block: int) -> Self:
        """The run with these scores, each from before its row was learned."""
        scores = np.where(np.isnan(scores), 0.0, scores)
        wrong = (scores >= 0.0) != (labels > 0.0)
        margins = np.clip(scores, -LIMIT, LIMIT) * labels
        counts = np.add.reduceat(wrong.astype(int), np.arange(0, len(wrong), block))
        return cls(
            round(100.0 * float(wrong.mean()), 4),
            round(float(np.log1p(np.exp(-margins)).mean()), 5),
            len(wrong),
            block,
            tuple(int(count) for count in counts),
        )

    def rolling(self, blocks: int) -> tuple[Floats, Floats]:
        """Rows seen, and percent of mistakes over the last `blocks` blocks, for each block."""
        ends = np.minimum(np.arange(1, len(self.counts) + 1) * self.block, self.rows)
        wrong = np.insert(np.cumsum(self.counts), 0, 0)
        seen = np.insert(ends, 0, 0)
        first = np.maximum(np.arange(1, len(seen)) - blocks, 0)
        return ends, 100.0 * (wrong[1:] - wrong[first]) / (ends - seen[first])
