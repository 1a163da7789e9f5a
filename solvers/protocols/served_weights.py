"""Served weights as sparse blocks: the weights that are not 0, for views that list or count them.

Few features of a wide model have a weight. So a view never builds an array of all weights: it reads
blocks, and needs memory for one block and for its own answer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dualstream.solvers.jit import Floats, Ints

BLOCK = 1 << 16
"""Features of a block of a table."""
NEGLIGIBLE = 1e-12
"""Weights up to this share of the largest are rounding errors."""

Block = tuple[Ints, Floats]
"""Increasing indices from 0, and their weights."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedWeights:
    """Weights and intercept of one score. Valid until the learner learns."""

    dim: int
    intercept: float
    blocks: Callable[[], Iterator[Block]]
    """Reads the weights that are not 0, by increasing index."""

    def sparse(self) -> Block:
        """All weights that are not 0."""
        blocks = list(self.blocks())
        if not blocks:
            return np.empty(0, np.int64), np.empty(0)
        return (
            np.concatenate([features for features, _ in blocks]),
            np.concatenate([weights for _, weights in blocks]),
        )


def weights_in_parts(
    dim: int, intercept: float, part: Callable[[int, int], Floats]
) -> ServedWeights:
    """Weights of a table; `part` returns those of the features from `first` to before `last`."""

    def blocks() -> Iterator[Block]:
        for first in range(0, dim, BLOCK):
            weights = part(first, min(first + BLOCK, dim))
            features = np.flatnonzero(weights)
            if len(features):
                yield features + first, weights[features]

    return ServedWeights(dim, intercept, blocks)


def weights_listed(
    dim: int, intercept: float, listed: Callable[[], tuple[Ints, Floats]]
) -> ServedWeights:
    """Weights of some features, in any order; all others are 0."""

    def blocks() -> Iterator[Block]:
        features, weights = listed()
        nonzero = np.flatnonzero(weights)
        order = nonzero[np.argsort(features[nonzero])]
        if len(order):
            yield features[order], weights[order]

    return ServedWeights(dim, intercept, blocks)


@dataclass(frozen=True, slots=True)
class HeavyWeight:
    """One of the weights of largest magnitude."""

    score: int
    """Index of its score: of its class, or 0."""
    place: int
    """Index of its feature, from 0."""
    weight: float


@dataclass(frozen=True, slots=True)
class WeightSurvey:
    """Number of weights, and those of largest magnitude."""

    dim: int | None
    """Features of the scores; None if there is no score."""
    nonzeros: int
    """Weights beyond 1e-12 of the largest of the same score."""
    heaviest: tuple[HeavyWeight, ...]
    """Of the counted ones, in order of magnitude; equal ones in order of score and feature."""


def survey_weights(scores: Iterable[ServedWeights], top: int = 0) -> WeightSurvey:
    """Count the weights of some scores and find the `top` heaviest. Reads the weights once."""
    dim, nonzeros, heaviest = None, 0, _Heaviest(top)
    limits: list[float] = []
    for number, score in enumerate(scores):
        dim, largest, smallest, count = score.dim, 0.0, np.inf, 0
        for features, weights in score.blocks():
            sizes = np.abs(weights)
            largest, smallest = max(largest, sizes.max()), min(smallest, sizes.min())
            count += len(sizes)
            heaviest.add(number, features, weights, sizes)
        limits.append(NEGLIGIBLE * largest)
        if not smallest > limits[-1]:
            count = _beyond(score, limits[-1])
        nonzeros += count
    ranked = (one for one in heaviest.found() if abs(one.weight) > limits[one.score])
    return WeightSurvey(dim, nonzeros, tuple(ranked))


def count_nonzeros(scores: Iterable[ServedWeights]) -> int:
    """Number of weights beyond 1e-12 of the largest of the same score."""
    return survey_weights(scores).nonzeros


def _beyond(score: ServedWeights, least: float) -> int:
    return sum(int(np.count_nonzero(np.abs(weights) > least)) for _, weights in score.blocks())


class _Heaviest:
    """The `top` weights of largest magnitude among those added; earlier ones win ties."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._pieces: list[tuple[Ints, Ints, Floats, Floats]] = []
        self._held = 0
        self._least = -1.0
        """Magnitude that a further weight must exceed."""

    def add(self, score: int, features: Ints, weights: Floats, sizes: Floats) -> None:
        if not self._top:
            return
        chosen = np.flatnonzero(sizes > self._least)
        if not len(chosen):
            return
        piece = np.full(len(chosen), score), features[chosen], weights[chosen], sizes[chosen]
        self._pieces.append(piece)
        self._held += len(chosen)
        if self._held > 2 * self._top + BLOCK:
            self._shrink()

    def _shrink(self) -> None:
        columns = [np.concatenate(column) for column in zip(*self._pieces, strict=True)]
        order = np.argsort(-columns[3], kind="stable")[: self._top]
        scores, features, weights, sizes = (column[order] for column in columns)
        self._pieces, self._held = [(scores, features, weights, sizes)], len(order)
        if self._held == self._top:
            self._least = float(sizes[-1])

    def found(self) -> tuple[HeavyWeight, ...]:
        if not self._pieces:
            return ()
        self._shrink()
        scores, features, weights, _ = self._pieces[0]
        rows: Sequence[tuple[int, int, float]] = list(
            zip(scores.tolist(), features.tolist(), weights.tolist(), strict=True)
        )
        return tuple(HeavyWeight(*row) for row in rows)
