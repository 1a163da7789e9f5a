"""Streams outside tests/golden/streams.json: other sets, other orders, generators."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from river.datasets import ImageSegments, synth
from sklearn import datasets

from dualstream.solvers import Batch
from load_tests.paper_tables import data
from load_tests.streams.data import libsvm, shuffled, stream

GENERATED = 10_000
EXCERPT = 10_000

Samples = Iterator[tuple[dict[str, Any], Any]]


def grouped(name: str, positive: set[float] | None = None) -> Batch:
    """A file sorted by class, shuffled."""
    return shuffled(libsvm(name, positive))


def bundled(load: Callable[[], Any], positive: set[int]) -> Batch:
    """A set that comes with scikit-learn, shuffled."""
    data = load()
    return shuffled(Batch.from_dense(data.data, sign(data.target, positive)))


def sign(kinds: npt.NDArray[Any], positive: set[Any]) -> npt.NDArray[np.float64]:
    return np.where(np.isin(kinds, list(positive)), 1.0, -1.0)


def arrhythmia() -> Batch:
    return shuffled(Batch.from_dense(*data.arrhythmia()))


def svmguide1(is_shuffled: bool) -> Batch:
    """Both files; each is grouped by class."""
    return shuffled(data.svmguide1()) if is_shuffled else data.svmguide1()


def digits_in_order() -> Batch:
    """Even against odd digits, from 0 to 9: the concept changes with every digit."""
    data = datasets.load_digits()
    order = np.argsort(data.target, kind="stable")
    return Batch.from_dense(data.data, sign(data.target, {0, 2, 4, 6, 8})).take(order)


def sorted_by_length(rows: Batch) -> Batch:
    """Rows with the fewest non-zeros first."""
    return rows.take(np.argsort(np.diff(rows.indptr), kind="stable"))


def sorted_by(rows: Batch, column: int) -> Batch:
    """Sorted by the value of one column, 0 where a row does not have it."""
    return rows.take(np.argsort(data.dense(rows)[:, column], kind="stable"))


def sampled(samples: Samples, n: int, positive: set[Any]) -> Batch:
    """The first n of River's samples."""
    rows, kinds = [], []
    for x, y in islice(samples, n):
        rows.append([float(x[key]) for key in sorted(x)])
        kinds.append(y)
    return Batch.from_dense(np.array(rows), sign(np.array(kinds), positive))


def sea() -> Batch:
    """Four thresholds in sequence, with a tenth of the labels wrong."""
    part = GENERATED // 4
    parts = (synth.SEA(variant=v, seed=v, noise=0.1).take(part) for v in range(4))
    return sampled(chain.from_iterable(parts), GENERATED, {True})


def agrawal() -> Batch:
    """Four of the ten loan rules in sequence; columns are not scaled."""
    part = GENERATED // 4
    rules = (
        (rule, synth.Agrawal(classification_function=rule, seed=rule)) for rule in (0, 3, 6, 8)
    )
    return sampled(chain.from_iterable(g.take(part) for _, g in rules), GENERATED, {1})


def moving_clusters() -> Batch:
    generator = synth.RandomRBFDrift(
        seed_model=0,
        seed_sample=0,
        n_classes=2,
        n_features=10,
        n_centroids=20,
        change_speed=0.001,
        n_drift_centroids=20,
    )
    return sampled(generator.take(GENERATED), GENERATED, {1})


def turning_plane() -> Batch:
    generator = synth.Hyperplane(
        seed=0, n_features=10, n_drift_features=5, mag_change=0.01, noise_percentage=0.05
    )
    return sampled(generator.take(GENERATED), GENERATED, {1})


REAL: Mapping[str, Callable[[], Batch]] = MappingProxyType(
    {
        "w1a, shuffled": lambda: grouped("w1a"),
        "splice": lambda: libsvm("splice"),
        "svmguide1, shuffled": lambda: svmguide1(True),
        "heart_scale": lambda: libsvm("heart_scale"),
        "heart_cleveland": lambda: libsvm("heart_cleveland"),
        "glass (1, 2 or 3), shuffled": lambda: grouped("glass", {1.0, 2.0, 3.0}),
        "ionosphere": lambda: libsvm("ionosphere"),
        "arrhythmia, shuffled": arrhythmia,
        "reuters.tst, shuffled": lambda: grouped("reuters.tst"),
        "rcv1_small.t": lambda: libsvm("rcv1_small.t"),
        "breast cancer, shuffled": lambda: bundled(datasets.load_breast_cancer, {1}),
        "digits (even), shuffled": lambda: bundled(datasets.load_digits, {0, 2, 4, 6, 8}),
        "wine (1), shuffled": lambda: bundled(datasets.load_wine, {1}),
        "segment (brickface)": lambda: sampled(iter(ImageSegments()), EXCERPT, {"brickface"}),
    }
)
ORDERS: Mapping[str, Callable[[], Batch]] = MappingProxyType(
    {
        "elec2, shuffled": lambda: shuffled(stream("elec2"))[:EXCERPT],
        "ijcnn1, shuffled": lambda: shuffled(stream("ijcnn1"))[:EXCERPT],
        "spambase, by class": lambda: libsvm("spambase"),
        "svmguide1, by class": lambda: svmguide1(False),
        "digits (even), by digit": digits_in_order,
        "page-blocks, by its second column": lambda: sorted_by(stream("pageblocks"), 1),
        "reuters, by length": lambda: sorted_by_length(stream("reuters")),
    }
)
MADE: Mapping[str, Callable[[], Batch]] = MappingProxyType(
    {
        "SEA, 4 concepts": sea,
        "Agrawal, 4 concepts": agrawal,
        "clusters that move": moving_clusters,
        "a plane that turns": turning_plane,
    }
)
