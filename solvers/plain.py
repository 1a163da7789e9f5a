"""Learners whose state is their weights and a few numbers: what they share in Python.

The weights are `scale` times the array v, so that an algorithm that rescales them need not touch
them all; where an algorithm never does, scale stays 1. The last of v is the intercept's.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from solvers._jit import F8, RO_F8, RO_I4, RO_I8, Floats, Indices, Ints, f8, kernel, void
from solvers.batch import Batch
from solvers.certificate import Certificate
from solvers.errors import InvalidRow
from solvers.features import Features
from solvers.learner import Outcome, State, check_arrays, count_nonzeros

SCALE = 0
"""Where `scale` stands among a learner's numbers ..."""
SAMPLES, ROUNDS = range(2)
"""... and among its whole numbers `samples`, and how many of those had a weight above 0."""


class PlainLearner:
    """The Learner protocol, but for the kernel that a subclass brings as `_learn_rows`."""

    STATE_FLOATS: ClassVar[Mapping[str, int]]
    STATE_INTS: ClassVar[Mapping[str, int]]

    def __init__(self, spec: Mapping[str, Any], floats: int, ints: int) -> None:
        self.spec = spec
        self._features = Features.of(spec)
        self._floats, self._ints = np.zeros(floats), np.zeros(ints, np.int64)
        self._floats[SCALE] = 1.0
        self._v = np.zeros(self._features.width)
        # The same memory as a table of one column, which is what `prefetch` takes.
        self._table = self._v.reshape(-1, 1)

    def _learn_rows(self, batch: Batch, out: Outcome) -> int:
        """Learn all rows and write `out`; n, or -1 - i where label i is unknown (none learned)."""
        raise NotImplementedError

    def learn(self, batch: Batch) -> Outcome:
        """See Learner."""
        self._features.check(batch)
        n = len(batch.labels)
        out = Outcome(np.empty(n), np.empty(n), np.zeros(n, np.bool_), np.zeros(n, np.bool_))
        found = self._learn_rows(batch, out)
        if found < 0:
            row = -1 - found
            label = float(batch.labels[row])
            raise InvalidRow(row, f"the label must be -1, 0 or 1, got {label!r}")
        return out

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        self._features.check(batch)
        scores = np.empty(len(batch.labels))
        score_rows(
            batch.indptr, batch.indices, batch.values, scores,
            self._v, float(self._floats[SCALE]), self._features.bias,
        )  # fmt: skip
        return scores

    def probabilities(self, scores: Floats) -> Floats | None:
        """None: no such loss gives any."""
        return None

    @property
    def weights(self) -> Floats:
        """See Learner."""
        weights: Floats = self._floats[SCALE] * self._v[: self._features.dim]
        return weights

    @property
    def intercept(self) -> float:
        """See Learner."""
        return float(self._floats[SCALE] * self._v[-1])

    @property
    def nonzeros(self) -> int:
        """See Learner."""
        return count_nonzeros(self.weights)

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._ints[SAMPLES])

    def certificate(self) -> Certificate | None:
        """None: there is no dual."""
        return None

    def state(self) -> State:
        """See Learner."""
        state: State = {"v": self._v.copy()}
        state |= {name: np.array(self._floats[at]) for name, at in self.STATE_FLOATS.items()}
        return state | {name: np.array(self._ints[at]) for name, at in self.STATE_INTS.items()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        shapes: dict[str, tuple[int, ...]] = {"v": self._v.shape}
        check_arrays(state, shapes | dict.fromkeys((*self.STATE_FLOATS, *self.STATE_INTS), ()))
        self._v[:] = state["v"]
        for name, at in self.STATE_FLOATS.items():
            self._floats[at] = state[name]
        for name, at in self.STATE_INTS.items():
            self._ints[at] = state[name]


@kernel(void(RO_I8, RO_I4, RO_F8, F8, RO_F8, f8, f8))
def score_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    scores: Floats,
    v: Floats,
    scale: float,
    bias: float,
) -> None:
    """Scores (n,) by the weights scale v, summed as every learning kernel sums them."""
    end_of_v = v.shape[0] - 1
    for i in range(scores.shape[0]):
        dot = 0.0
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            dot += values[p] * v[np.uint32(indices[p])]
        dot += bias * v[end_of_v]
        scores[i] = scale * dot
