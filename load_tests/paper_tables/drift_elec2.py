"""The three windows of O-DCA side by side on streams that drift. No table of the papers."""

import numpy as np

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.jit import Floats
from load_tests.paper_tables import data
from load_tests.paper_tables.report import Section, plt, save, table
from load_tests.streams.held_out import turning_plane

WINDOWS = {
    "infinite": "infinite",
    "exponential, β = 0.9998": {"kind": "exponential", "beta": 0.9998},
    "exponential, β = 0.998": {"kind": "exponential", "beta": 0.998},
    "sliding, 2,000 rows": {"kind": "sliding", "length": 2000},
    "sliding, 200 rows": {"kind": "sliding", "length": 200},
}
VIEW = 2000

ABOUT = """\
New South Wales electricity, 45,312 half hours in order; each row is scored, then learned
(logistic loss, ρ = 0.001, columns in [0, 1], intercept). The O-DCA paper has the windows
(18)-(24) and no experiment with drift. The gap is the relative duality gap of the served weights
on the retained rows. Labels of neighbouring rows mostly agree, so the last label is a strong
baseline; no column contains it. The short windows follow it, and win.
"""
TURNING = """\
Where the concept moves slowly and neighbouring labels are independent, the short windows lose. The
same on *a plane that turns*, 10,000 rows of River's Hyperplane, its columns in [0, 1], too:
"""


def run() -> Section:
    rows = data.libsvm("elec2", 6)
    lines, wrong, frequent = compared(rows)
    turning, *_ = compared(turning_plane())
    heads = (
        "window", "errors", "errors, first half", "errors, second half", "mean loss", "relative gap"
    )  # fmt: skip
    tables = (table(heads, lines), plot(wrong, frequent), TURNING, table(heads, turning))
    body = "\n".join((ABOUT, *tables))
    return Section("Drift: elec2 by three windows", body, "nothing printed to compare with")


def compared(rows: Batch) -> tuple[list[tuple[str, ...]], dict[str, Floats], Floats]:
    """Lines of the table; the errors of each window, and of the most frequent label."""
    labels = rows.labels > 0.0
    wrong: dict[str, Floats] = {}
    lines: list[tuple[str, ...]] = []
    for name, window in WINDOWS.items():
        learner = make_learner(
            {
                "algorithm": "dual_ascent",
                "window": window,
                "features": {"kind": "indexed", "dim": rows.dim},
            }
        )
        outcome = learner.learn(rows)
        wrong[name] = (outcome.scores >= 0.0) != labels
        certificate = learner.certificate()
        assert certificate is not None
        gap = f"{certificate.relative_gap:.3f}"
        lines.append((name, *rates(wrong[name]), f"{outcome.losses.mean():.4f}", gap))
    last = np.append(labels[0], labels[1:] != labels[:-1])
    majority = np.cumsum(labels) * 2 > np.arange(1, len(labels) + 1)
    frequent = np.append(labels[0], labels[1:] != majority[:-1])
    lines.append(("the last label", *rates(last), "", ""))
    lines.append(("the most frequent label so far", *rates(frequent), "", ""))
    return lines, wrong, frequent


def rates(wrong: Floats) -> list[str]:
    half = len(wrong) // 2
    return [f"{part.mean():.4f}" for part in (wrong, wrong[:half], wrong[half:])]


def plot(wrong: dict[str, Floats], frequent: Floats) -> str:
    figure, axes = plt.subplots(figsize=(9.0, 4.6))
    for name, mistakes in (wrong | {"the most frequent label so far": frequent}).items():
        sums = np.cumsum(np.insert(mistakes.astype(float), 0, 0.0))
        places = np.arange(VIEW, len(mistakes) + 1, 100)
        style = {"color": "grey", "linestyle": ":"} if name.startswith("the") else {}
        axes.plot(places, (sums[places] - sums[places - VIEW]) / VIEW, label=name, lw=1.1, **style)
    axes.set_xlabel("rows")
    axes.set_ylabel(f"errors in the last {VIEW:,} rows")
    axes.set_xlim(0, len(frequent))
    axes.legend(fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    return save(figure, "drift_elec2")
