"""Learn kernel: rows per second against scikit-learn's SGDClassifier."""

import time
import warnings

from dualstream.service.cli.demo.adult import adult_lines
from dualstream.solvers import Batch, make_learner, resolve_spec
from load_tests.measure import Row, interleaved

COPIES = 20
SLICE_ROWS = 4096


def rows() -> list[Row]:
    return [against_sgd_classifier()]


def adult(copies: int = 1) -> Batch:
    """Adult, repeated `times` times."""
    once = Batch.from_libsvm(b"\n".join(adult_lines()), 123).batch
    return Batch.concat([once] * copies)


def seconds_to_learn(batch: Batch, dim: int) -> float:
    """Seconds for all rows from an empty learner, in slices as the service takes them."""
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
