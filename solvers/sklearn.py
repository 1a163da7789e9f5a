"""Estimators for scikit-learn, of the extra `sklearn`.

    from solvers.sklearn import DualstreamClassifier
    DualstreamClassifier("rda", passes=3, spec={"regularizer": {"kind": "l1", "lambda": 0.01}})

They learn row by row: the order of the rows matters, and there is no `sample_weight`, as a weight
of 2 is not the same as a row that comes twice.
"""

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from solvers._jit import Floats
from solvers.batch import Batch
from solvers.estimator import Model, full_spec, value_errors

__all__ = ["DualstreamClassifier", "DualstreamRegressor"]


class _Estimator(BaseEstimator):
    """What both have in common."""

    def __init__(
        self,
        algorithm: str = "dual_ascent",
        *,
        passes: int = 5,
        random_state: Any = 0,
        spec: dict[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.passes = passes
        self.random_state = random_state
        self.spec = spec

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Batch, Any]:
        """Rows without labels, and the labels beside them."""
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            accept_sparse="csr",
            dtype=np.float64,
            y_numeric=isinstance(self, RegressorMixin),
        )
        return _batch(X), y

    def _rows(self, X: Any) -> Batch:
        """Rows to predict, of the width that was learned."""
        check_is_fitted(self)
        return _batch(validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64))

    def _begin(self, task: str) -> None:
        features = {"kind": "indexed", "dim": self.n_features_in_}
        self.model_ = Model(full_spec(self.algorithm, task, features, self.spec))

    def _pass_over(self, batch: Batch) -> None:
        if self.passes < 1:
            raise ValueError(f"passes must be at least 1, got {self.passes}")
        random = check_random_state(self.random_state)
        for _ in range(self.passes):
            self.model_.learn(batch.take(random.permutation(len(batch))))
        if self.model_.rejected:
            warnings.warn(
                f"{self.model_.rejected} rows were left out, as their step would not be finite",
                ConvergenceWarning,
                stacklevel=3,
            )


class DualstreamClassifier(ClassifierMixin, _Estimator):
    """Classes of rows; more than two are learned one against the rest.

    Parameters
    ----------
    algorithm : the name of an algorithm, as in a model specification
    passes : how often `fit` goes through the rows, each time in an order of its own
    random_state : seeds these orders: an int, a RandomState, or None
    spec : further fields of the specification, such as `loss`, `scaling`, `map` or `seed`

    Attributes
    ----------
    model_ : its `learner`, and how many rows that `rejected`, as their step was not finite
    classes_ : the labels, sorted
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from nothing, in `passes` passes over the rows (n, d) and their labels (n,)."""
        batch, y = self._checked(X, y, reset=True)
        check_classification_targets(y)
        self._begin_classes(np.unique(y))
        self._pass_over(self._labelled(batch, y))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn these rows in their order, once; the first call names all `classes`."""
        is_first = not hasattr(self, "model_")
        batch, y = self._checked(X, y, reset=is_first)
        check_classification_targets(y)
        if is_first:
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit")
            self._begin_classes(np.unique(classes))
        elif classes is not None and not np.array_equal(self.classes_, np.unique(classes)):
            raise ValueError(f"classes are {self.classes_} since the first call, got {classes}")
        self.model_.learn(self._labelled(batch, y))
        return self

    def decision_function(self, X: Any) -> Floats:
        """Scores: (n,) of the second of two classes, else (n, K).

        A class that no row had so far scores minus infinity.
        """
        rows = self._rows(X)
        if len(self.classes_) == 2:
            return self.model_.scores(rows)
        found = self.model_.class_scores(rows)
        scores = np.full((len(rows), len(self.classes_)), -np.inf)
        scores[:, [int(place) for place in found.classes]] = found.scores
        return scores

    def predict(self, X: Any) -> Any:
        """(n,): the class of each row."""
        scores = self.decision_function(X)
        places = (scores >= 0.0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[places]

    def _begin_classes(self, classes: Any) -> None:
        if len(classes) < 2:
            raise ValueError(f"at least 2 classes are needed, got {len(classes)} class")
        self.classes_ = classes
        self._begin("binary" if len(classes) == 2 else "multiclass")

    def _labelled(self, batch: Batch, y: Any) -> Batch:
        """The rows with places in `classes_` as labels."""
        places = LabelEncoder().fit(self.classes_).transform(y)
        names = tuple(str(place) for place in range(len(self.classes_)))
        return batch.with_labels(places, names if len(names) > 2 else ())


class DualstreamRegressor(RegressorMixin, _Estimator):
    """Numbers for rows, by an algorithm that knows the task `regression`.

    Parameters
    ----------
    algorithm : the name of an algorithm, as in a model specification
    passes : how often `fit` goes through the rows, each time in an order of its own
    random_state : seeds these orders: an int, a RandomState, or None
    spec : further fields of the specification, such as `loss`, `scaling`, `map` or `seed`

    Attributes
    ----------
    model_ : its `learner`, and how many rows that `rejected`, as their step was not finite
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from nothing, in `passes` passes over the rows (n, d) and their targets (n,)."""
        batch, y = self._checked(X, y, reset=True)
        self._begin("regression")
        self._pass_over(_with_targets(batch, y))
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn these rows in their order, once."""
        is_first = not hasattr(self, "model_")
        batch, y = self._checked(X, y, reset=is_first)
        if is_first:
            self._begin("regression")
        self.model_.learn(_with_targets(batch, y))
        return self

    def predict(self, X: Any) -> Floats:
        """(n,)"""
        rows = self._rows(X)
        return self.model_.scores(rows)


def _with_targets(batch: Batch, y: Any) -> Batch:
    with value_errors():
        return batch.with_labels(y)


def _batch(X: Any) -> Batch:
    """Rows of a dense or a CSR matrix (n, d)."""
    with value_errors():
        if isinstance(X, np.ndarray):
            return Batch.from_dense(X)
        doubled = not X.has_canonical_format
        return Batch.from_csr(X.indptr, X.indices, X.data, dim=X.shape[1], sum_duplicates=doubled)
