"""Columns: what the columns of a stream hold, and which have moved."""

from dualstream.service.features.columns.profile import Profile
from dualstream.service.features.columns.routes import router
from dualstream.service.features.columns.series import FAMILIES, measure
from dualstream.service.features.feature import Feature
from dualstream.service.metrics.families import ModelFamilies

FEATURE = Feature(
    name="columns", part=Profile, routers=(router,), series=ModelFamilies(FAMILIES, measure)
)
