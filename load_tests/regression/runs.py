"""Result of one learner on one stream, and the streams by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from load_tests.regression import data, held_out as fresh
from load_tests.regression.data import Floats, Stream


@dataclass(frozen=True)
class Errors:
    """Errors of rows 2 to the last; row 1 cannot be predicted."""

    mae: float
    rmse: float

    @classmethod
    def of(cls, predictions: Floats, targets: Floats) -> Self:
        """Errors of predictions (n,), each made before its row was learned; NaN counts as 0."""
        predictions = np.where(np.isfinite(predictions), predictions, 0.0)
        wrong = np.abs(predictions - targets)[1:]
        return cls(float(wrong.mean()), float(np.sqrt((wrong * wrong).mean())))

    def ratios(self, other: "Errors") -> tuple[float, float]:
        """These errors divided by the other ones."""
        return self.mae / other.mae, self.rmse / other.rmse


def seen() -> list[str]:
    """Available streams that were used to choose the portfolio."""
    return data.names()


def unseen() -> list[str]:
    """Available streams that were not."""
    has_folder = data.folder() is not None
    return [name for name in fresh.LOADERS if has_folder or name not in fresh.IN_FOLDER]


def load(name: str) -> Stream:
    """A stream of either kind."""
    loaders: Mapping = {**data.LOADERS, **fresh.LOADERS}
    return loaders[name]()
