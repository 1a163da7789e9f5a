"""LIBLINEAR as an outside solver, by way of scikit-learn, on rows of Adult."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from dualstream.solvers import solve
from tests.solvers.offline.rows import primal

C = 0.05
PEERS = {
    "hinge": LinearSVC(C=C, loss="hinge", dual=True, tol=1e-7, max_iter=1_000_000, random_state=0),
    "squared_hinge": LinearSVC(C=C, dual=False, tol=1e-10),
    "logistic": LogisticRegression(C=C, solver="liblinear", tol=1e-10),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("loss", "method"),
    [
        ("hinge", "dcd"),
        ("hinge", "sdca"),
        ("squared_hinge", "dcd"),
        ("squared_hinge", "svrg"),
        ("logistic", "sdca"),
        ("logistic", "asdca"),
        ("logistic", "spdc"),
    ],
)
def test_objective_is_that_of_liblinear(loss, method, adult):
    n, rho = len(adult), 1 / (C * len(adult))
    x = csr_matrix((adult.values, adult.indices, adult.indptr), shape=(n, adult.dim))
    peer = PEERS[loss].fit(x, adult.labels)
    w = np.append(peer.coef_[0], peer.intercept_[0])
    theirs = primal(adult, w, loss, rho, bias=True)
    options = {"loss": loss, "rho": rho, "intercept": "penalized", "max_epochs": 50_000}
    result = solve(adult, method, tol=3e-7, **options)
    assert result.converged
    assert result.primal == pytest.approx(theirs, rel=1e-6)
    assert result.dual <= theirs
