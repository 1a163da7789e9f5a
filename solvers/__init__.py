"""Public API of the solvers: online learners for linear models, with duality certificates."""

from typing import TYPE_CHECKING, Any

# First: it sets what numba reads on import.
from dualstream.solvers import jit as jit  # isort: split

from dualstream.solvers.errors import (
    CorruptState,
    InvalidRow,
    InvalidSpec,
    MemberError,
    NotConverged,
    NotExpressible,
    RefitError,
    ShapeMismatch,
    SolverError,
    UnknownMember,
    UnlearningError,
)
from dualstream.solvers.evaluation.make_progressive import make_progressive
from dualstream.solvers.evaluation.progressive import Progressive
from dualstream.solvers.numeric_identity import numeric_identity
from dualstream.solvers.offline import Progress, Solution, solve
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.checksummed_state import dump, load
from dualstream.solvers.protocols.explanation import explain
from dualstream.solvers.protocols.learner import Learner, Outcome, State
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.columns import BadColumn, ColumnReader
from dualstream.solvers.spec.make_learner import make_learner
from dualstream.solvers.spec.validate import resolve_spec

if TYPE_CHECKING:
    from dualstream.solvers.offline.semiparametric import solve_semiparametric

__all__ = [
    "BadColumn",
    "Batch",
    "Certificate",
    "ColumnReader",
    "CorruptState",
    "InvalidRow",
    "InvalidSpec",
    "Learner",
    "MemberError",
    "NotConverged",
    "NotExpressible",
    "Outcome",
    "Progress",
    "Progressive",
    "RefitError",
    "ShapeMismatch",
    "Solution",
    "SolverError",
    "State",
    "UnknownMember",
    "UnlearningError",
    "dump",
    "explain",
    "load",
    "make_learner",
    "make_progressive",
    "numeric_identity",
    "resolve_spec",
    "solve",
    "solve_semiparametric",
]


def __getattr__(name: str) -> Any:
    """Import `solve_semiparametric` on first use: few need it, and its kernels take a second."""
    if name != "solve_semiparametric":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dualstream.solvers.offline.semiparametric import solve_semiparametric

    return solve_semiparametric
