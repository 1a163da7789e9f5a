"""python -m load_tests.intervals writes docs/internals/intervals.md.

Coverage and size of the intervals and sets of the default model, on the regression streams, the
files with published results and the streams of classes. It needs DUALSTREAM_DATA.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dualstream import solvers
from dualstream.solvers import Batch, Outcome, make_learner, resolve_spec
from dualstream.solvers.evaluation.intervals import kernels
from dualstream.solvers.evaluation.intervals.calibration import Calibration
from dualstream.solvers.jit import Flags, Floats
from load_tests.markdown import DOCS, table
from load_tests.measure import processors
from load_tests.records import files
from load_tests.regression import data, runs
from load_tests.streams import classes, compared
from load_tests.streams.generators import dense_rows

LEVELS = (0.8, 0.9, 0.95)
LONG, WORST, PIECE = 5000, 500, 1000
CLASS_ROWS = 20_000
BINARY = (
    "a9a", "ijcnn1", "ijcnn1, flipped", "phishing", "elec2", "pageblocks", "rcv1_small",
    "SEA, a tenth of the labels wrong", "Agrawal, function 1", "RandomTree", "Hyperplane, turning",
)  # fmt: skip
NO_FLAGS, NOTHING_SERVED = np.empty(0, np.bool_), np.empty((0, 0))

HEAD = """\
# Intervals and sets, measured

Written by `DUALSTREAM_DATA=... python -m load_tests.intervals` (numeric identity `{identity}`).
Do not edit. [Intervals and sets](../guides/intervals.md) is the guide.

## The rule

Let r be the residual of a row: |label - score| of a number, -log of the probability of the right
class otherwise, which has the order of one minus the probability. Its threshold q is number
ceil((k + 1)(1 - a)) of the last k <= {window:,} residuals in ascending order, at most the largest
one. A row is missed if r > q, and after each row with a threshold

    a  <-  a + {step} ((1 - level) - missed),    a = 1 - level at first.

With a <= 0 the threshold is infinite, with a >= 1 every row is missed. So a
stays in [-{step}, 1 + {step}]. After T rows its sum says that the share of missed rows differs
from 1 - level by at most (max(level, 1 - level) + {step}) / ({step} T), whatever the residuals
are (Gibbs and Candes 2021, proposition 4.1). Tests check the bound on doubling, constant and
alternating residuals, and on random ones. Thresholds begin after {least} residuals.

The step and the number of residuals were chosen on the {seen} streams that the regression
portfolio was chosen on; the others were measured once. A step of .02 was no better. Windows of 400
to 2,000 rows and steps of .005 to .015 have mean widths of 1.057 to 1.077 at 90 %, in no order, and
a difference on the chosen streams is not one on the others. With residuals
divided by the mean of the last 50 to 200, coverage of the worst {worst} rows rises by half a point,
and intervals are 3 to 5 % wider, without limit where residuals become 0.

## Numbers

Of the default model (`full`). *Worst* is the coverage of the worst {worst} consecutive rows.
*Width* is the mean width of bounded intervals over that of the one interval for all rows that has
the wanted coverage in hindsight. Row 1 is left out.
"""
CLASSES = """
## Classes

Of the default model, on the first {rows:,} rows. *Right* is the share of rows that are predicted
right. *Size* is the mean number of classes in a set. A set has the predicted class, so where the
model is right more often than the level, coverage is higher, too.
"""
COST = """
## Cost

CPU time of a learned row in bulk, on {machine}, with {n} levels and with one. A call of one row
takes {call:.1f} us more.
"""


class Judged(NamedTuple):
    """What one stream had at one level: thresholds (n,), covered rows, and sizes where bounded."""

    thresholds: Floats
    covered: Flags
    mean_size: float
    unbounded: int


class Figures(NamedTuple):
    """Of one stream at one level, in percent and ratios."""

    rows: int
    coverage: float
    worst: float
    size: float
    unbounded: int


def indexed(task: str, batch: Batch) -> Mapping[str, Any]:
    """The default model of these rows."""
    features = {"kind": "indexed", "dim": batch.dim}
    levels = {"intervals": {"coverage": list(LEVELS)}}
    return resolve_spec({"task": task, "features": features, **levels})


def learned(batch: Batch, spec: Mapping[str, Any]) -> Outcome:
    """Scores of all rows, each from before it was learned."""
    learner = make_learner(spec)
    pieces = range(0, len(batch), PIECE)
    return Outcome.joined([learner.learn(batch[at : at + PIECE]) for at in pieces])


def judged(task: str, batch: Batch, outcome: Outcome) -> list[Judged]:
    """The rows as a server judges them, one by one."""
    calibration, n = Calibration(task, LEVELS), len(batch)
    thresholds, covered = np.empty((n, len(LEVELS))), np.zeros((n, len(LEVELS)), np.bool_)
    before = np.zeros(len(LEVELS), np.int64)
    for row in range(n):
        thresholds[row] = calibration.thresholds()
        one = slice(row, row + 1)
        calibration.learn(batch[one], outcome[one], NO_FLAGS, NOTHING_SERVED)
        now = np.array([figures.covered for figures in calibration.figures()])
        covered[row], before = now > before, now
    return [
        Judged(thresholds[:, k], covered[:, k], one.mean_size or 0.0, one.unbounded)
        for k, one in enumerate(calibration.figures())
    ]


def figures_of(one: Judged, size: float) -> Figures:
    """`size` is that of a bounded row."""
    covered = one.covered[~np.isnan(one.thresholds)].astype(float)
    worst = np.nan
    if len(covered) >= WORST:
        sums = np.cumsum(np.concatenate(([0.0], covered)))
        worst = 100.0 * float((sums[WORST:] - sums[:-WORST]).min()) / WORST
    return Figures(len(covered), 100.0 * float(covered.mean()), worst, size, one.unbounded)


def of_numbers(spec: Mapping[str, Any], batch: Batch) -> list[Figures]:
    """At each level, without the first row."""
    outcome = learned(batch, spec)
    batch, outcome = batch[1:], outcome[1:]
    residuals = np.abs(np.nan_to_num(outcome.scores) - batch.labels)
    figures = []
    for level, one in zip(LEVELS, judged("regression", batch, outcome), strict=True):
        hindsight = 2.0 * float(np.quantile(residuals[~np.isnan(one.thresholds)], level))
        figures.append(figures_of(one, one.mean_size / hindsight if hindsight else np.nan))
    return figures


def number_streams() -> Iterator[tuple[str, str, Mapping[str, Any], Batch]]:
    """(group, name, specification, rows) of all streams of numbers."""
    for group, names in (("chosen on", runs.seen()), ("new", runs.unseen())):
        for name in names:
            batch = data.as_batch(runs.load(name))
            yield group, name, indexed("regression", batch), batch
    for name in files.PUBLISHED:
        rows = files.read(name)
        spec = resolve_spec({"task": "regression", **rows.declared()})
        yield "published", name, spec, rows.batch(spec)


def class_streams() -> Iterator[tuple[str, str, Batch]]:
    """(name, task, rows) of the streams of classes."""
    streams = compared.all_streams()
    for name in BINARY:
        if name in streams:
            yield name, "binary", streams[name]()[:CLASS_ROWS]
    for name, samples in classes.GENERATORS.items():
        rows = list(samples())
        batch = classes.batch_of(dense_rows(x for x, _ in rows), [str(y) for _, y in rows])
        distinct = f"{name}, four classes" if name in BINARY else name
        yield distinct, "multiclass", batch[:CLASS_ROWS]


def right_rows(task: str, batch: Batch, outcome: Outcome) -> float:
    """Percentage of rows that are predicted right."""
    if task == "binary":
        return 100.0 * float(np.mean((outcome.scores >= 0) == (batch.labels > 0)))
    assert outcome.predicted is not None
    names = [outcome.classes[k] if k >= 0 else "" for k in outcome.predicted.tolist()]
    labels = [batch.classes[int(label)] for label in batch.labels]
    return 100.0 * float(np.mean([one == two for one, two in zip(names, labels, strict=True)]))


def cells_of(one: Figures) -> list[str]:
    worst = "-" if np.isnan(one.worst) else f"{one.worst:.1f}"
    size = "-" if np.isnan(one.size) else f"{one.size:.3f}"
    return [f"{one.coverage:.2f}", worst, size]


def heads_of(size: str) -> list[str]:
    return [f"{100 * level:g} %: {one}" for level in LEVELS for one in ("coverage", "worst", size)]


def summary(figures: Iterable[list[Figures]]) -> str:
    """The largest deviation of long streams, the median of the worst rows, the mean width."""
    rows, streams = [], list(figures)
    for k, level in enumerate(LEVELS):
        at = [one[k] for one in streams]
        deviation = max(abs(one.coverage - 100 * level) for one in at if one.rows >= LONG)
        worst = np.nanmedian([100 * level - one.worst for one in at])
        widths = [one.size for one in at]
        mean, median = np.nanmean(widths), np.nanmedian(widths)
        unbounded = sum(one.unbounded for one in at)
        cells = (f"{deviation:.2f}", f"{worst:.1f}", f"{mean:.3f}", f"{median:.3f}", unbounded)
        rows.append((f"{100 * level:g} %", *cells))
    heads = ("level", f"largest deviation, {LONG:,} rows or more (points)")
    rest = (f"worst {WORST} rows, median stream (points below)", "width, mean", "width, median")
    return table((*heads, *rest, "unbounded rows"), rows)


def cost() -> tuple[str, float]:
    """The table of costs, and microseconds of one more call."""
    rng, n = np.random.default_rng(0), 100_000
    batch = Batch.from_dense(np.ones((n, 1)), rng.normal(size=n))
    outcome = Outcome(rng.normal(size=n), *np.zeros((1, n)), *np.zeros((2, n), np.bool_))
    of_classes = Outcome(*np.zeros((2, n)), *np.zeros((2, n), np.bool_))
    losses = -np.log(rng.dirichlet(np.ones(4), n))
    of_classes.class_losses, of_classes.predicted = losses, losses.argmin(axis=1)
    of_classes.classes = names = ('"a"', '"b"', '"c"', '"d"')
    named = batch.with_labels(rng.integers(0, 4, n).astype(float), names)
    signs = batch.with_labels(np.sign(batch.labels))
    lines = []
    for name, task, rows, out in (
        ("numbers", "regression", batch, outcome),
        ("two classes", "binary", signs, outcome),
        ("four classes", "multiclass", named, of_classes),
    ):
        lines.append((name, *(f"{us_a_row(task, rows, out, one):.2f}" for one in (LEVELS, [0.9]))))
    whole = us_a_row("regression", batch, outcome, [0.9])
    few = us_a_row("regression", batch[:5000], outcome, [0.9], piece=1)
    return table(("task", f"{len(LEVELS)} levels, us", "1 level, us"), lines), few - whole


def us_a_row(task: str, batch: Batch, outcome: Outcome, levels: Any, piece: int = 0) -> float:
    """Microseconds of CPU for a row, the least of five runs."""
    least = np.inf
    for _ in range(5):
        calibration, step = Calibration(task, levels), piece or len(batch)
        pieces = [slice(at, at + step) for at in range(0, len(batch), step)]
        parts = [(batch[one], outcome[one]) for one in pieces]
        began = time.process_time()
        for rows, out in parts:
            calibration.learn(rows, out, NO_FLAGS, NOTHING_SERVED)
        least = min(least, time.process_time() - began)
    return 1e6 * least / len(batch)


def main() -> None:
    groups: dict[str, dict[str, list[Figures]]] = {}
    for group, name, spec, batch in number_streams():
        groups.setdefault(group, {})[name] = of_numbers(spec, batch)
    parts = [
        HEAD.format(
            identity=solvers.numeric_identity(),
            window=kernels.WINDOW,
            step=f"{kernels.STEP:g}".lstrip("0"),
            least=kernels.MIN_RESIDUALS,
            worst=WORST,
            seen=len(groups["chosen on"]),
        )
    ]
    everything = [one for group in groups.values() for one in group.values()]
    parts.append(f"All {len(everything)} streams:\n\n" + summary(everything))
    fresh = [*groups["new"].values(), *groups["published"].values()]
    parts.append(f"The {len(fresh)} that nothing was chosen on:\n\n" + summary(fresh))
    lines = [
        (name, group, f"{one[0].rows:,}", *[cell for each in one for cell in cells_of(each)])
        for group, streams in groups.items()
        for name, one in streams.items()
    ]
    parts.append(table(("stream", "streams", "rows", *heads_of("width")), lines))
    parts.append(CLASSES.format(rows=CLASS_ROWS))
    lines = []
    for name, task, batch in class_streams():
        outcome = learned(batch, indexed(task, batch))
        all_judged = judged(task, batch, outcome)
        cells = [cell for one in all_judged for cell in cells_of(figures_of(one, one.mean_size))]
        right = right_rows(task, batch, outcome)
        count = len(batch.classes) or 2
        lines.append((name, f"{len(batch):,}", f"{count}", f"{right:.2f}", *cells))
    parts.append(table(("stream", "rows", "classes", "right", *heads_of("size")), lines))
    costs, call = cost()
    parts.append(COST.format(machine=processors(), n=len(LEVELS), call=call) + "\n" + costs)
    (DOCS / "internals/intervals.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
