"""Members of a portfolio: add and remove, promote one, compare."""

from dualstream.service.features.feature import Feature
from dualstream.service.features.members.controls import MEMBER_KINDS
from dualstream.service.features.members.routes import router

FEATURE = Feature(name="members", controls=MEMBER_KINDS, routers=(router,))
