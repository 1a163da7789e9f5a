"""Figures 2.3 and 2.4 of Lee's thesis: iterates and primal averages on the digits 6 and 7."""

from typing import Any

import numpy as np

from dualstream.solvers import Batch, Learner, make_learner, solve
from dualstream.solvers.jit import Floats
from load_tests.paper_tables import data
from load_tests.paper_tables.report import Section, plt, save, table
from load_tests.paper_tables.thesis_fig_2_2 import STEP, TARGET, has_solved, learners, passes
from load_tests.paper_tables.thesis_table_2_1 import optimality_of

RUNS = 5
LAMBDAS = (10.0, 3.16, 1.0, 0.316, 0.1, 0.0316, 0.01)
STOCHASTIC = ("SGD", "TG", "RDA")
MEASURES = ("δ", "non-zeros", "test error, %")

ABOUT = f"""\
Lee, "Optimization methods for regularized convex formulations in machine learning" (2011),
section 2.6.2, with the learners and settings of
[Fig. 2.2](#thesis-fig-22-rda-on-mnist-6-against-7), and the averages of all iterates since the
start (`average: {{"kappa": 1}}`). SGD takes a subgradient of λ‖w‖₁. Medians of {RUNS} runs
(thesis: 100) with one order of the rows for all passes. The thesis runs SGD, TG and RDA as long as
RDA+ takes; here they see as many rows as RDA+ until its local phase, or three passes if there is
none. LPS is the author's program: the optimum is that of our `newton_l1`, to a gap of 1e-6. The
figures print no numbers, so their claims are tested. Fig. 2.5 shows the same weights as images.
"""


def run() -> Section:
    rows, test = data.sixes_and_sevens(), data.sixes_and_sevens("t10k")
    x, x_test = data.dense(rows), data.dense(test)
    medians_of: dict[str, list[Floats]] = {}
    for lam in LAMBDAS:

        def measure(weights: Floats, lam: float = lam) -> tuple[float, float, float]:
            wrong = test.labels * (x_test @ weights[:-1] + weights[-1]) <= 0.0
            delta = optimality_of(x, rows.labels, lam, weights)
            return delta, float(np.count_nonzero(weights[:-1])), 100.0 * float(wrong.mean())

        best = solve(rows, "newton_l1", loss="logistic", rho=lam, intercept="free", tol=1e-6)
        runs: dict[str, list[tuple[float, float, float]]] = {
            "optimum": [measure(np.append(best.weights, best.intercept))]
        }
        for which in range(RUNS):
            for name, weights in solutions(lam, passes(rows, which), len(rows)).items():
                runs.setdefault(name, []).append(measure(weights))
        for name, values in runs.items():
            medians_of.setdefault(name, []).append(np.median(values, axis=0))
    # (lambdas, measures)
    medians = {name: np.array(values) for name, values in medians_of.items()}
    outcomes = claims(medians)
    met = sum(is_met for _, is_met, _ in outcomes)
    body = "\n".join(
        (
            ABOUT,
            table(
                ("claim", "reproduced", "ours"),
                [(claim, "yes" if is_met else "no", how) for claim, is_met, how in outcomes],
            ),
            *(
                f"{measure}:\n\n"
                + table(
                    ("", *(f"λ = {lam:g}" for lam in LAMBDAS)),
                    [
                        (name, *(shown(value, index) for value in values[:, index]))
                        for name, values in medians.items()
                    ],
                )
                for index, measure in enumerate(MEASURES)
            ),
            draw(medians),
        )
    )
    counts = f"{met} of {len(outcomes)} claims"
    return Section("Thesis, Fig. 2.3 and 2.4: primal averages", body, counts)


def solutions(lam: float, rows: Batch, n: int) -> dict[str, Floats]:
    """Weights and intercept of each learner, and of its average, after as many rows as RDA+."""
    specs = learners(lam, n)
    plus, weights, taken = follow_plus(specs.pop("RDA+"), rows, n)
    solutions_by_name = {"RDA+": weights if plus else np.full(rows.dim + 1, np.nan)}
    for name in STOCHASTIC:
        for shown_as, more in ((name, {}), (f"{name}, averaged", {"average": {"kappa": 1.0}})):
            learner = made(specs[name] | more, rows.dim)
            learner.learn(rows[:taken])
            solutions_by_name[shown_as] = weights_of(learner)
    return solutions_by_name


def follow_plus(spec: dict[str, Any], rows: Batch, n: int) -> tuple[bool, Floats, int]:
    """Has RDA+ had a local phase; its weights right after it, and the number of rows until then."""
    learner = made(spec, rows.dim)
    for start in range(0, len(rows), STEP):
        before = learner.state() if start + STEP >= n else {}
        learner.learn(rows[start : start + STEP])
        if has_solved(learner, n):
            # Once more, row by row, to see it as the local phase leaves it.
            learner.restore(before)
            index = start
            while not has_solved(learner, n):
                learner.learn(rows[index : index + 1])
                index += 1
            # An unsolved local phase leaves the iterate of RDA.
            return learner.local_phases().accepted > 0, weights_of(learner), index
    return False, weights_of(learner), len(rows)


def made(spec: dict[str, Any], dim: int) -> Any:
    return make_learner(spec | {"loss": "logistic", "features": {"kind": "indexed", "dim": dim}})


def weights_of(learner: Learner) -> Floats:
    return np.append(learner.weights, learner.intercept)


def shown(value: float, measure: int) -> str:
    if not np.isfinite(value):
        return "none"
    return (f"{value:.1e}", f"{value:.0f}", f"{value:.2f}")[measure]


def claims(medians: dict[str, Floats]) -> list[tuple[str, bool, str]]:
    deltas, nonzeros, errors = (
        {name: values[:, index] for name, values in medians.items()} for index in range(3)
    )
    rest = [name for name in medians if name not in ("RDA+", "optimum")]
    iterates, averages = STOCHASTIC, [name for name in rest if "averaged" in name]
    large = np.array(LAMBDAS) >= 1.0
    outcomes = [
        (
            f"averages of {name} have more non-zeros than its iterates, for every λ",
            bool(np.all(nonzeros[f"{name}, averaged"] > nonzeros[name])),
            f"{listed(nonzeros[f'{name}, averaged'])} against {listed(nonzeros[name])}",
        )
        for name in ("TG", "RDA")
    ]
    best = np.min([deltas[name] for name in rest], axis=0)
    solved = deltas["RDA+"] <= TARGET
    outcomes.append(
        (
            f"RDA+ alone gets to δ = {TARGET:g}, for every λ",
            bool(np.all(solved)) and bool(np.all(best > TARGET)),
            f"RDA+ for {int(solved.sum())} of {len(LAMBDAS)}, the others {best.min():.1e} at best",
        )
    )
    fewest = np.min([nonzeros[name] for name in rest], axis=0)
    outcomes.append(
        (
            "RDA+ has the fewest non-zeros, as many as the optimum",
            bool(np.all(nonzeros["RDA+"] == nonzeros["optimum"]))
            and bool(np.all(nonzeros["RDA+"] <= fewest)),
            f"{listed(nonzeros['RDA+'])}; optimum {listed(nonzeros['optimum'])}",
        )
    )
    ratio = nonzeros["RDA"] / nonzeros["optimum"]
    outcomes.append(
        (
            "RDA has about as many for a large λ (within 1.5 times at 10), more for a small one",
            bool(ratio[0] <= 1.5 and ratio[-1] > 1.5),
            f"{ratio[0]:.1f} times at λ = 10, {ratio[-1]:.1f} at 0.01",
        )
    )
    plus = errors["optimum"].mean() if np.isnan(errors["RDA+"]).any() else errors["RDA+"].mean()
    least = min(errors[name].mean() for name in iterates)
    outcomes.append(
        (
            "the mean test error of RDA+ (or of the optimum, where it has none) is below those of "
            "SGD, TG and RDA",
            bool(plus < least),
            f"{plus:.2f} % against {least:.2f} %",
        )
    )
    mine = max(errors[name][large].mean() for name in averages if not name.startswith("RDA"))
    others = min(errors[name][large].mean() for name in ("optimum", "RDA, averaged", *iterates))
    outcomes.append(
        (
            "averages of SGD and TG have the smallest test errors for λ ≥ 1",
            bool(mine < others),
            f"{mine:.2f} % against {others:.2f} %",
        )
    )
    return outcomes


def listed(values: Floats) -> str:
    return ", ".join(shown(value, 1) for value in values)


def draw(medians: dict[str, Floats]) -> str:
    figure, axes = plt.subplots(3, 2, figsize=(10.0, 9.5), sharex=True, sharey="row")
    colours = dict(zip(("RDA+", "RDA", "TG", "SGD"), plt.get_cmap("tab10").colors, strict=False))
    for name, values in medians.items():
        learner, _, averaged = name.partition(", ")
        sides = [1] if averaged else [0] if name in STOCHASTIC else [0, 1]
        for side in sides:
            for index, measure in enumerate(MEASURES):
                axes[index][side].plot(
                    LAMBDAS, values[:, index], marker=".", label=learner,
                    color=colours.get(learner, "black"),
                    linestyle="--" if name == "optimum" else "-",
                )  # fmt: skip
                axes[index][0].set_ylabel(measure)
    for side, title in enumerate(("iterates", "averages")):
        axes[0][side].set_title(title)
        axes[0][side].set_yscale("log")
        axes[0][side].set_xscale("log")
        axes[2][side].set_xlabel("λ")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    return save(figure, "thesis_fig_2_4")
