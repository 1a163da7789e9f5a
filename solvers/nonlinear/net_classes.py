"""Net with an output for each class: one network, softmax over the classes.

The layers and their steps are as in net.py, along the gradient of the log-loss, but each hidden
layer has four times the units of the specification, at most 256, and steps are 0.4 times as long.
Every output has its own weights and AdaGrad sums. A new class begins with those of output 0, the
class that no row has had yet, plus numbers drawn by a hash of the seed. O(units x entries + second
units x K) per row.

Memory in bytes, for U and L units: 16 U + 96 for each feature, 16 L + 16 for each class.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.nonlinear import net_class_kernels as _kernels
from dualstream.solvers.nonlinear.class_scorer import ClassScorer
from dualstream.solvers.nonlinear.hashed_numbers import drawn_number
from dualstream.solvers.nonlinear.net import BASES, NetLayers
from dualstream.solvers.nonlinear.net_kernels import START
from dualstream.solvers.nonlinear.spec import MAX_UNITS
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch

WIDER, STEP = 4, 0.4
"""More units in a layer, and smaller steps, than for two classes, as all classes share them."""
_SEED_OF_OUTPUTS = 0x2545F4914F6CDD1D
"""Added to the seed for the weights of outputs, whose numbers are then others than a feature's."""


class NetClasses(NetLayers, ClassScorer):
    """The scorer of `algorithm: net`."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        ClassScorer.__init__(self, spec)
        NetLayers.__init__(self, spec)
        last = len(self._q)
        self._outputs = np.full((4, 2 * last + 2), START)
        self._outputs[0, :last], self._outputs[0, last] = self._third[2], 0.0

    def add_class(self) -> None:
        """See ClassScorer."""
        super().add_class()
        if self.classes == len(self._outputs):
            self._outputs = np.concatenate([self._outputs, np.zeros_like(self._outputs)])
        weights, last, spec = self._outputs[self.classes], len(self._q), self.spec
        weights[:] = self._outputs[0]
        seed = (spec["seed"] + _SEED_OF_OUTPUTS) & (2**63 - 1)
        for i in range(last):
            weights[i] += drawn_number(seed, MAX_UNITS * self.classes + i) / math.sqrt(last)

    def _sizes(self) -> tuple[int, int]:
        units, last = (min(WIDER * size, MAX_UNITS) for size in self.spec["units"])
        return units, last

    def learn(self, batch: Batch, class_ids: Ints, is_met: bool) -> Floats:
        """See ClassScorer."""
        batch.check_width(self._dim)
        row, n, spec = 0, len(batch), self.spec
        margins, p = np.empty((n, 1 + self.classes)), np.empty(1 + self.classes)
        while True:
            row = _kernels.learn_rows(
                batch.indptr, batch.indices, batch.values, class_ids, batch.weights, row, margins,
                STEP * spec["step"], spec["seed"], self._buckets, self._touched, self._table,
                self._dense, self._is_here, self._f, self._k, BASES, self._starts, self._slots,
                self._e, self._h, self._idx, self._val, self._first, self._second, self._third,
                self._outputs, p, self._z, self._q, self._dz, self._dq,
            )  # fmt: skip
            if row == n:
                return self._odds(margins, is_met)
            self._make_room(int(batch.indptr[row + 1] - batch.indptr[row]))

    def predict(self, batch: Batch) -> Floats:
        """See ClassScorer."""
        batch.check_width(self._dim)
        margins = np.empty((len(batch), 1 + self.classes))
        slots, e, h = self._arrays_for(batch)
        _kernels.score_rows(
            batch.indptr, batch.indices, batch.values, margins, self._buckets, self._touched,
            self._table, self._dense, self._is_here, self._f, self._k, BASES, self._starts,
            slots, e, h, self._first, self._second, self._third, self._outputs, self._z, self._q,
        )  # fmt: skip
        return self._odds(margins)

    def state(self) -> State:
        """See Learner, and NetLayers."""
        return super().state() | {"outputs": self._outputs[: 1 + self.classes].copy()}

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        super()._restore(state)
        last = len(self._q)
        check_arrays(state, {"outputs": (1 + self.classes, 2 * last + 2)})
        outputs = np.asarray(state["outputs"])
        if not bool((outputs[:, last + 1 :] >= START).all()):
            raise CorruptState("the outputs are damaged")
        self._outputs[: 1 + self.classes] = outputs
