"""Optimal objectives of offline methods beside those of LIBLINEAR, on data sets at hand."""

import warnings
from typing import Any

import numpy as np

from load_tests.markdown import table
from load_tests.paper_tables import data
from solvers import Batch, solve
from solvers.losses import make_loss
from solvers.offline.problem import Bounds, Problem

RHO = 1e-3
TOL = 1e-7
MOST_EPOCHS = 20_000
CASES = (("dcd", "hinge"), ("dcd", "squared_hinge"), ("sdca", "logistic"))


def sets() -> dict[str, Batch]:
    """Those of DUALSTREAM_DATA; spambase with columns brought to norm sqrt(n)."""
    spam = data.dense(data.libsvm("spambase", 57))
    return {
        "a9a": data.adult(),
        "spambase": Batch.from_dense(
            spam / np.sqrt(np.mean(spam**2, axis=0)),
            data.signed(data.libsvm("spambase", 57), {1.0}).labels,
        ),
        "ijcnn1": data.signed(data.libsvm("ijcnn1", 22), {1.0}),
        "rcv1_small": data.signed(data.libsvm("rcv1_small", 47_236), {1.0}),
    }


def report() -> str:
    """A table: each side's objective and gap, and how far they are apart."""
    heads = ("rows", "method, loss", "ours", "gap", "LIBLINEAR", "gap of its weights", "apart")
    lines = []
    for name, batch in sets().items():
        for method, loss in CASES:
            ours = solve(
                batch,
                method,
                loss=loss,
                rho=RHO,
                tol=TOL,
                intercept="penalized",
                max_epochs=MOST_EPOCHS,
            )
            theirs = of_liblinear(batch, loss)
            apart = abs(ours.primal - theirs.primal) / theirs.primal
            # Its weights come without dual variables: below which value nothing is, we know.
            gap = (theirs.primal - ours.dual) / theirs.primal
            lines.append(
                (name, f"{method}, {loss}", f"{ours.primal:.10f}", f"{ours.relative_gap:.1e}",
                 f"{theirs.primal:.10f}", f"{gap:.1e}", f"{apart:.1e}")
            )  # fmt: skip
    return table(heads, lines)


def of_liblinear(batch: Batch, loss: str) -> Bounds:
    """The objective of scikit-learn's LIBLINEAR run as far as it goes."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    n = len(batch)
    x = csr_matrix((batch.values, batch.indices, batch.indptr), shape=(n, batch.dim))
    more: dict[str, Any] = {"C": 1.0 / (RHO * n), "max_iter": 100_000}
    if loss == "logistic":
        model = LogisticRegression(solver="liblinear", tol=1e-10, **more)
    elif loss == "hinge":
        model = LinearSVC(loss="hinge", dual=True, tol=1e-6, **more)
    else:
        model = LinearSVC(dual=False, tol=1e-10, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, batch.labels)
    w = np.append(model.coef_[0], model.intercept_[0])
    problem = Problem(batch, batch.labels, make_loss(loss), RHO, "penalized")
    return problem.bounds(w, problem.duals_at(w))


if __name__ == "__main__":
    print(report())
