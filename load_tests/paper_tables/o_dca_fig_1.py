"""Figures 1 and 2 of the O-DCA paper: test accuracy along the stream, hinge loss."""

import warnings
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.jit import Floats
from load_tests.paper_tables import data
from load_tests.paper_tables.report import Section, plt, save, table

RUNS = 10
SEED = 30
KAPPA = 0.9995
PLACES = np.array([0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.65, 0.8, 1.0])
SHARE = 5
"""S-DCA has one row in SHARE, and makes SHARE epochs."""

ABOUT = f"""\
Ying, Yuan, Sayed, "Online dual coordinate ascent learning" (2016), section IV: no intercept, rows
unscaled, β = 1 - μρ. Means over {RUNS} permutations of the training rows; accuracy on all test
rows. "averaged" is (27) with κ = {KAPPA} (the paper does not give κ). S-DCA is LIBLINEAR's dual
coordinate ascent on a fifth of the rows for 5 epochs; the line is LIBLINEAR on all rows, where
the paper has LIBSVM. The figures print no numbers, so we test their claim that O-DCA is ahead of
SGD, at all points and at the end, and how close it comes to the batch solver.
"""


def run() -> Section:
    adult = data.adult()
    small, small_test = data.libsvm("rcv1_small", 47_236), data.libsvm("rcv1_small.t", 47_236)
    figure, axes = plt.subplots(1, 2, figsize=(11.5, 4.6))
    parts, met = [ABOUT], []
    for index, (title, train, test, rho, beta, mu) in enumerate(
        (
            ("Fig. 1, Adult: 11,220 rows, 21,341 to test", adult[:11220], adult[11220:],
             1e-3, 0.99995, 0.05),
            ("Fig. 2, RCV1: 1,000 rows (paper: 20,242), 500 to test", small, small_test,
             1e-4, 0.99998, 0.2),
        )
    ):  # fmt: skip
        curves = {
            name: accuracies(spec, train, test) for name, spec in learners(rho, beta, mu).items()
        }
        full = liblinear(train, test, rho)
        part = [part_epochs(train, test, rho, run) for run in range(RUNS)]
        parts.append(numbers(title, curves, float(np.mean(part)), full, len(train)))
        draw(axes[index], title, curves, float(np.mean(part)), full, len(train))
        outcomes = claims(curves, full)
        met += [said.startswith("yes") for _, said in outcomes]
        parts.append(table(("claim", "reproduced"), outcomes))
    figure.tight_layout()
    parts.append(save(figure, "o_dca_fig_1"))
    counts = f"{sum(met[:6])} of 6 claims on Adult, {sum(met[6:])} of 6 on the part of RCV1"
    return Section("O-DCA, Fig. 1 and 2: accuracy along the stream", "\n".join(parts), counts)


def learners(rho: float, beta: float, mu: float) -> dict[str, dict[str, Any]]:
    dual = {
        "algorithm": "dual_ascent", "rho": rho, "window": {"kind": "exponential", "beta": beta},
    }  # fmt: skip
    steps = {"rho": rho, "mu": mu}
    specs = {}
    for name, spec in {
        "O-DCA": dual, "SGD": {"algorithm": "sgd"} | steps, "SPG": {"algorithm": "spg"} | steps,
    }.items():  # fmt: skip
        specs[name] = spec | {"average": None}
        specs[f"{name}, averaged"] = spec | {"average": {"kappa": KAPPA}}
    return specs


def accuracies(spec: dict[str, Any], train: Batch, test: Batch) -> Floats:
    """(RUNS, places): after these shares of the rows."""
    ends = np.ceil(PLACES * len(train)).astype(int)
    rates = np.empty((RUNS, len(ends)))
    for run in range(RUNS):
        rows = train.take(np.random.default_rng([SEED, run]).permutation(len(train)))
        features = {"kind": "indexed", "dim": train.dim}
        learner = make_learner(spec | {"loss": "hinge", "intercept": False, "features": features})
        start = 0
        for index, end in enumerate(ends):
            learner.learn(rows[start:end])
            start = end
            rates[run, index] = accuracy(learner.predict(test), test)
    return rates


def accuracy(scores: Floats, rows: Batch) -> float:
    return float(np.mean((scores >= 0.0) == (rows.labels > 0.0)))


def matrix(rows: Batch) -> csr_matrix:
    return csr_matrix((rows.values, rows.indices, rows.indptr), (len(rows), rows.dim))


def liblinear(train: Batch, test: Batch, rho: float, epochs: int = 20_000, seed: int = 0) -> float:
    """C = 1 / (rho n), the same objective."""
    model = LinearSVC(
        loss="hinge", C=1.0 / (rho * len(train)), fit_intercept=False, max_iter=epochs,
        random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(matrix(train), train.labels)
    return accuracy(model.decision_function(matrix(test)), test)


def part_epochs(train: Batch, test: Batch, rho: float, run: int) -> float:
    order = np.random.default_rng([SEED, run]).permutation(len(train))
    return liblinear(train.take(order[: len(train) // SHARE]), test, rho, SHARE, run)


def claims(curves: dict[str, Floats], full: float) -> list[tuple[str, str]]:
    """Each claim about the figures, and whether it holds here."""
    mean = {name: results.mean(axis=0) for name, results in curves.items()}
    results = []
    for kind in ("", ", averaged"):
        ours, theirs = mean[f"O-DCA{kind}"], mean[f"SGD{kind}"]
        ahead = int(np.sum(ours > theirs))
        name = "averaged" if kind else "last iterates"
        results.append(
            (
                f"O-DCA is ahead of SGD at all points ({name})",
                answer(ahead == len(PLACES), f"at {ahead} of {len(PLACES)} points"),
            )
        )
        results.append(
            (
                f"O-DCA ends above SGD ({name})",
                answer(ours[-1] > theirs[-1], f"{ours[-1]:.4f} against {theirs[-1]:.4f}"),
            )
        )
        off = full - ours[-1]
        results.append(
            (
                f"O-DCA ends no more than half a point below the batch solver ({name})",
                answer(off <= 0.005, f"{ours[-1]:.4f} against {full:.4f}"),
            )
        )
    return results


def answer(is_met: bool, how: str) -> str:
    return f"{'yes' if is_met else 'no'}: {how}"


def numbers(title: str, curves: dict[str, Floats], part: float, full: float, n: int) -> str:
    shown = [0, 2, 3, 5, 7, 10]
    ends = np.ceil(PLACES * n).astype(int)
    rows = [
        (name, *(f"{v:.4f}" for v in rates.mean(axis=0)[shown]), f"{rates[:, -1].std(ddof=1):.4f}")
        for name, rates in curves.items()
    ]
    blank = [""] * (len(shown) - 1)
    rows.append(("S-DCA on a fifth, 5 epochs", *blank, f"{part:.4f}", ""))
    rows.append(("LIBLINEAR", *blank, f"{full:.4f}", ""))
    heads = ("learner", *(f"{ends[index]:,} rows" for index in shown), "sd at the end")
    return f"**{title}.**\n\n{table(heads, rows)}"


def draw(
    axes: Any, title: str, curves: dict[str, Floats], part: float, full: float, n: int
) -> None:
    colours = dict(zip(("O-DCA", "SGD", "SPG"), plt.get_cmap("tab10").colors, strict=False))
    ends = np.ceil(PLACES * n)
    for name, rates in curves.items():
        kind = name.split(",")[0]
        style = "-" if "averaged" in name else ":"
        axes.plot(ends, rates.mean(axis=0), style, color=colours[kind], label=name)
    axes.plot(n, part, "k^", label="S-DCA on a fifth, 5 epochs", clip_on=False)
    axes.axhline(full, color="black", linewidth=0.8, linestyle="--", label="LIBLINEAR")
    axes.set_xlim(0, n)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("rows learned")
    axes.set_ylabel("test accuracy")
    axes.legend(fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.13))
