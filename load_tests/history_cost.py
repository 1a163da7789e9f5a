"""CPU time of history columns alone, in batches; writes a section of docs/internals/history.md.

python -m load_tests.history_cost
"""

import time
from typing import Any

import numpy as np

from dualstream.solvers import Batch, resolve_spec
from dualstream.solvers.history.columns import HistoryColumns
from dualstream.solvers.rows.columns.inputs import Inputs, inputs_of
from load_tests.markdown import DOCS, table
from load_tests.sections import with_section

PAGE = DOCS / "internals/history.md"
ROWS, BATCHES, OWN, BITS = 1000, 1200, 5, 18
FIRST, GAP_S = 1_704_067_200.0, 1.0
GROUP: dict[str, Any] = {
    "time": "at",
    "of": "amount",
    "stats": ["count", "mean", "difference", "since"],
    "half_life": ["1h", "1d", "30d"],
}
ABOUT = f"""`python -m load_tests.history_cost` times the columns alone, without model, journal and
HTTP: batches of {ROWS:,} rows with {OWN} features, uniform keys, and groups of `count`, `mean`,
`difference` and `since` with three half-lives, which is 10 columns a group. *us* is the least time
of a row in {BATCHES // 2} batches, after as many that filled the table. Tables of 4 groups with
1,000,000 keys each are above the limit of a model.

"""


def spec_of(groups: int, keys: int) -> dict[str, Any]:
    by = [f"key{at}" for at in range(groups)]
    types = dict.fromkeys(by, "ignore") | {"at": "time", "amount": "number"}
    history = [GROUP | {"by": one, "keys": keys} for one in by]
    return resolve_spec({"columns": {"types": types}, "history": history})


def batch(inputs: Inputs, keys: int, start: float, draw: np.random.Generator) -> Batch:
    """Rows with features 0 to OWN - 1, keys, time and value."""
    count = len(inputs.keys)
    numbers = [
        draw.normal(size=(ROWS, OWN)),
        1.0 + draw.integers(0, keys, (ROWS, count)) * 0x9E3779B97F4A7 % 2**53,
        start + np.sort(draw.uniform(0, ROWS * GAP_S, (ROWS, 1)), axis=0),
        draw.uniform(1, 100, (ROWS, 1)),
    ]
    entries = [*range(OWN), *range(inputs.width, inputs.row_width)]
    return Batch(
        np.arange(ROWS + 1, dtype=np.int64) * len(entries),
        np.tile(np.array(entries, np.int32), ROWS),
        np.concatenate(numbers, axis=1).ravel(),
        draw.choice([-1.0, 1.0], ROWS),
        np.ones(ROWS),
        inputs.row_width,
    )


def micros(groups: int, keys: int) -> float:
    """Least time of a learned row, in us."""
    spec, draw = spec_of(groups, keys), np.random.default_rng(1)
    inputs, times = inputs_of(spec), []
    stage = HistoryColumns(spec["history"], inputs, BITS, spec["task"])
    for number in range(BATCHES):
        rows = batch(inputs, keys, FIRST + number * ROWS * GAP_S, draw)
        began = time.perf_counter()
        stage.learn(rows)
        times.append(time.perf_counter() - began)
    return 1e6 * min(times[BATCHES // 2 :]) / ROWS


def main() -> None:
    lines = []
    for keys in (1000, 65_536, 1_000_000):
        four = f"{micros(4, keys):.2f}" if keys < 1_000_000 else ""
        lines.append((f"{keys:,}", f"{micros(1, keys):.2f}", four))
        print(*lines[-1], sep=" | ", flush=True)
    text = ABOUT + table(("keys", "1 group: us", "4 groups: us"), lines)
    PAGE.write_text(with_section(PAGE.read_text(), "CPU time of the columns", [text.rstrip()]))


if __name__ == "__main__":
    main()
