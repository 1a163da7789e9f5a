"""Calibration: thresholds of prediction intervals and sets that keep their coverage.

Adaptive conformal inference (Gibbs and Candes 2021, arXiv 2106.00170). The interval of a row has
all labels whose residual is at most the quantile 1 - a of the last WINDOW residuals, and each row
moves a by STEP (1 - level - missed). For any sequence of labels the share of rows whose interval
holds the label differs from the level by at most (max(a_1, 1 - a_1) + STEP) / (STEP T) after T
rows. A set has the predicted class, too: it counts as covered then, and a moves as if it had not.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.evaluation.intervals import kernels as _k
from dualstream.solvers.jit import Flags, Floats
from dualstream.solvers.online.class_choice import ClassScores
from dualstream.solvers.online.class_model import class_losses_of
from dualstream.solvers.protocols.learner import UNMARKED, Outcome, State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch

_KINDS = {"regression": _k.NUMBER, "binary": _k.BINARY, "multiclass": _k.CLASSES}
_NO_FLAGS = np.empty(0, np.bool_)
_NOTHING_SERVED = np.empty((0, 0))
_NO_LOSSES = np.empty((0, 0))
_NO_MARKS = np.empty((0, 0), np.uint8)
_NO_CLASSES = np.empty(0, np.int64)


class Figures(NamedTuple):
    """What the intervals of one level have done."""

    level: float
    rows: int
    """Rows that had an interval."""
    covered: int
    coverage: float | None
    recent_coverage: float | None
    """Of the last WINDOW rows."""
    unbounded: int
    """Rows whose interval had all labels."""
    mean_size: float | None
    """Mean width, or mean number of classes, of the others."""


class Calibration:
    """Residuals, thresholds and counts of one model; see kernels.py for the arrays.

    task    of the model
    levels  wanted coverages
    marks   whether rows are marked as covered or not, for other parts of the model's state
    """

    def __init__(self, task: str, levels: Sequence[float], marks: bool = False) -> None:
        self._marks = marks
        self.levels = np.array(levels, np.float64)
        self._kind = _KINDS[task]
        self._empty()

    def _empty(self) -> None:
        n_levels = len(self.levels)
        self._residuals, self._ordered = np.empty(_k.WINDOW), np.empty(_k.WINDOW)
        self._misses = 1.0 - self.levels
        self._counts = np.zeros(2, np.int64)
        self._totals = np.zeros((2, n_levels), np.int64)
        self._sizes = np.zeros(n_levels)
        self._recent = np.zeros((_k.WINDOW, n_levels), np.uint8)
        # For people to look at, and no part of the state: a restored model begins without rows.
        self._last = np.empty((_k.KEPT, 3 + n_levels) if self._kind == _k.NUMBER else (0, 0))
        self._kept_after = 0

    def learn(
        self,
        batch: Batch,
        outcome: Outcome,
        waited: Flags = _NO_FLAGS,
        served: Floats = _NOTHING_SERVED,
        first_seq: int = 1,
    ) -> None:
        """Judge and count learned rows in order.

        Rejected rows, and rows of weight 0, do not count. A learner that started again was wrong
        about the scale of the labels, so the calibration starts again, too.

        waited     (n,): rows with late labels; empty if there are none
        served     (n, 2 L): their thresholds and sizes as they were served; NaN in rows without any
        first_seq  log position of the first row
        """
        labels, best, losses = batch.labels, _NO_CLASSES, _NO_LOSSES
        if outcome.predicted is not None:
            if not batch.classes:  # no rows, or observed ones alone
                return
            labels, best = own_classes(batch, outcome), outcome.predicted
            losses = _NO_LOSSES if outcome.class_losses is None else outcome.class_losses
        skipped = outcome.rejected
        if outcome.relearned:
            self._empty()
            skipped = skipped.copy()
            skipped[: outcome.relearned] = True
        marks = _NO_MARKS
        if self._marks:
            marks = np.full((len(self.levels), len(batch)), UNMARKED, np.uint8)
        _k.add_rows(
            self._kind, outcome.scores, labels, batch.weights, skipped, losses, best, waited,
            served, self._residuals, self._ordered, self.levels, self._misses, self._counts,
            self._totals, self._sizes, self._recent, marks, first_seq, self._last,
        )  # fmt: skip
        for level, marked in zip(self.levels.tolist(), marks, strict=False):
            outcome.mark(str(level), marked)

    def thresholds(self) -> Floats:
        """(L,): of the next row; see kernels.py."""
        out = np.empty(len(self.levels))
        _k.thresholds(self._ordered, self._counts, self._misses, out)
        return out

    @property
    def misses(self) -> Floats:
        """(L,): a of each level."""
        return self._misses.copy()

    @property
    def judged(self) -> int:
        """Rows that had an interval."""
        return int(self._counts[_k.JUDGED])

    def figures(self) -> list[Figures]:
        """Of each level."""
        judged = self.judged
        recent = self._recent[: min(judged, _k.WINDOW)]
        figures = []
        for index, level in enumerate(self.levels.tolist()):
            covered, unbounded = self._totals[:, index].tolist()
            bounded = judged - unbounded
            figures.append(
                Figures(
                    level,
                    judged,
                    covered,
                    covered / judged if judged else None,
                    int(recent[:, index].sum()) / len(recent) if judged else None,
                    unbounded,
                    float(self._sizes[index]) / bounded if bounded else None,
                )
            )
        return figures

    def last_rows(self) -> tuple[Floats, Floats]:
        """(n, 3), (n, L): log position, label and score of the last rows with an interval, at most
        200 since the model was restored, and their thresholds. Without rows for classes."""
        n_rows = min(self.judged - self._kept_after, len(self._last))
        slots = np.arange(self.judged - n_rows, self.judged) % _k.KEPT
        rows = self._last[slots]
        return rows[:, :3], rows[:, 3:]

    def state(self) -> State:
        """The state, as copies; no arrays before the first row."""
        n_residuals, judged = self._counts.tolist()
        if not n_residuals:
            return {}
        return {
            "residuals": self._residuals[: min(n_residuals, _k.WINDOW)].copy(),
            "misses": self._misses.copy(),
            "counts": self._counts.copy(),
            "totals": self._totals.copy(),
            "sizes": self._sizes.copy(),
            "recent": self._recent[: min(judged, _k.WINDOW)].copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state, to the bit; the initial one without arrays. Raises CorruptState."""
        self._empty()
        if not state:
            return
        n_levels = len(self.levels)
        check_arrays(state, {"counts": (2,)})
        n_residuals, judged = (int(one) for one in state["counts"])
        if not 0 <= judged <= n_residuals:
            raise CorruptState(f"{judged} rows of {n_residuals} had an interval")
        n_residuals, n_recent = min(n_residuals, _k.WINDOW), min(judged, _k.WINDOW)
        shapes = {"residuals": (n_residuals,), "misses": (n_levels,), "totals": (2, n_levels)}
        check_arrays(state, shapes | {"sizes": (n_levels,), "recent": (n_recent, n_levels)})
        self._residuals[:n_residuals] = state["residuals"]
        self._ordered[:n_residuals] = np.sort(state["residuals"])
        self._misses[:], self._counts[:] = state["misses"], state["counts"]
        self._totals[:], self._sizes[:] = state["totals"], state["sizes"]
        self._recent[:n_recent] = state["recent"]
        self._kept_after = judged

    @property
    def buffers(self) -> list[npt.NDArray[Any]]:
        """What takes memory."""
        return [self._residuals, self._ordered, self._recent, self._last]


def losses_of(scored: ClassScores) -> Floats:
    """(n, K): see Outcome.class_losses."""
    scores = np.ascontiguousarray(scored.scores.T)
    return class_losses_of(scores, np.full(len(scored.scores), len(scored.classes), np.int64))


def own_classes(batch: Batch, outcome: Outcome) -> Floats:
    """(n,): index in `outcome.classes` of the class of each row; -1 for one that is not known."""
    classes = {name: index for index, name in enumerate(outcome.classes)}
    indices = np.array([classes.get(name, -1) for name in batch.classes], np.float64)
    learned = np.where(outcome.rejected, 0.0, batch.labels).astype(np.int64)
    return indices[learned]
