"""Background jobs: of one model (refits, rollbacks, clean-ups) and of the process."""

from dualstream.service.jobs.guard_rollback import GuardRollback
from dualstream.service.jobs.refit import Refits
from dualstream.service.jobs.unlearn_cleanup import UnlearnCleanup

MODEL_JOBS = (Refits, GuardRollback, UnlearnCleanup)
"""Jobs that a model starts by itself when they are due."""
