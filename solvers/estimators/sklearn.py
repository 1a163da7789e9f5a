"""Estimators for scikit-learn, of the extra `sklearn`.

    from dualstream.solvers.estimators.sklearn import DualstreamClassifier, PortfolioClassifier
    DualstreamClassifier("rda", passes=3, spec={"regularizer": {"kind": "l1", "lambda": 0.01}})
    PortfolioClassifier()  # nothing to tune: many specifications at once, see solvers/portfolio
    PortfolioClassifier(columns={"types": {"zip": "category"}})  # rows are those of a DataFrame

They learn row by row, so the order of the rows matters. There is no `sample_weight`, because a
weight of 2 does not equal a repeated row.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dualstream.solvers.estimators.base import Model, full_spec, given_fields, value_errors
from dualstream.solvers.estimators.flat_rows import FlatRows
from dualstream.solvers.evaluation.make_progressive import scores_are_log_odds
from dualstream.solvers.jit import Floats
from dualstream.solvers.nonlinear import NONLINEAR
from dualstream.solvers.protocols.member_learner import MemberView, member_learner
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.spec.validate import resolve_spec
from dualstream.wire.plural import plural

__all__ = [
    "DualstreamClassifier",
    "DualstreamRegressor",
    "PortfolioClassifier",
    "PortfolioRegressor",
]


class _Estimator(BaseEstimator):
    """Base of all estimators; mixins add the parameters of the specification."""

    passes: int
    shuffle: bool
    random_state: Any
    columns: Mapping[str, Any] | None
    crosses: Sequence[Any] | None
    history: Sequence[Mapping[str, Any]] | None
    bits: int
    _flat_rows: FlatRows | None
    """Reader of tables as fitted; None without `columns`."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        has_columns = self.columns is not None
        tags.input_tags.sparse = tags.input_tags.two_d_array = not has_columns
        tags.input_tags.dict = tags.input_tags.string = has_columns
        tags.input_tags.categorical = tags.input_tags.allow_nan = has_columns
        return tags

    def _chosen(self) -> tuple[str, dict[str, Any] | None]:
        """The algorithm, and the user's fields of the specification."""
        raise NotImplementedError

    def _spec(self, task: str, dim: int) -> dict[str, Any]:
        algorithm, fields = self._chosen()
        features = {"kind": "indexed", "dim": dim}
        if self.columns is not None:
            features = {"kind": "hashed", "bits": self.bits}
        flat = self.columns, self.crosses, self.history
        return full_spec(algorithm, task, features, fields, *flat)

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Batch, Any]:
        """Rows without labels, and their labels."""
        if reset:
            self._flat_rows = None
            if self.columns is not None:
                self._flat_rows = FlatRows(self.columns, self.crosses, self.bits, self.history)
        if self._flat_rows is not None:
            if y is None:
                raise ValueError("y is needed: the label of each row, got None")
            batch, y = self._flat(self._flat_rows, X, reset=reset), column_or_1d(y, warn=True)
            check_consistent_length(batch.labels, y)
            return batch, y
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
        """Rows to predict, of the fitted width."""
        check_is_fitted(self)
        if self._flat_rows is not None:
            return self._flat(self._flat_rows, X, reset=False)
        return _batch(validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64))

    def _flat(self, flat_rows: FlatRows, X: Any, *, reset: bool) -> Batch:
        """Rows of a table; a DataFrame has the columns of the first one, in their order."""
        try:
            is_table = hasattr(X, "shape")
            if is_table and (reset or hasattr(self, "feature_names_in_")):
                validate_data(self, X, reset=reset, skip_check_array=True)
            elif reset:  # each row of a list may have other columns
                for name in ("n_features_in_", "feature_names_in_"):
                    self.__dict__.pop(name, None)
            return flat_rows.batch(X)
        except TypeError as wrong:
            raise ValueError(str(wrong)) from None

    def _begin(self, task: str) -> None:
        self.model_ = Model(self._spec(task, getattr(self, "n_features_in_", 0)))

    def _pass_over(self, batch: Batch) -> None:
        if self.passes < 1:
            raise ValueError(f"passes must be at least 1, got {self.passes}")
        random = check_random_state(self.random_state)
        # A row enters a history once, in the order of time.
        for _ in range(1 if self.history else self.passes):
            is_shuffled = self.shuffle and not self.history
            self.model_.learn(batch.take(random.permutation(len(batch))) if is_shuffled else batch)
        if self.model_.rejected:
            warnings.warn(
                f"{plural(self.model_.rejected, 'row')} left out, as the step would not be finite",
                ConvergenceWarning,
                stacklevel=3,
            )


class _Classifier(ClassifierMixin, _Estimator):
    """Classes of rows; more than two are learned one-vs-rest."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from scratch, in `passes` passes over the rows (n, d) and their labels (n,)."""
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

        A class without rows so far has score minus infinity.
        """
        rows = self._rows(X)
        if len(self.classes_) == 2:
            return self.model_.scores(rows)
        class_scores = self.model_.class_scores(rows)
        return self._by_class(class_scores.classes, class_scores.scores, -np.inf)

    def predict(self, X: Any) -> Any:
        """(n,): the class of each row."""
        scores = self.decision_function(X)
        indices = (scores >= 0.0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[indices]

    def _gives_probabilities(self) -> bool:
        """Whether scores are log odds. Raises ValueError for an invalid specification."""
        if hasattr(self, "model_"):
            return scores_are_log_odds(self.model_.learner.spec)
        return scores_are_log_odds(resolve_spec(self._spec("binary", 1)))

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> Floats:
        """(n, K): the probability of each class; available for the logistic loss.

        For more than two classes: one-vs-rest probabilities divided by their sum; a class without
        rows so far has probability 0.
        """
        rows = self._rows(X)
        classes, table = self.model_.probabilities(rows)
        columns = cast(Floats, table)
        return columns if len(self.classes_) == 2 else self._by_class(classes, columns, 0.0)

    def _by_class(self, classes: tuple[str, ...], columns: Floats, missing: float) -> Floats:
        """Columns of the known classes in the order of `classes_`, the others `missing`."""
        out = np.full((len(columns), len(self.classes_)), missing)
        out[:, [int(index) for index in classes]] = columns
        return out

    def _begin_classes(self, classes: Any) -> None:
        if len(classes) < 2:
            raise ValueError(f"at least 2 classes are needed, got {len(classes)} class")
        self.classes_ = classes
        self._begin("binary" if len(classes) == 2 else "multiclass")

    def _labelled(self, batch: Batch, y: Any) -> Batch:
        """The rows with indices into `classes_` as labels."""
        indices = LabelEncoder().fit(self.classes_).transform(y)
        names = tuple(str(index) for index in range(len(self.classes_)))
        return batch.with_labels(indices, names if len(names) > 2 else ())


class _Regressor(RegressorMixin, _Estimator):
    """Regression estimators."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from scratch, in `passes` passes over the rows (n, d) and their targets (n,)."""
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
        """Predictions (n,)."""
        rows = self._rows(X)
        return self.model_.scores(rows)


_FIELDS = ("loss", "rho", "strength", "window", "scaling", "norm", "average", "regularizer")
"""Fields of a specification that are parameters, so that a grid search can set them."""


class _OfAlgorithm:
    """The parameters of an estimator of one algorithm."""

    def __init__(
        self,
        algorithm: str = "dual_ascent",
        *,
        loss: str | None = None,
        rho: float | None = None,
        strength: float | None = None,
        window: str | Mapping[str, Any] | None = None,
        scaling: str | Mapping[str, Any] | None = None,
        norm: str | None = None,
        average: Mapping[str, Any] | None = None,
        regularizer: str | Mapping[str, Any] | None = None,
        passes: int = 5,
        shuffle: bool = True,
        random_state: Any = 0,
        columns: Mapping[str, Any] | None = None,
        crosses: Sequence[Any] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
        bits: int = 18,
        spec: dict[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.loss = loss
        self.rho = rho
        self.strength = strength
        self.window = window
        self.scaling = scaling
        self.norm = norm
        self.average = average
        self.regularizer = regularizer
        self.passes = passes
        self.shuffle = shuffle
        self.random_state = random_state
        self.columns = columns
        self.crosses = crosses
        self.history = history
        self.bits = bits
        self.spec = spec

    def _chosen(self) -> tuple[str, dict[str, Any] | None]:
        fields = given_fields(**{name: getattr(self, name) for name in _FIELDS})
        for name in fields:
            if name in (self.spec or {}):
                raise ValueError(f"{name} is given as a parameter and in spec; leave one out")
        return self.algorithm, fields | (self.spec or {})

    model_: Model

    @property
    def coef_(self) -> Floats:
        """Weights of the features: (d,) for a regressor, (1, d) for two classes, (K, d) for more.

        AttributeError where a score is no linear function of the features; see `_affine`.
        """
        weights, _ = self._affine()
        return weights[0] if isinstance(self, RegressorMixin) else weights

    @property
    def intercept_(self) -> Any:
        """Score of a row of zeros: a number for a regressor, (1,) for two classes, (K,) for more.

        AttributeError as of `coef_`.
        """
        _, intercepts = self._affine()
        return float(intercepts[0]) if isinstance(self, RegressorMixin) else intercepts

    def _affine(self) -> tuple[Floats, Floats]:
        """(s, d) weights and (s,) intercepts of the scores."""
        estimator = cast("DualstreamClassifier | DualstreamRegressor", self)
        check_is_fitted(estimator)
        spec = estimator.model_.learner.spec
        is_linear = spec["algorithm"] not in (*NONLINEAR, "portfolio", "semiparametric")
        # The stages scale a row by what it contains, too.
        stages = any(spec.get(one) not in (None, "none") for one in ("scaling", "map", "norm"))
        if not is_linear or self.columns is not None or stages:
            raise AttributeError(
                "coef_ and intercept_ are those of a linear algorithm on a matrix, without"
                " columns, scaling, map and norm"
            )
        width = estimator.n_features_in_
        ends = np.arange(-1, width + 1).clip(0)  # a row of zeros, then one for each feature
        rows = Batch.from_csr(ends, np.arange(width), np.ones(width), dim=width)
        if isinstance(estimator, _Classifier) and len(estimator.classes_) > 2:
            class_scores = self.model_.class_scores(rows)
            scores = estimator._by_class(class_scores.classes, class_scores.scores, -np.inf).T
        else:
            scores = self.model_.scores(rows)[np.newaxis]
        # A class without rows so far has the score minus infinity, and no weights.
        with np.errstate(invalid="ignore"):
            weights = np.nan_to_num(scores[:, 1:] - scores[:, :1], nan=0.0)
        return weights, scores[:, 0].copy()


class _OfPortfolio:
    """The parameters and member figures of a portfolio."""

    model_: Model

    def __init__(
        self,
        members: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        passes: int = 1,
        shuffle: bool = True,
        random_state: Any = 0,
        columns: Mapping[str, Any] | None = None,
        crosses: Sequence[Any] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
        bits: int = 18,
        eta: float | None = None,
        share: float | None = None,
        retain: int | None = None,
    ) -> None:
        self.members = members
        self.passes = passes
        self.shuffle = shuffle
        self.random_state = random_state
        self.columns = columns
        self.crosses = crosses
        self.history = history
        self.bits = bits
        self.eta = eta
        self.share = share
        self.retain = retain

    def _chosen(self) -> tuple[str, dict[str, Any] | None]:
        return "portfolio", given_fields(
            members=self.members, eta=self.eta, share=self.share, retain=self.retain
        )

    @property
    def members_(self) -> list[MemberView]:
        """Figures of the members. AttributeError for more than two classes: each has its own
        members."""
        check_is_fitted(self)
        learner = member_learner(self.model_.learner)
        if learner is None:
            raise AttributeError(
                "members_ is for two classes; with more, each class has its own members"
            )
        return learner.members()


class DualstreamClassifier(_OfAlgorithm, _Classifier):
    """Linear classifier; more than two classes are learned one-vs-rest.

    Parameters
    ----------
    algorithm : the name of an algorithm, as in a model specification
    loss, rho, strength, window, scaling, norm, average, regularizer : fields of the specification,
        as parameters for a grid search; None is their default
    passes : number of passes of `fit` over the rows
    shuffle : whether each pass has its own random order, or the order of the rows
    random_state : seeds these orders: an int, a RandomState, or None
    columns : how the columns of a table become features, as in a model specification, without
        label, id and weight. X is a DataFrame, an Arrow table or a list of dicts then
    crosses : pairs of columns that are features together, as in a model specification
    history : groups that make columns from the earlier rows of a key, as in a model specification.
        A row enters when it is learned; `fit` makes one pass in the order of the rows, whatever
        `passes` and `shuffle` are
    bits : with `columns`, names are hashed to 2^bits indices
    spec : further fields of the specification, such as `map`, `intercept` or `seed`

    Attributes
    ----------
    model_ : its `learner`, and the number of `rejected` rows, whose step was not finite
    classes_ : the labels, sorted
    coef_, intercept_ : weights and intercepts of a linear algorithm on a matrix
    """


class DualstreamRegressor(_OfAlgorithm, _Regressor):
    """Linear regressor, by an algorithm that supports the task `regression`.

    Parameters
    ----------
    algorithm : the name of an algorithm, as in a model specification
    loss, rho, strength, window, scaling, norm, average, regularizer : fields of the specification,
        as parameters for a grid search; None is their default
    passes : number of passes of `fit` over the rows
    shuffle : whether each pass has its own random order, or the order of the rows
    random_state : seeds these orders: an int, a RandomState, or None
    columns : how the columns of a table become features, as in a model specification, without
        label, id and weight. X is a DataFrame, an Arrow table or a list of dicts then
    crosses : pairs of columns that are features together, as in a model specification
    history : groups that make columns from the earlier rows of a key, as in a model specification.
        A row enters when it is learned; `fit` makes one pass in the order of the rows, whatever
        `passes` and `shuffle` are
    bits : with `columns`, names are hashed to 2^bits indices
    spec : further fields of the specification, such as `map`, `intercept` or `seed`

    Attributes
    ----------
    model_ : its `learner`, and the number of `rejected` rows, whose step was not finite
    """


class PortfolioClassifier(_OfPortfolio, _Classifier):
    """Classes and calibrated probabilities by a portfolio of models, without tuning.

    Its members learn every row and are weighted by their performance on earlier rows. More than two
    classes are learned one-vs-rest, each by its own portfolio.

    Parameters
    ----------
    members : the name of a list of members (`portfolio.PRESETS`), or specifications; None is
        `full`
    passes : number of passes of `fit` over the rows. From the second pass on, members are weighted
        and calibrated on rows that they have learned before
    shuffle : whether each pass has its own random order. False is for rows in order of time: the
        last ones count most, and rows sorted by class teach little
    random_state : seeds these orders: an int, a RandomState, or None
    columns : how the columns of a table become features, as in a model specification, without
        label, id and weight. X is a DataFrame, an Arrow table or a list of dicts then
    crosses : pairs of columns that are features together, as in a model specification
    history : groups that make columns from the earlier rows of a key, as in a model specification.
        A row enters when it is learned; `fit` makes one pass in the order of the rows, whatever
        `passes` and `shuffle` are
    bits : with `columns`, names are hashed to 2^bits indices
    eta, share, retain : fields of the specification; None is their default

    Attributes
    ----------
    model_ : its `learner`
    members_ : for two classes, the figures of each member, as a list of `MemberView`
    classes_ : the labels, sorted
    """


class PortfolioRegressor(_OfPortfolio, _Regressor):
    """Regression by a portfolio of models, without tuning.

    Its members learn every row and are weighted by their performance on earlier rows. Some follow
    the last target: they help if consecutive rows are alike.

    Parameters
    ----------
    members : the name of a list of members (`dualstream.solvers.portfolio.REGRESSION_PRESETS`), or
        specifications; None is `full`
    passes : number of passes of `fit` over the rows. From the second pass on, members are weighted
        on rows that they have learned before
    shuffle : whether each pass has its own random order. False is for rows in order of time
    random_state : seeds these orders: an int, a RandomState, or None
    columns : how the columns of a table become features, as in a model specification, without
        label, id and weight. X is a DataFrame, an Arrow table or a list of dicts then
    crosses : pairs of columns that are features together, as in a model specification
    history : groups that make columns from the earlier rows of a key, as in a model specification.
        A row enters when it is learned; `fit` makes one pass in the order of the rows, whatever
        `passes` and `shuffle` are
    bits : with `columns`, names are hashed to 2^bits indices
    eta, share, retain : fields of the specification; None is their default

    Attributes
    ----------
    model_ : its `learner`
    members_ : figures of each member, as a list of `MemberView`
    """


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
