"""The learn kernel: rows per second beside scikit-learn's SGDClassifier, and cost against width."""

import time
import warnings

import numpy as np

from load_tests.measure import Row, interleaved
from service.demo.run import adult_lines
from solvers import Batch, make_learner, resolve_spec

COPIES = 20
SLICE_ROWS = 4096


def rows() -> list[Row]:
    return [against_sgd_classifier(), against_width()]


def adult(copies: int = 1) -> Batch:
    """Adult, so many times over."""
    once = Batch.from_libsvm(b"\n".join(adult_lines()), 123).batch
    return Batch.concat([once] * copies)


def seconds_to_learn(batch: Batch, dim: int) -> float:
    """From an empty learner over all rows, in slices as the service takes them."""
    spec = {
        "algorithm": "dual_ascent",
        "loss": "hinge",
        "window": {"kind": "exponential", "beta": 0.99995},
        "features": {"kind": "indexed", "dim": dim},
    }
    learner = make_learner(resolve_spec(spec))
    began = time.perf_counter()
    for first in range(0, len(batch), SLICE_ROWS):
        learner.learn(batch[first : first + SLICE_ROWS])
    return time.perf_counter() - began


def against_sgd_classifier() -> Row:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import SGDClassifier

    batch = adult(COPIES)
    n = len(batch)
    x = csr_matrix((batch.values, batch.indices, batch.indptr), shape=(n, 123))

    def theirs() -> float:
        peer = SGDClassifier(max_iter=1, tol=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = time.perf_counter()
            peer.fit(x, batch.labels)
            return n / (time.perf_counter() - began)

    figures = interleaved({"ours": lambda: n / seconds_to_learn(batch, 123), "theirs": theirs})
    return Row(
        f"learn kernel, hinge, exponential window, Adult x {COPIES} ({n:,} rows)",
        "rows/s",
        figures["ours"],
        "SGDClassifier(max_iter=1)",
        figures["theirs"],
        gate=1.5,
        goal=2.0,
    )


def against_width(n: int = 100_000, nonzeros: int = 50) -> Row:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(n * nonzeros)
    labels = rng.choice([-1.0, 1.0], n)
    indptr = np.arange(n + 1) * nonzeros

    def batch(dim: int) -> Batch:
        # One column from each of `nonzeros` equal strips: distinct and sorted by construction.
        strip = dim // nonzeros
        indices = rng.integers(0, strip, (n, nonzeros)) + np.arange(nonzeros) * strip
        return Batch.from_csr(indptr, indices.ravel(), values, labels, dim=dim)

    wide, narrow = batch(1_000_000), batch(1_000)
    figures = interleaved(
        {
            "wide": lambda: 1e9 / n * seconds_to_learn(wide, 1_000_000),
            "narrow": lambda: 1e9 / n * seconds_to_learn(narrow, 1_000),
        }
    )
    return Row(
        f"cost per row, {nonzeros} non-zeros, dim 1e6 (uniform columns)",
        "ns/row",
        figures["wide"],
        "dim 1e3",
        figures["narrow"],
        gate=2.0,
        goal=1.3,
        smaller_is_better=True,
    )
