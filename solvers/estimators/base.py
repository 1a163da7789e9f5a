"""Shared base of the estimators; imports neither scikit-learn nor River."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dualstream.solvers.errors import SolverError
from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.learner import Learner, State
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.spec.make_learner import make_learner

if TYPE_CHECKING:
    from dualstream.solvers.features.wrapper import ClassLearner
    from dualstream.solvers.online.class_choice import ClassScores

_OWN_FIELDS = ("algorithm", "task", "features", "labels", "columns", "crosses", "history")


class Model:
    """A learner that is copied and pickled as its specification and its state.

    Errors of the solvers become ValueError, as users of estimators expect.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = dict(spec)
        with value_errors():
            self.learner: Learner = make_learner(spec)
        self.rejected = 0
        """Rows rejected so far, because a number would not have been finite."""

    @classmethod
    def restored(cls, spec: Mapping[str, Any], state: State, rejected: int) -> "Model":
        """Restore a copied or pickled model."""
        model = cls(spec)
        model.learner.restore(state)
        model.rejected = rejected
        return model

    def __reduce__(self) -> tuple[Any, ...]:
        return Model.restored, (self.spec, self.learner.state(), self.rejected)

    def learn(self, batch: Batch) -> None:
        """Learn all rows in order."""
        with value_errors():
            outcome = self.learner.learn(batch)
        self.rejected += int(np.count_nonzero(outcome.rejected))

    def scores(self, batch: Batch) -> Floats:
        """(n,), for a binary or a regression model."""
        with value_errors():
            return self.learner.predict(batch)

    def class_scores(self, batch: Batch) -> "ClassScores":
        """(n, K), for a multiclass model."""
        with value_errors():
            return cast("ClassLearner", self.learner).predict_classes(batch)

    def probabilities(self, batch: Batch) -> tuple[tuple[str, ...], Floats | None]:
        """Classes (K,) and their probabilities (n, K), if the loss gives any.

        Classes are JSON texts: those of a binary model are `false` and `true`.
        """
        if self.learner.spec["task"] == "multiclass":
            class_scores = self.class_scores(batch)
            return class_scores.classes, class_scores.probabilities
        positive = self.learner.probabilities(self.scores(batch))
        columns = None if positive is None else np.column_stack((1.0 - positive, positive))
        return ("false", "true"), columns


def full_spec(
    algorithm: str,
    task: str,
    features: Mapping[str, Any],
    fields: Mapping[str, Any] | None,
    columns: Mapping[str, Any] | None = None,
    crosses: Any = None,
    history: Any = None,
) -> dict[str, Any]:
    """The specification with the user's `fields`.

    Raises ValueError for a field that the estimator sets itself.
    """
    spec = {"algorithm": algorithm, "task": task, "features": dict(features)}
    spec |= given_fields(columns=columns, crosses=crosses, history=history)
    for name in _OWN_FIELDS:
        if name in (fields or {}):
            raise ValueError(f"spec must not hold {name!r}: the estimator sets it")
    return spec | dict(fields or {})


def given_fields(**fields: Any) -> dict[str, Any]:
    """The given fields of a specification; None stands for a default."""
    return {name: value for name, value in fields.items() if value is not None}


@contextmanager
def value_errors() -> Iterator[None]:
    """Re-raise SolverError as ValueError with the same message."""
    try:
        yield
    except SolverError as error:
        raise ValueError(str(error)) from error
