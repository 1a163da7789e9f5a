"""Table 2.1 of Lee's thesis: steps of RDA until it identifies the non-zero weights."""

from dataclasses import dataclass

import numpy as np

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.jit import Floats
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.offline.proximal_newton import Objective, Rows, minimise
from load_tests.paper_tables import data
from load_tests.paper_tables.report import Section, plt, save, table

RUNS = 20
GAMMAS = (1.5, 2.5)
MOST = 60_000
SEED = 40
SHARES = (0.9, 0.52, 0.3)
"""Of the least lambda that leaves no weight: so are the thesis' lambda and non-zeros met."""

# lambda; steps to the superset and to the optimal manifold: median, deviation; delta; non-zeros.
PRINTED = {
    "glass": (
        (0.29, 14, 25, 20, 27, 0.068, 1), (0.17, 13, 10, 116, 428, 0.063, 2),
        (0.10, 13, 11, 28392, 6907, 0.016, 3),
    ),
    "ionosphere": (
        (0.22, 38, 84, 122, 95, 0.015, 2), (0.13, 44, 28, 30812, 15575, 0.008, 3),
        (0.07, 86, 41, 404, 150, 0.019, 5),
    ),
    "arrhythmia": (
        (0.15, 192, 110, 304, 141, 0.001, 2), (0.09, 272, 88, 2036, 1076, 0.002, 8),
        (0.05, 447, 195, 27750, 4590, 0.001, 13),
    ),
    "spambase": (
        (0.17, 137, 219, 357, 325, 0.006, 1), (0.10, 722, 2495, 4340, 3097, 0.004, 8),
        (0.06, 812, 1247, 4680, 2209, 0.004, 17),
    ),
    "page-blocks": (
        (0.11, 26, 326, 58, 395, 0.063, 1), (0.07, 182, 941, 524, 1233, 0.038, 3),
        (0.04, 103, 913, 461, 1232, 0.040, 4),
    ),
}  # fmt: skip

ABOUT = f"""\
Lee, "Optimization methods for regularized convex formulations in machine learning" (2011):
logistic loss and λ‖w‖₁, columns of mean 0 and deviation 1, a free intercept; glass is types 1-4
against 5-7, arrhythmia and page-blocks class 1 against the rest. Medians (and deviations) over
{RUNS} runs of the number of steps until RDA's iterate has the sign pattern of the optimum
("optimal"), and until it has a superset with at most twice as many non-zeros ("2x"). {MOST:,}
means stopped there. The optimum comes from the local phase of RDA+ on all rows, to 1e-10.

"Reproduced" means that both medians are within three printed deviations. The thesis does not
print its γ, which moves them by orders of magnitude; we chose both values. Most printed
deviations are wider than the medians, so no small number can fail: "wide band" marks a "yes" that
is off by more than a factor of 3.
"""


@dataclass(frozen=True, eq=False)
class Problem:
    rows: Batch
    lam: float
    weights: Floats
    """The optimum, (dim + 1,): the intercept is last."""


def run() -> Section:
    lines, counts, marks = [], [], []
    for gamma in GAMMAS:
        met = near = 0
        for name, printed in PRINTED.items():
            for row, problem in zip(printed, problems(name), strict=True):
                lam, superset, superset_sd, optimal, optimal_sd, delta, nonzeros = row
                results = np.array([identify(problem, gamma, r) for r in range(RUNS)])
                first, second, end = np.median(results, axis=0)
                spread = results.std(axis=0, ddof=1)
                is_first = abs(first - superset) <= 3 * superset_sd
                is_second = abs(second - optimal) <= 3 * optimal_sd
                met += int(is_first) + int(is_second)
                near += sum(
                    0.5 <= ours / theirs <= 2.0
                    for ours, theirs in ((first, superset), (second, optimal))
                )
                far = [
                    what
                    for what, ours, theirs in (
                        ("2x", first, superset), ("optimal", second, optimal)
                    )
                    if not 1 / 3 <= ours / theirs <= 3
                ]  # fmt: skip
                ours = int(np.count_nonzero(problem.weights[:-1]))
                lines.append(
                    (
                        gamma, name, f"{lam:.2f} / {problem.lam:.3f}", f"{nonzeros} / {ours}",
                        f"{superset} ({superset_sd})", f"{first:.0f} ({spread[0]:.0f})",
                        f"{optimal} ({optimal_sd})", f"{second:.0f} ({spread[1]:.0f})",
                        f"{delta:.3f} / {end:.3f}", outcome(is_first, is_second, far),
                    )
                )  # fmt: skip
                marks.append((gamma, superset, first, optimal, second))
        counts.append(
            f"{met} of {2 * len(SHARES) * len(PRINTED)} medians with γ = {gamma} "
            f"({near} within a factor of 2)"
        )
    heads = (
        "γ", "data set", "λ, paper / ours", "non-zeros of w*, paper / ours", "2x, paper",
        "2x, ours", "optimal, paper", "optimal, ours", "δ, paper / ours", "reproduced",
    )  # fmt: skip
    body = "\n".join((ABOUT, table(heads, lines), plot(marks)))
    return Section("Thesis, Table 2.1: manifold identification by RDA", body, "; ".join(counts))


def outcome(is_first: bool, is_second: bool, far: list[str]) -> str:
    """`far` names the medians that are off by more than a factor of 3."""
    if is_first and is_second:
        return f"yes, wide band: {' and '.join(far)}" if far else "yes"
    missed = [name for name, met in (("2x", is_first), ("optimal", is_second)) if not met]
    return f"no: {' and '.join(missed)}"


def problems(name: str) -> list[Problem]:
    x, y = read(name)
    x = x[:, x.std(axis=0) > 0.0]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    batch = Batch.from_dense(x, y)
    rate = np.mean(y > 0.0)
    slope = rate - (y > 0.0)
    most = float(np.abs(slope @ x).max() / len(y))
    rows = Rows(
        batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, batch.dim, 1.0
    )
    problem_list = []
    for share in SHARES:
        objective = Objective(make_loss("logistic").numbers, share * most, 0.0)
        optimum = minimise(
            rows, objective, np.zeros(batch.dim + 1), np.ones(batch.dim, bool), 1e-10
        )
        assert optimum is not None
        problem_list.append(Problem(batch, share * most, optimum.weights))
    return problem_list


def read(name: str) -> tuple[Floats, Floats]:
    if name == "arrhythmia":
        return data.arrhythmia()
    width, positive = {
        "glass": (9, {1.0, 2.0, 3.0, 4.0}),
        "ionosphere": (34, {1.0}),
        "spambase": (57, {1.0}),
        "page-blocks": (10, {1.0}),
    }[name]
    rows = data.signed(data.libsvm(name, width), positive)
    return data.dense(rows), rows.labels


def identify(problem: Problem, gamma: float, run: int) -> tuple[int, int, float]:
    """Steps to the superset, steps to the optimal manifold, and delta there."""
    rows, rng = problem.rows, np.random.default_rng([SEED, run])
    learner = make_learner(
        {
            "algorithm": "rda",
            "loss": "logistic",
            "regularizer": {"kind": "l1", "lambda": problem.lam},
            "schedule": {"kind": "sqrt", "gamma": gamma},
            "features": {"kind": "indexed", "dim": rows.dim},
        }
    )
    signs = np.sign(problem.weights[:-1])
    support = signs != 0.0
    most = 2 * int(np.count_nonzero(support))
    superset = step = 0
    while step < MOST:
        shuffled = rows.take(rng.permutation(len(rows)))
        for index in range(min(len(rows), MOST - step)):
            learner.learn(shuffled[index : index + 1])
            step += 1
            now = np.sign(learner.weights)
            if not superset:
                active = now != 0.0
                if np.all(active[support]) and np.count_nonzero(active) <= most:
                    superset = step
            if np.array_equal(now, signs):
                weights = np.append(learner.weights, learner.intercept)
                return superset or step, step, optimality(problem, weights)
    weights = np.append(learner.weights, learner.intercept)
    return superset or MOST, MOST, optimality(problem, weights)


def optimality(problem: Problem, weights: Floats) -> float:
    """delta of (2.45), over all coordinates; the intercept has no lambda."""
    return optimality_of(data.dense(problem.rows), problem.rows.labels, problem.lam, weights)


def optimality_of(x: Floats, y: Floats, lam: float, weights: Floats) -> float:
    """The root mean square of the least subgradient, for the logistic loss."""
    w, intercept = weights[:-1], weights[-1]
    margins = y * (x @ w + intercept)
    slopes = -y * np.exp(-np.logaddexp(0.0, margins)) / len(y)
    gradient = x.T @ slopes
    inner = np.where(w != 0.0, gradient + lam * np.sign(w), np.maximum(np.abs(gradient) - lam, 0.0))
    return float(np.sqrt(np.mean(np.append(inner, slopes.sum()) ** 2)))


def plot(marks: list[tuple[float, float, float, float, float]]) -> str:
    figure, axes = plt.subplots(figsize=(6.2, 5.6))
    for (gamma, colour), is_filled in zip(
        zip(GAMMAS, ("tab:blue", "tab:orange"), strict=True), (True, False), strict=True
    ):
        mine = np.array([mark[1:] for mark in marks if mark[0] == gamma])
        face = colour if is_filled else "none"
        axes.plot(
            mine[:, 0], mine[:, 1], "o", color=colour, markerfacecolor=face,
            label=f"2x superset, γ = {gamma}",
        )  # fmt: skip
        axes.plot(
            mine[:, 2], mine[:, 3], "^", color=colour, markerfacecolor=face,
            label=f"optimal manifold, γ = {gamma}",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    ends = (3, MOST)
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.set_xlabel("steps in the thesis (median)")
    axes.set_ylabel("steps here (median)")
    axes.legend(fontsize=8)
    return save(figure, "thesis_table_2_1")
