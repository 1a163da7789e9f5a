"""Streams for the tests of nonlinear learners."""

import numpy as np

from dualstream.solvers import Batch, make_learner, resolve_spec


def waves(n, dim=4, seed=0, task="binary", weights=None):
    """Dense rows whose label depends on products: no linear model is better than the base rate."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim)).astype(np.float32).astype(np.float64)
    z = np.sin(2.0 * x[:, 0]) * x[:, 1] + 0.1 * rng.normal(size=n)
    y = z if task == "regression" else np.where(z > 0.0, 1.0, -1.0)
    return Batch.from_dense(x, y, weights)


def learner_of(dim, **spec):
    return make_learner(resolve_spec({"features": {"kind": "indexed", "dim": dim}} | spec))


def mistakes(learner, batch, piece=500):
    """Which rows are scored wrong before they are learned."""
    parts = [learner.learn(batch[i : i + piece]).scores for i in range(0, len(batch), piece)]
    return (np.concatenate(parts) > 0.0) != (batch.labels > 0.0)
