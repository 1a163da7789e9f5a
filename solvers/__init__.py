"""Online learners for linear models, with duality certificates where a dual exists."""

from solvers._jit import APPLY_VERSION, compiled_signatures, numeric_identity
from solvers.batch import (
    LARGEST,
    MAX_DIM,
    Batch,
    LibsvmRows,
)
from solvers.certificate import Certificate
from solvers.class_names import MAX_CLASSES, class_label, class_places, class_text
from solvers.drift import DETECTORS, DriftEvent
from solvers.errors import (
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
from solvers.features import width_of
from solvers.fixed_spec import FixedSpec, WorkedOut
from solvers.guard import QUANTITIES, guard_of
from solvers.hashing import NamePlaces, hash_names, hash_row, sorted_row
from solvers.learner import Learner, Outcome, State, check_arrays, count_nonzeros
from solvers.libsvm import BadLine
from solvers.members import (
    MEMBER_NAME,
    Comparison,
    MemberLearner,
    MemberView,
    certificates_of_members,
    member_learner,
)
from solvers.offline import Progress, Solution, solve
from solvers.ones import are_shared_ones, shared_ones
from solvers.progressive import Progressive
from solvers.refit import (
    DUALS,
    SOLUTION,
    RefitRun,
    begin_refit,
    enter_refit,
    problems_of,
    take_refit,
)
from solvers.refit_methods import (
    ALL_METHODS,
    MAX_WINDOW_ROWS,
    WINDOW_ROWS,
    refit_methods,
    takes_weights,
    why_no_reference,
    why_not_method,
    why_not_refit,
)
from solvers.semiparametric.view import Coefficients, coefficients_of
from solvers.served import AsServed, as_served, why_not_as_served
from solvers.served_form import (
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
from solvers.spec import make_learner, resolve_spec, warm
from solvers.state import dump, load
from solvers.support import Support
from solvers.unlearning import Unlearner, unlearner, why_not_unlearn
from solvers.weights_refit import WEIGHTS

__all__ = [
    "ALL_METHODS",
    "APPLY_VERSION",
    "AsServed",
    "BadLine",
    "BalancedForm",
    "Batch",
    "Certificate",
    "ClassMixture",
    "Coefficients",
    "Comparison",
    "CorruptState",
    "DETECTORS",
    "DUALS",
    "DriftEvent",
    "FixedSpec",
    "Form",
    "FourierForm",
    "InvalidRow",
    "InvalidSpec",
    "LARGEST",
    "Learner",
    "LibsvmRows",
    "Linear",
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
    "WorkedOut",
    "are_shared_ones",
    "as_served",
    "begin_refit",
    "certificates_of_members",
    "check_arrays",
    "class_label",
    "class_places",
    "class_text",
    "classes_of",
    "coefficients_of",
    "columns_of",
    "compiled_signatures",
    "count_nonzeros",
    "dump",
    "enter_refit",
    "gives_probabilities",
    "guard_of",
    "hash_names",
    "hash_row",
    "load",
    "make_learner",
    "member_learner",
    "numbers_in",
    "numeric_identity",
    "problems_of",
    "refit_methods",
    "resolve_spec",
    "served_form",
    "shared_ones",
    "solve",
    "sorted_row",
    "take_refit",
    "takes_weights",
    "unlearner",
    "warm",
    "why_no_reference",
    "why_not_as_served",
    "why_not_method",
    "why_not_refit",
    "why_not_unlearn",
    "width_of",
]
