"""Weights that were computed elsewhere, as the result of a refit.

A learner whose state is its weights takes them as it takes those of a refit of its own, if the
features of a row are what it weighs: stages in front of it change the rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dualstream.solvers.errors import RefitError
from dualstream.solvers.features.spec import has_stages
from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.refit_methods import takes_weights, why_not_refit
from dualstream.solvers.protocols import refit_weights
from dualstream.solvers.rows.intercept import Features
from dualstream.solvers.spec.make_learner import make_learner
from dualstream.solvers.spec_cache import derived_once

_ANY_REACH = 1e150
"""Bound on an unknown distance. ASSET then begins with its first step size."""
_INSTEAD = 'create a model with "algorithm": "sgd" and the loss and rho of the weights'


@derived_once
def why_not_set_weights(spec: Mapping[str, Any]) -> str | None:
    """Why the weights of a model of this resolved specification cannot be set; None if they can."""
    if spec["task"] == "multiclass":
        return "each class has weights of its own; use a binary model for each class"
    if spec["algorithm"] == "portfolio":
        return f"it combines the weights of its members; {_INSTEAD}"
    if (why_not := why_not_refit(spec)) is not None:
        return f"they are entered as a refit, and {why_not}; {_INSTEAD}"
    if not takes_weights(spec):
        how = "follow from the dual variables of its rows"
        return f"the weights of {spec['algorithm']} {how}; {_INSTEAD}"
    if has_stages(spec):
        return (
            "its weights are those of rows after `scaling`, `map` and `norm`, not of your features;"
            " use a model without these"
        )
    return None


def given_weights(
    spec: Mapping[str, Any],
    coordinates: Sequence[int],
    weights: Sequence[float],
    intercept: float,
    rows: int,
    bounds: tuple[float, float] | None = None,
) -> dict[str, Floats]:
    """The arrays of a refit that gives these weights to a model; see `enter_refit`.

    spec             resolved; `why_not_set_weights` is None
    coordinates, weights  different indices from 0, and their finite weights; all others are 0
    rows             that they were computed from
    bounds           objective of the model's problem at the weights, and its gap; None if unknown

    Raises RefitError if a model of this specification cannot serve these weights.
    """
    features = Features.of(spec)
    served = np.zeros((1, features.width))
    served[0, coordinates] = weights
    served[0, -1] = intercept
    if intercept and not features.intercept:
        raise RefitError("the model has no intercept; leave it out or create one with `intercept`")
    reach, is_asset = _ANY_REACH, spec["algorithm"] == "asset"
    if is_asset and bounds is not None:
        objective, gap = bounds
        reach = refit_weights.reach_of(gap, objective, spec["lambda"])
    arrays = refit_weights.weights_arrays(served, np.array([reach]), rows)
    if is_asset:  # the others serve any weights
        # The weights that it serves after a refit depend on nothing that it has learned.
        learner = make_learner(spec)
        refit_weights.enter_weights(learner, arrays)
        if not np.array_equal(refit_weights.taking_weights(learner).served(), served):
            raise RefitError(
                "asset keeps its weights in the ball of radius sqrt(loss of 0 / lambda), and the"
                " intercept within `bound`; these are beyond. Use a smaller lambda, or sgd"
            )
    return arrays
