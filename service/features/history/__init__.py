"""History: columns that are computed from the earlier rows of a key."""

from dualstream.service.features.feature import Feature

FEATURE = Feature(name="history")
