"""Peers: LightGBM and scikit-learn with their authors' defaults, retrained on a schedule.

A peer is trained from scratch on the rows of its window and serves until the next retraining. Each
gets the same rows and columns. If a window has labels of one class, its prediction is that class.
"""

import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualstream.service.compare.columns import TableColumns
from dualstream.service.compare.contestants import MIN_CHANCE, Contestant, Predictions, chances_of
from dualstream.service.compare.schedule import BLOCK, Block, Schedule
from dualstream.service.compare.stored_rows import StoredRows
from dualstream.solvers.jit import Floats

FEW_COLUMNS = 200
"""With more encoded columns, logistic regression runs next to LightGBM, else gradient boosting."""
_MAX_BINS = 254
"""Categories that HistGradientBoosting distinguishes in a column."""

_FEW_ROWS = 100

Matrix = Any
"""(n, columns): a table of float64, or sparse rows."""


class Model(Protocol):
    """A trained model."""

    def __call__(self, rows: Matrix) -> Floats:
        """Numbers (n,) for regression, else probabilities (n, K) of the classes in training."""


@dataclass(frozen=True, slots=True)
class Training:
    """What a peer is trained on: `labels` are 0 to K - 1, or numbers if `classes` is 0."""

    rows: Matrix
    labels: Floats
    weights: Floats | None
    classes: int
    categories: Sequence[bool]
    """Which columns of a table have codes of categories."""
    threads: int


def lightgbm(training: Training) -> Model:
    """LightGBM with its defaults: 100 trees."""
    import lightgbm as library

    options = {"objective": "regression", "verbose": -1, "num_threads": training.threads}
    if training.classes == 2:
        options["objective"] = "binary"
    elif training.classes:
        options |= {"objective": "multiclass", "num_class": training.classes}
    categories = np.flatnonzero(training.categories).tolist()
    data = library.Dataset(
        training.rows,
        training.labels,
        weight=training.weights,
        categorical_feature=categories,
        params={"verbose": -1},
    )
    model = library.train(options | {"deterministic": True}, data)

    def predict(rows: Matrix) -> Floats:
        predictions = np.asarray(model.predict(rows, num_threads=training.threads), np.float64)
        if training.classes == 2:
            return np.column_stack((1.0 - predictions, predictions))
        return predictions

    return predict


def gradient_boosting(training: Training) -> Model:
    """HistGradientBoosting of scikit-learn with its defaults."""
    from sklearn import ensemble

    kind = "HistGradientBoostingClassifier" if training.classes else "HistGradientBoostingRegressor"
    recode = _Recode(training.rows, training.categories)
    model = getattr(ensemble, kind)(
        random_state=0, categorical_features=np.array(training.categories, np.bool_)
    )
    model.fit(recode(training.rows), training.labels, sample_weight=training.weights)
    predict = model.predict_proba if training.classes else model.predict
    return lambda rows: np.asarray(predict(recode(rows)), np.float64)


class _Recode:
    """Codes of at most _MAX_BINS categories, the most frequent ones; NaN for others."""

    def __init__(self, rows: npt.NDArray[np.float64], categories: Sequence[bool]) -> None:
        self._codes: dict[int, npt.NDArray[np.float64]] = {}
        for column in np.flatnonzero(categories).tolist():
            values = rows[:, column]
            present, counts = np.unique(values[~np.isnan(values)], return_counts=True)
            frequent = present[np.argsort(-counts, kind="stable")][:_MAX_BINS]
            self._codes[column] = np.sort(frequent)

    def __call__(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        rows = rows.copy()
        for column, codes in self._codes.items():
            values = rows[:, column]
            at = np.searchsorted(codes, values)
            is_frequent = at < len(codes)
            is_frequent[is_frequent] = codes[at[is_frequent]] == values[is_frequent]
            rows[:, column] = np.where(is_frequent, at, np.nan)
        return rows


def linear(training: Training) -> Model:
    """LogisticRegression or Ridge of scikit-learn with its defaults, after scaling."""
    from sklearn import linear_model, pipeline

    model = linear_model.LogisticRegression() if training.classes else linear_model.Ridge()
    piped = pipeline.make_pipeline(_scaling(training), model)
    name = type(model).__name__.lower()
    weights = {} if training.weights is None else {f"{name}__sample_weight": training.weights}
    piped.fit(training.rows, training.labels, **weights)
    predict = piped.predict_proba if training.classes else piped.predict
    return lambda rows: np.asarray(predict(rows), np.float64)


def _scaling(training: Training) -> Any:
    """Numbers of a table are standardised, its categories one-hot; sparse rows divided by the
    maximum of each column."""
    from sklearn import compose, impute, pipeline, preprocessing

    if not isinstance(training.rows, np.ndarray):
        return preprocessing.MaxAbsScaler()
    categories = np.flatnonzero(training.categories)
    numbers = np.flatnonzero(~np.array(training.categories, np.bool_))
    scaled = pipeline.make_pipeline(
        impute.SimpleImputer(keep_empty_features=True), preprocessing.StandardScaler()
    )
    coded = preprocessing.OneHotEncoder(handle_unknown="ignore")
    return compose.ColumnTransformer([("n", scaled, numbers), ("c", coded, categories)])


@dataclass(frozen=True, slots=True)
class PeerKind:
    """A kind of peer: the package that it needs, and what it is."""

    title: str
    package: str
    """Name of the distribution."""
    module: str
    train: Callable[[Training], Model]
    takes_sparse: bool = True


PEERS: Mapping[str, PeerKind] = {
    "lightgbm": PeerKind("LightGBM", "lightgbm", "lightgbm", lightgbm),
    "boosting": PeerKind(
        "HistGradientBoosting", "scikit-learn", "sklearn", gradient_boosting, takes_sparse=False
    ),
    "linear": PeerKind("LogisticRegression", "scikit-learn", "sklearn", linear),
}


def title_of(name: str, task: str) -> str:
    """The name of a peer's model."""
    return "Ridge" if name == "linear" and task == "regression" else PEERS[name].title


def default_peers(columns: int) -> tuple[str, ...]:
    """Peers for rows with this number of encoded columns."""
    return ("lightgbm", "linear" if columns > FEW_COLUMNS else "boosting")


def is_importable(module: str) -> bool:
    return find_spec(module) is not None


class PeerRows:
    """Rows as peers get them: of the table, or sparse ones with the columns that occur."""

    def __init__(self, rows: StoredRows, columns: TableColumns | None) -> None:
        self._rows = rows
        self.is_table = columns is not None
        self.categories: Sequence[bool] = [] if columns is None else columns.categories
        self._features = rows.features

    @property
    def width(self) -> int:
        return self._rows.widths["table"] if self.is_table else len(self._features)

    def matrix(self, first: int, stop: int) -> Matrix:
        """Rows as a table or as a sparse matrix."""
        if self.is_table:
            return self._rows.table(first, stop)
        from scipy.sparse import csr_matrix  # type: ignore[import-untyped]

        batch = self._rows.batch(first, stop)
        at = np.searchsorted(self._features, batch.indices)
        kept = batch.indices < self._rows.features_end
        starts = np.concatenate([[0], np.cumsum(kept)])[batch.indptr]
        shape = len(batch), len(self._features)
        return csr_matrix((batch.values[kept], at[kept], starts), shape=shape)


class Peer(Contestant):
    """A peer that is retrained on a schedule."""

    kind = "peer"
    can_predict = False

    def __init__(
        self,
        name: str,
        task: str,
        rows: StoredRows,
        matrix: PeerRows,
        schedule: Schedule,
        threads: int,
    ) -> None:
        self.name = title_of(name, task)
        self._kind, self._task = PEERS[name], task
        package = self._kind.package
        self.about = f"{package} {version(package)}, its defaults"
        self._rows, self._matrix, self._threads = rows, matrix, threads
        self._windows = dict(zip(schedule.retrainings, schedule.starts, strict=True))
        self._ends = [*schedule.retrainings, len(rows)]
        self._ahead: tuple[int, Predictions] | None = None
        """First row of predictions that are made, and these: late labels make blocks short."""
        self._model: Model | None = None
        self._classes = np.empty(0)
        """Labels of the columns that the model answers."""
        self.failed = 0
        self.reason = ""
        """Why trainings failed."""

    def train(self, block: Block) -> None:
        """Train on the window before a block. A model that cannot be trained is not replaced."""
        begin = time.process_time()
        try:
            self._train(self._windows[block.first], int(block.labelled[0]))
            self._ahead = None
            self.can_predict = True
            self.trainings += 1
        except Exception as error:  # a library's own errors are of any type
            self.failed += 1
            self.reason = f"{type(error).__name__}: {error}".splitlines()[0]
        self.train_s += time.process_time() - begin

    def try_on(self, count: int) -> tuple[float, float]:
        """Seconds to train on the first rows, and to predict them. Leaves no model."""
        try:
            self._train(0, min(count, _FEW_ROWS))  # imports the library
            assert self._model is not None
            self._predictions(self._model, 0, 1)
            begin = time.perf_counter()
            self._train(0, count)
            train_s, begin = time.perf_counter() - begin, time.perf_counter()
            self._predictions(self._model, 0, count)
            return train_s, time.perf_counter() - begin
        except Exception:  # the run says why
            return 0.0, 0.0
        finally:
            self._model = None

    def _train(self, first: int, stop: int) -> None:
        labels, weights = self._rows.labels(first, stop), self._rows.weights(first, stop)
        classes = np.empty(0)
        if self._task != "regression":
            classes, index = np.unique(labels, return_inverse=True)
            labels = index.astype(np.float64)
        if len(classes) == 1:
            self._model, self._classes = (lambda rows: np.ones((rows.shape[0], 1))), classes
            return
        training = Training(
            self._matrix.matrix(first, stop),
            labels,
            None if np.all(weights == 1.0) else weights,
            len(classes),
            self._matrix.categories,
            self._threads,
        )
        with threads(self._threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of convergence, and of columns without values
            self._model = self._kind.train(training)
        self._classes = classes

    def _predict(self, block: Block) -> Predictions:
        if self._model is None:
            return Predictions(np.zeros(block.stop - block.first))
        if self._ahead is None or block.stop > self._ahead[0] + len(self._ahead[1].labels):
            end = self._ends[bisect_right(self._ends, block.first)]
            stop = max(block.stop, min(end, block.first + BLOCK))
            self._ahead = block.first, self._predictions(self._model, block.first, stop)
        first, ahead = self._ahead
        return ahead.between(block.first - first, block.stop - first)

    def _predictions(self, model: Model, first: int, stop: int) -> Predictions:
        with threads(self._threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers = model(self._matrix.matrix(first, stop))
        if self._task == "regression":
            return Predictions(answers)
        labels = self._classes[np.argmax(answers, axis=1)]
        if self._task == "multiclass":
            wanted = self._rows.labels(first, stop)
            return Predictions(labels, chances_of(answers, self._classes, wanted))
        positive = np.flatnonzero(self._classes > 0.0)
        chances = answers[:, positive[0]] if len(positive) else np.zeros(stop - first)
        return Predictions(np.where(chances >= 0.5, 1.0, -1.0), chances, log_odds(chances))


def log_odds(chances: Floats) -> Floats:
    """Log odds of probabilities; rows are ranked by them."""
    clipped = np.clip(chances, MIN_CHANCE, 1.0 - MIN_CHANCE)
    return np.asarray(np.log(clipped / (1.0 - clipped)))


def threads(count: int) -> Any:
    """Limit the threads of scikit-learn and of linear algebra, if their package is there."""
    if not is_importable("threadpoolctl"):
        return nullcontext()
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=count)
