"""Background work: of one model (refits, rollbacks, clean-ups) and of the whole process."""

from dualstream.service.jobs.guard_rollback import GuardRollback
from dualstream.service.jobs.refit import Refits
from dualstream.service.jobs.unlearn_cleanup import UnlearnCleanup

MODEL_JOBS = (Refits, GuardRollback, UnlearnCleanup)
"""The kinds of jobs that a model starts by itself."""
