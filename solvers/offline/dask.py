"""`fit`: the best linear model for all partitions of a Dask data set, by accelerated CoCoA+.

    min over w of  P(w) = (1/Delta) sum_i c_i Q(h_i.w; y_i) + rho |w|^2 / 2,
    w = u / (rho Delta),  u = sum_k u_k,  u_k = sum over rows i of partition k of c_i lambda_i h_i

CoCoA+: Ma, Smith, Jaggi, Jordan, Richtarik, Takac, "Adding vs. averaging in distributed primal-dual
optimization" (2015), Algorithm 1 with gamma = 1 and sigma' = K, the number of partitions. In a
round all partitions take the same u, and each makes epochs of `sdca` on its own dual variables. Its
local problem is that of `solve` with rho / K in place of rho, and u / K - u_k as the fixed part of
rows that are not given: at the current dual variables its weights are w, and a step counts K times.
So the steps of all partitions can be added.

Acceleration: Ma, Jaggi, Curtis, Srebro, Takac, "An accelerated communication-efficient primal-dual
optimization framework for structured machine learning" (2017). The local problem is that at
u + m (u - u before), m the momentum of FISTA, which restarts when the dual falls (O'Donoghue,
Candes, 2015). Rounds grow with the root of R^2 / rho instead of R^2 / rho.

Dual variables stay on the workers; u, the u_k and sums of three numbers are exchanged. A task
depends on its partition, its dual variables, u_k and u of the two rounds before, and draws random
numbers by (seed, round, partition). So Dask recomputes what a killed worker had, from the first
round on, and the result has the same bits.

The workers need `pip install 'dualstream[dask,server]'`.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from distributed import Client as Cluster

from dualstream.solvers.errors import InvalidRow, InvalidSpec, NotConverged
from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.method import Start, first_duals
from dualstream.solvers.offline.method_registry import method_of
from dualstream.solvers.offline.options import Option, with_defaults
from dualstream.solvers.offline.problem import Bounds, Problem
from dualstream.solvers.offline.solution import Progress, Solution
from dualstream.solvers.offline.solve import problem_of
from dualstream.solvers.rows.batch import Batch
from dualstream.wire.dask import cluster_of, partitions_of

METHOD = "sdca"


@dataclass(frozen=True, slots=True, eq=False)
class Fit(Solution):
    """A solution; `trace` has the certificate of each round, and `duals` is None."""

    features: tuple[str, ...] = ()
    """Names of the columns that the weights belong to; empty for partitions that are batches."""
    rows: int = 0
    """Rows with a weight above 0."""
    rounds: int = 0
    bytes_exchanged: int = 0
    """Bytes of the vectors that the workers received and returned."""

    def as_weights(self) -> dict[str, Any]:
        """Arguments of `Client.set_weights`, to serve this solution: `**best.as_weights()`."""
        weights: list[float] = self.weights.tolist()
        return {
            "weights": dict(zip(self.features, weights, strict=True)) if self.features else weights,
            "intercept": self.intercept,
            "rows": self.rows,
            "objective": self.primal,
            "gap": self.gap,
        }


class _Objective(NamedTuple):
    """The problem without its rows."""

    loss: str | Mapping[str, Any]
    rho: float
    intercept: str

    def of(self, batch: Batch) -> Problem:
        """The problem of these rows. Raises InvalidSpec, InvalidRow."""
        method = method_of(METHOD)
        return problem_of(
            batch, METHOD, method, self.loss, None, self.rho, self.intercept, None, None
        )


def fit(
    data: Any,
    label: str = "y",
    *,
    weight: str | None = None,
    loss: str | Mapping[str, Any] = "logistic",
    rho: float = 1e-3,
    intercept: str = "penalized",
    tol: float = 1e-4,
    seed: int = 0,
    local_epochs: int = 5,
    max_rounds: int = 1000,
    callback: Callable[[Progress], Any] | None = None,
    client: Cluster | None = None,
) -> Fit:
    """Minimise the mean loss of all rows plus rho |w|^2 / 2 until the gap is proved to be small.

    data          a Dask DataFrame of numbers, or delayed partitions: pandas DataFrames, or a Batch
                  each; the same rows in the same order whenever they are computed
    label         column of the labels; `weight` that of the row weights
    intercept     `none`, or `penalized`: the weight of a constant feature
    local_epochs  epochs of a partition in a round: more epochs take fewer rounds
    callback      called with a Progress in each round; returning True ends the run
    client        of the Dask cluster; by default the one that was made last

    loss, rho and tol are those of `solve`, and so is the certificate, which each round computes by
    a pass over all rows. The same arguments and partitions give the same bits. The partitions must
    fit into the memory of the cluster. Raises ValueError for data that cannot be fitted,
    InvalidSpec, InvalidRow, NotConverged.
    """
    objective = _Objective(loss, rho, intercept)
    objective.of(Batch.from_dense(np.zeros((0, 1)), []))  # raises InvalidSpec before any work
    for name, (option, value) in {
        "tol": (Option(0.0, 0.0, 1.0), tol),
        "seed": (Option(0, 0, 2**63, whole=True), seed),
        "local_epochs": (Option(1, 1, 1_000_000, whole=True), local_epochs),
        "max_rounds": (Option(0, 0, 1_000_000, whole=True), max_rounds),
    }.items():
        option.read(f"/{name}", value)
    columns = [label] if weight is None else [label, weight]
    run = _Rounds(cluster_of(client), partitions_of(data), objective, columns)
    began, trace, status = time.perf_counter(), list[Progress](), ""
    while not status:
        bounds, number = run.certify(), len(trace)
        if not math.isfinite(bounds.primal + bounds.dual + bounds.gap):
            raise NotConverged(
                f"numbers exceeded the range of float64 in round {number}:"
                f" rho = {rho:g} does not suit rows of this size"
            )
        seconds, epochs = time.perf_counter() - began, float(number * local_epochs)
        trace.append(Progress(epochs, seconds, bounds.primal, bounds.dual, bounds.gap))
        if trace[-1].relative_gap <= tol:
            status = "converged"
        elif callback is not None and callback(trace[-1]) is True:
            status = "cancelled"
        elif number == max_rounds:
            status = "max_rounds"
        else:
            run.step(seed, number, local_epochs)
    return Fit(
        run.weights[:-1].copy(),
        float(run.weights[-1]),
        bounds.primal,
        bounds.dual,
        bounds.gap,
        epochs,
        status,
        "cocoa",
        trace=tuple(trace),
        features=run.features,
        rows=run.rows,
        rounds=number,
        bytes_exchanged=run.exchanged,
    )


class _Rounds:
    """The partitions and their dual variables, as futures on the workers."""

    def __init__(
        self, cluster: Cluster, parts: Sequence[Any], objective: _Objective, columns: Sequence[str]
    ) -> None:
        self._cluster, self._objective, self.exchanged = cluster, objective, 0
        numbers, count = range(len(parts)), len(parts)
        batches = self._each(_batch, cluster.compute(parts), numbers, [columns] * count)
        shapes = cluster.gather(self._each(_shape, batches))
        self.features: tuple[str, ...] = shapes[0][1]
        for number, shape in enumerate(shapes):
            if shape[:2] != shapes[0][:2]:
                raise ValueError(f"partition {number} has other columns than partition 0")
        self.rows = sum(rows for *_, rows, _ in shapes)
        self._total = sum(total for *_, total in shapes)
        if not self._total > 0.0:
            raise InvalidSpec("/data", f"{count} partitions", "rows with a weight above 0")
        # A partition without rows has no steps to add, and makes those of the others shorter.
        self._batches = [b for b, (*_, total) in zip(batches, shapes, strict=True) if total > 0.0]
        self._duals = self._each(_first_duals, self._batches)
        self.weights: Floats = np.zeros(0)
        self._parts: list[Any] = []
        """The u_k, and u: now, and in the round before."""
        self._whole: Any = None
        self._parts_before, self._whole_before = self._parts, self._whole
        self._dual, self._t, self._momentum = -math.inf, 1.0, 0.0

    def certify(self) -> Bounds:
        """The weights of the dual variables, and their bounds, by a pass over all rows."""
        objective, gather = self._objective, self._cluster.gather
        before = self._parts, self._whole
        self._parts = self._each(_weighted_sum, self._batches, self._duals)
        parts = gather(self._parts)
        whole = np.sum(parts, axis=0)
        # A task of its own, because the steps of all partitions depend on it.
        self._whole = self._cluster.submit(np.copy, whole, pure=False)
        self._parts_before, self._whole_before = before if before[0] else (self._parts, self._whole)
        scale = objective.rho * self._total
        same = self._same(self._whole, scale)
        sums = gather(self._each(_sums, self._batches, self._duals, *same))
        values, conjugates, gaps = np.sum(sums, axis=0) / self._total
        self.exchanged += sum(one.nbytes for one in (*parts, *sums)) + len(parts) * whole.nbytes
        self.weights = whole / scale
        norm = 0.5 * objective.rho * float(np.sum(self.weights * self.weights))
        bounds = Bounds(float(values) + norm, -float(conjugates) - norm, float(gaps))
        # The momentum of FISTA. A lower dual restarts it.
        if bounds.dual < self._dual:
            self._t = 1.0
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * self._t * self._t))
        self._momentum, self._t = (self._t - 1.0) / following, following
        self._dual = bounds.dual
        return bounds

    def step(self, seed: int, number: int, epochs: int) -> None:
        """One round of steps on the dual variables of all partitions."""
        count = len(self._batches)
        seeds = [(seed, number, index) for index in range(count)]
        same = (self._whole, self._whole_before, self._momentum, self._total, count, epochs)
        parts = self._parts, self._parts_before
        self._duals = self._each(
            _step, self._batches, self._duals, *parts, *self._same(*same), seeds
        )

    def _same(self, *arguments: Any) -> list[list[Any]]:
        """Columns of `_each` that are the same for all partitions."""
        return [[one] * len(self._batches) for one in arguments]

    def _each(self, work: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
        """A future of each partition: its work on the problem and on its element of each column."""
        return [
            self._cluster.submit(work, self._objective, *arguments, pure=False)
            for arguments in zip(*columns, strict=True)
        ]


# -- tasks on the workers --------------------------------------------------------------------------


def _batch(
    objective: _Objective, part: Any, number: int, columns: Sequence[str]
) -> tuple[Batch, tuple[str, ...]]:
    """The rows of a partition, and the names of its features."""
    try:
        batch, names = (part, ()) if isinstance(part, Batch) else _of_frame(part, columns)
        objective.of(batch)
    except ValueError as wrong:
        raise ValueError(f"partition {number}: {wrong}") from wrong
    except InvalidRow as wrong:
        raise InvalidRow(wrong.row, f"{wrong.reason}, in partition {number}") from wrong
    return batch, names


def _of_frame(frame: Any, columns: Sequence[str]) -> tuple[Batch, tuple[str, ...]]:
    """The rows and names of features of a pandas DataFrame. Raises ValueError."""
    if not (hasattr(frame, "iloc") and hasattr(frame, "columns")):
        raise ValueError(f"it must be a pandas DataFrame or a Batch, got {frame!r:.60}")
    counts = Counter(map(str, frame.columns))
    for name in columns:
        if name not in frame.columns:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(counts)}")
    for name, count in counts.items():
        if count > 1:
            raise ValueError(f"{count} columns are named {name!r}; give each its own name")
    for name, kind in frame.dtypes.items():
        # numpy converts times to nanoseconds, and texts of digits to numbers.
        if len(frame) and kind.kind not in "biuf":
            raise ValueError(
                f"column {name!r} has the type {kind}; the label, the weight and all features must"
                " be numbers or booleans: drop or encode the others"
            )
    names = [name for name in frame.columns if name not in columns]
    label, *weight = (frame[name].to_numpy(np.float64) for name in columns)
    x = frame[names].to_numpy(np.float64)
    for name, is_good in zip(names, np.isfinite(x).all(axis=0), strict=True):
        if not is_good:
            raise ValueError(f"column {name!r} has missing or infinite values; fill or drop them")
    return Batch.from_dense(x, label, *weight), tuple(map(str, names))


def _shape(
    objective: _Objective, rows: tuple[Batch, tuple[str, ...]]
) -> tuple[int, Any, int, float]:
    """Width, names of the features, number of rows that count, and weight of all rows."""
    batch, features = rows
    counted = int(np.count_nonzero(batch.weights > 0.0))
    return batch.dim, features, counted, objective.of(batch).total


def _first_duals(objective: _Objective, rows: tuple[Batch, Any]) -> Floats:
    """(n,) zeros, or the nearest dual variables that the loss permits."""
    return first_duals(objective.of(rows[0]), Start())


def _weighted_sum(objective: _Objective, rows: tuple[Batch, Any], duals: Floats) -> Floats:
    """(dim + 1,) u_k of a partition."""
    return objective.of(rows[0]).weighted_sum(duals)


def _sums(
    objective: _Objective, rows: tuple[Batch, Any], duals: Floats, whole: Floats, scale: float
) -> Floats:
    """(3,) sums of the losses, conjugates and terms of the gap of a partition."""
    return objective.of(rows[0]).sums(whole / scale, duals)


def _step(
    objective: _Objective,
    rows: tuple[Batch, Any],
    duals: Floats,
    part: Floats,
    part_before: Floats,
    whole: Floats,
    whole_before: Floats,
    momentum: float,
    total: float,
    count: int,
    epochs: int,
    seed: Sequence[int],
) -> Floats:
    """(n,) the dual variables of a partition after epochs on its local problem.

    part, whole, momentum   u_k, u and m; part_before and whole_before are of the round before
    total, count            Delta, and K
    """
    problem = objective.of(rows[0])
    point = whole + momentum * (whole - whole_before)
    point_part = part + momentum * (part - part_before)
    local = Problem(
        problem.batch,
        problem.labels,
        problem.loss,
        objective.rho / count,
        objective.intercept,
        fixed=point / count - point_part,
        total=total,
    )
    with np.errstate(all="ignore"):  # numbers out of range are detected in the bounds
        run = method_of(METHOD).begin(
            local, Start(duals), with_defaults(METHOD, {}), np.random.default_rng(seed)
        )
        for _ in range(epochs):
            if not run.advance():
                break
    assert run.duals is not None
    return np.where(problem.batch.weights > 0.0, run.duals, 0.0)
