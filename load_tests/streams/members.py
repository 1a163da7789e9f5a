"""python -m load_tests.streams.members [shares] [late] [cost] prints tables of portfolio.md.

shares: which members of `eight` have the largest weight, by stream. late: each member alone, and
O-DCA with smaller steps, with late labels. cost: CPU time of a row. Without an argument: all three.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers import Batch
from dualstream.solvers.portfolio.presets import EIGHT, PRIOR
from load_tests.markdown import table
from load_tests.streams import data
from load_tests.streams.ours import Ours, learner
from load_tests.streams.prequential import scores

PARTS = 50
SHOWN = 3
LATE = ("elec2", "a9a")
DELAY = 100
STEADIER = (30.0, 100.0, 300.0, 1000.0)
REPEATED = 7


def main() -> None:
    for name in sys.argv[1:] or TABLES:
        print(TABLES[name]())


def of_shares() -> str:
    lines = [(name, *winners(name)) for name in data.FILES]
    return table(("stream", "mean share along the stream", "share at the end"), lines)


def of_late() -> str:
    results = {name: late(name) for name in LATE}
    rows = [(spec, *(cell for name in LATE for cell in results[name][spec])) for spec in specs()]
    heads = [f"{name}, {when}" for name in LATE for when in ("at once", f"{DELAY} rows late")]
    return table(("specification", *heads), rows)


def of_cost() -> str:
    batch = data.stream("a9a")
    models = {"`eight`": {}, "`twelve`": {"members": "twelve"}, "`papers`": {"members": "papers"}}
    models["`ten`"] = {"task": "regression"}
    models["`dual_ascent`, strength 30"] = duals(30.0)
    lines = []
    for title, spec in models.items():
        best = min(seconds({"algorithm": "portfolio", **spec}, batch) for _ in range(REPEATED))
        lines.append((title, f"{1e6 * best / len(batch):.1f}"))
    return table(("members", "microseconds a row"), lines)


def seconds(spec: Mapping[str, Any], batch: Batch) -> float:
    model = learner(spec, batch)
    began = time.process_time()
    model.learn(batch)
    return time.process_time() - began


def winners(name: str) -> tuple[str, str]:
    """The largest shares: the mean over fifty points of the stream, and the last one."""
    batch = data.stream(name)
    model = learner({"algorithm": "portfolio", "members": "eight"}, batch)
    along = np.zeros(len(EIGHT))
    for first, last in zip(*ends(len(batch)), strict=True):
        model.learn(batch[first:last])
        shares = np.array([view.weight for view in model.members()])
        along += shares / PARTS
    return largest(along), largest(shares)


def ends(rows: int) -> tuple[list[int], list[int]]:
    """Begin and end of each part."""
    cuts = np.linspace(0, rows, PARTS + 1).astype(int).tolist()
    return cuts[:-1], cuts[1:]


def largest(shares: np.ndarray) -> str:
    order = np.argsort(-shares)[:SHOWN]
    return ", ".join(f"{EIGHT[index]['name']} {shares[index]:.0%}" for index in order)


def late(name: str) -> dict[str, tuple[str, str]]:
    """Percent of mistakes by specification, with immediate and with late labels."""
    batch = data.stream(name)
    results = {}
    for title, spec in specs().items():
        wrong = [
            (scores(Ours(spec, batch), len(batch), delay) >= 0.0) != (batch.labels > 0.0)
            for delay in (0, DELAY)
        ]
        now, then = (f"{100.0 * row.mean():.2f}" for row in wrong)
        results[title] = (now, then)
    return results


def specs() -> Mapping[str, Mapping[str, Any]]:
    """Ours, each member alone, and O-DCA with smaller and smaller steps."""
    alone = {
        f"`{member['name']}` alone": {"algorithm": "portfolio", "members": [member]}
        for member in EIGHT
        if member is not PRIOR
    }
    steadier = {f"`dual_ascent`, strength {c:g}": duals(c) for c in STEADIER}
    return {"`eight`": {"algorithm": "portfolio", "members": "eight"}, **alone, **steadier}


def duals(strength: float) -> dict[str, Any]:
    fields = {"loss": "logistic", "strength": strength, "scaling": "balanced", "average": None}
    return {"algorithm": "dual_ascent", **fields}


TABLES = {"shares": of_shares, "late": of_late, "cost": of_cost}


if __name__ == "__main__":
    main()
