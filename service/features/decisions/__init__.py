"""Decisions: labels of least expected cost, and alerts at a fixed rate."""

from dualstream.service.features.decisions.series import FAMILIES, measure
from dualstream.service.features.decisions.state import part_of
from dualstream.service.features.feature import Feature
from dualstream.service.metrics.families import ModelFamilies

FEATURE = Feature(name="decisions", part=part_of, series=ModelFamilies(FAMILIES, measure))
