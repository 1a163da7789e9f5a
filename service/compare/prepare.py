"""Makes the run of a comparison: learners, baselines and the peers that are installed."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from dualstream.client import BadInput
from dualstream.service.compare.baselines import baselines
from dualstream.service.compare.contestants import Contestant, OnlineLearner, waiting
from dualstream.service.compare.file_rows import FileRows
from dualstream.service.compare.frozen import Frozen
from dualstream.service.compare.options import Options
from dualstream.service.compare.peers import PEERS, Peer, PeerRows, default_peers, is_importable
from dualstream.service.compare.run import Run
from dualstream.service.compare.schedule import BLOCK, Schedule
from dualstream.solvers import Batch, InvalidSpec, make_learner, resolve_spec
from dualstream.solvers.protocols.learner import predict_waiting

NAME = "Dualstream"
ENCODING = ("task", "labels", "features", "columns", "crosses", "history")
"""Fields of a specification that determine how rows are encoded."""
SHARE_LEFT_OUT = 10
"""A saved model may have been trained on the first tenth of the rows."""
_TRIED, _TRIED_GROUPS = 2_000, 200
"""Rows and groups by which the time of a run is estimated."""


def prepare(read: FileRows, options: Options) -> tuple[Run, list[str]]:
    """The run, and which peers are left out and why. Raises BadInput."""
    options.check(bool(len(read.rows.times)))
    rows, resolved = read.rows, read.resolved()
    task = resolved["task"]
    schedule = Schedule.of(len(rows), rows.times, options)
    contestants: list[Contestant] = [
        OnlineLearner(NAME, _about(resolved), resolved, rows),
        *_learners(read, options.specs),
        *baselines(task, rows),
    ]
    matrix = PeerRows(rows, read.columns)
    names, notes = _peers(options.peers, matrix, read.why_no_table)
    if read.frozen is not None and read.frozen_columns is not None:
        frozen = Frozen(read.frozen, task, rows, read.frozen_columns, options.threads)
        contestants.append(frozen)
    for name in names:
        contestants.append(Peer(name, task, rows, matrix, schedule, options.threads))
    for saved in (one for one in contestants if isinstance(one, Frozen)):
        while sum(one.name == saved.name for one in contestants) > 1:
            saved.name += " (saved)"
    run = Run(task, rows, schedule, contestants)
    if read.frozen is not None:
        run.starts_at = _starts_at(options.frozen_from, len(rows))
    return run, notes


def _starts_at(row: int | None, rows: int) -> int:
    """The first row that counts with a saved model, from 0. Raises BadInput."""
    if row is None:
        return rows // SHARE_LEFT_OUT
    if row > rows:
        raise BadInput(f"--frozen-from {row:,} is beyond the {rows:,} rows")
    return row - 1


def _about(spec: Mapping[str, Any]) -> str:
    members = spec.get("members")
    return f"{spec['algorithm']} {members}" if isinstance(members, str) else str(spec["algorithm"])


def _learners(read: FileRows, specs: Sequence[Mapping[str, Any]]) -> list[Contestant]:
    """Learners of further specifications. Raises BadInput."""
    learners: list[Contestant] = []
    encoding = {field: read.spec[field] for field in ENCODING if field in read.spec}
    names = {NAME: 1}
    for spec in specs:
        for field in ENCODING:
            if field in spec:
                raise BadInput(f"--with must not have {field!r}: all learners get the same rows")
        try:
            resolved = resolve_spec(encoding | dict(spec))
        except InvalidSpec as error:
            raise BadInput(f"--with: {error}") from None
        about = _about(resolved)
        names[about] = names.get(about, 0) + 1
        name = about if names[about] == 1 else f"{about} {names[about]}"
        learners.append(OnlineLearner(name, _about(resolved), resolved, read.rows))
    return learners


def _peers(
    chosen: Sequence[str], matrix: PeerRows, why_no_table: str
) -> tuple[list[str], list[str]]:
    """Names of the peers that can run, and notes about the others. Raises BadInput."""
    for name in chosen:
        if name not in PEERS:
            raise BadInput(f"--peer must be one of {', '.join(PEERS)}, got {name!r}")
    wanted = list(dict.fromkeys(chosen or default_peers(matrix.width)))
    if not chosen and not matrix.is_table:
        wanted = ["lightgbm", "linear"]
    names, notes = [], []
    for name in wanted:
        kind = PEERS[name]
        if not is_importable(kind.module):
            package = "pip install 'dualstream[compare]'"
            notes.append(f"{kind.title} is left out: {kind.package} is not installed: {package}")
        elif not matrix.is_table and not kind.takes_sparse:
            notes.append(f"{kind.title} is left out: it takes tables, and {why_no_table}")
        else:
            names.append(name)
    return names, notes


def _group_rows(run: Run) -> int:
    """Rows that are learned together in the mean: late labels arrive in groups."""
    if not run.schedule.is_delayed:
        return BLOCK
    lag = float(np.mean(np.arange(len(run.rows)) - run.schedule.available))
    return min(BLOCK, max(1, int(lag / 100)))


def _row_s(spec: Mapping[str, Any], batch: Batch, group: int, is_delayed: bool) -> float:
    """Seconds a row in groups, at most _TRIED_GROUPS of them; late ones are predicted, too."""
    learner, stop = make_learner(spec), min(len(batch), group * _TRIED_GROUPS)
    begin = time.perf_counter()
    for first in range(0, stop, group):
        rows = batch[first : min(first + group, stop)]
        if is_delayed and spec["task"] == "multiclass":
            cast(Any, learner).predict_classes(rows)
        elif is_delayed:
            rows = waiting(rows, *predict_waiting(learner, rows))
        learner.learn(rows)
    return (time.perf_counter() - begin) / stop


def estimate_s(run: Run) -> float:
    """About how long the run takes, by learners and peers that are tried on the first rows."""
    count, rows = min(_TRIED, len(run.rows)), run.rows
    schedule, batch = run.schedule, run.rows.batch(0, count)
    total = 0.0
    for one in run.contestants:
        if isinstance(one, OnlineLearner):
            row_s = _row_s(one.spec, batch, _group_rows(run), schedule.is_delayed)
            total += row_s * len(rows)
        elif isinstance(one, Peer):
            train_s, predict_s = one.try_on(count)
            windows = zip(schedule.retrainings, schedule.starts, strict=True)
            sizes = [int(schedule.available[at]) - start for at, start in windows]
            total += predict_s / count * len(rows)
            total += sum(train_s * max(1.0, size / count) for size in sizes)
    return total
