"""Prequential evaluation: predict, then learn, row by row."""

from abc import ABC, abstractmethod

import numpy as np

from dualstream.solvers.jit import Floats


class Peer(ABC):
    """A learner on the rows of one stream."""

    @abstractmethod
    def score(self, row: int) -> float:
        """Log odds, or a margin."""

    @abstractmethod
    def learn(self, row: int) -> None: ...

    def take(self, row: int) -> float:
        """Score a row, then learn it; one call where the peer has one for both."""
        score = self.score(row)
        self.learn(row)
        return score


def scores(peer: Peer, rows: int, delay: int = 0) -> Floats:
    """The score of each row on arrival. A row is learned after the row `delay` later is scored."""
    if delay == 0:
        return np.array([peer.take(row) for row in range(rows)])
    margins = np.empty(rows)
    for row in range(rows):
        margins[row] = peer.score(row)
        if row >= delay:
            peer.learn(row - delay)
    return margins
