"""GET /models/{id}/trends: figures of a model's last rows over time, since it was loaded.

AUC, coverage of intervals, costs, alerts and shares of members are no sums over rows, as the
metrics of the timeline are. So this process reads them between two groups, after every SPACING
rows, and keeps at most MAX_POINTS of them: when they are full, every second point is dropped, and
the spacing doubles. They are no part of the state: other workers, and a restart, have their own.
"""

import math
import time
from array import array
from collections.abc import Sequence, Sized
from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import answer, staleness
from dualstream.service.features.feature import Feature
from dualstream.service.http.openapi import returns
from dualstream.service.models.job import Job
from dualstream.service.models.model import Model
from dualstream.service.replica.parts import Trend
from dualstream.service.replica.replica import Replica
from dualstream.solvers.evaluation.ranking import areas_of_rows
from dualstream.solvers.protocols.member_learner import shares_of
from dualstream.wire.responses import Series, Trends

MAX_POINTS = 128
SPACING = 50
MAX_SERIES = 128
"""Enough for the 65 members of a portfolio, and those that were removed."""

router = APIRouter(prefix="/models", tags=["models"])


class Figures(Job):
    """Points of one model: rows, times and series of equal length; NaN for unknown figures."""

    def __init__(self, model: Model) -> None:
        self._replica = model.replica
        self.rows, self.times = array("q"), array("d")
        self.series: dict[Trend, array[float]] = {}
        self._spacing = SPACING
        self._last, self._due = 0, model.replica.learner.samples + 1

    @classmethod
    def is_due(cls, replica: Replica, since: int) -> bool:
        """A loaded model begins at once, if it has such figures."""
        of_learner = replica.spec["task"] == "binary" or replica.spec["algorithm"] == "portfolio"
        return since == 0 and (of_learner or bool(replica.parts.trends))

    def begin_due(self) -> None:
        """Wait for rows: many models are loaded for one request."""

    def on_advance(self) -> None:
        """Add a point if enough rows were learned since the last one."""
        rows = self._replica.learner.samples
        if self._last <= rows < self._due:
            return
        while self.rows and self.rows[-1] >= rows:  # a rollback
            self._drop(slice(len(self.rows) - 1, None))
        self._add(rows, time.time())
        if len(self.rows) > MAX_POINTS:
            self._drop(slice(1, None, 2))
            self._spacing *= 2
        self._last, self._due = rows, rows + self._spacing

    def _add(self, rows: int, now: float) -> None:
        figures = figures_of(self._replica)
        for name in figures.keys() - self.series.keys():
            if len(self.series) < MAX_SERIES:
                self.series[name] = array("f", [math.nan]) * len(self.rows)
        for name, values in self.series.items():
            figure = figures.get(name)
            values.append(math.nan if figure is None else figure)
        self.rows.append(rows)
        self.times.append(now)

    def _drop(self, points: slice) -> None:
        del self.rows[points], self.times[points]
        for values in self.series.values():
            del values[points]

    def roots(self) -> Sequence[Sized]:
        """The arrays."""
        return (self.rows, self.times, *self.series.values())


def figures_of(replica: Replica) -> dict[Trend, float | None]:
    """The figures of a state now."""
    figures: dict[Trend, float | None] = {}
    if replica.spec["task"] == "binary":
        figures |= {(name, None): area for name, area in _areas(replica).items()}
    for of_part in replica.parts.trends:
        figures |= of_part()
    for name, share in (shares_of(replica.learner) or {}).items():
        figures["share", name] = share
    return figures


def _areas(replica: Replica) -> dict[str, float | None]:
    return areas_of_rows(*replica.progress.recent_scores())


@router.get("/{model_id}/trends", responses={200: returns(Trends)})
async def read_trends(model_id: str, request: Request) -> Response:
    """AUC, coverage, costs, alerts and members' shares over the rows, since the model was loaded.

    At most 128 points, the last one of the present state. Models without such figures have none.
    """
    model = await registry_of(request).get(model_id)
    return answer(await model.replica.view(lambda: _trends_of(model)))


def _trends_of(model: Model) -> Trends:
    job = model.find_job(Figures) or Figures(model)
    rows, times = job.rows.tolist(), job.times.tolist()
    series: dict[Trend, list[float | None]]
    series = {name: [*values] for name, values in job.series.items()}
    samples, at = model.replica.learner.samples, model.activity.last_at
    if samples and at is not None and (not rows or rows[-1] < samples):
        now = figures_of(model.replica)
        missing = [None] * len(rows)
        for name in now.keys() | series.keys():
            series[name] = [*series.get(name, missing), now.get(name)]
        rows, times = [*rows, samples], [*times, at]
    return Trends(
        model=model.record.id,
        seq=model.replica.seq,
        rows=rows,
        times=[datetime.fromtimestamp(one, UTC) for one in times],
        series=[Series(*name, series[name]) for name in sorted(series, key=str)],
        **staleness(model),
    )


FEATURE = Feature(name="trends", jobs=(Figures,), routers=(router,))
