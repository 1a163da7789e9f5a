"""Plot for docs/guides/choosing.md: each algorithm with its defaults, on two real streams.

DUALSTREAM_DATA=... python -m load_tests.choosing
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from dualstream.solvers import Batch, make_learner
from load_tests.streams.data import stream

PLACE = Path(__file__).parent.parent / "docs" / "images" / "choosing.png"
STREAMS = {"a9a": "a9a, 32,561 rows: no drift", "elec2": "elec2, 45,312 rows: drift"}
START = {"algorithm": "dual_ascent", "loss": "logistic", "strength": 30, "scaling": "balanced"}
ALGORITHMS = (
    "dual_ascent",
    "dc",
    "rda",
    "rda_plus",
    "sgd",
    "spg",
    "truncated_gradient",
    "fobos",
    "asset",
    "ogd",
    "perceptron",
    "passive_aggressive",
    "romma",
    "alma",
)
SPECS = {
    "portfolio": {"algorithm": "portfolio", "members": "eight"},
    "dual_ascent, logistic, strength 30, balanced": START,
    **{name: {"algorithm": name} for name in ALGORITHMS},
}


def errors(rows: Batch, spec: dict[str, object]) -> float:
    """Share of rows whose score, before the row was learned, had the wrong sign."""
    features = {"kind": "indexed", "dim": rows.dim}
    outcome = make_learner({**spec, "features": features}).learn(rows)
    return float(np.mean((outcome.scores >= 0.0) != (rows.labels > 0.0)))


def main() -> None:
    figure, panels = plt.subplots(1, len(STREAMS), figsize=(10.0, 5.0), sharey=True)
    for axes, (name, title) in zip(panels, STREAMS.items(), strict=True):
        rows = stream(name)
        rates = [100.0 * errors(rows, spec) for spec in SPECS.values()]
        print(name, *(f"{spec} {error:.2f}" for spec, error in zip(SPECS, rates, strict=True)))
        colours = ["tab:green", "tab:blue", *["lightsteelblue"] * len(ALGORITHMS)]
        bars = axes.barh(range(len(SPECS)), rates, color=colours)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
        positive = 100.0 * np.mean(rows.labels > 0.0)
        axes.axvline(min(positive, 100.0 - positive), color="grey", ls=":")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("errors, %; dots: the rarer label's share")
        axes.margins(x=0.12)
    panels[0].set_yticks(range(len(SPECS)), SPECS, fontsize=9)
    panels[0].invert_yaxis()
    PLACE.parent.mkdir(exist_ok=True)
    figure.savefig(PLACE, dpi=100, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    main()
