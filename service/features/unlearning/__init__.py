"""Unlearning: take one sample out of a model and out of the store."""

from dualstream.service.features.feature import Feature
from dualstream.service.features.unlearning.cleanup import UnlearnCleanup
from dualstream.service.features.unlearning.controls import UNLEARN
from dualstream.service.features.unlearning.routes import router
from dualstream.service.features.unlearning.state import RetainedIds

FEATURE = Feature(
    name="unlearning",
    part=RetainedIds.of,
    controls=(UNLEARN,),
    jobs=(UnlearnCleanup,),
    routers=(router,),
)
