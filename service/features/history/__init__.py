"""History: columns that are computed from the earlier rows of a key."""

from dualstream.service.features.feature import Feature
from dualstream.service.features.history.routes import router
from dualstream.service.features.history.series import FAMILIES, measure
from dualstream.service.metrics.families import ModelFamilies

FEATURE = Feature(name="history", routers=(router,), series=ModelFamilies(FAMILIES, measure))
