"""Figures of the default model, and of what repeats the last label."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dualstream import solvers
from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.jit import Floats
from load_tests.measure import processors
from load_tests.records import stored
from load_tests.records.files import CLASSES, NUMBERS
from load_tests.records.peers import last_targets
from load_tests.records.stored import Records
from load_tests.regression.runs import Errors
from load_tests.streams.cases import last_label
from load_tests.streams.comparison import PIECE, of_ours

FULL, LAST_LABEL, LAST_TARGET = "full", "last label", "last target"
WARM_UP = 1000


def measure(records: Records) -> None:
    """Measure again, whatever the file has."""
    records["full"] = {"identity": solvers.numeric_identity(), "machine": processors()}
    for name, read in CLASSES.items():
        batch = read()
        records["sizes"][name] = [len(batch), batch.dim]
        of_classes(batch[:WARM_UP])
        stored.measure(records["classes"], name, FULL, partial(of_classes, batch))
        stored.measure(records["classes"], name, LAST_LABEL, partial(of_last_label, batch))
    for name, load in NUMBERS.items():
        rows = load()
        spec = resolve_spec({"task": "regression", "members": FULL, **rows.declared()})
        batch, targets = rows.batch(spec), rows.targets
        records["sizes"][name] = list(rows.columns.shape)
        of_numbers(spec, batch[:WARM_UP])
        stored.measure(records["numbers"], name, FULL, partial(of_numbers, spec, batch))
        stored.measure(records["numbers"], name, LAST_TARGET, partial(of_last, targets))


def of_last(targets: Floats) -> tuple[float, float]:
    """MAE, RMSE of the last target as the prediction."""
    errors = Errors.of(last_targets(targets), targets)
    return errors.mae, errors.rmse


def of_last_label(batch: Batch) -> tuple[float]:
    return (last_label(batch),)


def of_classes(batch: Batch) -> tuple[float, float]:
    """Percent of errors; microseconds."""
    figures = of_ours(FULL, batch)
    return figures.errors, figures.us


def of_numbers(spec: Mapping[str, Any], batch: Batch) -> tuple[float, float, float]:
    """MAE, RMSE; microseconds."""
    model = make_learner(spec)
    began = time.process_time()
    parts = [model.learn(batch[at : at + PIECE]).scores for at in range(0, len(batch), PIECE)]
    seconds = time.process_time() - began
    errors = Errors.of(np.concatenate(parts), batch.labels)
    return errors.mae, errors.rmse, 1e6 * seconds / len(batch)
