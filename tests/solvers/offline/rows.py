"""Rows for offline methods, small enough for slow references."""

import numpy as np

from dualstream.solvers import Batch
from tests.solvers import reference

TASKS = {True: "binary", False: "regression"}


def sparse_rows(n=120, dim=15, seed=3, weights=None, binary=True) -> Batch:
    """Sparse rows of a noisy linear rule; labels -1 and 1, or numbers."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((n, dim)) < 0.4, rng.normal(size=(n, dim)), 0.0)
    z = x @ rng.normal(size=dim) + rng.normal(size=n)
    y = np.where(z > 0, 1.0, -1.0) if binary else z
    return Batch.from_dense(x, y, weights)


def dense(batch: Batch, bias=False):
    """(n, dim), or (n, dim + 1) with a last column of 1."""
    x = np.zeros((len(batch), batch.dim))
    for i in range(len(batch)):
        at = slice(batch.indptr[i], batch.indptr[i + 1])
        x[i, batch.indices[at]] = batch.values[at]
    return np.column_stack([x, np.ones(len(batch))]) if bias else x


def loss_of(name):
    """The parameter of the loss as `reference` has it."""
    return reference.LOSSES[name]


def primal(batch, w, loss, rho, bias=False):
    """The objective from its definition; w with the intercept behind it if there is one."""
    scores = dense(batch, bias) @ w
    losses = [
        reference.value(loss, z, y, loss_of(loss))
        for z, y in zip(scores, batch.labels, strict=True)
    ]
    return np.average(losses, weights=batch.weights) + rho / 2 * w @ w


def dual(batch, duals, loss, rho, bias=False):
    """The dual objective from its definition; -infinity outside the domain."""
    share = batch.weights / batch.weights.sum()
    conjugates = [
        reference.conjugate(loss, tau, y, loss_of(loss))
        for tau, y in zip(duals, batch.labels, strict=True)
    ]
    u = dense(batch, bias).T @ (share * duals) / rho
    return -share @ conjugates - rho / 2 * u @ u


BAD_ROWS = {
    "one class": Batch.from_dense(np.random.default_rng(0).normal(size=(30, 4)), np.ones(30)),
    "constant features": Batch.from_dense(np.ones((30, 3)), np.tile([1.0, -1.0], 15)),
    "duplicate columns": Batch.from_dense(
        np.repeat(np.random.default_rng(0).normal(size=(30, 2)), 3, axis=1),
        np.tile([1.0, -1.0], 15),
    ),
    "more features than rows": sparse_rows(n=8, dim=60),
    "rows of zeros": Batch.from_dense(np.zeros((6, 3)), [1.0, -1.0, 1.0, 1.0, 1.0, -1.0]),
    "one row": Batch.from_dense([[2.0, 1.0]], [-1.0]),
    "large and small numbers": Batch.from_dense(
        [[1e90, 1.0], [1e-90, 2.0], [3.0, 1.0]], [1.0, -1.0, 1.0]
    ),
}
