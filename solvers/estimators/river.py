"""Estimators for River, of the extra `river`.

    from dualstream.solvers.estimators.river import DualstreamClassifier, PortfolioClassifier
    model = DualstreamClassifier("dc", spec={"norm": "row"})
    model = PortfolioClassifier()  # nothing to tune: many specifications, see solvers/portfolio

Feature names are hashed (see rows/hashing.py), so new names need no memory. A number is a value, a
string is a category. As in the server, texts are composed (NFC) and integers beyond 2^53 refused.
`learn_many` of n rows equals `learn_one` of each, bit for bit.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from river import base
from river.utils.pandas import import_pandas

from dualstream.solvers.estimators.base import Model, full_spec, given_fields, value_errors
from dualstream.solvers.estimators.flat_rows import FlatRows
from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.learner import Learner
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import class_indices, class_label, class_text
from dualstream.solvers.rows.hashing import NameIndices, hash_row
from dualstream.wire.text_values import EXACT, TOO_LONG, nfc

__all__ = [
    "DualstreamClassifier",
    "DualstreamRegressor",
    "PortfolioClassifier",
    "PortfolioRegressor",
]

Row = Mapping[Hashable, Any]


class _Estimator:
    """Base of all estimators."""

    bits: int
    columns: Mapping[str, Any] | None
    crosses: Sequence[Any] | None
    history: Sequence[Mapping[str, Any]] | None

    def _begin(self, algorithm: str, task: str, fields: Mapping[str, Any] | None) -> None:
        features = {"kind": "hashed", "bits": self.bits}
        flat = self.columns, self.crosses, self.history
        self._model = Model(full_spec(algorithm, task, features, fields, *flat))
        self._name_indices = NameIndices(self.bits)
        self._flat = None
        if self.columns is not None:
            self._flat = FlatRows(self.columns, self.crosses, self.bits, self.history)

    @property
    def learner(self) -> Learner:
        """The learner itself, with its weights, state and certificate."""
        return self._model.learner

    @property
    def rejected(self) -> int:
        """Rows rejected so far, because a number would not have been finite."""
        return self._model.rejected

    def _rows(self, rows: Iterable[Row]) -> Batch:
        """Rows without labels."""
        if self._flat is not None:
            return self._flat.batch(rows)
        indptr, indices, values = [0], [], []
        for row in rows:
            hashed = hash_row(_checked(row), self._name_indices)
            indices += hashed[0]
            values += hashed[1]
            indptr.append(len(indices))
        n = len(indptr) - 1
        with value_errors():
            return Batch(
                np.array(indptr, np.int64),
                np.array(indices, np.int32),
                np.array(values, np.float64),
                np.full(n, Batch.UNLABELLED),
                np.ones(n),
                1 << self._name_indices.bits,
            )

    def _frame(self, X: Any) -> Batch:
        """The rows of a DataFrame, without labels."""
        if self._flat is not None:
            return self._flat.batch(X)
        names = list(X.columns)
        return self._rows(
            dict(zip(names, row, strict=True)) for row in X.itertuples(index=False, name=None)
        )

    def _learn_rows(self, batch: Batch, labels: Any, classes: tuple[str, ...] = ()) -> None:
        """Learn rows with these labels, in order."""
        with value_errors():
            labelled = batch.with_labels(labels, classes)
        self._model.learn(labelled)


class _Classifier(_Estimator, base.MiniBatchClassifier):
    """Labels and probabilities of rows."""

    task: str

    def _begin_classes(self, algorithm: str, task: str, fields: Mapping[str, Any] | None) -> None:
        if task not in ("binary", "multiclass"):
            raise ValueError(f"task must be binary or multiclass, got {task!r}")
        self.task = task
        self._begin(algorithm, task, fields)

    @property
    def _multiclass(self) -> bool:
        return self.task == "multiclass"

    def learn_one(self, x: Row, y: Any) -> None:
        """Learn a row of features by name, and its label."""
        self._learn(self._rows([x]), [y])

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a DataFrame in their order; `y` is a Series of labels."""
        self._learn(self._frame(X), list(y))

    def predict_one(self, x: Row, **_: Any) -> Any:
        """The label; None if no class is known."""
        return self._predict(self._rows([x]))[0]

    def predict_many(self, X: Any) -> Any:
        """A Series of labels."""
        return import_pandas().Series(self._predict(self._frame(X)), index=X.index)

    def predict_proba_one(self, x: Row, **_: Any) -> dict[Any, float]:
        """The probability of each known label.

        Raises NotImplementedError for a loss without probabilities: only logistic has them.
        """
        labels, probabilities = self._probabilities(self._rows([x]))
        return dict(zip(labels, probabilities[0].tolist(), strict=True))

    def predict_proba_many(self, X: Any) -> Any:
        """A DataFrame with a column for each label; see predict_proba_one."""
        labels, probabilities = self._probabilities(self._frame(X))
        return import_pandas().DataFrame(probabilities, columns=labels, index=X.index)

    def _learn(self, batch: Batch, labels: list[Any]) -> None:
        if self._multiclass:
            self._learn_rows(batch, *class_indices([_class_of(label) for label in labels]))
        else:
            self._learn_rows(batch, [_truth_of(label) for label in labels])

    def _predict(self, batch: Batch) -> list[Any]:
        if not self._multiclass:
            return [score >= 0.0 for score in self._model.scores(batch).tolist()]
        class_scores = self._model.class_scores(batch)
        labels = [class_label(text) for text in class_scores.classes]
        return [labels[index] if index >= 0 else None for index in class_scores.best.tolist()]

    def _probabilities(self, batch: Batch) -> tuple[list[Any], Floats]:
        """Labels (K,) and probabilities (n, K)."""
        classes, probabilities = self._model.probabilities(batch)
        if probabilities is None:
            algorithm = self.learner.spec["algorithm"]
            raise NotImplementedError(f"{algorithm} gives no probabilities with this loss")
        return [class_label(text) for text in classes], probabilities


class _Regressor(_Estimator, base.MiniBatchRegressor):
    """Numbers for rows."""

    def learn_one(self, x: Row, y: Any) -> None:
        """Learn a row of features by name, and its target."""
        self._learn_rows(self._rows([x]), [y])

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a DataFrame in their order; `y` is a Series of targets."""
        self._learn_rows(self._frame(X), list(y))

    def predict_one(self, x: Row) -> float:
        """The target."""
        return float(self._model.scores(self._rows([x]))[0])

    def predict_many(self, X: Any) -> Any:
        """A Series of targets."""
        scores = self._model.scores(self._frame(X))
        return import_pandas().Series(scores, index=X.index)


class DualstreamClassifier(_Classifier):
    """A linear classifier, learned row by row.

    Parameters
    ----------
    algorithm
        The name of an algorithm, as in a model specification.
    task
        `binary`: labels are True and False, or 1 and 0, or 1 and -1. `multiclass`: labels are
        strings, numbers or bools; classes are added when they appear, and learned one-vs-rest.
    bits
        Names are hashed to 2^bits indices.
    columns, crosses
        How columns become features, as in a model specification, without label, id and weight. A
        row or a DataFrame is then read as the server reads flat rows.
    history
        Groups that make columns from the earlier rows of a key, as in a model specification. A row
        enters when it is learned.
    spec
        Further fields of the specification, such as `loss`, `scaling`, `intercept` or `seed`.
    """

    def __init__(
        self,
        algorithm: str = "dual_ascent",
        *,
        task: str = "binary",
        bits: int = 18,
        columns: Mapping[str, Any] | None = None,
        crosses: Sequence[Any] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
        spec: dict[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.bits = bits
        self.columns = columns
        self.crosses = crosses
        self.history = history
        self.spec = spec
        self._begin_classes(algorithm, task, spec)


class DualstreamRegressor(_Regressor):
    """A linear regressor, learned row by row, by an algorithm that supports the task `regression`.

    Parameters
    ----------
    algorithm
        The name of an algorithm, as in a model specification.
    bits
        Names are hashed to 2^bits indices.
    columns, crosses
        How columns become features, as in a model specification, without label, id and weight. A
        row or a DataFrame is then read as the server reads flat rows.
    history
        Groups that make columns from the earlier rows of a key, as in a model specification. A row
        enters when it is learned.
    spec
        Further fields of the specification, such as `loss`, `scaling`, `intercept` or `seed`.
    """

    def __init__(
        self,
        algorithm: str = "dual_ascent",
        *,
        bits: int = 18,
        columns: Mapping[str, Any] | None = None,
        crosses: Sequence[Any] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
        spec: dict[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.bits = bits
        self.columns = columns
        self.crosses = crosses
        self.history = history
        self.spec = spec
        self._begin(algorithm, "regression", spec)


class PortfolioClassifier(_Classifier):
    """Labels and calibrated probabilities by a portfolio of models, without tuning.

    Its members learn every row and are weighted by their performance on earlier rows. For a binary
    one, `learner.members()` returns their figures. A multiclass one has a portfolio per class.

    Parameters
    ----------
    members
        The name of a list of members (`dualstream.solvers.portfolio.PRESETS`), or specifications;
        None is the default of the task.
    task
        `binary`: labels are True and False, or 1 and 0, or 1 and -1. `multiclass`: labels are
        strings, numbers or bools; classes are added when they appear, and learned one-vs-rest.
    bits
        Names are hashed to 2^bits indices.
    columns, crosses
        How columns become features, as in a model specification, without label, id and weight. A
        row or a DataFrame is then read as the server reads flat rows.
    history
        Groups that make columns from the earlier rows of a key, as in a model specification. A row
        enters when it is learned.
    eta, share, retain
        Fields of the specification; None is their default.
    """

    def __init__(
        self,
        members: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        task: str = "binary",
        bits: int = 18,
        columns: Mapping[str, Any] | None = None,
        crosses: Sequence[Any] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
        eta: float | None = None,
        share: float | None = None,
        retain: int | None = None,
    ) -> None:
        self.members = members
        self.bits = bits
        self.columns = columns
        self.crosses = crosses
        self.history = history
        self.eta = eta
        self.share = share
        self.retain = retain
        fields = given_fields(members=members, eta=eta, share=share, retain=retain)
        self._begin_classes("portfolio", task, fields)


class PortfolioRegressor(_Regressor):
    """Regression by a portfolio of models, without tuning.

    Its members learn every row and are weighted by their performance on earlier rows:
    `learner.members()` returns their figures.

    Parameters
    ----------
    members
        The name of a list of members (`portfolio.REGRESSION_PRESETS`), or specifications; None
        is the default of the task.
    bits
        Names are hashed to 2^bits indices.
    columns, crosses
        How columns become features, as in a model specification, without label, id and weight. A
        row or a DataFrame is then read as the server reads flat rows.
    history
        Groups that make columns from the earlier rows of a key, as in a model specification. A row
        enters when it is learned.
    eta, share, retain
        Fields of the specification; None is their default.
    """

    def __init__(
        self,
        members: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        bits: int = 18,
        columns: Mapping[str, Any] | None = None,
        crosses: Sequence[Any] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
        eta: float | None = None,
        share: float | None = None,
        retain: int | None = None,
    ) -> None:
        self.members = members
        self.bits = bits
        self.columns = columns
        self.crosses = crosses
        self.history = history
        self.eta = eta
        self.share = share
        self.retain = retain
        fields = given_fields(members=members, eta=eta, share=share, retain=retain)
        self._begin("portfolio", "regression", fields)


def _checked(row: Row) -> dict[str, Any]:
    """Features with names and texts in NFC, as the server reads them. Raises ValueError."""
    features = {}
    for name, value in row.items():
        if isinstance(value, str):
            value = nfc(value)
        elif isinstance(value, int) and not -EXACT <= value <= EXACT:
            raise ValueError(f"{name!r}: the integer {value} is {TOO_LONG}")
        features[nfc(str(name))] = value
    if len(features) < len(row):
        raise ValueError(f"two features have one name: {list(row)!r:.80}")
    return features


def _class_of(label: Any) -> str:
    """The name of a label's class; numpy scalars become Python's. Raises ValueError."""
    plain = label.item() if isinstance(label, np.generic) else label
    is_number = isinstance(plain, bool | int) or (isinstance(plain, float) and isfinite(plain))
    if not is_number and not isinstance(plain, str):
        raise ValueError(f"a label must be a string, a finite number or a bool, got {label!r}")
    return class_text(nfc(plain) if isinstance(plain, str) else plain)


def _truth_of(label: Any) -> float:
    """1 for true, -1 for false. Raises ValueError for anything else."""
    plain = label.item() if isinstance(label, np.generic) else label
    if isinstance(plain, bool | int | float) and plain in (1, 0, -1):
        return 1.0 if plain == 1 else -1.0
    raise ValueError(f"a label must be True or False, got {label!r}: or is task multiclass?")
