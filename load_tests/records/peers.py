"""Figures of the peers, in records.json.

`MOA_JAR=... python -m load_tests.records.peers` measures those that the file lacks, and writes it
after each. Delete a peer's figures there after a change of its options.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from types import MappingProxyType

import numpy as np

from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats
from load_tests.measure import machines
from load_tests.paper_tables import data
from load_tests.records import moa, stored
from load_tests.records.files import CLASSES, NUMBERS, Numbers
from load_tests.records.stored import Figures, Records
from load_tests.regression.runs import Errors
from load_tests.streams.compared import pieces_of
from load_tests.streams.retrained import EARLY, EVERY, OPTIONS, TREES, Predict

PACKAGES = ("lightgbm", "river", "numpy")
NEWEST = 5000
OF_CLASSES = (
    "lightgbm", "lightgbm_5000", "lightgbm_last", "river_arf",
    "moa_arf_30", "moa_srp", "moa_srp_30", "moa_leveraging_bag", "moa_sgbt",
)  # fmt: skip
OF_NUMBERS: Mapping[str, tuple[int | None, bool]] = MappingProxyType(
    {
        "lightgbm": (None, False),
        "lightgbm_5000": (NEWEST, False),
        "lightgbm_last": (None, True),
        "lightgbm_5000_last": (NEWEST, True),
    }
)
"""Peer -> the newest rows that it is trained on, and whether the last target is a column."""

Train = Callable[[Numbers], Predict]
Runs = Mapping[str, Callable[[], tuple[float, ...]]]


def main() -> None:
    records = stored.read()
    records["versions"] = {package: version(package) for package in PACKAGES} | moa.VERSION
    records["machine"] = machines(records["machine"])
    for name, read in CLASSES.items():
        batch = read()
        runs = {peer: partial(of_classes, peer, batch) for peer in OF_CLASSES}
        measure_missing(records, records["classes"], name, runs)
    for name, load in NUMBERS.items():
        rows = load()
        runs = {peer: partial(of_numbers, rows, *how) for peer, how in OF_NUMBERS.items()}
        measure_missing(records, records["numbers"], name, runs)


def measure_missing(records: Records, figures: Figures, name: str, runs: Runs) -> None:
    for peer, run in runs.items():
        if peer not in figures.get(name, {}):
            stored.measure(figures, name, peer, run)
            stored.write(records)


def of_classes(peer: str, batch: Batch) -> tuple[float, float]:
    """Percent of errors; microseconds."""
    if peer in moa.LEARNERS:
        return moa.errors(peer, batch)
    if peer == "lightgbm_last":
        batch, peer = with_last_label(batch), "lightgbm"
    began = time.process_time()
    scores = np.concatenate(list(pieces_of(peer)(batch)))
    seconds = time.process_time() - began
    wrong = (scores >= 0.0) != (batch.labels > 0.0)
    return 100.0 * float(wrong.mean()), 1e6 * seconds / len(batch)


def with_last_label(batch: Batch) -> Batch:
    """The label of the row before as one more column."""
    columns = np.column_stack([data.dense(batch), last_targets(batch.labels)])
    return Batch.from_dense(columns, batch.labels)


def of_numbers(rows: Numbers, newest: int | None, has_last: bool) -> tuple[float, float, float]:
    """MAE, RMSE; microseconds."""
    began = time.process_time()
    predictions = retrained(lightgbm_numbers, rows, newest, has_last)
    seconds = time.process_time() - began
    errors = Errors.of(predictions, rows.targets)
    return errors.mae, errors.rmse, 1e6 * seconds / len(predictions)


def retrained(train: Train, rows: Numbers, newest: int | None, has_last: bool) -> Floats:
    """A model trained after rows 50, 100, 200, 300 and then every 500; the mean before that."""
    columns, targets = rows.columns, rows.targets
    if has_last:
        columns = np.column_stack([columns, last_targets(targets)])
    count = len(targets)
    predictions = np.zeros(count)
    predictions[1 : EARLY[0]] = np.cumsum(targets[: EARLY[0] - 1]) / np.arange(1, EARLY[0])
    starts = [*EARLY, *range(EVERY, count, EVERY)]
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        past = slice(max(0, start - (newest or count)), start)
        predict = train(Numbers(columns[past], rows.categories, targets[past]))
        predictions[start:end] = predict(columns[start:end])
    return predictions


def lightgbm_numbers(past: Numbers) -> Predict:
    import lightgbm

    train = lightgbm.Dataset(
        past.columns,
        past.targets,
        categorical_feature=list(past.categories),
        params={"verbose": -1},
    )
    model = lightgbm.train({**OPTIONS, "objective": "regression"}, train, TREES)
    return lambda columns: np.asarray(model.predict(columns, num_threads=1))


def last_targets(targets: Floats) -> Floats:
    """The target of the row before, 0 for row 1."""
    return np.concatenate([[0.0], targets[:-1]])


if __name__ == "__main__":
    main()
