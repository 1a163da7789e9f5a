"""Models of other libraries that are trained every night on all rows so far."""

from collections.abc import Sequence
from typing import Any

from examples.common import Row

MIN_CLASSES = 2


class NightlyTrees:
    """LightGBM on numbers and categories, trained at the end of each day; answers probabilities."""

    def __init__(self, label: str, categories: Sequence[str], numbers: Sequence[str]) -> None:
        try:
            import lightgbm
        except ImportError:
            raise SystemExit(
                "the nightly baseline needs LightGBM: pip install '.[compare]'"
            ) from None
        self._library = lightgbm
        self._label, self._categories, self._numbers = label, categories, numbers
        self._codes: dict[tuple[str, Any], int] = {}
        self._x: list[list[float]] = []
        self._y: list[float] = []
        self._booster: Any = None

    def predict(self, rows: Sequence[Row]) -> list[float]:
        """Probabilities, by the rows until last night; before the first night one half."""
        if self._booster is None:
            return [0.5] * len(rows)
        return [float(value) for value in self._booster.predict(self._numbers_of(rows))]

    def learn(self, rows: Sequence[Row]) -> None:
        """Take the rows of a day, and train on all days."""
        import numpy

        self._x += self._numbers_of(rows)
        self._y += [float(row[self._label]) for row in rows]
        data = self._library.Dataset(
            numpy.array(self._x), self._y, categorical_feature=[*range(len(self._categories))]
        )
        parameters = {"objective": "binary", "verbose": -1, "num_threads": 1, "seed": 1}
        parameters |= {"num_leaves": 7, "learning_rate": 0.05, "min_data_in_leaf": 20}
        self._booster = self._library.train(parameters, data, num_boost_round=60)

    def _numbers_of(self, rows: Sequence[Row]) -> list[list[float]]:
        return [
            [self._code(name, row[name]) for name in self._categories]
            + [float(row[name]) for name in self._numbers]
            for row in rows
        ]

    def _code(self, name: str, value: Any) -> float:
        return float(self._codes.setdefault((name, value), len(self._codes)))


class NightlyText:
    """Logistic regression on TF-IDF of words, trained at the end of each day; answers classes."""

    def __init__(self, text: str, label: str) -> None:
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
            from sklearn.linear_model import LogisticRegression
            from sklearn.pipeline import make_pipeline
        except ImportError:
            raise SystemExit(
                "the nightly baseline needs scikit-learn: pip install '.[compare]'"
            ) from None
        self._pipeline: Any = make_pipeline(TfidfVectorizer(), LogisticRegression(C=10.0))
        self._text, self._label = text, label
        self._rows: list[Row] = []
        self._is_trained = False

    def predict(self, rows: Sequence[Row]) -> list[str | None]:
        """Classes, by the rows until last night; before the first night none."""
        if not self._is_trained:
            return [None] * len(rows)
        return [str(label) for label in self._pipeline.predict([row[self._text] for row in rows])]

    def learn(self, rows: Sequence[Row]) -> None:
        """Take the rows of a day, and train on all days."""
        self._rows += rows
        labels = [row[self._label] for row in self._rows]
        if len(set(labels)) >= MIN_CLASSES:
            self._pipeline.fit([row[self._text] for row in self._rows], labels)
            self._is_trained = True
