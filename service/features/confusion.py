"""GET /models/{id}/confusion: classes of the last rows against the predicted ones, calibration."""

from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import NOT_MODIFIED, IfNoneMatch, answer_by_state, staleness
from dualstream.service.features.feature import Feature
from dualstream.service.http.openapi import returns
from dualstream.service.models.model import Model
from dualstream.solvers.jit import Bytes, Floats
from dualstream.solvers.rows.class_names import class_label
from dualstream.wire.problem_json import Problem
from dualstream.wire.responses import Calibrated, Confusion

if TYPE_CHECKING:
    from dualstream.solvers.evaluation.class_progressive import ClassProgressive

BINS = 20
"""Bins of probabilities, of equal width, for the calibration error."""

router = APIRouter(prefix="/models", tags=["models"])


@router.get("/{model_id}/confusion", responses={200: returns(Confusion), **NOT_MODIFIED})
async def read_confusion(
    model_id: str,
    request: Request,
    top: Annotated[int, Query(ge=1, le=100, description="Classes with most rows.")] = 20,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Confusion table of the last 1,000 rows, each predicted before it was learned."""
    model = await registry_of(request).get(model_id)
    if model.replica.spec["task"] == "regression":
        raise Problem(404, "no-classes", f"model {model_id!r} predicts numbers, not classes")
    return await answer_by_state(model, if_none_match, lambda: _confusion_of(model, top))


def _confusion_of(model: Model, top: int) -> Confusion:
    replica = model.replica
    if replica.spec["task"] == "multiclass":
        names, counts = cast("ClassProgressive", replica.progress).confusion(top)
        classes, calibration = list[Any](map(class_label, names)), None
    else:
        scores, positive = replica.progress.recent_scores()
        classes = list(replica.spec["labels"] or (0, 1))
        cells = 2 * positive.astype(np.int64) + (scores >= 0.0)
        counts = np.bincount(cells, minlength=4).reshape(2, 2)
        calibration = _calibrated(replica.learner.probabilities(scores), positive)
    return Confusion(
        model=model.record.id,
        seq=replica.seq,
        rows=int(counts.sum()),
        classes=classes,
        counts=counts.tolist(),
        calibration=calibration,
        **staleness(model),
    )


def _calibrated(probabilities: Floats | None, positive: Bytes) -> Calibrated | None:
    """None without probabilities, or rows."""
    if probabilities is None or not len(positive):
        return None
    bins = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    differences = np.bincount(bins, probabilities - positive, BINS)
    return Calibrated(
        error=float(np.abs(differences).sum()) / len(positive),
        mean_probability=float(probabilities.mean()),
        positive_rate=float(positive.mean()),
    )


FEATURE = Feature(name="confusion", routers=(router,))
