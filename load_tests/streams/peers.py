"""Classification peers with their defaults, row by row.

A set of more than WIDE columns is fed as its non-zeros: to River without a scaler, to scikit-learn
after MaxAbsScaler, because neither can centre 47,000 columns for each row. Other sets are fed as
whole rows after StandardScaler: to River, and to scikit-learn where the peer scales.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from river import linear_model, preprocessing
from scipy.sparse import csr_matrix
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from vowpalwabbit import LabelType, Workspace

from dualstream.solvers import Batch
from load_tests.paper_tables import data
from load_tests.streams.prequential import Peer
from load_tests.streams.runs import LIMIT

WIDE = 500


class VowpalWabbit(Peer):
    def __init__(self, options: str, batch: Batch) -> None:
        self._workspace = Workspace(f"{options} --quiet")
        self._lines = [vw_line(batch, row) for row in range(len(batch))]

    def score(self, row: int) -> float:
        example = self._workspace.parse(self._lines[row], LabelType.SIMPLE)
        self._workspace.predict(example)
        prediction = example.get_simplelabel_prediction()
        self._workspace.finish_example(example)
        return float(prediction)

    def learn(self, row: int) -> None:
        self.take(row)

    def take(self, row: int) -> float:
        example = self._workspace.parse(self._lines[row], LabelType.SIMPLE)
        self._workspace.learn(example)
        prediction = example.get_simplelabel_prediction()
        self._workspace.finish_example(example)
        return float(prediction)


def vw_line(batch: Batch, row: int) -> str:
    return f"{batch.labels[row]:.0f} |f " + " ".join(
        f"{column}:{value!r}" for column, value in non_zeros(batch, row).items()
    )


def non_zeros(batch: Batch, row: int) -> dict[int, float]:
    first, last = int(batch.indptr[row]), int(batch.indptr[row + 1])
    columns, values = batch.indices[first:last].tolist(), batch.values[first:last].tolist()
    return dict(zip(columns, values, strict=True))


class River(Peer):
    def __init__(self, model: Callable[[], Any], batch: Batch) -> None:
        self._batch = batch
        self._whole = None if batch.dim > WIDE else data.dense(batch)
        scaler = preprocessing.StandardScaler()
        self._model = model() if self._whole is None else scaler | model()

    def score(self, row: int) -> float:
        return log_odds(self._model.predict_proba_one(self._sample(row)).get(True, 0.5))

    def learn(self, row: int) -> None:
        self._model.learn_one(self._sample(row), bool(self._batch.labels[row] > 0.0))

    def _sample(self, row: int) -> dict[int, float]:
        if self._whole is None:
            return non_zeros(self._batch, row)
        return dict(enumerate(self._whole[row].tolist()))


def log_odds(probability: float) -> float:
    """Log odds, clipped like scores."""
    if not 0.0 < probability < 1.0:
        return math.copysign(LIMIT, probability - 0.5)
    return math.log(probability / (1.0 - probability))


class ScikitLearn(Peer):
    """The scaler learns a row before the row is scored; it sees no label."""

    def __init__(self, loss: str, is_scaled: bool, batch: Batch) -> None:
        self._model = SGDClassifier(loss=loss, random_state=0)
        self._has_begun = False
        self._labels = batch.labels
        shape = (len(batch), batch.dim)
        self._rows: Any = csr_matrix((batch.values, batch.indices, batch.indptr), shape=shape)
        self._scaler: Any = None
        if is_scaled and batch.dim > WIDE:
            self._scaler = MaxAbsScaler()
        elif is_scaled:
            self._scaler, self._rows = StandardScaler(), data.dense(batch)

    def score(self, row: int) -> float:
        return self._margin(self._seen(row))

    def learn(self, row: int) -> None:
        sample = self._rows[row : row + 1]
        self._learn(row, sample if self._scaler is None else self._scaler.transform(sample))

    def take(self, row: int) -> float:
        sample = self._seen(row)
        prediction = self._margin(sample)
        self._learn(row, sample)
        return prediction

    def _seen(self, row: int) -> Any:
        """The row, scaled after the scaler has learned it."""
        sample = self._rows[row : row + 1]
        if self._scaler is None:
            return sample
        return self._scaler.partial_fit(sample).transform(sample)

    def _margin(self, sample: Any) -> float:
        """decision_function in less time; 0 before the first row."""
        if not self._has_begun:
            return 0.0
        return float((sample @ self._model.coef_[0])[0] + self._model.intercept_[0])

    def _learn(self, row: int, sample: Any) -> None:
        classes = None if self._has_begun else [-1.0, 1.0]
        self._model.partial_fit(sample, self._labels[row : row + 1], classes=classes)
        self._has_begun = True


LOGISTIC = "--loss_function logistic"
PEERS: Mapping[str, Callable[[Batch], Peer]] = MappingProxyType(
    {
        "vw": partial(VowpalWabbit, LOGISTIC),
        "vw_sgd": partial(VowpalWabbit, f"{LOGISTIC} --sgd"),
        "vw_hinge": partial(VowpalWabbit, "--loss_function hinge"),
        "vw_coin": partial(VowpalWabbit, f"{LOGISTIC} --coin"),
        "vw_ftrl": partial(VowpalWabbit, f"{LOGISTIC} --ftrl"),
        "river_lr": partial(River, linear_model.LogisticRegression),
        "river_pa": partial(River, linear_model.PAClassifier),
        "river_alma": partial(River, linear_model.ALMAClassifier),
        "sk_log": partial(ScikitLearn, "log_loss", True),
        "sk_log_noscale": partial(ScikitLearn, "log_loss", False),
        "sk_hinge": partial(ScikitLearn, "hinge", True),
        "sk_hinge_noscale": partial(ScikitLearn, "hinge", False),
    }
)
PACKAGES = ("vowpalwabbit", "river", "scikit-learn", "numpy")


def versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}
