"""Losses, rows and iterates of first-order methods."""

import numpy as np

from dualstream.solvers import Batch, resolve_spec
from tests.solvers.first_order_reference import dense, loss_from, soft

COSINES = np.cos(np.arange(1, 124))
INDEXED = {"kind": "indexed", "dim": 123}
LOSSES = [
    "hinge",
    "squared_hinge",
    {"kind": "smooth_hinge", "gamma": 0.5},
    "logistic",
    "squared",
    "absolute",
    {"kind": "quantile", "tau": 0.3},
    {"kind": "epsilon_insensitive", "epsilon": 0.2},
    {"kind": "huber", "delta": 0.5},
]


def weighted(batch, seed=0):
    """The same rows with weights, some of them 0."""
    weights = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 3.0], len(batch))
    return Batch(batch.indptr, batch.indices, batch.values, batch.labels, weights, batch.dim)


def all_weights(learner):
    return np.append(learner.weights, learner.intercept)


L1 = {"kind": "l1", "lambda": 0.0213}
ELASTIC = {"kind": "elastic_net", "lambda": 0.0213, "sigma": 0.1}


def iterates(spec, batch):
    """All iterates after the first row on, (n, dim + 1), by (2.4) of the thesis."""
    spec = resolve_spec(spec)
    loss, regularizer, schedule = loss_from(spec), spec["regularizer"], spec["schedule"]
    lam, sigma = regularizer.get("lambda", 0.0), regularizer.get("sigma", 0.0)
    half = 1.0 if spec["prox"] == "thesis" else 0.5
    x = dense(batch, spec["intercept"])
    penalised = np.append(np.ones(batch.dim), 0.0)
    w, mean, t, results = np.zeros(x.shape[1]), np.zeros(x.shape[1]), 0, []
    for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
        if c > 0.0:
            t += 1
            mean = mean * ((t - 1) / t) + c * loss.slope(h @ w, y) * h / t
            if schedule["kind"] == "sqrt":
                beta = schedule["gamma"] * np.sqrt(t)
            else:
                beta = schedule["sigma"] * (1 + np.log(t))
            w = soft(-mean, lam * penalised) / (sigma * penalised + 2 * half * beta / t)
        results.append(w)
    return np.array(results)
