"""python -m load_tests.streams.classes writes the tables of several classes in nonlinear.md.

Errors of the learners that score all classes at once, on scikit-learn's digits and River's streams;
and time and memory by the number of classes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from river.datasets import ImageSegments, synth
from sklearn.datasets import load_digits

from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.rows.class_names import class_indices, class_text
from load_tests.markdown import DOCS, table
from load_tests.sections import with_section
from load_tests.streams.generators import dense_rows

GUIDE = DOCS / "guides/nonlinear.md"
ROWS, PIECE = 20_000, 1000

GENERATORS: Mapping[str, Callable[[], Iterator]] = {
    "image segments": lambda: ImageSegments().take(ROWS),
    "LED": lambda: synth.LED(seed=1, noise_percentage=0.1).take(ROWS),
    "waveform": lambda: synth.Waveform(seed=1).take(ROWS),
    "RandomRBF": lambda: synth.RandomRBF(1, 1, 5, 10, 50).take(ROWS),
    "RandomRBFDrift": lambda: synth.RandomRBFDrift(1, 1, 5, 10, 50, 0.001, 10).take(ROWS),
    "RandomTree": lambda: synth.RandomTree(1, 1, n_classes=4).take(ROWS),
}
MODELS: Mapping[str, dict[str, Any]] = {
    "`boosted`": {"algorithm": "boosted"},
    "`net`": {"algorithm": "net"},
    "`neighbours`": {"algorithm": "neighbours"},
    "`full`": {"members": "full"},
}
NUMBERS, RUNS = (2, 10, 100), 5


def main() -> None:
    text = with_section(GUIDE.read_text(), "Errors of several classes", of_streams())
    GUIDE.write_text(with_section(text, "Cost of many classes", of_numbers()))


def learned(spec: Mapping[str, Any], batch: Batch) -> tuple[float, float, Any]:
    """The percentage of wrong rows, microseconds of CPU for a row, and the learner."""
    features = {"kind": "indexed", "dim": batch.dim}
    model = make_learner(resolve_spec({"task": "multiclass", "features": features, **spec}))
    wrong, began = 0, time.process_time()
    for at in range(0, len(batch), PIECE):
        rows = batch[at : at + PIECE]
        out = model.learn(rows)
        labels = [None if index < 0 else out.classes[index] for index in out.predicted]
        own = [rows.classes[int(label)] for label in rows.labels]
        wrong += sum(a != b for a, b in zip(labels, own, strict=True))
    spent = time.process_time() - began
    return 100.0 * wrong / len(batch), 1e6 * spent / len(batch), model


def of_streams() -> list[str]:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    streams = {"digits, shuffled": batch_of(digits.data[order], digits.target[order])}
    for name, samples in GENERATORS.items():
        rows = list(samples())
        streams[name] = batch_of(dense_rows(x for x, _ in rows), [str(y) for _, y in rows])
    lines = []
    for name, batch in streams.items():
        cells, times = [], []
        for spec in MODELS.values():
            error, us, _ = learned(spec, batch)
            cells.append(f"{error:.2f}")
            times = [f"{us:.0f}"]  # of `full`, the last
        sizes = (f"{len(batch):,}", f"{len(batch.classes)}", f"{batch.dim}")
        lines.append((name, *sizes, *cells, *times))
    heads = ("stream", "rows", "classes", "columns", *MODELS, "us a row, `full`")
    return [
        "Percentage of rows predicted wrong, each before it is learned, by one learner for all",
        "classes. Times are CPU time of `full` in bulk.",
        "`python -m load_tests.streams.classes`",
        "",
        table(heads, lines).rstrip("\n"),
    ]


def batch_of(x: np.ndarray, labels: Any) -> Batch:
    indices, names = class_indices([class_text(str(label)) for label in labels])
    return Batch.from_dense(np.asarray(x, float), indices).with_labels(indices, names)


def of_numbers() -> list[str]:
    lines = []
    for name, spec in {"`eight`": {"members": "eight"}, **MODELS}.items():
        cells = []
        for classes in NUMBERS:
            runs = [learned(spec, clusters(classes))[1:] for _ in range(RUNS)]
            cost, model = min(runs, key=lambda run: run[0])
            size = sum(array.nbytes for array in model.state().values())
            cells.append(f"{cost:.0f} us, {size / 1e6:.1f} MB")
        lines.append((name, *cells))
    return [
        "CPU time of a row, the least of five runs, and size of the state after 5,000 rows of 10",
        "columns, of which those that bring a class are a part.",
        "`python -m load_tests.streams.classes`",
        "",
        table(("model", *(f"{n} classes" for n in NUMBERS)), lines).rstrip("\n"),
    ]


def clusters(classes: int) -> Batch:
    """Rows near one of three centres of their class."""
    rng = np.random.default_rng(0)
    own = rng.integers(0, 3 * classes, 5000)
    x = rng.normal(size=(3 * classes, 10))[own] + 0.3 * rng.normal(size=(5000, 10))
    return batch_of(x, own % classes)


if __name__ == "__main__":
    main()
