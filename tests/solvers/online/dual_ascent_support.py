"""Specs, rows and checks of dual ascent."""

import numpy as np
import pytest

from dualstream.solvers import Batch, dump
from dualstream.solvers.losses.loss_table import MARGIN_LOSSES
from tests.solvers import reference

WINDOWS = {
    "infinite": ("infinite",),
    "exponential": ("exponential", 0.9),
    "sliding": ("sliding", 7),
}
KEYS = {"exponential": "beta", "sliding": "length"}


def window_spec(window):
    return dict(zip(("kind", KEYS.get(window[0])), window, strict=False))


def spec_of(loss="hinge", window=("infinite",), kappa=None, dim=6, **more):
    return {
        "task": "binary" if loss in MARGIN_LOSSES else "regression",
        "loss": reference.loss_spec(loss),
        "window": window_spec(window),
        "average": None if kappa is None else {"kappa": kappa},
        "features": {"kind": "indexed", "dim": dim},
        **more,
    }


def rows_of(n, dim=6, seed=0, regression=False, weighted=True):
    """A batch with empty rows, repeated rows and rows of weight 0, and its dense matrix."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((n, dim)) * (random.random((n, dim)) < 0.5)
    x[n // 3] = 0.0
    x[n // 2] = x[0]
    y = x @ random.standard_normal(dim) + 0.3 * random.standard_normal(n)
    y = y if regression else np.where(y >= 0, 1.0, -1.0)
    weights = random.choice([0.0, 0.5, 1.0, 3.0], n) if weighted else np.ones(n)
    return Batch.from_dense(x, y, weights), x


def bytes_of(learner):
    return dump(learner.state(), {})


def visit(learner, visits):
    learner._kernels.replay(
        visits, 0, len(visits), learner._ring.arrays, learner._w, learner._floats, learner._ints
    )


def assert_same(learner, slow, rel=1e-8, abs=1e-9):
    served = np.append(learner.weights, learner.intercept)
    np.testing.assert_allclose(served, slow.served(), rtol=rel, atol=abs)
    certificate = learner.certificate()
    result = certificate.primal, certificate.dual, certificate.gap
    if certificate.weight_share > 1 - 1e-9:
        assert result == pytest.approx(slow.certificate(), rel=rel, abs=abs)
    else:
        assert certificate.dual == pytest.approx(slow.certificate()[1], rel=rel, abs=abs)
    assert certificate.gap >= 0.0
