"""Segments: metrics by the values of a column, in which a model may fail."""

from dualstream.service.features.feature import Feature
from dualstream.service.features.segments.series import FAMILIES, measure
from dualstream.service.features.segments.state import Segmented
from dualstream.service.metrics.families import ModelFamilies

FEATURE = Feature(
    name="segments",
    part=Segmented.of,
    series=ModelFamilies(FAMILIES, measure),
    series_setting="metrics_segments",
)
