"""Models for the tests of exports."""

import numpy as np

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.export import FORMATS, Source, source_of as export_source_of
from dualstream.solvers.rows.class_names import class_indices

DIM = 12
INDEXED = {"kind": "indexed", "dim": DIM}
BALANCED = {"kind": "balanced", "power": 0.25, "moments": True}
COUNTS = {"kind": "balanced", "power": 0.25, "moments": False}


def rows(n: int, seed: int, dim: int = DIM) -> np.ndarray:
    """Columns that are always there, that seldom are, one of a large mean, and one constant."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, dim)) * (rng.random((n, dim)) < np.linspace(1.0, 0.05, dim))
    x[:, 1] += 5.0
    x[:, 2] = 1.0
    return x


def batch_of(x: np.ndarray, labels=None, classes=()) -> Batch:
    """Rows as a learner takes them."""
    row, column = np.nonzero(x)
    indptr = np.searchsorted(row, np.arange(len(x) + 1))
    labels = np.zeros(len(x)) if labels is None else labels
    weights = np.ones(len(x))
    columns = (indptr.astype(np.int64), column.astype(np.int32), x[row, column])
    return Batch(*columns, labels, weights, x.shape[1], classes)


def trained(spec: dict, n: int = 400, dim: int = DIM):
    """A learner of this specification that has learned n rows."""
    learner = make_learner(spec)
    x = rows(n, 1, dim)
    noise = 0.3 * np.random.default_rng(2).standard_normal(n)
    target = x[:, 0] - 0.3 * x[:, 1] + x[:, 3] + noise + 1.5
    if spec.get("task") == "multiclass":
        names = [f'"{name}"' for name in np.digitize(target, [-0.5, 0.5])]
        labels, classes = class_indices(names)
        learner.learn(batch_of(x, labels, classes))
    elif spec.get("task") == "regression":
        learner.learn(batch_of(x, 10.0 + 3.0 * target))
    else:
        learner.learn(batch_of(x, np.where(target > 0.0, 1.0, -1.0)))
    return learner


def no_name(_: int) -> None:
    return None


def source_of(learner, member: str | None = None, name_of=no_name) -> Source:
    """What is exported of a learner."""
    return export_source_of("m", 7, '"7-00000000"', learner, member, name_of)


def exported(format: str, learner, member: str | None = None, name_of=no_name) -> bytes:
    return FORMATS[format].write(source_of(learner, member, name_of))
