"""Dual coordinate descent against LIBLINEAR: seconds until the objective is near its optimum."""

import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np

from dualstream.solvers import Batch, solve
from load_tests.offline import objective
from load_tests.offline_optima import matrix, sets
from load_tests.paper_tables.report import Section, plt, save, table

ROWS = ("a9a", "ijcnn1", "rcv1_small")
LOSSES = ("hinge", "squared_hinge")
LEVELS = (1e-2, 1e-3, 1e-4, 1e-6)
CLAIMED, WITHIN = 1e-4, 1.2
PASSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 150, 250, 400, 700, 1000)
ROUNDS = 3
SIDES = ("dcd", "dcd, all rows each pass", "LIBLINEAR")

ABOUT = f"""\
Hsieh, Chang, Lin, Keerthi, Sundararajan, "A dual coordinate descent method for large-scale linear
SVM" (2008): C = 1, that is rho = 1 / n, with a penalised intercept. One run for each number of
passes up to {PASSES[-1]:,}, from arrays in memory, median of {ROUNDS}; LIBLINEAR is
scikit-learn's `LinearSVC(dual=True)`. Seconds until the objective is within 1e-2 / 1e-3 / 1e-4 /
1e-6 of the optimum, `-` if never. `dcd` shrinks and, for the squared hinge with few columns,
takes Newton steps; the second line of each problem does neither.
"""

Curve = list[tuple[float, float]]
"""Seconds, and how far above the optimum the objective is then, relative to it."""


def run() -> Section:
    at_hand = {name: batch for name, batch in sets().items() if name in ROWS}
    curves: dict[tuple[str, str, str], Curve] = {}
    for name, batch in at_hand.items():
        for loss in LOSSES:
            for side, curve in measured(batch, loss).items():
                curves[name, loss, side] = curve
    claims = [claim for name in at_hand for loss in LOSSES for claim in check(curves, name, loss)]
    heads = ("rows", "loss", "", *(f"s to {level:g}" for level in LEVELS))
    lines = [(*key, *(shown(reached(curve, level)) for level in LEVELS)) for key, curve in
             curves.items()]  # fmt: skip
    parts = (ABOUT, table(("claim", "s", "holds"), claims), table(heads, lines), plot(curves))
    holding = sum(claim[2] == "yes" for claim in claims)
    counts = f"{holding} of {len(claims)} claims hold"
    return Section("DCD and LIBLINEAR", "\n".join(parts), counts)


def measured(batch: Batch, loss: str) -> dict[str, Curve]:
    from sklearn.svm import LinearSVC

    rho = 1.0 / len(batch)
    fields = {"loss": loss, "rho": rho, "intercept": "penalized"}
    x = matrix(batch)

    def ours(passes: int, **options: bool) -> np.ndarray:
        result = solve(batch, "dcd", tol=0.0, max_epochs=passes, **fields, **options)
        return np.append(result.weights, result.intercept)

    def theirs(passes: int) -> np.ndarray:
        model = LinearSVC(loss=loss, dual=True, tol=1e-12, max_iter=passes, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x, batch.labels)
        return np.append(model.coef_[0], model.intercept_[0])

    sides: dict[str, Callable[[int], np.ndarray]] = {
        SIDES[0]: ours,
        SIDES[1]: lambda passes: ours(passes, shrinking=False, newton=False),
        SIDES[2]: theirs,
    }
    optimum = solve(batch, "dcd", tol=1e-8, max_epochs=20_000, **fields).dual
    curves: dict[str, Curve] = {side: [] for side in sides}
    for passes in PASSES:
        for side, work in sides.items():
            if curves[side] and curves[side][-1][1] < LEVELS[-1] / 10:
                continue
            spent = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                w = work(passes)
                spent.append(time.perf_counter() - began)
            above = objective(batch, w, loss, rho) / optimum - 1.0
            curves[side].append((statistics.median(spent), max(above, 1e-12)))
    return curves


def reached(curve: Curve, level: float) -> float | None:
    """Seconds of the shortest run that comes this near."""
    return min((seconds for seconds, above in curve if above <= level), default=None)


def check(curves: dict[tuple[str, str, str], Curve], name: str, loss: str) -> list[tuple[str, ...]]:
    mine, plain, theirs = (reached(curves[name, loss, side], CLAIMED) for side in SIDES)
    what = f"{name}, {loss}, to {CLAIMED:g}"
    return [
        (
            f"{what}: sooner than by passes over all rows",
            f"{shown(mine)} and {shown(plain)}",
            yes(mine is not None and (plain is None or mine < plain)),
        ),
        (
            f"{what}: within {WITHIN} times LIBLINEAR's seconds",
            f"{shown(mine)} and {shown(theirs)}",
            yes(mine is not None and (theirs is None or mine <= WITHIN * theirs)),
        ),
    ]


def shown(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f}"


def yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


def plot(curves: dict[tuple[str, str, str], Curve]) -> str:
    figure, axes = plt.subplots(len(LOSSES), len(ROWS), figsize=(3.6 * len(ROWS), 6))
    for line, loss in zip(axes, LOSSES, strict=True):
        for axis, name in zip(line, ROWS, strict=True):
            for side in SIDES:
                seconds, above = zip(*curves[name, loss, side], strict=True)
                axis.loglog(seconds, above, label=side, lw=1.2, marker=".", ms=4)
            axis.set_title(f"{name}, {loss}")
            axis.set_xlim(1e-3, 4)
            axis.set_ylim(1e-9, 3)
            axis.grid(alpha=0.3)
        line[0].set_ylabel("above the optimum")
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=len(SIDES))
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    return save(figure, "dcd_liblinear")
