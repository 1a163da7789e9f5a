"""What a stage between the door and a learner can do."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.learner import State
from dualstream.solvers.core.served_form import StageForm


class Stage(Protocol):
    """One transformation of rows, with running statistics that see no label.

    A batch of n rows is n single rows, bit for bit. A row of weight 0 comes out as `peek` has it
    and changes no statistic.
    """

    def learn(self, batch: Batch) -> Batch:
        """The rows as they go on, each counted in the statistics that it is transformed with."""

    def undo(self) -> None:
        """Be what the stage was before the last `learn`, to the bit."""

    def peek(self, batch: Batch) -> Batch:
        """The rows as `learn` would have them, each counted alone and then forgotten."""

    def form(self) -> StageForm:
        """What `peek` does, as numbers; arrays are copies."""

    def state(self) -> State:
        """All statistics, as copies."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Be in this state. Raises CorruptState, and then nothing has changed."""


def grown(array: npt.NDArray[Any], used: int, least: int) -> npt.NDArray[Any]:
    """An array of at least twice the room, and at least `least`, with the first `used` entries."""
    larger = np.empty(max(2 * len(array), least), array.dtype)
    larger[:used] = array[:used]
    return larger
