"""Guard: stop learning when loss or weights leave their history, and go back to a good state."""

from dualstream.service.features.feature import Feature
from dualstream.service.features.guard.controls import PAUSE, RESUME
from dualstream.service.features.guard.rollback import GuardRollback
from dualstream.service.features.guard.routes import router
from dualstream.service.features.guard.series import FAMILIES, measure
from dualstream.service.features.guard.state import Guarding
from dualstream.service.metrics.families import ModelFamilies

FEATURE = Feature(
    name="guard",
    part=Guarding.of,
    controls=(PAUSE, RESUME),
    jobs=(GuardRollback,),
    routers=(router,),
    series=ModelFamilies(FAMILIES, measure),
)
