"""Segments: what they cost a row. `python -m load_tests.segments` prints a table."""

import time

import numpy as np

from dualstream.solvers import make_learner, resolve_spec
from dualstream.solvers.evaluation.segments.sums import SegmentSums
from load_tests.column_profile import accepted, mixed

ROWS, ROUNDS = 3_000, 20
NAMES = [f"kind{j}" for j in range(7)]
COLUMNS = {"types": dict.fromkeys(NAMES, "category")}


def cost() -> None:
    """CPU time of a row with 7 numbers and 7 categories, in bulk and alone."""
    batch, _ = mixed(ROWS, np.random.default_rng(0))
    names = [(10 + 10 * j + value, f"kind{j}={value}") for j in range(7) for value in range(8)]
    learner = make_learner(resolve_spec({}))
    print("| rows at once | columns | us a row | ratio to the default model |\n|---|---|---|---|")
    for size in (ROWS, 1):
        pieces = [batch[at : at + size] for at in range(0, ROWS, size)][:500]
        outcomes, rows = accepted(size), size * len(pieces)
        began = time.process_time()
        for piece in pieces:
            learner.learn(piece)
        learning = time.process_time() - began
        for columns in (1, 4):
            sums = SegmentSums(resolve_spec({"columns": COLUMNS, "segments": NAMES[:columns]}))
            sums.add_names(names, 1, 0)
            least = float("inf")
            for _ in range(ROUNDS):
                began = time.process_time()
                for piece in pieces:
                    sums.count(piece, outcomes, 1)
                least = min(least, time.process_time() - began)
            shown = f"{1e6 * least / rows:.3f} | {least / learning:.3f}"
            print(f"| {size:,} | {columns} | {shown} |")


if __name__ == "__main__":
    cost()
