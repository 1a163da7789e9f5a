"""Plots of the classification results."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from load_tests.paper_tables.report import plt, save
from load_tests.streams import comparison
from load_tests.streams.comparison_text import COST
from load_tests.streams.ours import OURS
from load_tests.streams.peer_comparison import Results
from load_tests.streams.standings import Standing
from load_tests.streams.tables import learners

ROLLED = 5
"""Blocks, of the 50 of a stream."""
COLUMNS = 4
SHOWN_PEERS = 3
MANY = 10.0
"""Points behind that have the full colour."""
COLOURS = {"vw": "tab:blue", "river": "tab:green", "sk": "tab:orange"}
OWN = {"single": "black", "eight": "crimson", "twelve": "darkviolet", "papers": "peru"}
OWN_CURVES = ("single", "eight")
STYLES = ("-", "--", ":")


FAMILY_COLOURS = ("tab:purple", "tab:blue", "tab:green", "tab:brown", "tab:orange")
"""Of the families of the comparison, in their order."""
LABEL_RIGHT, LABEL_WIDTH, LABEL_HEIGHT = 0.1, 0.45, 1.0
"""Place and size of a label in the plot of costs: in powers of ten, and in percent."""


def style(name: str) -> dict[str, Any]:
    """Our curves are wide, each with its colour; a peer has the colour of its library."""
    if name in OURS:
        return {"color": OWN[name], "lw": 1.8}
    dashed = name not in ("vw", "river_lr")
    family = COLOURS[name.partition("_")[0]]
    return {"color": family, "lw": 1.1, "linestyle": "--" if dashed else "-"}


def curves(standings: Sequence[Standing], name: str) -> str:
    """Mistakes along each stream, one panel each: ours and the best peers."""
    rows = -(-len(standings) // COLUMNS)
    figure, panels = plt.subplots(rows, COLUMNS, figsize=(15.0, 3.0 * rows), squeeze=False)
    for axes, standing in zip(panels.flat, standings, strict=False):
        panel(axes, standing)
    for axes in panels.flat[len(standings) :]:
        axes.axis("off")
    figure.tight_layout()
    return save(figure, name, "streams")


def panel(axes: Axes, standing: Standing) -> None:
    best = [peer for peer in standing.ranked() if peer in standing.peers][:SHOWN_PEERS]
    for peer, line in zip(best, STYLES, strict=False):
        look = style(peer) | {"linestyle": line}
        axes.plot(*standing.peers[peer].rolling(ROLLED), label=peer, **look)
    for mine in (name for name in OWN_CURVES if name in standing.ours):
        axes.plot(*standing.ours[mine].rolling(ROLLED), label=mine, **style(mine))
    axes.set_title(standing.name, fontsize=10)
    axes.set_xlim(0, standing.rows)
    low, high = extent(axes, standing.rows)
    axes.set_ylim(0.85 * low, max(1.0, 1.08 * high))
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, framealpha=0.7)


def extent(axes: Axes, rows: int) -> tuple[float, float]:
    """Range of the curves, without the first twentieth, which is chance."""
    lines = [np.asarray(line.get_xydata()) for line in axes.get_lines()]
    values = np.concatenate([line[line[:, 0] > rows / 20, 1] for line in lines])
    return float(values.min()), float(values.max())


def behind(standings: Sequence[Standing], name: str) -> str:
    """Points behind the best peer, a row for each stream, a column for each learner."""
    names = learners(standings)
    points = np.array([[s.behind(learner) for learner in names] for s in standings])
    size = (1.5 + 0.62 * len(names), 1.2 + 0.33 * len(standings))
    figure, axes = plt.subplots(figsize=size)
    axes.imshow(points, cmap="RdBu_r", vmin=-MANY, vmax=MANY, aspect="auto")
    for (i, j), value in np.ndenumerate(points):
        colour = "white" if abs(value) > 0.7 * MANY else "black"
        weight = "bold" if value <= 0.5 else "normal"
        style = {"ha": "center", "va": "center", "fontsize": 8}
        axes.text(j, i, f"{value:+.1f}", color=colour, fontweight=weight, **style)
    axes.axvline(len(OURS) - 0.5, color="black", lw=1.2)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="left", fontsize=8)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(standings)), [s.name for s in standings], fontsize=8)
    axes.tick_params(length=0)
    return save(figure, name, "streams")


def cost(results: Results) -> str:
    """Mean errors against the median time of a row, over the streams that all have finished."""
    names, streams = comparison.common(results)
    points = {}
    for name in names:
        runs = [results[stream][name] for stream in streams]
        points[name] = (np.median([run.us for run in runs]), np.mean([run.errors for run in runs]))
    figure, axes = plt.subplots(figsize=(9.0, 5.5))
    taken: list[tuple[float, float]] = []
    for name, at in sorted(points.items(), key=lambda item: item[1][1]):
        is_ours = name in comparison.OURS
        look = {"marker": "*", "s": 130} if is_ours else {"s": 40}
        axes.scatter(*at, color=colour_of(name), **look)
        position = free_place(np.log10(at[0]) + LABEL_RIGHT, at[1], taken)
        text = {"fontsize": 9, "va": "center", "fontweight": "bold" if is_ours else "normal"}
        line = {"arrowstyle": "-", "color": "0.7", "lw": 0.6}
        axes.annotate(name, at, (10.0 ** position[0], position[1]), arrowprops=line, **text)
    axes.set_xscale("log")
    axes.set_ylim(0.0, 2.0 + max(y for _, y in taken))
    times = [us for us, _ in points.values()]
    axes.set_xlim(0.5 * min(times), 4.0 * max(times))
    axes.set_xlabel("CPU time of a row, microseconds (log scale)", fontsize=9)
    axes.set_ylabel("errors, %", fontsize=9)
    axes.grid(color="0.9", lw=0.6)
    axes.set_axisbelow(True)
    return COST.format(streams=len(streams)) + save(figure, "cost", "streams")


def free_place(x: float, y: float, taken: list[tuple[float, float]]) -> tuple[float, float]:
    """The lowest place from y on with no label near it; it is then taken."""
    while any(abs(x - u) < LABEL_WIDTH and abs(y - v) < LABEL_HEIGHT for u, v in taken):
        y += LABEL_HEIGHT / 4
    taken.append((x, y))
    return x, y


def colour_of(name: str) -> str:
    for colour, family in zip(FAMILY_COLOURS, comparison.FAMILIES.values(), strict=True):
        if name in family:
            return colour
    return "crimson"
