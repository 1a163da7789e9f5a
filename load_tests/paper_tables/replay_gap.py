"""Duality gap against replay steps, in the setting of the O-DCA paper's Fig. 1."""

from typing import Any

import numpy as np

from dualstream.solvers import Batch, make_learner
from load_tests.paper_tables import data
from load_tests.paper_tables.o_dca_fig_1 import KAPPA, accuracy
from load_tests.paper_tables.report import Section, plt, save, table

STEPS = (0, 1, 2, 4, 8, 16)
SEEDS = 3
N = 11_220
BETA, RHO = 0.99995, 0.001
WINDOWS: dict[str, dict[str, Any]] = {
    "exponential, all rows retained": {
        "window": {"kind": "exponential", "beta": BETA}, "retain": N,
    },
    "infinite, all rows retained": {"window": "infinite", "retain": N},
    "exponential, 1,000 rows retained": {
        "window": {"kind": "exponential", "beta": BETA}, "retain": 1000,
    },
}  # fmt: skip

ABOUT = f"""\
Adult, {N:,} rows in file order, hinge loss, ρ = {RHO}, β = {BETA}, no intercept, as in Fig. 1 of
the O-DCA paper, which has no replay. R extra dual steps follow each row, on uniformly drawn
retained rows. Means over {SEEDS} seeds. Gaps are absolute, on the window at the end, of the last
iterate w and of the average (κ = {KAPPA}). With 1,000 retained rows they are estimates, and too
small, because the steps used these rows.
"""


def run() -> Section:
    adult = data.adult()
    train, test = adult[:N], adult[N:]
    lines, curves = [], {}
    for name, fields in WINDOWS.items():
        gaps = np.array([[measure(fields, r, s, train, test) for s in range(SEEDS)] for r in STEPS])
        means = gaps.mean(axis=1)
        curves[name] = means
        lines += [
            (name, r, *(f"{v:.4f}" for v in row)) for r, row in zip(STEPS, means, strict=True)
        ]
    heads = (
        "window", "R", "gap of w", "dual value", "gap, averaged", "accuracy of w",
        "accuracy, averaged",
    )  # fmt: skip
    body = "\n".join((ABOUT, table(heads, lines), plot(curves)))
    return Section("Gap against replay steps", body, "nothing printed to compare with")


def measure(
    fields: dict[str, Any], steps: int, seed: int, train: Batch, test: Batch
) -> tuple[float, float, float, float, float]:
    gaps = []
    for average in (None, {"kappa": KAPPA}):
        learner = make_learner(
            {
                "algorithm": "dual_ascent",
                "loss": "hinge",
                "rho": RHO,
                "replay": {"steps": steps},
                "average": average,
                "intercept": False,
                "seed": seed,
                "features": {"kind": "indexed", "dim": train.dim},
            }
            | fields
        )
        learner.learn(train)
        certificate = learner.certificate()
        assert certificate is not None
        gaps.append((certificate, accuracy(learner.predict(test), test)))
    (last, last_accuracy), (averaged, averaged_accuracy) = gaps
    return last.gap, last.dual, averaged.gap, last_accuracy, averaged_accuracy


def plot(curves: dict[str, np.ndarray]) -> str:
    figure, axes = plt.subplots(figsize=(6.8, 4.6))
    for (name, means), colour in zip(curves.items(), plt.get_cmap("tab10").colors, strict=False):
        axes.plot(STEPS, means[:, 0], "o:", color=colour, label=f"{name}: w")
        axes.plot(STEPS, means[:, 2], "o-", color=colour, label=f"{name}: averaged")
    axes.set_yscale("log")
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xticks(STEPS, [str(step) for step in STEPS])
    axes.set_xlim(-0.1, 1.1 * STEPS[-1])
    axes.set_xlabel("replay steps after each row")
    axes.set_ylabel("duality gap after the last row")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    return save(figure, "replay_gap")
