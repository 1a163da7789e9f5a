"""Guard: a circuit breaker for learning, on the loss and on the norm of the weights."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dualstream.solvers.evaluation.guard.spec import FIELD, QUANTITIES

if TYPE_CHECKING:
    from dualstream.solvers.evaluation.guard.monitor import Guard

__all__ = ["QUANTITIES", "guard_of"]


def guard_of(spec: Mapping[str, Any]) -> "Guard | None":
    """The guard of a resolved specification, before the first row; None without a guard."""
    if FIELD not in spec:
        return None
    # Imported on demand, because importing compiles its kernel.
    module: Any = importlib.import_module("dualstream.solvers.evaluation.guard.monitor")
    guard: Guard = module.Guard(spec)
    return guard
