"""Report of a paper table: Markdown text, a plot, and an outcome for each printed figure."""

from dataclasses import dataclass

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from load_tests.markdown import DOCS, ROOT, table

__all__ = ["DOCS", "ROOT", "Printed", "Section", "plt", "save", "table"]


@dataclass(frozen=True)
class Section:
    """One table or figure."""

    title: str
    body: str
    counts: str
    """How much of it was reproduced, in a few words."""


@dataclass(frozen=True)
class Printed:
    """A figure of a paper: mean and standard deviation, both as printed, to `digits` places."""

    mean: float
    sd: float
    mean_digits: int
    sd_digits: int

    def __str__(self) -> str:
        return f"{self.mean:.{self.mean_digits}f} ± {self.sd:.{self.sd_digits}f}"

    def is_met(self, ours: float) -> bool:
        """Is our mean within three printed standard deviations of the printed mean?"""
        return abs(ours - self.mean) <= 3.0 * self.sd + 1e-12

    def is_met_unrounded(self, ours: float) -> bool:
        """The same for any mean and deviation that round to the printed ones."""
        half_mean, half_sd = (0.5 * 10.0**-d for d in (self.mean_digits, self.sd_digits))
        return abs(ours - self.mean) <= 3.0 * (self.sd + half_sd) + half_mean


def save(figure: "plt.Figure", name: str, folder: str = "papers") -> str:
    """Write a plot under docs/images; returns the Markdown that shows it."""
    path = DOCS / "images" / folder / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    return f"![{name}](../images/{folder}/{name}.png)\n"
