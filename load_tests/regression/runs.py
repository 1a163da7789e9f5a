"""What one learner did on one stream, and the streams by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from load_tests.regression import data, fresh
from load_tests.regression.data import Floats, Stream


@dataclass(frozen=True)
class Errors:
    """Of the rows 2 to the last; nobody can know the first one."""

    mae: float
    rmse: float

    @classmethod
    def of(cls, predictions: Floats, targets: Floats) -> Self:
        """Of predictions (n,) from before each row was learned; what is no number counts as 0."""
        predictions = np.where(np.isfinite(predictions), predictions, 0.0)
        wrong = np.abs(predictions - targets)[1:]
        return cls(float(wrong.mean()), float(np.sqrt((wrong * wrong).mean())))

    def ratios(self, other: "Errors") -> tuple[float, float]:
        """These over the other's."""
        return self.mae / other.mae, self.rmse / other.rmse


def seen() -> list[str]:
    """Streams that were in view when the portfolio was chosen, as far as they are at hand."""
    return data.names()


def unseen() -> list[str]:
    """Those that were not."""
    has_folder = data.folder() is not None
    return [name for name in fresh.LOADERS if has_folder or name not in fresh.IN_FOLDER]


def load(name: str) -> Stream:
    """A stream of either kind."""
    loaders: Mapping = {**data.LOADERS, **fresh.LOADERS}
    return loaders[name]()
