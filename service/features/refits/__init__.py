"""Refits: a model's window is solved offline, and the result enters the model as a control.

job.py      the job: computes a refit in a thread, starts scheduled ones
table.py    refits of all workers, in the store
window.py   rows of the journal, for a model that retains none
routes.py   POST refit, GET refits
weights.py  PUT weights: a result that was computed elsewhere
"""

from dualstream.service.features.feature import Feature
from dualstream.service.features.refits import routes, weights
from dualstream.service.features.refits.controls import REFIT
from dualstream.service.features.refits.job import Refits

FEATURE = Feature(
    name="refits", controls=(REFIT,), jobs=(Refits,), routers=(routes.router, weights.router)
)
