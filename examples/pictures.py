"""Line charts of the results of examples, as SVG or PNG; needs matplotlib."""

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

# The colours of the dashboard in its light theme; the ground is opaque, so dark pages show it, too.
GROUND, INK, QUIET, GRID = "#ffffff", "#14202b", "#526170", "#e7ebef"
STYLES = (("#0b6580", "-"), ("#b42318", "--"), ("#8a4b00", "-."), ("#17693a", ":"))
"""Of the model, and then of its baselines; a chart has at most three of these."""
SOFT = "#e2f1f5"
SUFFIXES = (".svg", ".png")


@dataclass
class Chart:
    """Curves by name, the model's first; events with their names; a band around the first curve."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    events: list[tuple[float, str]] = field(default_factory=list)
    band: list[tuple[float, float, float]] = field(default_factory=list)

    def add(self, x: float, **values: float | None) -> None:
        """Append a point to each of these curves; underscores in a name become spaces."""
        for name, value in values.items():
            if value is not None:
                self.lines.setdefault(name.replace("_", " "), []).append((x, value))


def load_pyplot() -> Any:
    """matplotlib.pyplot, without a display. Exits without matplotlib."""
    try:
        matplotlib = import_module("matplotlib")
    except ImportError:
        raise SystemExit("--picture needs matplotlib: pip install '.[bench]'") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # texts as texts: a tenth of the size
    matplotlib.rcParams["svg.hashsalt"] = "dualstream"
    matplotlib.rcParams["font.family"] = "sans-serif"
    return import_module("matplotlib.pyplot")


def draw(chart: Chart, path: Path) -> None:
    """Draw a chart; the suffix of the path is the format."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(8.2, 3.6), facecolor=GROUND)
    for (colour, style), (name, points) in zip(STYLES, chart.lines.items(), strict=False):
        width = 2.2 if style == "-" else 1.4
        axes.plot(*zip(*points, strict=True), style, color=colour, lw=width, label=name)
    if chart.band:
        axes.fill_between(*zip(*chart.band, strict=True), color=SOFT, zorder=0)
    for x, name in chart.events:
        axes.axvline(x, color=QUIET, lw=0.9, ls=":")
        at = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(f" {name}", (x, 1.0), xytext=(0, 4), color=QUIET, fontsize=9, **at)
    axes.set_title(chart.title, color=INK, fontsize=11, loc="left")
    axes.set_xlabel(chart.x, color=QUIET, fontsize=9)
    axes.set_ylabel(chart.y, color=QUIET, fontsize=9)
    axes.tick_params(colors=QUIET, labelsize=9)
    axes.grid(color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
    axes.legend(fontsize=9, frameon=False, labelcolor=INK, loc="best")
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata=metadata, facecolor=GROUND)
    pyplot.close(figure)
