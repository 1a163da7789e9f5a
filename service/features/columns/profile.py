"""The profile of a model's columns, as a part of its state."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.parts import ArraysByPrefix, StatePart
from dualstream.solvers import Batch, Outcome
from dualstream.solvers.profile import ColumnProfile


class Profile(StatePart):
    """The column profile of one model."""

    __slots__ = ("columns",)
    prefixes = ("profile",)

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.columns = ColumnProfile(spec)

    def arrays(self) -> dict[str, np.ndarray]:
        return {f"profile.{name}": array for name, array in self.columns.state().items()}

    def restore(self, arrays: ArraysByPrefix, names: FeatureNames) -> None:
        self.columns.restore(arrays["profile"], names.pairs())

    def roots(self) -> Sequence[object]:
        return (self.columns,)

    def on_names(self, names: Sequence[tuple[int, str]], since: int, seq: int) -> None:
        self.columns.add_names(names, since, seq)

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        rows = batch if outcome.columns is None else outcome.columns
        self.columns.count(rows, outcome, first_seq)

    def on_reached(self, seq: int) -> None:
        self.columns.reach(seq)

    def on_forgotten(self, seq: int) -> None:
        """Forget all rows: a minimum or a frequent value may be of the forgotten one."""
        self.columns.forget_rows()
