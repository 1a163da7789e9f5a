"""Each learner's kernel against SGDClassifier and River, and its cost against the width.

The peer is of the same kind: SGDClassifier with the learner's penalty, and River's nearest model on
the first rows, as dictionaries made before the clock starts.
"""

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from dualstream.solvers import Batch, make_learner, resolve_spec
from load_tests.kernel import COPIES, SLICE_ROWS, adult
from load_tests.measure import FEW_ROUNDS, Row, interleaved

RIVER_ROWS = 4000
WIDE, NARROW, NONZEROS, WIDE_ROWS = 1_000_000, 1_000, 50, 50_000

# Learners with a gate: l2 and one-step. Their cost does not depend on the width.
FAST: Mapping[str, Mapping[str, Any]] = {
    "dual_ascent logistic": {"algorithm": "dual_ascent", "loss": "logistic"},
    "dual_ascent hinge, averaged": {"algorithm": "dual_ascent", "loss": "hinge"},
    "dc pil2": {"algorithm": "dc"},
    "rda logistic l1": {"algorithm": "rda", "loss": "logistic"},
    "rda_plus logistic l1": {"algorithm": "rda_plus", "loss": "logistic"},
    "sgd hinge": {"algorithm": "sgd", "loss": "hinge"},
    "spg hinge": {"algorithm": "spg", "loss": "hinge"},
    "spg logistic": {"algorithm": "spg", "loss": "logistic"},
    "truncated_gradient logistic": {"algorithm": "truncated_gradient", "loss": "logistic"},
    "fobos logistic": {"algorithm": "fobos", "loss": "logistic"},
    "ogd": {"algorithm": "ogd"},
    "perceptron": {"algorithm": "perceptron"},
    "passive_aggressive": {"algorithm": "passive_aggressive"},
    "romma": {"algorithm": "romma"},
    "alma": {"algorithm": "alma"},
}
# Reported without a gate: O(dim) or more a row, or a stage in front of the learner.
SLOW: Mapping[str, Mapping[str, Any]] = {
    "dual_ascent behind balanced scaling": {
        "algorithm": "dual_ascent",
        "loss": "logistic",
        "strength": 30,
        "scaling": "balanced",
    },
    "dual_ascent entropy": {"algorithm": "dual_ascent", "regularizer": "entropy", "rho": 0.1},
    "dual_ascent elastic net, averaged": {
        "algorithm": "dual_ascent",
        "loss": "hinge",
        "regularizer": {"kind": "elastic_net", "delta": 0.1},
    },
    "dual_ascent hinge, 4 replay steps": {
        "algorithm": "dual_ascent",
        "loss": "hinge",
        "replay": {"steps": 4},
    },
    "dc complete sigmoid": {"algorithm": "dc", "surrogate": "sigmoid", "inner": "complete"},
    "asset, 256 Fourier features": {
        "algorithm": "asset",
        "map": {"kind": "fourier", "components": 256, "gamma": 0.01},
    },
}


def rows() -> list[Row]:
    many, few = adult(COPIES), adult()
    table = []
    for name, spec in FAST.items():
        table += against_peers(name, spec, many, gate=1.0, goal=2.0)
    for name, spec in SLOW.items():
        table += against_peers(name, spec, few[: 2 * SLICE_ROWS], gate=None, goal=None)
    table += [against_width(name, spec) for name, spec in FAST.items()]
    return table


def rate(spec: Mapping[str, Any], batch: Batch, dim: int) -> float:
    """Rows per second over all rows from an empty learner."""
    learner = make_learner(resolve_spec({**spec, "features": {"kind": "indexed", "dim": dim}}))
    began = time.perf_counter()
    for first in range(0, len(batch), SLICE_ROWS):
        learner.learn(batch[first : first + SLICE_ROWS])
    return len(batch) / (time.perf_counter() - began)


def against_peers(
    name: str, spec: Mapping[str, Any], batch: Batch, gate: float | None, goal: float | None
) -> list[Row]:
    figures = interleaved(
        {
            "ours": lambda: rate(spec, batch, 123),
            "sgd": lambda: sgd_classifier(spec, batch),
            "river": lambda: river(batch[:RIVER_ROWS]),
        },
        FEW_ROUNDS,
    )
    what = f"{name}: learn, Adult, {len(batch):,} rows"
    row = Row(
        what, "rows/s", figures["ours"], "SGDClassifier", figures["sgd"], gate=gate, goal=goal
    )
    beside_river = None if gate is None else 20.0
    return [
        row,
        replace(
            row,
            peer="River LogisticRegression",
            theirs=figures["river"],
            gate=beside_river,
            goal=beside_river,
        ),
    ]


def sgd_classifier(spec: Mapping[str, Any], batch: Batch) -> float:
    """One pass of the peer with the learner's loss and kind of penalty."""
    from sklearn.linear_model import SGDClassifier

    is_sparse = spec["algorithm"] in ("rda", "rda_plus", "fobos", "truncated_gradient")
    loss = "log_loss" if spec.get("loss") == "logistic" else "hinge"
    peer = SGDClassifier(
        loss=loss, penalty="l1" if is_sparse else "l2", max_iter=1, tol=None, alpha=1e-3
    )
    x = csr_matrix((batch.values, batch.indices, batch.indptr), shape=(len(batch), 123))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        peer.fit(x, batch.labels)
        return len(batch) / (time.perf_counter() - began)


def river(batch: Batch) -> float:
    """Predict, then learn, one dictionary at a time."""
    from river import linear_model

    model = linear_model.LogisticRegression()
    samples = []
    for i in range(len(batch)):
        first, last = int(batch.indptr[i]), int(batch.indptr[i + 1])
        pairs = zip(
            batch.indices[first:last].tolist(), batch.values[first:last].tolist(), strict=True
        )
        samples.append((dict(pairs), bool(batch.labels[i] > 0)))
    began = time.perf_counter()
    for x, y in samples:
        model.predict_proba_one(x)
        model.learn_one(x, y)
    return len(batch) / (time.perf_counter() - began)


def against_width(name: str, spec: Mapping[str, Any]) -> Row:
    wide, narrow = uniform(WIDE), uniform(NARROW)
    figures = interleaved(
        {
            "wide": lambda: 1e9 / rate(spec, wide, WIDE),
            "narrow": lambda: 1e9 / rate(spec, narrow, NARROW),
        },
        FEW_ROUNDS,
    )
    return Row(
        f"{name}: cost per row, {NONZEROS} non-zeros, dim 1e6 (uniform columns)",
        "ns/row",
        figures["wide"],
        "dim 1e3",
        figures["narrow"],
        gate=2.0,
        goal=1.3,
        smaller_is_better=True,
    )


def uniform(dim: int, n: int = WIDE_ROWS) -> Batch:
    """Rows of NONZEROS columns, one from each of NONZEROS equal strips."""
    rng = np.random.default_rng(0)
    strip = dim // NONZEROS
    indices = rng.integers(0, strip, (n, NONZEROS)) + np.arange(NONZEROS) * strip
    labels = rng.choice([-1.0, 1.0], n)
    values = rng.standard_normal(n * NONZEROS)
    return Batch.from_csr(np.arange(n + 1) * NONZEROS, indices.ravel(), values, labels, dim=dim)
