"""Stage: the protocol of feature stages."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import StageForm
from dualstream.solvers.rows.batch import Batch


class Stage(Protocol):
    """A transformation of rows, with running statistics that ignore labels.

    Transforming a batch of n rows equals transforming n single rows, bit for bit. A row of weight 0
    is transformed as by `peek` and changes no statistic.
    """

    def learn(self, batch: Batch) -> Batch:
        """The transformed rows, each counted in its own statistics."""

    def undo(self) -> None:
        """Restore the state before the last `learn`, to the bit."""

    def peek(self, batch: Batch) -> Batch:
        """The rows as `learn` would transform them, each counted alone and without a lasting
        effect."""

    def form(self) -> StageForm:
        """The function `peek` as numbers; arrays are copies."""

    def state(self) -> State:
        """All statistics, as copies."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state. Raises CorruptState, and then nothing has changed."""


def grown(array: npt.NDArray[Any], used: int, least: int) -> npt.NDArray[Any]:
    """A copy with at least twice the capacity, and at least `least`; its first `used` entries are
    copied."""
    larger = np.empty(max(2 * len(array), least), array.dtype)
    larger[:used] = array[:used]
    return larger
