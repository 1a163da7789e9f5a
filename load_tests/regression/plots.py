"""Plot of the regression results."""

from collections.abc import Sequence
from typing import Any

from load_tests.paper_tables.report import plt, save
from load_tests.regression.standings import BASELINES, Standing

FARTHEST = 12.0
"""A ratio beyond it is drawn there."""
NEAREST = 0.08
LOOKS: dict[str, dict[str, Any]] = {
    "river": {"color": "tab:green", "marker": "o", "label": "River, linear"},
    "tree": {"color": "tab:olive", "marker": "s", "label": "River, trees"},
    "sk": {"color": "tab:orange", "marker": "D", "label": "scikit-learn SGDRegressor"},
    "vw": {"color": "tab:blue", "marker": "v", "label": "Vowpal Wabbit"},
    "base": {"color": "0.45", "marker": "x", "label": "running mean, last y"},
}


def family(name: str) -> str:
    if name in BASELINES:
        return "base"
    return "tree" if name in ("river_hatr", "river_amf") else name.partition("_")[0]


def ratios(seen: Sequence[Standing], unseen: Sequence[Standing], name: str) -> str:
    """MAE of each learner divided by the best MAE of the others, a row for each stream."""
    shown = [*seen, *unseen]
    figure, axes = plt.subplots(figsize=(9.0, 1.4 + 0.27 * len(shown)))
    labelled: set[str] = set()
    for index, s in enumerate(shown):
        least = s.others[s.best()].mae
        for other, errors in s.others.items():
            look = dict(LOOKS[family(other)])
            if family(other) in labelled:
                look.pop("label")
            labelled.add(family(other))
            at = min(errors.mae / least, FARTHEST)
            axes.scatter(at, index, s=20, alpha=0.75, linewidths=1.1, **look)
        for preset, colour in (("ten", "0.1"), ("full", "crimson")):
            label = {"label": preset} if index == 0 else {}
            star = {"s": 75, "color": colour, "marker": "*", "zorder": 3}
            at = min(max(s.ours()[preset].mae / least, NEAREST), FARTHEST)
            axes.scatter(at, index, **star, **label)
    axes.axvline(1.0, color="black", lw=0.8)
    axes.axhline(len(seen) - 0.5, color="0.6", lw=0.8, linestyle=":")
    axes.set_xscale("log")
    ticks = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 8, FARTHEST]
    texts = [f"{tick:g}" for tick in ticks[:-1]] + [f"≥ {FARTHEST:g}"]
    axes.set_xticks(ticks, texts, fontsize=8)
    axes.minorticks_off()
    axes.set_xlim(0.9 * NEAREST, FARTHEST * 1.1)
    axes.set_yticks(range(len(shown)), [s.name for s in shown], fontsize=8)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(axis="x", color="0.9", lw=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("MAE over the MAE of the best of the others (log scale)", fontsize=9)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.45, 1.06), ncol=7, frameon=False)
    return save(figure, name, "regression")
