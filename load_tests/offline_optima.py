"""Optimal objectives of offline methods compared with those of LIBLINEAR and LIBSVM."""

import warnings
from typing import Any

import numpy as np

from dualstream.solvers import Batch, solve
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.offline.problem import Bounds, Problem
from dualstream.solvers.offline.semiparametric import constant, solve_semiparametric
from load_tests.markdown import table
from load_tests.paper_tables import data, thesis_fig_4_1, thesis_table_4_2

RHO = 1e-3
TOL = 1e-7
MAX_EPOCHS = 20_000
L1_RHO = 5e-4
HEADS = ("ours", "gap", "theirs", "its gap to our bound", "apart")
FEW = 1_000
"""Rows where the other side is LIBSVM, which takes a time that grows with their square."""
CASES = (("dcd", "hinge"), ("dcd", "squared_hinge"), ("sdca", "logistic"))


def sets() -> dict[str, Batch]:
    """Data sets of DUALSTREAM_DATA; spambase with columns scaled to norm sqrt(n)."""
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
    """A table: each side's objective and gap, and their difference."""
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
                max_epochs=MAX_EPOCHS,
            )
            theirs = of_liblinear(batch, loss)
            lines.append(line(name, f"{method}, {loss}", ours, theirs.primal))
    return table(("rows", "method, loss", *HEADS), lines)


def of_liblinear(batch: Batch, loss: str) -> Bounds:
    """Objective of scikit-learn's LIBLINEAR run to its last digits."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    more: dict[str, Any] = {"C": 1.0 / (RHO * len(batch)), "max_iter": 100_000}
    if loss == "logistic":
        model = LogisticRegression(solver="liblinear", tol=1e-10, **more)
    elif loss == "hinge":
        model = LinearSVC(loss="hinge", dual=True, tol=1e-6, **more)
    else:
        model = LinearSVC(dual=False, tol=1e-10, **more)
    fitted(model, matrix(batch), batch.labels)
    w = np.append(model.coef_[0], model.intercept_[0])
    problem = Problem(batch, batch.labels, make_loss(loss), RHO, "penalized")
    return problem.bounds(w, problem.duals_at(w))


def l1_report() -> str:
    """The same for l1-penalised logistic loss without intercept; columns within [-1, 1]."""
    from sklearn.linear_model import LogisticRegression

    lines = []
    for name, batch in sets().items():
        peak = np.full(batch.dim, 1e-300)
        np.maximum.at(peak, batch.indices, np.abs(batch.values))
        values = batch.values / peak[batch.indices]
        batch = batch.with_rows(batch.indptr, batch.indices, values, batch.dim)
        ours = solve(batch, "newton_l1", loss="logistic", rho=L1_RHO, tol=1e-9)
        model = LogisticRegression(
            penalty="l1", C=1.0 / (L1_RHO * len(batch)), solver="liblinear", fit_intercept=False,
            tol=1e-6, max_iter=100_000,
        )  # fmt: skip
        fitted(model, matrix(batch), batch.labels)
        scores = matrix(batch) @ model.coef_[0]
        theirs = np.logaddexp(0.0, -batch.labels * scores).mean()
        theirs += L1_RHO * np.abs(model.coef_).sum()
        lines.append(line(name, "newton_l1, logistic, l1", ours, theirs))
    return table(("rows", "method, loss", *HEADS), lines)


def libsvm_report() -> str:
    """The same for support vector machines with an unpenalised intercept, as in LIBSVM.

    A Gaussian kernel on n rows equals a linear kernel on the rows of a root of its matrix.
    """
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.svm import SVC, SVR

    lines = []
    for name, batch in sets().items():
        chosen = np.random.default_rng(1).permutation(len(batch))[:FEW]
        some = batch.take(chosen)
        rho = 1e-2
        kernels = {"linear": matrix(some)}
        if name == "spambase":
            gram = rbf_kernel(matrix(some), gamma=1.0 / some.dim)
            values, vectors = np.linalg.eigh(gram)
            kernels["rbf"] = vectors * np.sqrt(np.maximum(values, 0.0))
        for kernel, x in kernels.items():
            rows = some if kernel == "linear" else Batch.from_dense(x, some.labels)
            ours = solve(rows, "mcpa", rho=rho, tol=1e-7, intercept="free", max_epochs=MAX_EPOCHS)
            model = fitted(
                SVC(kernel="linear", C=1.0 / (rho * len(some)), tol=1e-8), x, some.labels
            )
            w, b = as_row(model.coef_), model.intercept_[0]
            hinge = np.maximum(0.0, 1.0 - some.labels * (x @ w + b)).mean()
            theirs = hinge + 0.5 * rho * float(w @ w)
            lines.append(line(f"{name}, {len(some):,}", f"mcpa, hinge, {kernel}", ours, theirs))
    for name, (x, y, gamma, epsilon, c) in regressions().items():
        result = solve_semiparametric(x, y, [constant()], gamma, epsilon, c, tol=1e-8)
        model = fitted(SVR(C=c, gamma=gamma, epsilon=epsilon, tol=1e-9), x, y)
        support, dual = x[model.support_], model.dual_coef_[0]
        norm = float(dual @ rbf_kernel(support, support, gamma=gamma) @ dual)
        off = np.maximum(0.0, np.abs(y - model.predict(x)) - epsilon).sum()
        lines.append(line(f"{name}, {len(y):,}", "ipm, SVR, rbf", result, 0.5 * norm + c * off))
    return table(("rows", "method, loss", *HEADS), lines)


def regressions() -> dict[str, tuple[Any, Any, float, float, float]]:
    """Rows, targets, gamma, epsilon and C of the regressions of the thesis, chapter 4."""
    x, y = thesis_table_4_2.milan()
    chosen = np.random.default_rng(1).permutation(len(y))[:FEW]
    hat_x, hat_y = thesis_fig_4_1.mexican_hat(FEW, 0)
    return {
        "mexican hat": (hat_x, hat_y, thesis_fig_4_1.GAMMA, thesis_fig_4_1.EPSILON, 1.0),
        "Milan": (x[chosen], y[chosen], 25.0, 0.01, 0.05),
    }


def line(name: str, what: str, ours: Any, theirs: float) -> tuple[str, ...]:
    """LIBLINEAR has no dual variables, so our lower bound serves for both sides."""
    apart = abs(ours.primal - theirs) / theirs
    gap = (theirs - ours.dual) / theirs
    return (
        name, what, f"{ours.primal:.10f}", f"{ours.relative_gap:.1e}", f"{theirs:.10f}",
        f"{gap:.1e}", f"{apart:.1e}",
    )  # fmt: skip


def matrix(batch: Batch) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix((batch.values, batch.indices, batch.indptr), shape=(len(batch), batch.dim))


def as_row(coefficients: Any) -> Any:
    dense = coefficients.toarray() if hasattr(coefficients, "toarray") else coefficients
    return np.asarray(dense)[0]


def fitted(model: Any, x: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x, y)


if __name__ == "__main__":
    for part in (report, l1_report, libsvm_report):
        print(part(), flush=True)
