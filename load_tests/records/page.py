"""The page docs/internals/records.md, from the figures of records.json."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from load_tests.markdown import table
from load_tests.records import text
from load_tests.records.files import CLASSES, NUMBERS, PUBLISHED
from load_tests.records.ours import FULL, LAST_LABEL, LAST_TARGET
from load_tests.records.peers import OF_CLASSES, OF_NUMBERS
from load_tests.records.stored import Figures, Records
from load_tests.regression.tables import number
from load_tests.streams.cases import kappa_temporal

BEST = "published"
CLASS_COLUMNS = (FULL, LAST_LABEL, *OF_CLASSES)
NUMBER_COLUMNS = (FULL, BEST, LAST_TARGET, *OF_NUMBERS)
MAE, RMSE, ERRORS = 0, 1, 0

Line = dict[str, Sequence[float]]
"""Learner -> errors, and for most microseconds of CPU a row."""


def page(records: Records) -> str:
    classes, numbers = records["classes"], with_published(records["numbers"])
    parts = (
        text.HEAD.format(
            packages=", ".join(f"{name} {one}" for name, one in records["versions"].items()),
            peers=records["machine"],
            **records["full"],
        ),
        text.LOSSES + losses(numbers, "MAE", MAE) + losses(numbers, "RMSE", RMSE),
        text.LOSSES_OF_CLASSES + (losses(classes, "% of errors", ERRORS) or "- nowhere.\n"),
        text.NUMBERS + number_table(numbers, records["sizes"]),
        text.NUMBER_MEANS + number_means(numbers),
        text.RELATIVE + relative_table(numbers),
        text.CLASSES + class_table(classes, records["sizes"]),
        text.CLASS_MEANS + class_means(classes),
        text.KAPPA + kappa_table(classes),
        text.LIMITS + limits(classes),
        text.LEARNERS,
        text.CAVEATS,
    )
    return "\n".join(parts)


def with_published(numbers: Figures) -> Figures:
    published = {name: {BEST: [best.mae, best.rmse]} for name, best in PUBLISHED.items()}
    return {name: line | published.get(name, {}) for name, line in numbers.items()}


def measured(line: Mapping[str, list[float] | str]) -> Line:
    """The learners that finished the file."""
    return {name: one for name, one in line.items() if not isinstance(one, str)}


def losses(figures: Figures, unit: str, at: int) -> str:
    """The learners with smaller errors than `full`, by file."""
    out = []
    for name, whole in figures.items():
        line = measured(whole)
        full = line[FULL][at]
        better = sorted((one[at], peer) for peer, one in line.items() if one[at] < full)
        if better:
            cells = ", ".join(f"{title(peer)} {number(error)}" for error, peer in better)
            out.append(f"- **{name}**, {unit}: {cells}; `full` {number(full)}.\n")
    return "".join(out)


def title(learner: str) -> str:
    return learner if learner in (BEST, LAST_LABEL, LAST_TARGET) else f"`{learner}`"


def number_table(figures: Figures, sizes: Mapping[str, list[int]]) -> str:
    """MAE / RMSE."""
    rows = []
    for name in NUMBERS:
        line = measured(figures[name])
        cells = [pair(line, learner) for learner in NUMBER_COLUMNS]
        if name in PUBLISHED:
            cells[NUMBER_COLUMNS.index(BEST)] += f" {PUBLISHED[name].method}"
        us = f"{line[FULL][-1]:.0f}, {line['lightgbm_last'][-1]:.0f}"
        rows.append((name, *(f"{size:,}" for size in sizes[name]), *cells, us))
    heads = (*map(title, NUMBER_COLUMNS), "us a row, `full`, `lightgbm_last`")
    return table(("file", "rows", "columns", *heads), rows)


def pair(line: Line, learner: str) -> str:
    """MAE / RMSE, in bold where they are the least of the line."""
    if learner not in line:
        return "-"
    return " / ".join(cell(line, learner, at) for at in (MAE, RMSE))


def cell(line: Line, learner: str, at: int, shape: str = "") -> str:
    errors = line[learner][at]
    digits = format(errors, shape) if shape else number(errors)
    return f"**{digits}**" if errors <= min(one[at] for one in line.values()) else digits


def number_means(figures: Figures) -> str:
    rows = []
    for learner in NUMBER_COLUMNS[1:]:
        lines = [measured(figures[name]) for name in PUBLISHED]
        pairs = [[line[FULL][:2], line[learner][:2]] for line in lines]
        full, other = np.array(pairs).transpose(1, 0, 2)
        means = np.exp(np.log(full / other).mean(axis=0))
        wins = (full < other).sum(axis=0)
        rows.append((title(learner), *(f"{mean:.3f}" for mean in means), *wins))
    heads = ("other", "MAE", "RMSE", "files with less MAE", "files with less RMSE")
    return table(heads, rows)


def relative_table(figures: Figures) -> str:
    """MAE divided by that of the last target, the least of each line in bold."""
    names = [learner for learner in NUMBER_COLUMNS if learner != LAST_TARGET]
    rows = []
    for name in NUMBERS:
        line = measured(figures[name])
        last = line[LAST_TARGET][MAE]
        ratios = [line[one][MAE] / last if one in line else None for one in names]
        rows.append((name, *best_in_bold(ratios, min)))
    return table(("file", *map(title, names)), rows)


def kappa_table(figures: Figures) -> str:
    """Kappa-temporal, the largest of each line in bold."""
    names = [learner for learner in CLASS_COLUMNS if learner != LAST_LABEL]
    rows = []
    for name in CLASSES:
        line = measured(figures[name])
        last = line[LAST_LABEL][ERRORS]
        kappas = [kappa_temporal(line[one][ERRORS], last) if one in line else None for one in names]
        rows.append((name, *best_in_bold(kappas, max)))
    return table(("file", *map(title, names)), rows)


def best_in_bold(
    values: Sequence[float | None], best: Callable[[Iterable[float]], float]
) -> list[str]:
    """Three digits of each value, a dash for None."""
    least = best(value for value in values if value is not None)
    cells = ["-" if value is None else f"{value:.3f}" for value in values]
    return [f"**{cell}**" if value == least else cell
            for cell, value in zip(cells, values, strict=True)]  # fmt: skip


def class_table(figures: Figures, sizes: Mapping[str, list[int]]) -> str:
    rows = []
    for name in CLASSES:
        line = measured(figures[name])
        cells = [
            cell(line, learner, ERRORS, ".2f")
            + "".join(f" ({us:,.0f})" for us in line[learner][1:])
            if learner in line
            else "-"
            for learner in CLASS_COLUMNS
        ]
        rows.append((name, *(f"{size:,}" for size in sizes[name]), *cells))
    return table(("file", "rows", "columns", *map(title, CLASS_COLUMNS)), rows)


def class_means(figures: Figures) -> str:
    """Each learner and `full` on the files that the learner finished."""
    rows = []
    for learner in CLASS_COLUMNS[1:]:
        lines = [line for line in map(measured, figures.values()) if learner in line]
        full, other = (np.array([line[one][ERRORS] for line in lines]) for one in (FULL, learner))
        means = (f"{errors.mean():.2f}" for errors in (other, full))
        rows.append((title(learner), len(lines), *means, (full < other).sum()))
    return table(("other", "files", "errors", "of `full`", "`full` errs less"), rows)


def limits(figures: Figures) -> str:
    """The runs without a figure, by file."""
    out = []
    for name in CLASSES:
        outcomes = {learner: figures[name].get(learner, "not run") for learner in CLASS_COLUMNS}
        cells = [
            f"{title(one)} {outcome}"
            for one, outcome in outcomes.items()
            if isinstance(outcome, str)
        ]
        if cells:
            out.append(f"- {name}: {', '.join(cells)}.\n")
    return "".join(out) or "- none.\n"
