"""Ages: how much older a row's time is than the newest time learned so far.

For the feature `at.age` of a column of times `at`, which is the time in seconds in the raw row,

    age = log(1 + newest - time),   newest = the largest time of the learned rows and of this one

so a time that is itself the newest has the age 0, an hour 8.2 and a year 17.3. Rows that are
rejected, and those of weight 0, do not move `newest`, and neither does a prediction. The stage is
in front of the whole learner, a portfolio too: all that is retained has ages and no times.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.features.pipeline import Staged
from dualstream.solvers.features.wrapper import ClassLearner, PrefixLearner
from dualstream.solvers.jit import F8, I4, I8, RO_F8, RO_I4, RO_I8, Floats, Indices, kernel
from dualstream.solvers.online.class_choice import ClassScores
from dualstream.solvers.online.rewind import Rewind
from dualstream.solvers.protocols.explanation import Explanation, explain
from dualstream.solvers.protocols.learner import Learner, State
from dualstream.solvers.protocols.refit_weights import taking_weights
from dualstream.solvers.protocols.served_form import Form
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.columns.spec import age_features
from dualstream.solvers.rows.hashing import hash_names

_NEVER = -1e300
"""Newest time before the first row, earlier than any value of a row."""


class Ages:
    """The stage of ages; one float for each feature (k,), given as increasing indices."""

    def __init__(self, features: Indices) -> None:
        self._features = features
        self._newest = np.full(len(features), _NEVER)
        self._before = self._newest.copy()

    def learn(self, batch: Batch) -> Batch:
        """See Stage."""
        self._before[:] = self._newest
        return self._transformed(batch, batch.weights)

    def peek(self, batch: Batch) -> Batch:
        """See Stage."""
        return self._transformed(batch, np.zeros(len(batch)))

    def _transformed(self, batch: Batch, weights: Floats) -> Batch:
        indptr = np.zeros(len(batch) + 1, np.int64)
        indices, values = np.empty(batch.nnz, np.int32), np.empty(batch.nnz)
        age_rows(
            batch.indptr, batch.indices, batch.values, weights, self._features, self._newest,
            indptr, indices, values,
        )  # fmt: skip
        used = int(indptr[-1])
        return batch.with_rows(indptr, indices[:used], values[:used], batch.dim)

    def undo(self) -> None:
        """See Stage."""
        self._newest[:] = self._before

    def form(self) -> NoReturn:
        """Raises NotExpressible."""
        raise NotExpressible(
            "a part `age` of its times is measured from the newest row, which a file cannot know: "
            "create a model without it, and send ages as numbers"
        )

    def state(self) -> State:
        """See Stage."""
        return {"newest": self._newest.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Stage."""
        check_arrays(state, {"newest": self._newest.shape})
        self._newest[:] = state["newest"]


class Aged(Staged):
    """Any learner behind its ages. What is not about rows is answered by the learner itself."""

    _learner: Any

    def __init__(self, spec: Mapping[str, Any], learner: Learner) -> None:
        names = age_features(spec)
        self._features = np.unique(hash_names(names, spec["features"]["bits"])).astype(np.int32)
        prefix = learner if hasattr(learner, "learn_prefix") else Rewind(learner, row_is_whole=True)
        super().__init__(spec, {"ages": Ages(self._features)}, learner, cast(PrefixLearner, prefix))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._learner, name)

    def predict_classes(self, batch: Batch) -> ClassScores:
        """See Multiclass."""
        return cast(ClassLearner, self._learner).predict_classes(self._behind(batch))

    def explain(self, row: Batch) -> Explanation:
        """See protocols/explanation.py: an age is a feature like any other."""
        return explain(self._learner, self._behind(row))

    def member_form(self, name: str) -> Form:
        """See MemberLearner: raises NotExpressible like `form`."""
        self._learner.member_form(name)
        return self.form()

    def window(self, batch: Batch) -> tuple[Batch, list[Floats]]:
        """See TakesWeights: ages as at the time of each row, counted within the window."""
        return taking_weights(self._learner).window(Ages(self._features).learn(batch))


def make_aged(spec: Mapping[str, Any], make: Callable[[], Learner]) -> Learner:
    """The learner that `make` returns, behind its ages."""
    return Aged(spec, make())


@kernel
def age_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    weights: RO_F8,
    features: RO_I4,
    newest: F8,
    out_indptr: I8,
    out_indices: I4,
    out_values: F8,
) -> None:
    """Replace times by ages; a row of weight 0 does not count.

    features, newest  (k,)  increasing indices, and the newest time of each
    out_*                   the rows, as in Batch, with room for as many entries as the rows have
    """
    at = 0
    for i in range(weights.shape[0]):
        c = 0
        for p in range(indptr[i], indptr[i + 1]):
            j, x = indices[p], values[p]
            while c < features.shape[0] and features[c] < j:
                c += 1
            if c < features.shape[0] and features[c] == j:
                last = max(newest[c], x)
                if weights[i] > 0.0:
                    newest[c] = last
                x = math.log(1.0 + (last - x))
            if x != 0.0:
                out_indices[at], out_values[at] = j, x
                at += 1
        out_indptr[i + 1] = at
