"""Area under the ROC curve (AUC) and average precision of a stream of binary labels.

The last RECENT rows are stored with their scores, so the figures over them are exact. Older rows
are counted in bins of their score: the figures since the start are those of scores rounded to
bins, except that they are exact while no row is older.

Bins: 32 for each doubling of 1 + 4 |score|, of either sign. So a bin is at most
(1/4 + |score|) / 32 wide, up to a score of 16,384, where the last bin begins. No logarithm is
needed, only the bits of a number, so the bins are equal on every CPU.
"""

from collections.abc import Mapping
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import B1, F8, I8, I8_2D, RO_F8, U1, Bytes, Flags, Floats, Ints, kernel
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays

RECENT = 1000
"""Rows that are stored with their scores."""

SIDE = 512
"""Bins for scores of each sign: 16 doublings of 32."""
BINS = 2 * SIDE

_MANTISSA_BITS = 47
"""Low bits of a float64 that do not matter for its bin."""
_OF_ONE = 1023 << 5
"""The other bits of 1.0."""

LARGEST_SCORE = 1e290
"""Scores are clipped to this, so that a state is always finite."""

NAMES = ("auc", "average_precision")


class Ranking:
    """Scores and labels of a stream.

    scores    (RECENT,)      row t at t mod RECENT
    positive  (RECENT,)      1 if its label is positive, else 0
    bins      (2, BINS)      negative and positive rows before these; (2, 0) without any
    """

    __slots__ = ("bins", "positive", "scores")

    def __init__(self) -> None:
        # Uninitialised: no row is read before it is written.
        self.scores = np.empty(RECENT)
        self.positive = np.empty(RECENT, np.uint8)
        self.bins = np.zeros((2, 0), np.int64)

    @property
    def bytes_held(self) -> int:
        """Memory in bytes."""
        return sum(map(getsizeof, (self.scores, self.positive, self.bins)))

    def add(self, labels: Floats, scores: Floats, learned: Flags, rows: int) -> None:
        """Add the learned rows, in order, after `rows` rows."""
        if rows + len(labels) > RECENT and not self.bins.size:
            self.bins = np.zeros((2, BINS), np.int64)
        add_scores(labels, scores, learned, rows, self.scores, self.positive, self.bins)

    def figures(self, rows: int) -> tuple[dict[str, float | None], dict[str, float | None]]:
        """Since the start and over the last RECENT rows: `auc` and `average_precision`.

        None unless both classes have rows.
        """
        n_recent = min(rows, RECENT)
        scores, positive = self.scores[:n_recent], self.positive[:n_recent]
        recent = areas_of_rows(scores, positive)
        if rows <= RECENT:
            return dict(recent), recent
        bins = self.bins.copy()
        count_bins(scores, positive, bins)
        return areas_of_counts(bins), recent

    def state(self, rows: int) -> State:
        """The state, as copies."""
        n_recent = min(rows, RECENT)
        # Most bins are empty: the state has the others, with their numbers.
        used = np.flatnonzero(self.bins.any(axis=0))
        return {
            "ranking_scores": self.scores[:n_recent].copy(),
            "ranking_positive": self.positive[:n_recent].copy(),
            "ranking_bins": np.vstack([used, self.bins[:, used]]),
        }

    @classmethod
    def of(cls, state: Mapping[str, npt.NDArray[Any]], rows: int) -> "Ranking":
        """A Ranking with the state of `rows` rows. Raises CorruptState."""
        n_recent, older = min(rows, RECENT), max(rows - RECENT, 0)
        shape = np.shape(state.get("ranking_bins", ()))
        check_arrays(
            state,
            {
                "ranking_scores": (n_recent,),
                "ranking_positive": (n_recent,),
                "ranking_bins": (3, shape[-1] if shape else 0),
            },
        )
        used, *counts = np.asarray(state["ranking_bins"], np.int64)
        if np.any(np.diff(used, prepend=-1, append=BINS) <= 0):
            raise CorruptState("ranking_bins are not in order")
        bins = np.zeros((2, BINS if older else 0), np.int64)
        is_full = np.any(counts, axis=0).all()
        if np.any(np.less(counts, 0)) or np.sum(counts) != older or not is_full:
            raise CorruptState("ranking_bins do not count the older rows")
        bins[:, used] = counts
        positive = np.asarray(state["ranking_positive"])
        # A kernel uses them as indices.
        if not np.all((positive == 0) | (positive == 1)):
            raise CorruptState("ranking_positive is neither 0 nor 1")
        ranking = cls()
        ranking.scores[:n_recent] = state["ranking_scores"]
        ranking.positive[:n_recent] = positive
        ranking.bins = bins
        return ranking


def areas_of_rows(scores: Floats, positive: Bytes) -> dict[str, float | None]:
    """`auc` and `average_precision` of these rows; rows of equal scores are one threshold."""
    counts = np.zeros((2, len(scores)), np.int64)
    count_thresholds(np.argsort(scores, kind="stable"), scores, positive, counts)
    return areas_of_counts(counts)


def areas_of_counts(counts: Ints) -> dict[str, float | None]:
    """`auc` and `average_precision` of counts (2, n): negative and positive rows of thresholds."""
    out = np.empty(2)
    if not areas(counts, out):
        return dict.fromkeys(NAMES)
    return dict(zip(NAMES, out.tolist(), strict=True))


@kernel(inline=True)
def bin_of(score: float) -> int:
    """The bin of a score. A larger score has no smaller bin."""
    # The exponent and the first 5 bits of the fraction: a logarithm, linear between powers of 2.
    size: np.int64 = np.float64(1.0 + 4.0 * abs(score)).view(np.int64)
    step = min(int(size >> _MANTISSA_BITS) - _OF_ONE, SIDE - 1)
    # 0, or -1 for negative scores: no branch, as a sign is hard to predict. -0.0 + 0.0 is 0.0.
    sign: np.int64 = np.float64(score + 0.0).view(np.int64) >> 63
    return SIDE + (step ^ int(sign))


@kernel
def add_scores(
    labels: RO_F8, scores: RO_F8, learned: B1, rows: int, recent: F8, positive: U1, bins: I8_2D
) -> None:
    """Store the learned rows, in order, after `rows` rows; a row that gives way goes to its bin."""
    at = rows % recent.shape[0]
    for i in range(labels.shape[0]):
        if not learned[i]:
            continue
        if rows >= recent.shape[0]:
            # Unsigned indices skip numba's check for negative ones.
            bins[np.uint64(positive[at]), np.uint64(bin_of(recent[at]))] += 1
        score = scores[i]
        if not abs(score) <= LARGEST_SCORE:  # True for NaN, too
            score = LARGEST_SCORE if score > 0.0 else -LARGEST_SCORE
        recent[at] = score
        positive[at] = 1 if labels[i] > 0.0 else 0
        rows += 1
        at = at + 1 if at + 1 < recent.shape[0] else 0


@kernel
def count_bins(scores: F8, positive: U1, bins: I8_2D) -> None:
    """Count these rows in their bins."""
    for i in range(scores.shape[0]):
        bins[np.uint64(positive[i]), np.uint64(bin_of(scores[i]))] += 1


@kernel
def count_thresholds(order: I8, scores: F8, positive: U1, counts: I8_2D) -> None:
    """Count the rows of each distinct score, in ascending `order`.

    counts  (2, n)   zeros; negative and positive rows
    """
    at = 0
    for k in range(order.shape[0]):
        i = order[k]
        if k > 0 and scores[i] != scores[order[k - 1]]:
            at += 1
        counts[np.uint64(positive[i]), np.uint64(at)] += 1


@kernel
def areas(counts: I8_2D, out: F8) -> bool:
    """out (2,): AUC and average precision; False if one class has no rows.

    counts  (2, n)   negative and positive rows of thresholds, in ascending order
    """
    n, p, pairs, precisions = 0.0, 0.0, 0.0, 0.0
    for k in range(counts.shape[1] - 1, -1, -1):
        negatives, positives = float(counts[0, k]), float(counts[1, k])
        # Floats: a product of two counts can exceed an int64.
        pairs += negatives * (p + 0.5 * positives)
        n += negatives
        p += positives
        if positives > 0.0:
            precisions += positives * (p / (n + p))
    if n == 0.0 or p == 0.0:
        return False
    out[0] = pairs / (n * p)
    out[1] = precisions / p
    return True
