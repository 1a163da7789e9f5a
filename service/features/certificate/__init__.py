"""Certificate: distance of the served weights from the optimum of their window."""

from dualstream.service.features.certificate.routes import router
from dualstream.service.features.certificate.series import FAMILIES, measure
from dualstream.service.features.certificate.served_losses import ServedLosses
from dualstream.service.features.feature import Feature
from dualstream.service.metrics.families import ReportFamilies

FEATURE = Feature(
    name="certificate",
    part=ServedLosses.of,
    routers=(router,),
    reports=ReportFamilies(FAMILIES, measure),
)
