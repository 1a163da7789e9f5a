"""Public API of the solvers: online learners for linear models, with duality certificates."""

from typing import TYPE_CHECKING, Any

# First: it sets what numba reads on import.
from dualstream.solvers import jit as jit  # isort: split

from dualstream.solvers.errors import (
    CorruptState,
    InvalidRow,
    InvalidSpec,
    MemberError,
    NotAvailable,
    NotConverged,
    NotExpressible,
    RefitError,
    ShapeMismatch,
    SolverError,
    UnknownMember,
    UnlearningError,
)
from dualstream.solvers.evaluation.drift import DETECTORS, DriftEvent
from dualstream.solvers.evaluation.guard import QUANTITIES, guard_of
from dualstream.solvers.evaluation.late_label_scores import AsServed, as_served, why_not_as_served
from dualstream.solvers.evaluation.progressive import Progressive
from dualstream.solvers.jit import compiled_signatures
from dualstream.solvers.numeric_identity import APPLY_VERSION, numeric_identity
from dualstream.solvers.offline import Progress, Solution, solve
from dualstream.solvers.offline.options import read_refit_options
from dualstream.solvers.offline.refit_methods import (
    ALL_METHODS,
    MAX_WINDOW_ROWS,
    WINDOW_ROWS,
    refit_methods,
    takes_weights,
    why_no_reference,
    why_not_method,
    why_not_refit,
)
from dualstream.solvers.profile import Column, ColumnProfile
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.checksummed_state import digest_of, dump, load
from dualstream.solvers.protocols.curves import Curve, curves_of
from dualstream.solvers.protocols.explanation import Explanation, explain
from dualstream.solvers.protocols.learner import Learner, Outcome, State, has_long_row
from dualstream.solvers.protocols.member_learner import (
    MEMBER_NAME,
    Comparison,
    MemberLearner,
    MemberView,
    certificates_of_members,
    member_learner,
)
from dualstream.solvers.protocols.refit_weights import WEIGHTS
from dualstream.solvers.protocols.served_form import (
    BalancedForm,
    ClassMixture,
    Form,
    FourierForm,
    Linear,
    NormForm,
    NumberMixture,
    NystroemForm,
    Part,
    ScoreForm,
    StageForm,
    classes_of,
    columns_of,
    gives_probabilities,
    numbers_in,
    served_form,
)
from dualstream.solvers.protocols.served_weights import ServedWeights, WeightSurvey, survey_weights
from dualstream.solvers.protocols.sparse_support import (
    LocalPhases,
    Support,
    local_phases_of,
    support_of,
)
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.protocols.unlearner import Unlearner, unlearner, why_not_unlearn
from dualstream.solvers.refit.refit import (
    DUALS,
    SOLUTION,
    RefitRun,
    begin_refit,
    enter_refit,
    problems_of,
    take_refit,
)
from dualstream.solvers.rows.batch import LARGEST, MAX_DIM, Batch, LibsvmRows
from dualstream.solvers.rows.class_names import MAX_CLASSES, class_label, class_places, class_text
from dualstream.solvers.rows.columns import BadColumn, ColumnReader
from dualstream.solvers.rows.hashing import NamePlaces, hash_names, hash_row, sorted_row
from dualstream.solvers.rows.intercept import weights_dim, width_of
from dualstream.solvers.rows.shared_ones import are_shared_ones, shared_ones
from dualstream.solvers.rows.text.libsvm import BadLine
from dualstream.solvers.semiparametric.coefficients import Coefficients, coefficients_of
from dualstream.solvers.spec.cost import (
    Cost,
    check_cost,
    learning_cost,
    making_seconds,
    predicting_cost,
)
from dualstream.solvers.spec.resolve import make_learner, resolve_spec, warm
from dualstream.solvers.spec_cache import FixedSpec, WorkedOut

if TYPE_CHECKING:
    from dualstream.solvers.offline.semiparametric import solve_semiparametric

__all__ = [
    "ALL_METHODS",
    "APPLY_VERSION",
    "AsServed",
    "BadColumn",
    "BadLine",
    "BalancedForm",
    "Batch",
    "Certificate",
    "ClassMixture",
    "Coefficients",
    "Column",
    "ColumnProfile",
    "ColumnReader",
    "Comparison",
    "CorruptState",
    "Cost",
    "Curve",
    "DETECTORS",
    "DUALS",
    "DriftEvent",
    "Explanation",
    "FixedSpec",
    "Form",
    "FourierForm",
    "InvalidRow",
    "InvalidSpec",
    "LARGEST",
    "Learner",
    "LibsvmRows",
    "Linear",
    "LocalPhases",
    "MAX_CLASSES",
    "MAX_DIM",
    "MAX_WINDOW_ROWS",
    "MEMBER_NAME",
    "MemberError",
    "MemberLearner",
    "MemberView",
    "NamePlaces",
    "NormForm",
    "NotAvailable",
    "NotConverged",
    "NotExpressible",
    "NumberMixture",
    "NystroemForm",
    "Outcome",
    "Part",
    "Progress",
    "Progressive",
    "QUANTITIES",
    "RefitError",
    "RefitRun",
    "SOLUTION",
    "ScoreForm",
    "ServedWeights",
    "ShapeMismatch",
    "Solution",
    "SolverError",
    "StageForm",
    "State",
    "Support",
    "UnknownMember",
    "Unlearner",
    "UnlearningError",
    "WEIGHTS",
    "WINDOW_ROWS",
    "WeightSurvey",
    "WorkedOut",
    "are_shared_ones",
    "as_served",
    "begin_refit",
    "certificates_of_members",
    "check_arrays",
    "check_cost",
    "class_label",
    "class_places",
    "class_text",
    "classes_of",
    "coefficients_of",
    "columns_of",
    "compiled_signatures",
    "curves_of",
    "digest_of",
    "dump",
    "enter_refit",
    "explain",
    "gives_probabilities",
    "guard_of",
    "has_long_row",
    "hash_names",
    "hash_row",
    "learning_cost",
    "load",
    "local_phases_of",
    "make_learner",
    "making_seconds",
    "member_learner",
    "numbers_in",
    "numeric_identity",
    "predicting_cost",
    "problems_of",
    "read_refit_options",
    "refit_methods",
    "resolve_spec",
    "served_form",
    "shared_ones",
    "solve",
    "solve_semiparametric",
    "sorted_row",
    "support_of",
    "survey_weights",
    "take_refit",
    "takes_weights",
    "unlearner",
    "warm",
    "weights_dim",
    "why_no_reference",
    "why_not_as_served",
    "why_not_method",
    "why_not_refit",
    "why_not_unlearn",
    "width_of",
]


def __getattr__(name: str) -> Any:
    """Import `solve_semiparametric` on first use: few need it, and its kernels take a second."""
    if name != "solve_semiparametric":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dualstream.solvers.offline.semiparametric import solve_semiparametric

    return solve_semiparametric
