"""Row width and intercept of a model.

The intercept is a last coordinate, of index `dim`, that is 1 in every row. Kernels add it
themselves (`bias`), which avoids a copy of each row.

With `intercept: prior` the log odds o of the labels so far (scalar.prior_odds) are added to every
score, and the weight b of that coordinate is the distance from them. So the penalty is that of
b = (served intercept) - o, and does not pull the probabilities of a rare class towards 1/2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dualstream.solvers.spec_cache import SharedDerived


@dataclass(frozen=True, slots=True)
class Features(SharedDerived):
    """Rows of width `dim`, and whether the model has an intercept."""

    dim: int
    intercept: bool
    has_prior: bool = False

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Features":
        intercept = spec["intercept"]
        return cls(width_of(spec["features"]), bool(intercept), intercept == "prior")

    @property
    def width(self) -> int:
        """Coordinates of a learner: one per index, and one for the intercept whether it is used or
        not."""
        return self.dim + 1

    @property
    def bias(self) -> float:
        """The last coordinate of every row."""
        return 1.0 if self.intercept else 0.0


def weights_dim(spec: Mapping[str, Any]) -> int:
    """Number of features that have weights: those of a map, otherwise those of a row."""
    mapping = spec.get("map")
    return width_of(spec["features"]) if mapping is None else int(mapping["components"])


def width_of(features: Mapping[str, Any]) -> int:
    """Row width from the `features` of a resolved specification."""
    if features["kind"] == "hashed":
        return 1 << int(features["bits"])
    return int(features["dim"])
