"""Prediction intervals and sets with a guaranteed coverage, in answers, metrics and events."""

from dualstream.service.features.feature import Feature
from dualstream.service.features.intervals.routes import router
from dualstream.service.features.intervals.series import FAMILIES, measure
from dualstream.service.features.intervals.state import Intervals
from dualstream.service.metrics.families import ModelFamilies

FEATURE = Feature(
    name="intervals", part=Intervals.of, routers=(router,), series=ModelFamilies(FAMILIES, measure)
)
