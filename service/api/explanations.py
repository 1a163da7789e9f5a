"""Explanations of predictions (`explain=true`): what each feature of a row contributes."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from msgspec import UNSET

from dualstream.service.codecs import ParsedRows
from dualstream.service.concurrency import run_view_in_thread
from dualstream.service.models.model import Model
from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch, Learner, NotExpressible, explain
from dualstream.solvers.nonlinear.spec import lag_name
from dualstream.solvers.protocols.explanation import Explanation as Explained
from dualstream.solvers.protocols.learner import as_served
from dualstream.wire.problem_json import Problem
from dualstream.wire.schemas import (
    MAX_EXPLAINED,
    Contribution,
    Explanation,
    Predicted,
    PredictedMany,
)

MAX_LISTED = 100
"""Contributions of an explanation; `rest` is the sum of the others."""


def check_few(rows: int) -> None:
    """Raise Problem 422 for more rows than one request may explain."""
    if rows > MAX_EXPLAINED:
        raise Problem(
            422,
            "invalid-query",
            f"explain=true takes up to {MAX_EXPLAINED} rows, got {rows:,}; send fewer in a request",
        )


async def add_explanations(
    model: Model,
    learner: Learner,
    parsed: ParsedRows,
    batch: Batch,
    answered: Predicted | PredictedMany,
) -> None:
    """Add explanations to the predictions of these rows by the same learner.

    Each row is explained in the thread of views: a row of a large model takes a second, and short
    rows of other models would wait. The caller keeps others from using the learner until this ends,
    even if the request is cancelled. Raises Problem 409 if the model cannot be explained.
    """
    explanations: list[Explanation | None] = []
    try:
        for row in range(len(batch)):
            row_alone = batch[row : row + 1]
            explained = await run_view_in_thread(explain, learner, row_alone)
            columns = as_served(learner, row_alone)
            explanations.append(_view_of(explained, partial(_name_of, model.replica), columns))
    except NotExpressible as reason:
        algorithm = model.replica.spec["algorithm"]
        raise Problem(
            409, "no-explanation", f"{algorithm} has no explanations: {reason}; omit explain"
        ) from None
    if isinstance(answered, Predicted):
        answered.explanation = explanations[0]
    else:
        answered.explanations = [None] * parsed.count
        for index, one in zip(parsed.row_indices, explanations, strict=True):
            answered.explanations[index] = one


def _name_of(replica: Replica, feature: int) -> str | None:
    return replica.names.get(feature) or lag_name(replica.spec, feature)


def _view_of(
    explained: Explained, name_of: Callable[[int], str | None], columns: Batch | None = None
) -> Explanation | None:
    """The largest contributions, equal ones by feature; None if a number is not finite.

    columns   the row with columns of its past, whose values are shown
    """
    numbers = explained.contributions
    if not (math.isfinite(explained.score) and math.isfinite(explained.base)):
        return None
    if not np.isfinite(numbers).all():
        return None
    order = np.argsort(-np.abs(numbers), kind="stable")
    listed, others = order[:MAX_LISTED], order[MAX_LISTED:]
    values = dict(explained.values)
    if columns is not None:
        values |= zip(columns.indices.tolist(), columns.values.tolist(), strict=True)
    view = partial(_contribution, name_of, values)
    return Explanation(
        base=explained.base,
        contributions=list(
            map(view, explained.features[listed].tolist(), numbers[listed].tolist())
        ),
        rest=math.fsum(numbers[others]),
    )


def _contribution(
    name_of: Callable[[int], str | None],
    values: Mapping[int, float],
    index: int,
    contribution: float,
) -> Contribution:
    name = name_of(index)
    shown = UNSET if name is None else name
    return Contribution(index + 1, contribution, shown, values.get(index, UNSET))
