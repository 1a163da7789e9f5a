"""Plots of RESULTS.md, written by the benchmarks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from load_tests.measure import Row

PLOTS = Path(__file__).parent / "plots"
_COLOURS = {"gate MISSED": "tab:red", "gate met": "tab:blue", "goal met": "tab:green"}


def ratios(rows: Sequence[Row], name: str, title: str) -> str:
    """A bar for each row: our figure divided by the peer's, with spread, gate and goal.

    Returns Markdown. Leaves out rows in which a smaller figure is better.
    """
    rows = [row for row in rows if not row.smaller_is_better]
    figure, axes = plt.subplots(figsize=(10.0, 1.0 + 0.45 * len(rows)))
    for index, row in enumerate(rows):
        low, high = row.ratio - min(row.ratios), max(row.ratios) - row.ratio
        axes.barh(index, row.ratio, height=0.6, color=_COLOURS.get(row.outcome, "lightgrey"))
        axes.errorbar(row.ratio, index, xerr=[[low], [high]], color="black", lw=1.0, capsize=2)
        for mark, style in ((row.gate, "-"), (row.goal, ":")):
            if mark is not None:
                axes.vlines(mark, index - 0.42, index + 0.42, color="black", ls=style, lw=1.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.xaxis.set_minor_formatter("")
    axes.set_yticks(range(len(rows)), [fill(row.what, 75) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(f"{title}. Red: gate (line) missed. Green: goal (dots) met.", fontsize=10)
    axes.grid(axis="x", which="both", alpha=0.3)
    return _saved(figure, name)


def quantiles(curves: Mapping[str, Sequence[float]], name: str, title: str) -> str:
    """Latency (ms) against quantiles, a curve for each name; returns Markdown."""
    figure, axes = plt.subplots(figsize=(9.0, 4.5))
    for number, (label, latencies) in enumerate(curves.items()):
        beyond = np.geomspace(1.0, max(1e-4, 10.0 / len(latencies)), 200)
        style = "-" if number < len(curves) / 2 else "--"
        colour = f"C{number % ((len(curves) + 1) // 2)}"
        axes.plot(1.0 / beyond, np.quantile(latencies, 1.0 - beyond), style, c=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([2, 10, 100, 1000], ["p50", "p90", "p99", "p99.9"])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("ms")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return _saved(figure, name)


def _saved(figure: Figure, name: str) -> str:
    PLOTS.mkdir(exist_ok=True)
    path = PLOTS / f"{name}.png"
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    return f"![{name}]({PLOTS.name}/{name}.png)"
