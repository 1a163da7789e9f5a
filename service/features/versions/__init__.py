"""Versions: named states, and the way back to one. Their copies are the core's."""

from dualstream.service.features.feature import Feature
from dualstream.service.features.versions.routes import router
from dualstream.service.replica.copies import ROLLBACK

FEATURE = Feature(name="versions", controls=(ROLLBACK,), routers=(router,))
