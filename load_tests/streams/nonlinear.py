"""python -m load_tests.streams.nonlinear writes the tables of docs/guides/nonlinear.md.

Errors of the portfolios `eight` (numbers: `ten`), `fast` and `full` on whole streams, next to the
best peer of peers.json, and on River's generators. Needs DUALSTREAM_DATA.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from river.datasets import synth

from dualstream.solvers import Batch, make_learner, resolve_spec
from load_tests.markdown import DOCS, table
from load_tests.regression import data as numbers, held_out as more_numbers
from load_tests.sections import with_section
from load_tests.streams.cases import PROTOCOL
from load_tests.streams.classes import dense_rows
from load_tests.streams.held_out import GENERATED, svmguide1
from load_tests.streams.peer_figures import kept, reference
from load_tests.streams.runs import Run
from load_tests.streams.standings import standing

GUIDE = DOCS / "guides/nonlinear.md"
ROWS = 2 * GENERATED
PIECE = 1000
MOST_NUMBERS = 10_000

GENERATORS: Mapping[str, Callable[[], Iterator]] = {
    "SEA, a tenth of the labels wrong": lambda: synth.SEA(0, seed=1, noise=0.1).take(ROWS),
    "Agrawal, function 1": lambda: synth.Agrawal(1, seed=1).take(ROWS),
    "RandomRBF": lambda: synth.RandomRBF(1, 1, 2, 10, 50).take(ROWS),
    "RandomRBFDrift": lambda: synth.RandomRBFDrift(1, 1, 2, 10, 50, 0.001, 10).take(ROWS),
    "Hyperplane, turning": lambda: synth.Hyperplane(
        1, n_features=10, n_drift_features=5, mag_change=0.001, noise_percentage=0.05
    ).take(ROWS),
    "Sine": lambda: synth.Sine(2, seed=1).take(ROWS),
    "Mixed": lambda: synth.Mixed(0, seed=1).take(ROWS),
    "RandomTree": lambda: synth.RandomTree(1, 1, n_classes=2).take(ROWS),
}


def main() -> None:
    text = GUIDE.read_text()
    text = with_section(text, "Errors of classes", of_classes())
    text = with_section(text, "Errors of numbers", of_numbers())
    GUIDE.write_text(text)


def scored(batch: Batch, members: str, task: str) -> tuple[np.ndarray, float]:
    """The score of each row from before it was learned, and microseconds of CPU for a row."""
    features = {"kind": "indexed", "dim": batch.dim}
    model = make_learner(resolve_spec({"task": task, "members": members, "features": features}))
    began = time.process_time()
    parts = [model.learn(batch[at : at + PIECE]).scores for at in range(0, len(batch), PIECE)]
    return np.concatenate(parts), 1e6 * (time.process_time() - began) / len(batch)


def of_classes() -> list[str]:
    _, peers = kept()
    golden = reference()
    lines = []
    for case in PROTOCOL.values():
        found = standing(case, peers, golden)
        best = f"{found.figures()[found.best][0]:.2f} {found.best}"
        lines.append((*errors(case.name, case.read()), best))
    lines.append((*errors("svmguide1, shuffled", svmguide1(True)), ""))
    for name, samples in GENERATORS.items():
        lines.append((*errors(name, as_numbers(samples())), ""))
    heads = ("stream", "rows", "columns", "`eight`", "`fast`", "`full`", "us a row", "best peer")
    return [
        "Percentage of rows predicted wrong, each before it is learned, nothing tuned; mean",
        "log-loss in brackets. Times are CPU time of `eight`, `fast` and `full` in bulk.",
        "Peers, untuned: Vowpal Wabbit, scikit-learn and River (load_tests/streams/peers.json).",
        "`DUALSTREAM_DATA=... python -m load_tests.streams.nonlinear`",
        "",
        table(heads, lines).rstrip("\n"),
    ]


def errors(name: str, batch: Batch) -> tuple[str, ...]:
    runs, times = [], []
    for members in ("eight", "fast", "full"):
        scores, cost = scored(batch, members, "binary")
        runs.append(Run.of(scores, batch.labels, len(batch)))
        times.append(f"{cost:.1f}")
    best = min(run.mistakes for run in runs)
    cells = [
        f"{'**' if run.mistakes == best else ''}{run.mistakes:.2f}"
        f"{'**' if run.mistakes == best else ''} ({run.log_loss:.3f})"
        for run in runs
    ]
    return (name, f"{len(batch):,}", f"{batch.dim:,}", *cells, " / ".join(times))


def as_numbers(samples: Iterator) -> Batch:
    """River's samples of two classes."""
    rows = list(samples)
    labels = [1.0 if y in (1, True) else -1.0 for _, y in rows]
    return Batch.from_dense(dense_rows(x for x, _ in rows), np.array(labels))


def of_numbers() -> list[str]:
    lines, ratios = [], []
    for name, load in {**numbers.LOADERS, **more_numbers.LOADERS}.items():
        batch = numbers.as_batch(load())[:MOST_NUMBERS]
        found = [scored(batch, members, "regression")[0] for members in ("ten", "full")]
        apart = [scores[1:] - batch.labels[1:] for scores in found]
        mae = [float(np.abs(one).mean()) for one in apart]
        rmse = [math.sqrt(float((one * one).mean())) for one in apart]
        ratios.append((mae[1] / mae[0], rmse[1] / rmse[0]))
        cells = (f"{a:.4g} / {b:.4g}" for a, b in zip(mae, rmse, strict=True))
        lines.append((name, f"{len(batch):,}", *cells, *(f"{ratio:.3f}" for ratio in ratios[-1])))
    means = np.exp(np.mean(np.log(ratios), axis=0))
    lines.append(("geometric mean", "", "", "", *(f"**{mean:.3f}**" for mean in means)))
    heads = ("stream", "rows", "`ten`: MAE / RMSE", "`full`", "MAE ratio", "RMSE ratio")
    return [
        "The streams of [regression](../internals/regression.md), at most 10,000 rows. Below 1,",
        "`full` has the smaller error.",
        "",
        table(heads, lines).rstrip("\n"),
    ]


if __name__ == "__main__":
    main()
