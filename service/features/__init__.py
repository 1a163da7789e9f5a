"""Optional features of the server: a module or a package each, listed once, here.

A server without a feature keeps no code of it: its routes answer 404 and name the feature.
"""

from dualstream.service.features import (
    certificate,
    columns,
    confusion,
    curves,
    decisions,
    export,
    guard,
    history,
    intervals,
    members,
    open_inference,
    refits,
    segments,
    trends,
    unlearning,
    versions,
)
from dualstream.service.features.feature import Feature
from dualstream.service.features.infer import routes as infer
from dualstream.service.replica.features import Features

FEATURES: tuple[Feature, ...] = (
    certificate.FEATURE,
    columns.FEATURE,
    confusion.FEATURE,
    curves.FEATURE,
    decisions.FEATURE,
    export.FEATURE,
    guard.FEATURE,
    history.FEATURE,
    infer.FEATURE,
    intervals.FEATURE,
    members.FEATURE,
    open_inference.FEATURE,
    refits.FEATURE,
    segments.FEATURE,
    trends.FEATURE,
    unlearning.FEATURE,
    versions.FEATURE,
)
ALL = Features(FEATURES)
