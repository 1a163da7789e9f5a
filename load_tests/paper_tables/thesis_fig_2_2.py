"""Figure 2.2 of Lee's thesis: optimality and non-zeros on the digits 6 and 7 of MNIST."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dualstream.solvers import Batch, Learner, make_learner
from dualstream.solvers.jit import Floats
from load_tests.paper_tables import data
from load_tests.paper_tables.report import Section, plt, save, table
from load_tests.paper_tables.thesis_table_2_1 import optimality_of

RUNS = 3
LAMBDAS = (10.0, 1.0, 0.1)
GAMMA = 5000.0
TARGET = 1e-4
MAX_STEPS = 19_327
"""No run of the thesis took more steps to its local phase."""
PASSES = 3
SEED = 60
STEP = 100
FRESH = "RDA+, each pass in a fresh order"

ABOUT = f"""\
Lee, "Optimization methods for regularized convex formulations in machine learning" (2011),
section 2.6.2: logistic loss and λ‖w‖₁ on the raw pixels, γ = {GAMMA:.0f}; TG with θ = ∞ and
K = 10; RDA+ with τ = 100, ρ = 0.85 and no local phase before all 12,183 rows were seen. The
intercept is free in RDA and RDA+, and penalised in TG and SGD. Optimality is δ of (2.45) over all
rows, with a free intercept. {RUNS} runs of {PASSES} passes; the plot has the first. The thesis
ends when RDA+ reaches {TARGET:g}. Our learner continues with RDA after its local phase, which
raises δ again.

The thesis uses a fresh order in each pass. Then the last 12,183 rows, on which our local phase
works, contain duplicates, so it solves a different problem than δ measures. With one order for
all passes they are all rows once. Both are reported; the single order was chosen after the fresh
order had failed. Non-zeros are counted right after TG's truncation. The figure prints no numbers,
so its claims are tested. The author's LPS is not available.
"""


def run() -> Section:
    rows = data.sixes_and_sevens()
    x = data.dense(rows)
    figure, axes = plt.subplots(len(LAMBDAS), 2, figsize=(10.0, 9.5), sharex=True)
    lines, outcomes, met = [], [], [0, 0]
    for index, lam in enumerate(LAMBDAS):
        ends: dict[str, list[tuple[float, int]]] = {}
        switches, solved = [], []
        for which in range(RUNS):
            shuffled = passes(rows, which)
            for name, spec in learners(lam, len(rows)).items():
                curve = follow(spec, shuffled, x, rows.labels, lam, dense=which == 0)
                ends.setdefault(name, []).append(curve.points[-1][1:])
                if name == "RDA+":
                    switches.append(curve.switch)
                    solved.append(curve.solved)
                if which == 0:
                    draw(axes[index], name, curve)
        fresh = [
            follow(
                learners(lam, len(rows))["RDA+"], passes(rows, which, fresh=True), x, rows.labels,
                lam, dense=False,
            )
            for which in range(RUNS)
        ]  # fmt: skip
        for name, points in ends.items():
            deltas, nonzeros = zip(*points, strict=True)
            at = listed(switches) if name == "RDA+" else ""
            then = ", ".join(f"{d:.1e}" for d in solved) if name == "RDA+" else ""
            lines.append(
                (
                    f"{lam:g}", name, ", ".join(f"{d:.1e}" for d in deltas),
                    ", ".join(map(str, nonzeros)), at, then,
                )
            )  # fmt: skip
        lines.append(
            (
                f"{lam:g}", FRESH, ", ".join(f"{c.points[-1][1]:.1e}" for c in fresh),
                ", ".join(str(c.points[-1][2]) for c in fresh), listed([c.switch for c in fresh]),
                ", ".join(f"{c.solved:.1e}" for c in fresh),
            )
        )  # fmt: skip
        in_one = claims(ends, switches, solved)
        in_fresh = claims(ends, [c.switch for c in fresh], [c.solved for c in fresh])
        for one, other in zip(in_one, in_fresh, strict=True):
            met[0] += one[1]
            met[1] += other[1]
            said = [f"{'yes' if is_met else 'no'}: {how}" for _, is_met, how in (other, one)]
            outcomes.append((f"{lam:g}", one[0], *said))
        axes[index][0].set_ylabel(f"λ = {lam:g}: optimality δ")
        axes[index][1].set_ylabel("non-zeros")
    for side in axes[-1]:
        side.set_xlabel("rows learned")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    heads = (
        "λ", "learner", "δ at the end, by run", "non-zeros at the end", "local phase at row",
        "δ after it",
    )  # fmt: skip
    body = "\n".join(
        (
            ABOUT,
            table(heads, lines),
            table(
                ("λ", "claim", "reproduced (a fresh order each pass)", "reproduced (one order)"),
                outcomes,
            ),
            save(figure, "thesis_fig_2_2"),
        )
    )
    counts = (
        f"{met[1]} of {len(outcomes)} claims by the thesis' protocol, "
        f"{met[0]} of {len(outcomes)} with one order of the rows for all passes"
    )
    return Section("Thesis, Fig. 2.2: RDA+ on MNIST, 6 against 7", body, counts)


def learners(lam: float, n: int) -> dict[str, dict[str, Any]]:
    averaging = {
        "regularizer": {"kind": "l1", "lambda": lam},
        "schedule": {"kind": "sqrt", "gamma": GAMMA},
    }
    steps = {"lambda": lam, "gamma": GAMMA}
    plus = {"stable": 100, "safeguard": 0.85, "retain": n}
    return {
        "RDA+": {"algorithm": "rda_plus"} | averaging | plus,
        "RDA": {"algorithm": "rda"} | averaging,
        "TG": {"algorithm": "truncated_gradient", "period": 10} | steps,
        "SGD": {"algorithm": "sgd_l1"} | steps,
    }


def passes(rows: Batch, which: int, *, fresh: bool = False) -> Batch:
    """Row indices of all passes: one random order, or a new one for each pass."""
    rng = np.random.default_rng([SEED, which])
    orders = [rng.permutation(len(rows)) for _ in range(PASSES)]
    taken = np.concatenate(orders if fresh else PASSES * orders[:1])
    return rows.take(taken[: len(taken) // STEP * STEP])


@dataclass(frozen=True)
class Curve:
    """Results of a learner: rows learned, optimality and non-zeros, along the run or at its end."""

    points: list[tuple[int, float, int]]
    switch: int
    """The row that brought the first local phase, or 0."""
    solved: float
    """Optimality right after it."""


def follow(
    spec: dict[str, Any], rows: Batch, x: Floats, y: Floats, lam: float, *, dense: bool
) -> Curve:
    features = {"kind": "indexed", "dim": rows.dim}
    learner = make_learner(spec | {"loss": "logistic", "features": features})

    def point(end: int) -> tuple[int, float, int]:
        weights = np.append(learner.weights, learner.intercept)
        return end, optimality_of(x, y, lam, weights), int(np.count_nonzero(weights[:-1]))

    is_plus = spec["algorithm"] == "rda_plus"
    checkpoints = (
        set(np.geomspace(STEP, len(rows), 25).astype(int) // STEP * STEP) if dense else set()
    )
    points, switch, solved = [], 0, np.nan
    for start in range(0, len(rows), STEP):
        end = min(start + STEP, len(rows))
        is_open = is_plus and not switch and end >= len(y)
        before = learner.state() if is_open else {}
        learner.learn(rows[start:end])
        if is_open and has_solved(learner, len(y)):
            # Once more, row by row, to see it as the local phase leaves it.
            learner.restore(before)
            for index in range(start, end):
                learner.learn(rows[index : index + 1])
                if not switch and has_solved(learner, len(y)):
                    switch = index + 1
                    points.append(point(switch))
                    solved = points[-1][1]
        if end in checkpoints or end == len(rows):
            points.append(point(end))
    return Curve(points, switch, solved)


def has_solved(learner: Learner, n: int) -> bool:
    """A finished local phase doubles the number of steps until the next one; nothing else does."""
    return int(learner.state()["next_try"]) >= 2 * n


def listed(switches: list[int]) -> str:
    return ", ".join(f"{switch:,}" if switch else "none" for switch in switches)


def claims(
    ends: dict[str, list[tuple[float, int]]], switches: list[int], solved: list[float]
) -> list[tuple[str, bool, str]]:
    nonzeros = {name: float(np.median([k for _, k in points])) for name, points in ends.items()}
    others = min(d for name, points in ends.items() if name != "RDA+" for d, _ in points)
    solved = [d if np.isfinite(d) else np.inf for d in solved]
    return [
        (
            f"RDA+ reaches its local phase within {MAX_STEPS:,} steps",
            all(0 < switch <= MAX_STEPS for switch in switches),
            listed(switches),
        ),
        (
            f"its local phase gets to δ = {TARGET:g}, and no other learner does",
            max(solved) <= TARGET < others,
            f"{max(solved):.1e} at worst, the others {others:.1e} at best",
        ),
        (
            "RDA has fewer non-zeros than TG and SGD",
            nonzeros["RDA"] < min(nonzeros["TG"], nonzeros["SGD"]),
            f"{nonzeros['RDA']:.0f} against {nonzeros['TG']:.0f} and {nonzeros['SGD']:.0f}",
        ),
    ]


def draw(axes: Any, name: str, curve: Curve) -> None:
    names = ("RDA+", "RDA", "TG", "SGD")
    colour = plt.get_cmap("tab10").colors[names.index(name)]
    at, deltas, nonzeros = zip(*curve.points, strict=True)
    width = 2.0 if name == "RDA+" else 1.2
    axes[0].plot(at, deltas, color=colour, label=name, linewidth=width)
    axes[1].plot(at, nonzeros, color=colour, label=name, linewidth=width)
    axes[0].set_yscale("log")
    for side in axes:
        side.set_xscale("log")
        if curve.switch:
            side.axvline(curve.switch, color="black", linewidth=0.8, linestyle="-.")
