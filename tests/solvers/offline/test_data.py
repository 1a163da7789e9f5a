"""Offline methods on real rows reach the optima of outside solvers."""

import lzma
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVR, LinearSVC

from dualstream.solvers import Batch, solve
from dualstream.solvers.offline.semiparametric import (
    constant,
    linear,
    quadratic,
    solve_semiparametric,
)

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif("DUALSTREAM_DATA" not in os.environ, reason="DUALSTREAM_DATA is not set"),
]


def rows(name, dim, most):
    path = Path(os.environ["DUALSTREAM_DATA"]) / name
    packed = path.with_name(name + ".xz")
    text = lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    batch = Batch.from_libsvm(text, dim).batch
    order = np.random.default_rng(0).permutation(len(batch))[:most]
    return batch.take(order)


def quietly(model, batch):
    x = csr_matrix((batch.values, batch.indices, batch.indptr), shape=(len(batch), batch.dim))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, batch.labels)
    return x, model.coef_[0], float(np.ravel(model.intercept_)[0])


@pytest.mark.parametrize(
    ("name", "dim", "c"), [("a9a", 123, 0.01), ("ijcnn1", 22, 0.1), ("rcv1_small", 47153, 0.05)]
)
def test_cutting_planes_reach_what_liblinear_reaches(name, dim, c):
    batch = rows(name, dim, 5000)
    x, w, b = quietly(LinearSVC(C=c, loss="hinge", tol=1e-7, max_iter=200_000), batch)
    theirs = 0.5 * (w @ w + b * b) + c * np.maximum(0.0, 1.0 - batch.labels * (x @ w + b)).sum()
    rho = 1.0 / (c * len(batch))
    result = solve(batch, "mcpa", rho=rho, tol=1e-7, intercept="penalized")
    assert result.primal / rho <= theirs * (1 + 1e-6)
    assert result.dual / rho <= theirs * (1 + 1e-12)


def test_l1_reaches_what_liblinear_reaches():
    batch, rho = rows("spambase", 57, 2000), 0.0005
    peak = np.zeros(57)
    np.maximum.at(peak, batch.indices, np.abs(batch.values))
    batch = batch.with_rows(
        batch.indptr, batch.indices, batch.values / peak[batch.indices], batch.dim
    )
    model = LogisticRegression(
        penalty="l1", C=1 / (rho * len(batch)), solver="liblinear", fit_intercept=False,
        tol=1e-6, max_iter=100_000,
    )  # fmt: skip
    x, w, _ = quietly(model, batch)
    theirs = np.logaddexp(0.0, -batch.labels * (x @ w)).mean() + rho * np.abs(w).sum()
    result = solve(batch, "newton_l1", loss="logistic", rho=rho, tol=1e-9)
    assert result.primal == pytest.approx(theirs, rel=1e-6)


def test_milan_is_read_as_the_thesis_reads_it():
    lines = (Path(os.environ["DUALSTREAM_DATA"]) / "milan.mort.txt").read_text().splitlines()
    values = np.array([[float(v) for v in line.split()] for line in lines[1:] if line.strip()])
    scaled = (values - values.min(axis=0)) / np.ptp(values, axis=0)
    chosen = np.random.default_rng(1).permutation(len(scaled))[:1000]
    x, y = np.delete(scaled, 6, axis=1)[chosen], scaled[chosen, 6]
    plain = solve_semiparametric(x, y, [constant()], 25.0, 0.01, 0.05, tol=1e-8)
    outside = SVR(C=0.05, gamma=25.0, epsilon=0.01, tol=1e-8).fit(x, y)
    assert plain.predict(x) == pytest.approx(outside.predict(x), abs=1e-4)
    assert plain.intercept == pytest.approx(outside.intercept_[0], abs=1e-4)
    terms = linear(3, "temp"), linear(6, "SO2"), quadratic(3, "t2"), quadratic(6, "s2")
    basis = [constant(), *terms]
    result = solve_semiparametric(x, y, basis, 25.0, 0.01, 0.05)
    assert result.primal <= plain.primal and result.beta_is_unique
    # Deaths fall and then rise with temperature, and rise with SO2.
    b = result.coefficients
    assert b["temp"] < 0.0 < b["t2"] and b["SO2"] > 0.0
