"""Profile of the columns: its cost, false alarms on stationary columns, and delay of detection.

`python -m load_tests.column_profile` prints three tables. The peer of the cost is the default
model, which learns the same rows in the same run.
"""

import time

import numpy as np
import numpy.typing as npt

from dualstream.solvers import Batch, Outcome, make_learner, resolve_spec
from dualstream.solvers.profile import ColumnProfile

Floats = npt.NDArray[np.float64]
NAMED = resolve_spec({})
ROWS, ROUNDS = 3_000, 5
WIDTH = 1 << 18


def accepted(rows: int) -> Outcome:
    return Outcome(np.zeros(rows), np.zeros(rows), np.zeros(rows, bool), np.zeros(rows, bool))


def mixed(rows: int, random: np.random.Generator) -> tuple[Batch, ColumnProfile]:
    """Rows of seven numbers and seven categories, and a profile that knows their names."""
    names = [(j, f"number{j}") for j in range(7)]
    names += [(10 + 10 * j + value, f"kind{j}={value}") for j in range(7) for value in range(8)]
    indices = np.empty((rows, 14), np.int32)
    values = np.ones((rows, 14))
    indices[:, :7], values[:, :7] = np.arange(7), random.normal(size=(rows, 7))
    indices[:, 7:] = 10 + 10 * np.arange(7) + random.integers(0, 8, (rows, 7))
    ends = np.arange(0, 14 * rows + 1, 14)
    labels = random.choice([-1.0, 1.0], rows)
    batch = Batch(ends, indices.ravel(), values.ravel(), labels, np.ones(rows), WIDTH)
    profile = ColumnProfile(NAMED)
    profile.add_names(names, 1, 0)
    return batch, profile


def cost() -> None:
    """CPU time of a row, in bulk and alone, and its ratio to learning."""
    batch, profile = mixed(ROWS, np.random.default_rng(0))
    learner = make_learner(NAMED)
    print(
        "| rows at once | profile, us a row | default model, us a row | ratio |\n|---|---|---|---|"
    )
    for size in (ROWS, 1):
        pieces = [batch[at : at + size] for at in range(0, ROWS, size)][:500]
        outcomes, rows = accepted(size), size * len(pieces)
        seconds: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            began = time.process_time()
            for piece in pieces:
                profile.count(piece, outcomes, 1)
            between = time.process_time()
            for piece in pieces:
                learner.learn(piece)
            for side, spent in zip(
                seconds, (between - began, time.process_time() - between), strict=True
            ):
                side.append(1e6 * spent / rows)
        own, peer = np.median(seconds, axis=1).tolist()
        ratio = float(np.median(np.divide(*seconds)))
        print(f"| {size:,} | {own:.2f} | {peer:.1f} | {ratio:.1%} |", flush=True)


def indices_over_time(columns: Floats, every: int) -> Floats:
    """Stability index of each column after every `every` rows: (rows / every, columns)."""
    spec = resolve_spec({"features": {"kind": "indexed", "dim": columns.shape[1]}})
    profile, indices = ColumnProfile(spec), []
    for first in range(0, len(columns), every):
        rows = columns[first : first + every]
        profile.count(Batch.from_dense(rows, np.ones(len(rows))), accepted(len(rows)), first + 1)
        at = np.full(columns.shape[1], np.nan)
        at[[int(name) - 1 for name in profile.column_names()]] = profile.indices()
        indices.append(at)
    return np.array(indices)


def false_alarms() -> None:
    """Stationary columns, whose index is read every 100 rows."""
    random, rows = np.random.default_rng(1), 50_000
    shares = np.linspace(0.01, 0.9, 25)
    kinds = {
        "normal": random.normal(size=(rows, 25)) + 7.0,
        "exponential": random.exponential(size=(rows, 25)),
        "Poisson": random.poisson(3.0, (rows, 25)).astype(float),
        "1 to 90 % present": (random.random((rows, 25)) < shares)
        * random.integers(1, 20, (rows, 25)).astype(float),
    }
    print("\n| 25 columns of 50,000 rows | indices read | largest | >= 0.1 | >= 0.25 |")
    print("|---|---|---|---|---|")
    for kind, columns in kinds.items():
        read = indices_over_time(columns, 100)
        read = read[~np.isnan(read)]
        over = [np.count_nonzero(read >= limit) for limit in (0.1, 0.25)]
        print(f"| {kind} | {len(read):,} | {read.max():.3f} | {over[0]} | {over[1]} |", flush=True)


def delays() -> None:
    """Rows from a shift of 40 normal columns to the limits, after 20,000 rows."""
    random = np.random.default_rng(2)
    print("\n| shift, standard deviations | rows to 0.1: median, most | to 0.25 |\n|---|---|---|")
    for shift in (0.5, 1.0, 2.0):
        columns = random.normal(size=(26_000, 40))
        columns[20_000:] += shift
        after = indices_over_time(columns, 50)[400:]
        cells = []
        for limit in (0.1, 0.25):
            reached = after >= limit
            rows = 50 * (reached.argmax(axis=0) + 1)[reached.any(axis=0)]
            missed = 40 - len(rows)
            text = f"{np.median(rows):,.0f}, {rows.max():,}" if len(rows) else "never"
            cells.append(text + (f" ({missed} columns never)" if missed and len(rows) else ""))
        print(f"| {shift} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    cost()
    false_alarms()
    delays()
