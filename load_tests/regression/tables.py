"""Regression results as Markdown tables."""

import re
import textwrap
from collections.abc import Sequence

import numpy as np

from load_tests.markdown import table
from load_tests.regression import ours
from load_tests.regression.runs import Errors
from load_tests.regression.standings import CLOSE, LAST, OTHERS, Standing, mean_ratio

PRESETS = ("full", "ten")
RELATIVE = "relative MAE, `full`, best of the others"
PURPOSES = {
    "mean": ("mean", "-", "the mean", "nothing to learn (stocks)"),
    "last": ("last", "-", "the last target", "random walks (water, trump)"),
    "dual-0.1": (
        "mean",
        "",
        "O-DCA, squared loss, strength 0.1",
        "trends; almost interpolates (chicks, airline)",
    ),
    "dual-3-running": (
        "mean",
        "running",
        "O-DCA, squared loss, strength 3",
        "drift (wandering, elec2_price)",
    ),
    "spg-0.3-row": (
        "mean",
        "row",
        "SPG with step 1 / (0.3 √N), Huber loss",
        "stationary and noisy (milan, spambase_run)",
    ),
    "last-dual-1": (
        "last",
        "",
        "O-DCA, Huber loss, strength 1",
        "increments: a trend with a season (airline)",
    ),
    "last-dual-100": (
        "last",
        "",
        "O-DCA, Huber loss, strength 100",
        "increments of a noisy walk (water, elec2_price)",
    ),
    "newton": (
        "mean",
        "",
        "diagonal Newton, Huber loss",
        "stationary and linear (diabetes, planes, friedman_2)",
    ),
    "newton-0.99": (
        "mean",
        "",
        "the same, decay 0.99",
        "drift with unequal columns; a memory of 100 rows",
    ),
    "newton-0.999-row": (
        "mean",
        "row",
        "the same, decay 0.999",
        "between these; rows of unequal size (mv)",
    ),
}
"""What each member corrects, the norm of its rows, what it is, and what for."""


def number(value: float) -> str:
    """Four digits."""
    if value >= 1e6:
        return re.sub(r"e\+0*", "e", f"{value:.1e}")
    return f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"


def pair(errors: Errors) -> str:
    return f"{number(errors.mae)} / {number(errors.rmse)}"


def members(seen: Sequence[Standing], unseen: Sequence[Standing]) -> str:
    """Each member's role, and the error of the list without it."""
    lines = []
    for name, (base, norm, what, purpose) in PURPOSES.items():
        costs = [
            _product(mean_ratio(standings, lambda s, n=name: s.without[n].ratios(s.ten)))
            for standings in (seen, unseen)
        ]
        lines.append((f"`{name}`", base, norm or "none", what, purpose, *costs))
    heads = ("member", "base", "norm", "learner", "for", "without it", "new streams")
    return table(heads, lines)


def _product(ratios: tuple[float, float]) -> str:
    return f"{ratios[0] * ratios[1]:.4f}"


def tried(seen: Sequence[Standing], unseen: Sequence[Standing]) -> str:
    """Errors of rejected alternatives, divided by those of `ten`."""
    lines = []
    for name in ours.OTHERS:
        cells = []
        for standings in (seen, unseen):
            ratio = mean_ratio(standings, lambda s, n=name: s.variants[n].ratios(s.ten))
            cells += [f"{ratio[0]:.3f}", f"{ratio[1]:.3f}"]
        lines.append((name, *cells))
    heads = ("instead", "MAE", "RMSE", "MAE, new streams", "RMSE, new streams")
    return table(heads, lines)


def duels(standings: Sequence[Standing]) -> str:
    """`full` and `ten` against each of the others."""
    lines = []
    for name in OTHERS:
        met = [s for s in standings if name in s.others]
        cells = []
        for preset in PRESETS:
            ratios = np.array([s.ours()[preset].ratios(s.others[name]) for s in met])
            better = (ratios < 1.0).sum(axis=0)
            medians = np.median(ratios, axis=0)
            cells += [
                f"{count} of {len(met)}, {ratio:.2f}"
                for count, ratio in zip(better, medians, strict=True)
            ]
        lines.append((name, *cells))
    heads = [f"`{preset}`: {error}" for preset in PRESETS for error in ("MAE", "RMSE")]
    return table(("against", *heads), lines)


def summary(standings: Sequence[Standing]) -> str:
    """Against the best of the others, picked for each stream and each error."""
    return "\n".join(_summary(standings, preset) for preset in PRESETS) + "\n" + _alone(standings)


def _summary(standings: Sequence[Standing], preset: str) -> str:
    ratios = np.array([s.ratios(preset) for s in standings])
    first, close = (ratios <= 1.0).sum(axis=0), (ratios <= CLOSE).sum(axis=0)
    means = mean_ratio(standings, lambda s: s.ratios(preset))
    text = (
        f"Of {len(standings)} streams `{preset}` is the best on {first[0]} by MAE and on "
        f"{first[1]} by RMSE, and within {CLOSE - 1:.0%} of the best on {close[0]} and {close[1]}. "
        f"Its errors over those of the best, geometric mean: {means[0]:.3f} and {means[1]:.3f}."
    )
    return textwrap.fill(text, 100) + "\n"


def _alone(standings: Sequence[Standing]) -> str:
    alone = mean_ratio(
        standings,
        lambda s: (
            s.ten.mae / s.alone[s.best_alone()].mae,
            s.ten.rmse / s.alone[s.best_alone(rmse=True)].rmse,
        ),
    )
    text = (
        "The errors of `ten` over those of the best of its own members alone, picked with "
        f"hindsight: {alone[0]:.3f} and {alone[1]:.3f}."
    )
    return textwrap.fill(text, 100) + "\n"


def losses(standings: Sequence[Standing]) -> str:
    """The learners with a smaller MAE or RMSE than `full`, however small the difference."""
    lines = []
    for s in standings:
        for measure in ("mae", "rmse"):
            mine = getattr(s.full, measure)
            others = sorted((getattr(one, measure), name) for name, one in s.others.items())
            cells = [f"{name} {number(error)}" for error, name in others if error < mine]
            if cells:
                text = f"{', '.join(cells)}; `full` {number(mine)}"
                lines.append(f"- **{s.name}**, {measure.upper()}: {text}.")
    return "\n".join(lines or ["- none."]) + "\n"


def worse(standings: Sequence[Standing]) -> str:
    """The streams on which `full` has a larger MAE than `ten` by more than 2 %."""
    lines = [
        f"- **{s.name}**: MAE {s.full.mae / s.ten.mae - 1:.0%} larger ({pair(s.full)} against "
        f"{pair(s.ten)})."
        for s in standings
        if s.full.mae > CLOSE * s.ten.mae
    ]
    return "\n".join(lines or ["- none."]) + "\n"


def overview(standings: Sequence[Standing]) -> str:
    """A line for each stream."""
    lines = []
    for s in standings:
        best, alone = s.best(), s.best_alone()
        ratios = [", ".join(f"{ratio:.2f}" for ratio in s.ratios(preset)) for preset in PRESETS]
        top = sorted(s.shares, key=lambda name: -s.shares[name])[:2]
        lines.append(
            (
                s.name,
                f"{s.rows:,}",
                f"{s.columns:,}",
                f"**{pair(s.full)}**",
                f"**{pair(s.ten)}**",
                f"{pair(s.alone[alone])} {alone}",
                f"{pair(s.others[best])} {best}",
                *ratios,
                pair(s.others[LAST]),
                ", ".join(f"{relative(s, one):.2f}" for one in (s.full, s.others[best])),
                f"{s.us[1]:.0f}, {s.us[0]:.0f}",
                ", ".join(f"{name} {s.shares[name]:.0%}" for name in top),
            )
        )
    heads = (
        "stream", "rows", "columns", "**full**", "**ten**", "best member of `ten` alone",
        "best of the others", "ratio, `full`", "ratio, `ten`", LAST, RELATIVE,
        "us a row, `full`, `ten`", "largest shares of `ten` at the end",
    )  # fmt: skip
    return table(heads, lines)


def relative(s: Standing, errors: Errors) -> float:
    """MAE divided by that of the last target."""
    return errors.mae / s.others[LAST].mae


def everything(standings: Sequence[Standing]) -> str:
    """MAE of all, the smallest in bold."""
    lines = []
    for s in standings:
        others = [s.others[n].mae if n in s.others else None for n in OTHERS]
        values = [*(s.ours()[preset].mae for preset in PRESETS), *others]
        smallest = min(value for value in values if value is not None)
        cells = ["-" if value is None else number(value) for value in values]
        bold = [
            f"**{cell}**" if value == smallest else cell
            for cell, value in zip(cells, values, strict=True)
        ]
        lines.append((s.name, *bold))
    return table(("stream", *PRESETS, *OTHERS), lines)


def guide(standings: Sequence[Standing]) -> str:
    """Errors of `full` and `ten`, for the guide of nonlinear learners."""
    lines = []
    for s in standings:
        ratios = s.full.ratios(s.ten)
        cells = (pair(s.ten), pair(s.full), *(f"{ratio:.3f}" for ratio in ratios))
        best = f"{pair(s.others[s.best()])} {s.best()}"
        lines.append((s.name, f"{s.rows:,}", *cells, f"{s.us[0]:.1f} / {s.us[1]:.1f}", best))
    means = mean_ratio(standings, lambda s: s.full.ratios(s.ten))
    lines.append(("geometric mean", "", "", "", *(f"**{mean:.3f}**" for mean in means), "", ""))
    heads = (
        "stream", "rows", "`ten`: MAE / RMSE", "`full`", "MAE ratio", "RMSE ratio",
        "us a row, `ten` / `full`", "best of the others",
    )  # fmt: skip
    return table(heads, lines)


def alone(standings: Sequence[Standing]) -> str:
    """MAE of each member alone, divided by that of `ten`."""
    lines = [
        (s.name, *(f"{s.alone[name].mae / s.ten.mae:.2f}" for name in ours.NAMES))
        for s in standings
    ]
    return table(("stream", *ours.NAMES), lines)
