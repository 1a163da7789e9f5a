"""A stream of flat rows whose labels come late."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HOUR_S = 3600.0
Spec = Mapping[str, Any]


@dataclass
class Stream:
    """Flat rows in the order of time, as JSON objects without their closing braces."""

    label: str
    rows: list[str]
    seconds: np.ndarray
    labels: np.ndarray
    observed: list[str] = field(default_factory=list)
    """A row without label for each row, which arrives with the label."""
    step_s: float = HOUR_S
    """Rows of one step of time are predicted in one request."""
    objective: str = "binary"
    """LightGBM's; for labels that are numbers: regression."""

    def unlabelled(self, row: int) -> str:
        return f'{self.rows[row]}, "tx": "{row}"}}'

    def labelled(self, row: int) -> str:
        return f'{self.rows[row]}, "{self.label}": {self.labels[row]}}}'

    def count_until(self, second: float) -> int:
        """Rows up to this time."""
        return int(np.searchsorted(self.seconds, second, side="right"))

    def steps(self, seconds: float | None = None) -> Iterator[tuple[float, range]]:
        """The beginning of each step of time, and its rows."""
        seconds = seconds or self.step_s
        starts = np.arange(self.seconds[0] // seconds * seconds, self.seconds[-1] + 1, seconds)
        bounds = [*np.searchsorted(self.seconds, starts).tolist(), len(self.rows)]
        for start, low, high in zip(starts.tolist(), bounds, bounds[1:], strict=False):
            if high > low:
                yield start, range(low, high)
