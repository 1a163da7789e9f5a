"""Regression streams loaded after the portfolio's members and constants were fixed.

None was looked at before. One constant was changed after them: how far a prediction may lie outside
the range of the targets seen. See data.py for the others.
"""

import lzma
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dualstream.solvers import Batch
from load_tests.regression.data import (
    Floats,
    Rows,
    Stream,
    dense_stream,
    milan_table,
    named_stream,
    path,
    permuted,
    to_dense,
)

IN_FOLDER = ("glass_ri", "milan_so2", "heart_chol", "pageblocks_7", "ijcnn_last", "rcv1")
"""The streams that need DUALSTREAM_DATA."""


def _libsvm(name: str, dim: int) -> Batch:
    text = path(name).read_bytes()
    return Batch.from_libsvm(lzma.decompress(text) if name.endswith(".xz") else text, dim).batch


def _rest(x: Floats, target: int, features: Sequence[int] | None = None) -> Stream:
    """One column from all other columns, or from some of them."""
    kept = [j for j in range(x.shape[1]) if j != target] if features is None else list(features)
    return dense_stream(x[:, kept], x[:, target])


def glass_ri() -> Stream:
    """Refractive index of a glass from its components, permuted."""
    return permuted(_rest(to_dense(_libsvm("glass", 9)), 0))


def wine_alcohol() -> Stream:
    """scikit-learn's wine: the alcohol from the other columns, permuted."""
    from sklearn.datasets import load_wine

    return permuted(_rest(load_wine().data, 0))


def cancer_area() -> Stream:
    """scikit-learn's breast cancer: the mean area from seven other means, not its radius."""
    from sklearn.datasets import load_breast_cancer

    return _rest(load_breast_cancer().data, 3, (1, 4, 5, 6, 7, 8, 9))


def digits_number() -> Stream:
    """scikit-learn's digits: the digit as a number, from its pixels."""
    from sklearn.datasets import load_digits

    return dense_stream(*load_digits(return_X_y=True))


def milan_so2() -> Stream:
    """Sulphur dioxide of a day from the weather and the calendar of that day."""
    kept = ("day.num", "holiday", "mean.temp", "rel.humid")
    return named_stream(
        ({k: float(row[k]) for k in kept} | {"day.of.week": row["day.of.week"]}, float(row["SO2"]))
        for row in milan_table()
    )


def heart_chol() -> Stream:
    """Cholesterol from the other columns of Cleveland's heart data."""
    return _rest(to_dense(_libsvm("heart_cleveland", 13)), 4)


def pageblocks_7() -> Stream:
    """A count of page-blocks from six other columns, permuted."""
    return permuted(_rest(to_dense(_libsvm("page-blocks", 10)), 7, (0, 1, 3, 4, 5, 6)))


def friedman_1() -> Stream:
    """scikit-learn's make_friedman1."""
    from sklearn.datasets import make_friedman1

    return dense_stream(*make_friedman1(8000, noise=1.0, random_state=7))


def low_rank() -> Stream:
    """A linear target far from 0 with much more noise than signal."""
    from sklearn.datasets import make_regression

    x, y = make_regression(
        5000, 60, n_informative=10, noise=20.0, effective_rank=15, random_state=3
    )
    return dense_stream(x, y + 1e4)


def ijcnn_last() -> Stream:
    """The last column of ijcnn1 from the others, 20,000 rows."""
    return _rest(to_dense(_libsvm("ijcnn1.xz", 22))[:20_000], 21)


def rcv1() -> Stream:
    """News as words; the class, -1 or 1, as a number."""
    batch = _libsvm("rcv1_small.xz", 47_236)
    columns, values = batch.indices.tolist(), batch.values.tolist()
    ends = batch.indptr.tolist()
    rows: Rows = [
        {str(j): v for j, v in zip(columns[a:b], values[a:b], strict=True)}
        for a, b in zip(ends[:-1], ends[1:], strict=True)
    ]
    return rows, batch.labels * 1.0


def lognormal() -> Stream:
    """The sign is linear; the size is log-normal noise."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(8000, 8))
    return dense_stream(x, np.sign(x @ rng.normal(size=8)) * np.exp(rng.normal(size=8000)))


LOADERS: Mapping[str, Callable[[], Stream]] = {
    "glass_ri": glass_ri,
    "wine_alcohol": wine_alcohol,
    "cancer_area": cancer_area,
    "digits_number": digits_number,
    "milan_so2": milan_so2,
    "heart_chol": heart_chol,
    "pageblocks_7": pageblocks_7,
    "friedman_1": friedman_1,
    "low_rank": low_rank,
    "ijcnn_last": ijcnn_last,
    "rcv1": rcv1,
    "lognormal": lognormal,
}
