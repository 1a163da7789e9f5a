"""Optional features of the server: a module or a package each, listed once, here.

A server without a feature keeps no code of it: its routes answer 404 and name the feature.
"""

from dualstream.service.features import (
    certificate,
    curves,
    export,
    members,
    open_inference,
    refits,
    versions,
)
from dualstream.service.features.feature import Feature
from dualstream.service.features.infer import routes as infer
from dualstream.service.jobs.guard_rollback import GuardRollback
from dualstream.service.jobs.unlearn_cleanup import UnlearnCleanup

# Only their jobs are apart from the core so far.
_GUARD = Feature(name="guard", jobs=(GuardRollback,))
_UNLEARNING = Feature(name="unlearning", jobs=(UnlearnCleanup,))

FEATURES: tuple[Feature, ...] = (
    _GUARD,
    _UNLEARNING,
    certificate.FEATURE,
    curves.FEATURE,
    export.FEATURE,
    infer.FEATURE,
    members.FEATURE,
    open_inference.FEATURE,
    refits.FEATURE,
    versions.FEATURE,
)
